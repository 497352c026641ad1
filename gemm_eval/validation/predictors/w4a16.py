"""Our W4A16 kernels: timings of configs, their model, its calibrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, RasterOrder, Schedule
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES, w4a16_types
from gemm_eval.search import OF_OURS, run_in_chunks
from gemm_eval.validation.fit import MIN_ROWS, Search, provenance, sha256_of
from gemm_eval.validation.predictors.configs import ConfigModel
from gemm_eval.validation.tables import measured_root, meta_of, read_columns
from gemm_eval.validation.timings import Floats, Form, Ints, Mask, Timings
from gemm_eval.words import shown
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, RunOptions, problem_of

_GEMM = ("input_dtype", "M", "K", "N", "mode", "group_size")
_CONFIG = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle",
)  # fmt: skip
_NEEDED = (*_GEMM, "latency_us", *_CONFIG[:9], "decomposition", "split_k", *_CONFIG[9:])
_SPLIT_BY_CLUSTERS = "w4a16_sm90_cluster"
_COMPLAINT = ": a table of kernels of ours needs the columns {}; gemm-eval measure --kernel w4a16 writes them"

_INTERRUPTED = 100.0
"""Times the best of its GEMM beyond which a single replay tells of no kernel: of 38,000 others none takes 54 times."""

W4A16_FORM = Form(_GEMM, "family", W4A16_FAMILIES, near_best=1.5)
"""A row is a config of a kernel of ours; errors are told apart by family."""

_STREAM_K_PLACE = (1 << 16) - 1  # after all numbers of parts
_USUAL = {"l2": "cold", "clock": "burst"}


class W4A16Rows(NamedTuple):
    """The configs of rows.

    `packed` has our kernels for all types, `type_of` [rows] the place in it, and `which` [rows, 2] the place in
    `packed.candidates` and the parts of K, 0 for stream-K.
    """

    packed: gpu_model.Joined
    type_of: Ints
    which: Ints


def w4a16_timings(frame: pd.DataFrame, rows: W4A16Rows, name: str, gpu: str) -> Timings:
    """Return rows of our kernels with their configs.

    Ties follow the registry: its list of kernels, of each the whole K first, then fewer parts, then stream-K.
    """
    parts = np.where(rows.which[:, 1] == 0, _STREAM_K_PLACE, rows.which[:, 1])
    frame = frame.assign(packed_row=np.arange(len(frame)), registry_place=(rows.which[:, 0] << 16) | parts)
    return Timings(frame, name, gpu, "gemm-eval", form=W4A16_FORM, packed=rows)


def rows_of(timings: Timings) -> W4A16Rows:
    """Return the configs of timings that `read_w4a16_timings` read."""
    assert isinstance(timings.packed, W4A16Rows), f"{timings.name} does not tell the configs of our kernels"
    packed, type_of, which = timings.packed
    rows = timings.column("packed_row")
    return W4A16Rows(packed, type_of[rows], which[rows])


def list_w4a16_tables(gpu: str, *, is_held_back: bool = False) -> list[Path]:
    """Return the tables of our kernels that come with the library for `gpu`, an arch name.

    With `is_held_back` those that no coefficient may be fitted on, instead of all others.
    """
    ours = [path for path in (measured_root(gpu) / "w4a16").glob("*.parquet") if not path.stem.endswith("-cublas")]
    return sorted(path for path in ours if ("held_back" in meta_of(path)) is is_held_back)


def read_w4a16_timings(arch: GpuSpec, paths: Sequence[Path]) -> Timings:
    """Read tables of `gemm-eval measure --kernel w4a16` for a GPU.

    Raises:
        InvalidInputError: no table, one that cannot be read, or a config that is no kernel of ours on this GPU.
        UnsupportedError: no kernels of ours run some of the types on this GPU.
    """
    if not paths:
        raise InvalidInputError(f"no timings of our W4A16 kernels on {arch.name}: give tables of gemm-eval measure")
    frame = pd.concat([_read(path) for path in paths], ignore_index=True)
    keys = frame.assign(**{name: word for name, word in _USUAL.items() if name not in frame})
    keys = keys[["input_dtype", "mode", "group_size", *_USUAL]]
    kinds = keys.drop_duplicates().itertuples(index=False, name=None)
    packed = gpu_model.join_packed(
        [gpu_model.pack_gpu(arch, types_of(*key[:3]).types, RunOptions("gemm-eval", *key[3:])) for key in kinds]
    )
    type_of = keys.groupby(list(keys), sort=False).ngroup().to_numpy().astype(np.int64)
    rows = W4A16Rows(packed, type_of, _which(frame, packed, type_of))
    return w4a16_timings(frame, rows, ", ".join(path.stem for path in paths), arch.name)


def _read(path: Path) -> pd.DataFrame:
    frame = read_columns(path, _NEEDED, _COMPLAINT)
    integers = [name for name in frame.columns if str(frame[name].dtype) == "Int64" and frame[name].notna().all()]
    frame = frame.astype(dict.fromkeys(integers, "int64")).assign(G=1, table=path.stem)
    if "num_replays" not in frame:
        return frame
    # one replay that something else held up says nothing of its kernel
    best_us = frame.groupby(list(_GEMM))["latency_us"].transform("min")
    return frame[(frame["num_replays"] != 1) | (frame["latency_us"] <= _INTERRUPTED * best_us)]


def types_of(input_dtype: str, mode: str, group_size: int) -> GemmProblem:
    """Return the types of a row as a problem, of sizes that do not matter."""
    return problem_of(w4a16_types(DType(input_dtype), mode, max(0, group_size)), 1, 64, 64, 64)


def _which(frame: pd.DataFrame, packed: gpu_model.Joined, type_of: Ints) -> Ints:
    names = [*_CONFIG, "cluster_k"]
    kinds = np.repeat(np.arange(len(packed.ranges)), np.diff(packed.ranges, axis=1)[:, 0])
    places = pd.DataFrame({name: packed.candidates[name].astype(np.int64) for name in names})
    places = places.assign(kind=kinds, place=np.arange(len(kinds)))
    configs = frame.assign(
        family=frame["family"].map({name: FAMILIES[name].number for name in W4A16_FAMILIES}),
        schedule=frame["schedule"].str.upper().map({item.name: int(item) for item in Schedule}),
        raster_order=frame["raster_order"].str.upper().map({item.name: int(item) for item in RasterOrder}),
        cluster_k=frame["split_k"].where(frame["family"] == _SPLIT_BY_CLUSTERS, 0),
        kind=type_of,
    )
    place = configs[["kind", *names]].merge(places, "left", ["kind", *names])["place"]
    if place.isna().any():
        row = int(place.isna().argmax())
        raise InvalidInputError(f"row {row + 1}: no kernel of ours on this GPU is {configs.iloc[row][names].to_dict()}")
    parts = frame["split_k"].where(frame["decomposition"].str.upper() != Decomposition.STREAM_K.name, 0)
    return np.stack([place.to_numpy(np.int64), parts.to_numpy(np.int64)], axis=1)


def has_all_configs(timings: Timings) -> Mask:
    """Return whether every config that the GPU has for a GEMM was timed, [gemms]."""
    packed, type_of, _ = rows_of(timings)
    num_legal = []
    for row in np.unique(timings.gemm, return_index=True)[1].tolist():
        of_type = slice(type_of[row], type_of[row] + 1)
        candidates = packed.candidates[slice(*packed.ranges[type_of[row]].tolist())]
        given = packed.params[of_type], candidates, packed.coefficients[of_type]
        _, M, K, N = timings.sizes[row].tolist()
        num_legal.append(OF_OURS.find_top(*given, 1, M, K, N, NO_LAYOUTS, np.empty(0), np.empty((0, 2), np.int64)))
    is_all: Mask = np.bincount(timings.gemm) == np.array(num_legal)
    return is_all


_NEAR = 2.0
_TERMS = (
    *(name for name in gpu_model.Times._fields if name != "choice_us"),
    "hidden_us",
)  # of ours, this model chooses


@dataclass(frozen=True, eq=False)
class W4A16Model(ConfigModel):
    """The model of our kernels with coefficients of its families."""

    families: tuple[str, ...] = W4A16_FAMILIES
    FAMILIES: ClassVar = {family: FAMILIES[family].coefficients for family in W4A16_FAMILIES}
    SEARCH: ClassVar = Search(loss_scale=0.05, difference=1e-4, off_bounds=1e-3, evaluations=60)
    IS_SCREENED: ClassVar = True
    BUYS_NOTHING_POINTS: ClassVar = 0.02

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[W4A16Model, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        committed = {family: gpu_model.coefficients_for(arch, "gemm-eval", family) for family in W4A16_FAMILIES}
        texts = dict.fromkeys(origin.text for _, origin in committed.values())
        return cls(arch, {family: values for family, (values, _) in committed.items()}), "; ".join(texts)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        latency_us, sizes = np.empty(len(rows)), rows.sizes
        packed, type_of, which = rows_of(rows)
        of_types = read_only(np.repeat(self._packed()[None], len(packed.params), axis=0))

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            OF_OURS.evaluate_rows(
                packed.params, packed.candidates, of_types, type_of[part], sizes[part], NO_LAYOUTS, which[part],
                latency_us[part],
            )  # fmt: skip

        run_in_chunks(work, len(rows))
        return latency_us

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, which add up to it, in microseconds; `hidden`, negative, overlaps."""
        (packed, type_of, which), out = rows_of(timings), np.zeros(1, gpu_model.GPU_COST_DTYPE)
        OF_OURS.evaluate_one(
            packed.params[type_of[row] : type_of[row] + 1], packed.candidates, read_only(self._packed()[None]),
            *which[row].tolist(), gpu_model.BEST_RASTER, 1, *timings.sizes[row, 1:].tolist(), NO_LAYOUTS,
            out.view(gpu_model.KERNEL_COST_DTYPE),
        )  # fmt: skip
        return {term.removesuffix("_us"): float(out[term][0]) for term in _TERMS}

    def _packed(self) -> npt.NDArray[np.void]:
        return gpu_model.pack_w4a16_coefficients({family: self.values_of(family) for family in W4A16_FAMILIES})

    def row_weights(self, rows: Timings) -> Floats:
        """Return the weight of each row in a fit, [rows]; 1 in the mean."""
        num_configs = np.bincount(rows.gemm)[rows.gemm]
        weights = np.minimum(1.0, _NEAR * rows.best_us / rows.measured_us) / np.sqrt(num_configs)
        scaled: Floats = weights / weights.mean()
        return scaled


def is_w4a16_calibrated(arch: GpuSpec) -> bool:
    """Return whether all families have calibrations of this very GPU."""
    return all(gpu_model.coefficients_for(arch, "gemm-eval", family)[1].is_calibrated for family in W4A16_FAMILIES)


def calibrate_w4a16(
    arch: GpuSpec, family: str, paths: Sequence[Path], *, num_folds: int = 5, seed: int = 0
) -> gpu_model.Calibration:
    """Fit a W4A16 family on tables of our kernels; the errors are held out by (N, K) over all tables together.

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
    tables = {
        f"w4a16/{path.stem}": (sha256_of(path), (rows.frame["table"] == path.stem).to_numpy(bool)) for path in paths
    }
    model = W4A16Model(arch, families=(family,))
    values, errors, predicted_us = model.calibrated(rows, num_folds, seed, tables)
    # of the configs that are chosen, not of those that lose by far
    near = rows.is_near_best
    intervals = gpu_model.fit_intervals(rows.sizes[near, 1], np.log(rows.measured_us[near] / predicted_us[near]))
    return gpu_model.Calibration(
        gpu=arch.name, library="gemm-eval", family=family, model_version=gpu_model.GPU_MODEL_VERSION,
        coefficients=values, fitted=tuple(values), errors=errors, intervals=intervals,
        **provenance(num_folds, "tables", seed),
    )  # fmt: skip
