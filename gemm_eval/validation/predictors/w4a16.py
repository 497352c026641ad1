"""Our W4A16 kernels: timings of configs, the fit of their model, its calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, RasterOrder, Schedule
from gemm_eval.models.gpu import (
    BEST_RASTER,
    GPU_COST_DTYPE,
    GPU_MODEL_VERSION,
    KERNEL_COST_DTYPE,
    Calibration,
    Coefficient,
    ErrorFigures,
    Joined,
    Times,
    coefficients_for,
    fit_intervals,
    join_packed,
    pack_gpu,
    pack_w4a16_coefficients,
)
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES, w4a16_types
from gemm_eval.search import OF_OURS, run_in_chunks
from gemm_eval.validation.fit import MIN_ROWS, Ranges, Search, cross_fit, fit_logs, provenance, rounded, sha256_of
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.tables import measured_root, meta_of, read_columns
from gemm_eval.validation.timings import Floats, Form, Ints, Mask, Timings
from gemm_eval.words import shown
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, RunOptions, problem_of

_GEMM = ["input_dtype", "M", "K", "N", "mode", "group_size"]
_NEEDED = (
    *_GEMM, "latency_us", "input_dtype", "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps",
    "num_stages", "schedule", "decomposition", "split_k", "raster_order", "raster_swizzle",
)  # fmt: skip
_CONFIG = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle", "cluster_k",
)  # fmt: skip
_SPLIT_BY_CLUSTERS = "w4a16_sm90_cluster"


_COMPLAINT = ": a table of kernels of ours needs the columns {}; gemm-eval measure --kernel w4a16 writes them"

NEAR_BEST = 1.5
"""Rows are near the best of their GEMM up to this many times its least measured latency."""

_INTERRUPTED = 100.0
"""Times the best of its GEMM beyond which a single replay tells of no kernel: of 38,000 others none takes 54 times."""

W4A16_FORM = Form(tuple(_GEMM), "family", W4A16_FAMILIES, NEAR_BEST)
"""A row is a config of a kernel of ours; errors are told apart by family."""

_STREAM_K_PLACE = (1 << 16) - 1  # after all numbers of parts


@dataclass(frozen=True, eq=False)
class W4A16Rows:
    """The configs of rows; see `Packing`.

    Attributes:
        packed: our kernels for all types, as the numba searches take them.
        type_of: [rows], place in `packed`.
        which: [rows, 2] of place in `packed.candidates` and parts of K, 0 for stream-K.
    """

    packed: Joined
    type_of: Ints
    which: Ints

    @property
    def place(self) -> Ints:
        """The registry's order: its list of kernels, of each the whole K first, then fewer parts, then stream-K."""
        parts = np.where(self.which[:, 1] == 0, _STREAM_K_PLACE, self.which[:, 1])
        place: Ints = (self.which[:, 0] << 16) | parts
        return place

    def select(self, mask: Mask) -> W4A16Rows:
        """Return the rows where `mask` is true."""
        return replace(self, type_of=self.type_of[mask], which=self.which[mask])


def rows_of(timings: Timings) -> W4A16Rows:
    """Return the configs of timings that `read_w4a16_timings` read."""
    assert isinstance(timings.packed, W4A16Rows), f"{timings.name} does not tell the configs of our kernels"
    return timings.packed


def list_w4a16_tables(gpu: str, *, is_held_back: bool = False) -> list[Path]:
    """Return the tables of our kernels that come with the library for `gpu`, an arch name.

    Args:
        gpu: arch name.
        is_held_back: those that no coefficient may be fitted on, instead of all others.
    """
    folder = measured_root(gpu) / "w4a16"
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    ours = [path for path in found if not path.stem.endswith("-cublas")]
    return [path for path in ours if ("held_back" in meta_of(path)) is is_held_back]


def read_w4a16_timings(arch: GpuSpec, paths: Sequence[Path]) -> Timings:
    """Read tables of `gemm-eval measure --kernel w4a16` for a GPU.

    Raises:
        InvalidInputError: no table, one that cannot be read, or a config that is no kernel of ours on this GPU.
        UnsupportedError: no kernels of ours run some of the types on this GPU.
    """
    if not paths:
        raise InvalidInputError(f"no timings of our W4A16 kernels on {arch.name}: give tables of gemm-eval measure")
    frame = pd.concat([_read(path) for path in paths], ignore_index=True)
    l2 = frame["l2"] if "l2" in frame else pd.Series("cold", index=frame.index)
    clock = frame["clock"] if "clock" in frame else pd.Series("burst", index=frame.index)
    keys = list(zip(frame["input_dtype"], frame["mode"], frame["group_size"], l2, clock, strict=True))
    kinds = list(dict.fromkeys(keys))
    packed = join_packed([pack_gpu(arch, types_of(*key[:3]).types, RunOptions("gemm-eval", *key[3:])) for key in kinds])
    type_of = np.array([kinds.index(key) for key in keys], np.int64)
    rows = W4A16Rows(packed, type_of, _which(frame, packed, type_of))
    name = ", ".join(path.stem for path in paths)
    return Timings(frame, name, arch.name, "gemm-eval", form=W4A16_FORM, packed=rows)


def _read(path: Path) -> pd.DataFrame:
    frame = read_columns(path, _NEEDED, _COMPLAINT)
    integers = [name for name in frame.columns if str(frame[name].dtype) == "Int64" and frame[name].notna().all()]
    frame = frame.astype(dict.fromkeys(integers, "int64")).assign(G=1, table=path.stem)
    return frame[~_was_interrupted(frame)]


def _was_interrupted(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are of one replay that something else held up: none says how long the kernel takes."""
    if "num_replays" not in frame:
        return pd.Series(False, index=frame.index)
    best_us = frame.groupby(_GEMM)["latency_us"].transform("min")
    return (frame["num_replays"] == 1) & (frame["latency_us"] > _INTERRUPTED * best_us)


def types_of(input_dtype: str, mode: str, group_size: int) -> GemmProblem:
    """Return the types of a row as a problem, of sizes that do not matter."""
    return problem_of(w4a16_types(DType(input_dtype), mode, max(0, group_size)), 1, 64, 64, 64)


def _which(frame: pd.DataFrame, packed: Joined, type_of: Ints) -> Ints:
    places: dict[tuple[int, ...], int] = {}
    for kind, (first, stop) in enumerate(packed.ranges.tolist()):
        for place in range(first, stop):
            places[(kind, *(int(packed.candidates[place][name]) for name in _CONFIG))] = place
    codes = frame.assign(
        family=frame["family"].map({name: FAMILIES[name].number for name in W4A16_FAMILIES}),
        schedule=frame["schedule"].str.upper().map({item.name: int(item) for item in Schedule}),
        raster_order=frame["raster_order"].str.upper().map({item.name: int(item) for item in RasterOrder}),
        cluster_k=frame["split_k"].where(frame["family"] == _SPLIT_BY_CLUSTERS, 0),
    )
    parts = frame["split_k"].where(frame["decomposition"].str.upper() != Decomposition.STREAM_K.name, 0)
    which = np.empty((len(frame), 2), np.int64)
    configs = zip(type_of.tolist(), *(codes[name].tolist() for name in _CONFIG), strict=True)
    for row, config in enumerate(configs):
        if config not in places:
            raise InvalidInputError(
                f"row {row + 1}: no kernel of ours on this GPU is {dict(zip(_CONFIG, config[1:], strict=True))}"
            )
        which[row, 0] = places[config]
    which[:, 1] = parts.to_numpy(np.int64)
    return which


def has_all_configs(timings: Timings) -> Mask:
    """Whether every config that the GPU has for a GEMM was timed, [gemms]."""
    rows = rows_of(timings)
    packed = rows.packed
    first = np.unique(timings.gemm, return_index=True)[1]
    num_legal = np.empty(len(first), np.int64)
    none_us, none = np.empty(0), np.empty((0, 2), np.int64)
    for place, row in enumerate(first.tolist()):
        kind = int(rows.type_of[row])
        of_type = slice(kind, kind + 1)
        candidates = packed.candidates[slice(*packed.ranges[kind].tolist())]
        _, M, K, N = timings.sizes[row].tolist()
        num_legal[place] = OF_OURS.find_top(
            packed.params[of_type], candidates, packed.coefficients[of_type], 1, M, K, N, NO_LAYOUTS, none_us,
            none,
        )  # fmt: skip
    is_all: Mask = np.bincount(timings.gemm) == num_legal
    return is_all


_SEARCH = Search(loss_scale=0.05, difference=1e-4, off_bounds=1e-3, evaluations=60)
_NEAR = 2.0
_TERMS = (*(name for name in Times._fields if name != "choice_us"), "hidden_us")  # of ours, this model chooses


@dataclass(frozen=True, eq=False)
class W4A16Model:
    """The model of our kernels with coefficients of its families; see `Model`.

    Attributes:
        arch: the GPU.
        coefficients: by family; one that is missing has its defaults.
        families: those that a fit fits.
        held: coefficients that a fit leaves as they are; they may be out of their ranges.
    """

    arch: GpuSpec
    coefficients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    families: tuple[str, ...] = W4A16_FAMILIES
    held: Mapping[str, float] = field(default_factory=dict)
    name: str = "model"
    is_screened: ClassVar[bool] = True
    buys_nothing_points: ClassVar[float] = 0.02
    num_threads: ClassVar[int] = 1  # the kernels of the model take all

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[W4A16Model, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        found = {family: coefficients_for(arch, "gemm-eval", family) for family in W4A16_FAMILIES}
        texts = dict.fromkeys(origin.text for _, origin in found.values())
        return cls(arch, {family: values for family, (values, _) in found.items()}), "; ".join(texts)

    @property
    def values(self) -> Mapping[str, float]:
        """The coefficients of its one family."""
        (family,) = self.families
        return self.coefficients[family]

    def fit(self, *train: Timings) -> W4A16Model:
        """Return one whose families are fitted on one set, from defaults on, which stay where rows are too few."""
        (rows,) = train
        found = {family: default_coefficients(family) | self.held_of(family) for family in W4A16_FAMILIES}
        for family in self.families:
            of_family = rows.of_group(family)
            if np.count_nonzero(of_family) >= MIN_ROWS:
                found[family] = self._fit_family(rows.select(of_family), family)
        return replace(self, coefficients=found)

    def held_of(self, family: str) -> dict[str, float]:
        """Return what is held of a family."""
        return {item.name: self.held[item.name] for item in FAMILIES[family].coefficients if item.name in self.held}

    def _fit_family(self, rows: Timings, family: str) -> dict[str, float]:
        held = self.held_of(family)
        ranges = Ranges([item for item in FAMILIES[family].coefficients if item.name not in held], held)
        start = ranges.shares(default_coefficients(family), _SEARCH.off_bounds)
        root = np.sqrt(self.row_weights(rows))

        others = {name: default_coefficients(name) for name in W4A16_FAMILIES}

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, coefficients=others | {family: values}).predict(rows)

        return ranges.values(fit_logs(ranges, predict, rows.measured_us, start, _SEARCH, root))

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        latency_us, coefficients = np.empty(len(rows)), self._packed()
        of_rows, sizes = rows_of(rows), rows.sizes
        packed = of_rows.packed
        of_types = read_only(np.repeat(coefficients[None], len(packed.params), axis=0))

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            OF_OURS.evaluate_rows(
                packed.params, packed.candidates, of_types, of_rows.type_of[part], sizes[part],
                NO_LAYOUTS, of_rows.which[part], latency_us[part],
            )  # fmt: skip

        run_in_chunks(work, len(rows))
        return latency_us

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, in microseconds; `hidden`, which is negative, overlaps.

        The terms add up to the prediction.
        """
        rows, out = rows_of(timings), np.zeros(1, GPU_COST_DTYPE)
        kind = int(rows.type_of[row])
        place, parts = rows.which[row].tolist()
        _, M, K, N = timings.sizes[row].tolist()
        params = rows.packed.params[kind : kind + 1]
        OF_OURS.evaluate_one(
            params, rows.packed.candidates, read_only(self._packed()[None]), place, parts, BEST_RASTER, 1, M, K, N,
            NO_LAYOUTS, out.view(KERNEL_COST_DTYPE),
        )  # fmt: skip
        return {term.removesuffix("_us"): float(out[term][0]) for term in _TERMS}

    def _packed(self) -> npt.NDArray[np.void]:
        return pack_w4a16_coefficients({family: self._values_of(family) for family in W4A16_FAMILIES})

    def _values_of(self, family: str) -> Mapping[str, float]:
        return self.coefficients.get(family) or default_coefficients(family)

    def parts(self, timings: Timings) -> Iterator[tuple[str, W4A16Model, Mask]]:
        """Yield each family that has rows enough for a fit."""
        for family in self.families:
            rows = timings.of_group(family)
            if np.count_nonzero(rows) >= MIN_ROWS:
                yield family, replace(self, families=(family,)), rows

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term of its one family."""
        (family,) = self.families
        return FAMILIES[family].coefficients

    def without(self, values: Mapping[str, float]) -> W4A16Model:
        """Return one of the same family with these values, which a fit leaves as they are."""
        coefficients = {family: {**self._values_of(family), **values} for family in self.families}
        return replace(self, coefficients=coefficients, held={**self.held, **values})

    def row_weights(self, rows: Timings) -> Floats:
        """Return what each row counts in a fit, [rows]; 1 in the mean."""
        weights = np.minimum(1.0, _NEAR * rows.best_us / rows.measured_us) / np.sqrt(rows.num_configs)
        scaled: Floats = weights / weights.mean()
        return scaled


def is_w4a16_calibrated(arch: GpuSpec) -> bool:
    """Whether all families have calibrations of this very GPU."""
    return all(coefficients_for(arch, "gemm-eval", family)[1].is_calibrated for family in W4A16_FAMILIES)


def calibrate_w4a16(
    arch: GpuSpec, family: str, paths: Sequence[Path], *, num_folds: int = 5, seed: int = 0
) -> Calibration:
    """Fit a W4A16 family on tables of our kernels; the errors are held out by (N, K) over all tables together.

    Args:
        arch: the GPU that the tables are of.
        family: one of `W4A16_FAMILIES`.
        paths: tables of `gemm-eval measure --kernel w4a16`.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: no table, one that cannot be read, or too few rows of the family.
        InvalidOptionError: no such family, or fewer pairs than folds.
    """
    if family not in W4A16_FAMILIES:
        raise InvalidOptionError(f"W4A16 families are {', '.join(W4A16_FAMILIES)}, got {shown(family)}")
    timings = read_w4a16_timings(arch, paths)
    rows = timings.select(timings.of_group(family))
    if len(rows) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs at least {MIN_ROWS} rows of {family}, got {len(rows)}")
    model = W4A16Model(arch, families=(family,))
    fitted = model.fit(rows)
    predicted_us = cross_fit(model, [rows], num_folds, seed).predict(rows)
    errors = []
    for path in paths:
        mask = (rows.frame["table"] == path.stem).to_numpy(bool)
        if not mask.any():  # a table of other families
            continue
        figures = error_figures(rows.measured_us[mask], predicted_us[mask])
        errors.append(ErrorFigures(data=f"w4a16/{path.stem}", sha256=sha256_of(path), **figures))
    # of the configs that are chosen, not of those that lose by far
    near = rows.measured_us <= (rows.form.near_best or np.inf) * rows.best_us
    intervals = fit_intervals(rows.sizes[near, 1], np.log(rows.measured_us[near] / predicted_us[near]))
    return Calibration(
        gpu=arch.name, library="gemm-eval", family=family, model_version=GPU_MODEL_VERSION,
        coefficients=rounded(fitted.values), fitted=tuple(fitted.values), errors=tuple(errors), intervals=intervals,
        **provenance(num_folds, "tables", seed),
    )  # fmt: skip
