"""Our W4A16 kernels: timings of configs, their model, its calibrations, and the choice among configs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import RenderableType

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import select_config
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, RasterOrder, Schedule
from gemm_eval.measure import read_frame
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import MAX_SPLITS, W4A8_FAMILIES, W4A16_FAMILIES, W4A16_SETS, splits_of_row, w4a16_types
from gemm_eval.search import NEAR_CONFIGS, NEAR_RATIO, OF_OURS, behind_answer, run_in_chunks
from gemm_eval.validation import baselines, metrics, studies
from gemm_eval.validation.exam import MODEL, Line
from gemm_eval.validation.fit import MIN_ROWS, CrossFit, Search, cross_fit, provenance, sha256_of
from gemm_eval.validation.learned import PHYSICS, FittedCorrection
from gemm_eval.validation.subjects import Fitted, Report, configs, corrections, dense, fitted
from gemm_eval.validation.subjects.gemms import compare
from gemm_eval.validation.tables import Floats, Form, Ints, Mask, Timings, list_timings, measured_root, meta_of
from gemm_eval.words import check_word
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, GemmTypes, Layouts, RunOptions, pack_layouts, problem_of

_GEMM = ("input_dtype", "M", "K", "N", "mode", "group_size")
_CONFIG = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle",
)  # fmt: skip
_NEEDED = (*_GEMM, "latency_us", *_CONFIG[:9], "decomposition", "split_k", *_CONFIG[9:])
_SPLIT_BY_CLUSTERS = "w4a16_sm90_cluster"
_HINT = "gemm-eval measure --kernel w4a16 writes tables of our kernels"

_INTERRUPTED = 100.0
"""Times the best of its GEMM beyond which a single replay tells of no kernel: of 38,000 others none takes 54 times."""

_FAMILIES = (*W4A16_SETS, *W4A8_FAMILIES)

W4A16_FORM = Form(_GEMM, "family", (*W4A16_FAMILIES, *W4A8_FAMILIES), near_best=1.5)
"""A row is a config of a kernel of ours; errors are told apart by family."""

GROUPED_FOLDER = "w4a16-grouped"
"""Folder of tables of grouped kernels, whose rows have the column `row_groups`: rows of each group, in words."""

GROUPED_FORM = W4A16_FORM._replace(gemm=(*_GEMM, "row_groups"), groups=W4A16_SETS[len(W4A16_FAMILIES) :])
"""The same, of groups."""

_STREAM_K_PLACE = (1 << 16) - 1  # after all numbers of parts
_VERSION = gpu_model.GPU_MODEL_VERSION
_USUAL = {"l2": "cold", "clock": "burst"}


class W4A16Rows(NamedTuple):
    """Our kernels for all types; by row, `type_of` them and `which` config and parts of K (0: stream-K)."""

    packed: gpu_model.Joined
    type_of: Ints
    which: Ints
    layouts: Layouts = NO_LAYOUTS


def w4a16_timings(frame: pd.DataFrame, rows: W4A16Rows, name: str, gpu: str) -> Timings:
    """Return rows of our kernels with their configs; ties follow the registry, fewer parts first, stream-K last."""
    parts = np.where(rows.which[:, 1] == 0, _STREAM_K_PLACE, rows.which[:, 1])
    frame = frame.assign(packed_row=np.arange(len(frame)), registry_place=(rows.which[:, 0] << 16) | parts)
    form = GROUPED_FORM if "row_groups" in frame else W4A16_FORM
    return Timings(frame, name, gpu, "gemm-eval", form=form, packed=rows)


def rows_of(timings: Timings) -> W4A16Rows:
    """Return the configs of timings that `read_w4a16_timings` read."""
    assert isinstance(timings.packed, W4A16Rows), f"{timings.name} does not tell the configs of our kernels"
    packed, type_of, which, layouts = timings.packed
    rows = timings.column("packed_row")
    return W4A16Rows(packed, type_of[rows], which[rows], _layouts_of(layouts, rows))


def _folder_of(family: str) -> str:
    return GROUPED_FOLDER if family in GROUPED_FORM.groups else "w4a8" if family in W4A8_FAMILIES else "w4a16"


def _layouts_of(layouts: Layouts, rows: Ints | slice) -> Layouts:
    return layouts._replace(of=read_only(layouts.of[rows])) if len(layouts.of) else layouts


def list_w4a16_tables(gpu: str, *, is_held_back: bool = False, folder: str = "w4a16") -> list[Path]:
    """Return the committed tables of our kernels for `gpu`; `is_held_back`: those that no coefficient is fitted on."""
    ours = [path for path in (measured_root(gpu) / folder).glob("*.parquet") if not path.stem.endswith("-cublas")]
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
    kinds, type_of = _kinds_of(frame)
    packed = gpu_model.join_packed([gpu_model.pack_gpu(arch, *kind) for kind in kinds])
    groups = [tuple(map(int, words.split())) for words in frame["row_groups"]] if "row_groups" in frame else []
    layouts = pack_layouts(groups)
    rows = W4A16Rows(packed, type_of, _which(frame, packed, type_of, layouts), layouts)
    return w4a16_timings(frame, rows, ", ".join(path.stem for path in paths), arch.name)


def _kinds_of(frame: pd.DataFrame) -> tuple[list[tuple[GemmTypes, RunOptions]], Ints]:
    """Return the types and states of rows, and which of them each row has, [rows]."""
    keys = frame.assign(**{name: word for name, word in _USUAL.items() if name not in frame})
    keys = keys[["input_dtype", "mode", "group_size", *_USUAL]]
    kinds = keys.drop_duplicates().itertuples(index=False, name=None)
    number_of = keys.groupby(list(keys), sort=False).ngroup().to_numpy().astype(np.int64)
    return [(types_of(*key[:3]).types, RunOptions(gpu_model.OURS, *key[3:])) for key in kinds], number_of


def _read(path: Path) -> pd.DataFrame:
    frame = read_frame(path, _NEEDED, _HINT)
    integers = [name for name in frame.columns if str(frame[name].dtype) == "Int64" and frame[name].notna().all()]
    frame = frame.astype(dict.fromkeys(integers, "int64")).assign(table=path.stem)
    if "row_groups" in frame:
        return frame.assign(weight_dtype="int4", output_dtype=frame["input_dtype"])
    frame = frame.assign(G=1)
    if "num_replays" not in frame:
        return frame
    # one replay that something else held up says nothing of its kernel
    best_us = frame.groupby(list(_GEMM))["latency_us"].transform("min")
    return frame[(frame["num_replays"] != 1) | (frame["latency_us"] <= _INTERRUPTED * best_us)]


def types_of(input_dtype: str, mode: str, group_size: int) -> GemmProblem:
    """Return the types of a row as a problem, of sizes that do not matter."""
    activation = DType(input_dtype)
    output = DType.FP16 if activation is DType.FP8 else None  # either output is as fast
    return problem_of(w4a16_types(activation, mode, max(0, group_size), output), 1, 64, 64, 64)


def _which(frame: pd.DataFrame, packed: gpu_model.Joined, type_of: Ints, layouts: Layouts) -> Ints:
    names = [*_CONFIG, "cluster_k"]
    kinds = np.repeat(np.arange(len(packed.ranges)), np.diff(packed.ranges, axis=1)[:, 0])
    known = pd.DataFrame({name: packed.candidates[name].astype(np.int64) for name in names})
    known = known.assign(kind=kinds, index_of=np.arange(len(kinds)))
    asked = frame.assign(
        family=frame["family"].map({name: FAMILIES[name].number for name in _FAMILIES}),
        schedule=frame["schedule"].str.upper().map({item.name: int(item) for item in Schedule}),
        raster_order=frame["raster_order"].str.upper().map({item.name: int(item) for item in RasterOrder}),
        cluster_k=frame["split_k"].where(frame["family"] == _SPLIT_BY_CLUSTERS, 0),
        kind=type_of,
    )
    index_of = asked[["kind", *names]].merge(known, "left", ["kind", *names])["index_of"]
    if index_of.isna().any():
        row = int(index_of.isna().argmax())
        raise InvalidInputError(f"row {row + 1}: no kernel of ours on this GPU is {asked.iloc[row][names].to_dict()}")
    parts = frame["split_k"].where(frame["decomposition"].str.upper() != Decomposition.STREAM_K.name, 0)
    which = np.stack([index_of.to_numpy(np.int64), parts.to_numpy(np.int64)], axis=1)
    for row, layout in enumerate(layouts.of.tolist()):  # the GPU cuts K where that is faster
        of_row = slice(layouts.starts[layout], layouts.starts[layout + 1])
        params, splits = packed.params[type_of[row] : type_of[row] + 1], np.zeros(MAX_SPLITS, np.int64)
        num = splits_of_row(
            params, packed.candidates, which[row, 0], int(frame["K"].iloc[row]), int(frame["N"].iloc[row]),
            layouts.rows[of_row], layouts.counts[of_row], True, splits,
        )  # fmt: skip
        which[row, 1] = splits[num - 1] if which[row, 1] == 0 else 1
    return which


def has_all_configs(timings: Timings) -> Mask:
    """Return whether every config that the GPU has for a GEMM was timed, [gemms]."""
    packed, type_of, _, layouts = rows_of(timings)
    num_legal = []
    for row in studies.first_rows(timings).tolist():
        of_type = slice(type_of[row], type_of[row] + 1)
        candidates = packed.candidates[slice(*packed.ranges[type_of[row]].tolist())]
        given = packed.params[of_type], candidates, packed.coefficients[of_type]
        of_row = _layouts_of(layouts, slice(row, row + 1))
        sizes = timings.sizes[row].tolist()
        num_legal.append(OF_OURS.list_configs(*given, *sizes, of_row, np.empty((0, 2), np.int64)))
    return np.bincount(timings.gemm) == np.array(num_legal)


_NEAR = 2.0
_TERMS = (*(name for name in gpu_model.Times._fields if name != "choice_us"), "hidden_us")  # of ours, the model chooses


@dataclass(frozen=True, eq=False)
class W4A16Model(configs.ConfigModel):
    """The model of our kernels with coefficients of its families."""

    families: tuple[str, ...] = W4A16_SETS
    FAMILIES: ClassVar = {family: FAMILIES[family].coefficients for family in _FAMILIES}
    SEARCH: ClassVar = Search(loss_scale=0.05, difference=1e-4, off_bounds=1e-3, evaluations=60)

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[W4A16Model, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        committed = {family: gpu_model.coefficients_for(arch, "gemm-eval", family) for family in _FAMILIES}
        texts = dict.fromkeys(origin.text for _, origin in committed.values())
        return cls(arch, {family: values for family, (values, _) in committed.items()}), "; ".join(texts)

    def predict(self, rows: Timings) -> Floats:
        latency_us, sizes = np.empty(len(rows)), rows.sizes
        packed, type_of, which, layouts = rows_of(rows)
        of_types = read_only(np.repeat(self._packed()[None], len(packed.params), axis=0))

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            OF_OURS.evaluate_rows(
                packed.params, packed.candidates, of_types, type_of[part], sizes[part], _layouts_of(layouts, part),
                which[part], latency_us[part],
            )  # fmt: skip

        run_in_chunks(work, len(rows))
        return latency_us

    def records(self, rows: Timings) -> npt.NDArray[np.void]:
        """Return the cost of each row, [rows] of `GPU_COST_DTYPE`."""
        (packed, type_of, which, layouts), out = rows_of(rows), np.zeros(len(rows), gpu_model.GPU_COST_DTYPE)
        coefficients, views = read_only(self._packed()[None]), out.view(gpu_model.KERNEL_COST_DTYPE)
        for row, (number, sizes) in enumerate(zip(type_of.tolist(), rows.sizes[:, 1:].tolist(), strict=True)):
            part = slice(row, row + 1)
            OF_OURS.evaluate_configs(
                packed.params[number : number + 1], packed.candidates, coefficients, which[part], gpu_model.BEST_RASTER,
                rows.sizes[row, 0], *sizes, _layouts_of(layouts, part), views[part],
            )  # fmt: skip
        return out

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, which add up to it, in microseconds; `hidden`, negative, overlaps."""
        (record,) = self.records(timings.select(np.arange(len(timings)) == row))
        return {term.removesuffix("_us"): float(record[term]) for term in _TERMS}

    def _packed(self) -> npt.NDArray[np.void]:
        return gpu_model.pack_w4a16_coefficients({family: self.values_of(family) for family in _FAMILIES})

    def row_weights(self, rows: Timings) -> Floats:
        """Return the weight of each row in a fit, [rows]; 1 in the mean."""
        num_configs = np.bincount(rows.gemm)[rows.gemm]
        weights = np.minimum(1.0, _NEAR * rows.best_us / rows.measured_us) / np.sqrt(num_configs)
        return weights / weights.mean()


_FIRST_POWER = 8.0  # of best / predicted, the weight of a config: learned of those that may be chosen


@dataclass(frozen=True, eq=False)
class CorrectedModel:
    """The W4A16 model (`physics`) with learned corrections by question: those `asked`, or all with pairs enough."""

    physics: W4A16Model
    asked: frozenset[str] | None = None
    learned: Mapping[str, corrections.Learned] = field(default_factory=dict)
    name: ClassVar[str] = W4A16Model.name

    @classmethod
    def as_it_is(cls, arch: GpuSpec, timings: Timings) -> CorrectedModel:
        """Return the model with the coefficients and corrections that the library has for this GPU."""
        learned = {}
        for kind in _kinds_of(timings.frame)[0]:
            question = gpu_model.question_of(*kind)
            committed = gpu_model.find_correction(arch, gpu_model.OURS, gpu_model.ALL_OURS, question, _VERSION)
            if committed is not None and (trees := committed[1]) is not None:
                learned[question] = corrections.Learned(trees, committed[0].region, committed[0].bounds)
        return cls(W4A16Model.as_it_is(arch)[0], frozenset(learned), learned)

    def fit(self, *train: Timings) -> CorrectedModel:
        (rows,) = train
        return replace(self, physics=self.physics.fit(rows)).learn(rows)

    def learn(self, rows: Timings) -> CorrectedModel:
        """Return one with the coefficients of this one, and corrections fitted on rows."""
        kinds, number_of = _kinds_of(rows.frame)
        questions, records = _questions(kinds)[number_of], self.physics.records(rows)
        limits = np.concatenate([gpu_model.pack_limits(self.physics.arch, *kind) for kind in kinds])[number_of]
        features = np.empty((len(rows), len(gpu_model.FEATURES)))
        gpu_model.describe(records.view(gpu_model.KERNEL_COST_DTYPE), limits, rows.sizes, features)
        us, least_us = records["physics_us"], _least_of_gemm(rows, records["physics_us"])
        weights = (least_us / us) ** _FIRST_POWER / np.sqrt(np.bincount(rows.gemm)[rows.gemm])
        learned = {}
        for question in dict.fromkeys(questions.tolist()):
            some = questions == question
            num_pairs = len(set(rows.select(some).pairs))
            if question in self.asked if self.asked is not None else num_pairs >= corrections.MIN_PAIRS:
                learned[question] = corrections.learned_from(
                    features[some], np.log(rows.measured_us / us)[some], weights[some], rows.sizes[some],
                    are_configs=True,
                )  # fmt: skip
        return replace(self, learned=learned)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row; of the timed configs of a GEMM the least is the answer, as of all of them."""
        (kinds, number_of), records = _kinds_of(rows.frame), self.physics.records(rows)
        for number, (kind, question) in enumerate(zip(kinds, _questions(kinds).tolist(), strict=True)):
            if (learned := self.learned.get(question)) is not None:
                types, options = kind
                packed = gpu_model.pack_correction(self.physics.arch, types, options, *learned[:3])
                some = np.flatnonzero(number_of == number)
                gpu_model.correct(records.view(gpu_model.KERNEL_COST_DTYPE), some, rows.sizes, *packed)
        us, corrected_us = records["physics_us"], records["latency_us"]
        order = studies.order_by(rows, us)
        rank = np.empty(len(rows), np.int64)
        rank[order] = np.arange(len(rows)) - np.searchsorted(rows.gemm[order], rows.gemm[order])
        least_us = _least_of_gemm(rows, us)
        is_near = (rank < NEAR_CONFIGS) & (us <= NEAR_RATIO * least_us)
        answer_us = _least_of_gemm(rows, np.where(is_near, corrected_us, np.inf))
        is_answer = is_near & (corrected_us == answer_us)
        return np.where(is_answer, corrected_us, behind_answer(corrected_us, answer_us))

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, and what its correction adds, in microseconds."""
        same = timings.gemm == timings.gemm[row]
        terms = self.physics.breakdown(timings, row)
        predicted_us = self.predict(timings.select(same))[np.count_nonzero(same[:row])]
        return terms | {"correction": float(predicted_us) - sum(terms.values())}


def _questions(kinds: Sequence[tuple[GemmTypes, RunOptions]]) -> npt.NDArray[np.str_]:
    return np.array([gpu_model.question_of(*kind) for kind in kinds])


def _least_of_gemm(rows: Timings, us: Floats) -> Floats:
    """Return the least of some times of each row's GEMM, [rows]."""
    return pd.Series(us).groupby(rows.gemm).transform("min").to_numpy(np.float64)


def chosen_rows(timings: Timings, predicted_us: Floats) -> Ints:
    """Return the row of each GEMM that is predicted to be the fastest, [gemms]."""
    order = studies.order_by(timings, predicted_us)
    return order[np.unique(timings.gemm[order], return_index=True)[1]]


def w4a16_corrections(
    arch: GpuSpec, paths: Sequence[Path], num_folds: int = 5, seed: int = 0
) -> Iterator[FittedCorrection]:
    """Yield a correction for each question with pairs (N, K) enough; its errors are those of held-out answers."""
    coefficients, origin = gpu_model.coefficients_for(arch, gpu_model.OURS, gpu_model.ALL_OURS)
    if not origin.is_calibrated:
        raise InvalidInputError(f"our W4A16 kernels on {arch.name} have no calibration that could be corrected")
    timings = read_w4a16_timings(arch, paths)
    crossed = cross_fit(CorrectedModel(W4A16Model(arch)), [timings], num_folds, seed)
    physics = CrossFit(tuple(fit.physics for fit in crossed.fits), crossed.folds)
    predicted = physics.predict(timings), crossed.predict(timings)
    shipped = CorrectedModel(W4A16Model.as_it_is(arch)[0]).learn(timings)
    kinds, number_of = _kinds_of(timings.frame)
    tables = {path.stem: (f"w4a16/{path.stem}", sha256_of(path)) for path in paths}
    columns: dict[str, Any] = {}
    for who, us in zip(("physics", "corrected"), predicted, strict=True):
        chosen = chosen_rows(timings, us)
        log_errors = np.log(timings.measured_us / us)[chosen]
        columns |= {f"{who}_error": np.abs(np.exp(-log_errors) - 1.0), f"{who}_log": log_errors}
    answers = pd.DataFrame(columns).assign(M=timings.sizes[chosen, 1], place=timings.regime_places[chosen])
    answers[["data", "sha256"]] = [tables[table] for table in timings.frame["table"].iloc[chosen]]
    questions = _questions(kinds)[number_of[chosen]]
    digest = gpu_model.physics_digest(coefficients, _VERSION)
    for question, learned in shipped.learned.items():
        key = (gpu_model.ALL_OURS, question)
        rows = answers[questions == question]
        yield corrections.as_files(arch, gpu_model.OURS, key, learned, rows, digest, seed)


def calibrate_w4a16(
    arch: GpuSpec, family: str, paths: Sequence[Path], *, num_folds: int = 5, seed: int = 0
) -> gpu_model.Calibration:
    """Fit a W4A16 or W4A8 family on tables of our kernels; errors are held out by (N, K) over all tables together."""
    check_word("family", family, _FAMILIES)
    timings = read_w4a16_timings(arch, paths)
    rows = timings.select(timings.of_group(family))
    if len(rows) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs at least {MIN_ROWS} rows of {family}, got {len(rows)}")
    folder, table_of = _folder_of(family), rows.frame["table"]
    tables = {f"{folder}/{path.stem}": (sha256_of(path), (table_of == path.stem).to_numpy(bool)) for path in paths}
    values, errors, predicted_us = W4A16Model(arch, families=(family,)).calibrated(rows, num_folds, seed, tables)
    # of the configs that are chosen, not of those that lose by far
    near = rows.is_near_best
    places = gpu_model.regime_places(rows.sizes[near, 1])
    intervals = gpu_model.fit_intervals(places, np.log(rows.measured_us[near] / predicted_us[near]))
    return gpu_model.Calibration(
        gpu=arch.name, library="gemm-eval", family=family, model_version=gpu_model.GPU_MODEL_VERSION,
        coefficients=values, fitted=tuple(values), errors=errors, intervals=intervals,
        **provenance(num_folds, "tables", seed),
    )  # fmt: skip


# The choice among the configs of a GEMM: by the model, by other rules, and what it costs.

_STATIC = "static scoring"
_PROFILED = (3, 10)  # of the model's first ones
_US_PER_S = 1e6
_FLUSH_PASSES = 3  # over `cold_bytes` before each cold replay, where a meta file does not say: 2 reads and a write


def measure_choice_cost(
    arch: GpuSpec, timings: Timings, is_full: Mask, protocols: Mapping[str, Mapping[str, Any]]
) -> studies.ChoiceCost:
    """Time the model's choice, and add up what profiling took; `is_full` [gemms]: all configs were timed."""
    model_us = time_select_config(arch, timings, is_full if is_full.any() else np.ones(len(is_full), bool))
    median_us, p90_us = float(np.median(model_us)), float(np.quantile(model_us, 0.9))
    if not is_full.any():
        return studies.ChoiceCost(0, 0, median_us, p90_us, 0.0, 0.0)
    num_configs, device_us, between_s = (
        np.bincount(timings.gemm, weights)[is_full]
        for weights in (None, studies.profile_us(timings), pauses_and_flushes_s(arch, timings, protocols))
    )
    device_s = device_us / _US_PER_S
    seconds = float(np.median(device_s)), float(np.median(device_s + between_s))
    return studies.ChoiceCost(int(is_full.sum()), int(np.median(num_configs)), median_us, p90_us, *seconds)


def time_select_config(
    arch: GpuSpec, timings: Timings, gemms: Mask, clock: Callable[[], float] = time.perf_counter
) -> Floats:
    """Time `select_config` on each GEMM on this machine, one thread, the model loaded: [gemms], in us."""
    asked = []
    for row in timings.frame.iloc[studies.first_rows(timings)[gemms]].to_dict("records"):
        types = types_of(row["input_dtype"], row["mode"], row["group_size"])
        options = {name: row.get(name, word) for name, word in _USUAL.items()}
        if "row_groups" in row:
            words = types.types.words
            problem = GemmProblem.grouped(map(int, row["row_groups"].split()), row["K"], row["N"], **words)
        else:
            problem = replace(types, M=row["M"], K=row["K"], N=row["N"])
        asked.append((problem, options))
    for problem, options in {problem.types: (problem, options) for problem, options in asked}.values():
        select_config(problem, arch, library="gemm-eval", **options)  # compiles, or loads what was compiled
    times_us = []
    for problem, options in asked:
        start = clock()
        select_config(problem, arch, library="gemm-eval", **options)
        times_us.append(_US_PER_S * (clock() - start))
    return np.array(times_us)


def pauses_and_flushes_s(arch: GpuSpec, timings: Timings, protocols: Mapping[str, Mapping[str, Any]]) -> Floats:
    """Return the time between replays, [rows], in s (0: not known), by the `protocol` of each table's meta file."""
    num = timings.frame["num_replays"].to_numpy(np.float64)
    total_s = np.zeros(len(timings))
    bytes_per_s = 1e9 * arch.dram_achievable_gb_per_s
    for name, protocol in protocols.items():
        rows = (timings.frame["table"] == name).to_numpy(bool) & (num > 1)  # rows given up have one short replay
        is_long = timings.sizes[:, 1] > protocol.get("max_short_rows", np.inf)
        pause_s = np.where(is_long & (protocol.get("clock") == "burst"), protocol.get("idle_s", 0.0), 0.0)
        passes = protocol.get("flush_passes", _FLUSH_PASSES) if protocol.get("l2") == "cold" else 0
        flush_s = passes * protocol.get("cold_bytes", 0) / bytes_per_s
        total_s[rows] = (num * (pause_s + flush_s))[rows]
    return total_s


def find_w4a16_tables(arch: GpuSpec, files: Sequence[Path], *, is_fit: bool | None) -> tuple[list[Path], list[Path]]:
    """Return the tables whose rows are held out of fits, and those that are scored with the committed coefficients.

    No files: all that come with the library. `is_fit` False: nothing is fitted; None: only on a GPU with calibrations
    of all families of its own.
    """
    for path in files:
        if not path.is_file():
            raise InvalidInputError(f"cannot read timings from {path}: there is no such file")
    held_back = [path for path in files if "held_back" in meta_of(path)]
    fit_on = [path for path in files if path not in held_back]
    if not files:
        fit_on, held_back = (list_w4a16_tables(arch.name, is_held_back=value) for value in (False, True))
    if is_fit is None:
        is_fit = gpu_model.coefficients_for(arch, gpu_model.OURS, gpu_model.ALL_OURS)[1].is_calibrated
    return (fit_on, held_back) if is_fit else ([], fit_on + held_back)


def study_w4a16(
    arch: GpuSpec, paths: Sequence[Path], num_folds: int = 5, seed: int = 0, train: Sequence[Path] | None = None
) -> studies.Study:
    """Score the model and its baselines on tables of `gemm-eval measure --kernel w4a16`.

    With `train` None model and roofline are fitted on other pairs of the same tables. Else the model has the
    coefficients that the library has, and the roofline is fitted on the tables `train`; empty: there is no such
    roofline.

    Raises:
        InvalidInputError: no table, or one that cannot be read.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_w4a16_timings(arch, paths)
    roofline, naive = baselines.FittedRoofline(arch, by_group=True, min_rows=MIN_ROWS), baselines.NaiveRoofline(arch)
    scores: list[metrics.Score] = []
    committed = CorrectedModel.as_it_is(arch, timings)
    if train is None:
        folds = f"{num_folds}-fold by (N, K)"
        fits = cross_fit(CorrectedModel(W4A16Model(arch), committed.asked), [timings], num_folds, seed)
        physics_us = CrossFit(tuple(fit.physics for fit in fits.fits), fits.folds).predict(timings)
        rooflines = cross_fit(roofline, [timings], num_folds, folds=fits.folds)
        scores.append(metrics.score_crossed(fits, W4A16Model.name, timings, how=folds, has_order=True))
        scores.append(metrics.Score(timings, PHYSICS, physics_us, folds, has_order=True))
        scores.append(metrics.score_crossed(rooflines, roofline.name, timings, how=folds, has_order=True))
        fold_of = fits.folds[0]
        how = f"coefficients fitted on other (N, K) pairs: {num_folds} folds, seed {seed}"
    else:
        physics, origin = W4A16Model.as_it_is(arch)
        zeros, fold_of = np.zeros(len(timings), np.int64), None
        us = committed.predict(timings)
        scores.append(
            metrics.Score(timings, physics.name, us, origin, has_order=True, fitted=[committed], fit_of=zeros)
        )
        scores.append(metrics.Score(timings, PHYSICS, physics.predict(timings), origin, has_order=True))
        if train:
            us = roofline.fit(read_w4a16_timings(arch, train)).predict(timings)
            words = "fitted on all that the model is fitted on"
            scores.append(metrics.Score(timings, roofline.name, us, words, has_order=True))
        how = f"model as it is, coefficients {origin}"
    scores.append(metrics.Score(timings, naive.name, naive.predict(timings), "data sheet"))
    choices, overhead_us = _choose(timings, scores)
    is_full = has_all_configs(timings)
    protocols = {path.stem: meta_of(path).get("protocol", {}) for path in paths}
    cost = measure_choice_cost(arch, timings, is_full, protocols)
    overhead_us |= {item.method: cost.model_us for item in choices if item.method.startswith(W4A16Model.name)}
    counts = f"{len(timings):,} timings of {timings.gemm.max() + 1} GEMMs, {len(set(timings.pairs))} (N, K) pairs"
    losses = list(_losses(timings, choices, is_full))
    title = f"{timings.name}: {counts}; {how}"
    answers = list(_answers(timings, {PHYSICS: scores[1].predicted_us, MODEL: scores[0].predicted_us}, fold_of))
    return studies.Study(
        title, timings, scores, losses, choices, is_full, cost, overhead_us, train is not None, answers=answers
    )  # fmt: skip


def _answers(timings: Timings, predicted: Mapping[str, Floats], folds: Ints | None) -> Iterator[Line]:
    """Yield the errors of answers, each of the config that is predicted to be the fastest, by mode and regime of M.

    With `folds` [rows], which were held out of fits, also how many lie in their interval by the errors of the others.
    """
    chosen = {who: chosen_rows(timings, us) for who, us in predicted.items()}
    first, last = timings.frame.iloc[chosen[PHYSICS]], chosen[MODEL]
    modes = (first["mode"] + " " + first["group_size"].astype(str)).to_numpy(str)
    regimes, inside = metrics.regime_of(timings)[last], np.zeros(len(last), bool)
    if folds is not None:
        order = np.argsort(last)
        answered = timings.select(np.bincount(last, minlength=len(timings)) > 0)
        inside[order] = metrics.are_inside(answered, predicted[MODEL][last[order]], folds[last[order]])
    for mode in dict.fromkeys(modes.tolist()):
        for regime in (item.name for item in metrics.REGIMES):
            some = (modes == mode) & ((regimes == regime) | (regime == metrics.ALL))
            if some.any():
                rows_of_who = {who: rows[some] for who, rows in chosen.items()}
                errors = {
                    who: metrics.measure_errors(timings.measured_us[rows], predicted[who][rows])
                    for who, rows in rows_of_who.items()
                }
                more = {} if folds is None else {"coverage_frac": float(inside[some].mean())}
                yield Line({"mode": mode, "regime": regime}, errors, more)


def _choose(timings: Timings, scores: Sequence[metrics.Score]) -> tuple[list[studies.Choices], dict[str, float]]:
    """Return the choices of all methods, and how long some of them take for a GEMM, in microseconds."""
    order = studies.order_by(timings, scores[0].predicted_us)
    choices = [studies.ranked_choice(timings, "model", order)]
    choices += [studies.ranked_choice(timings, f"model + profile {num}", order, num) for num in _PROFILED]
    overhead_us: dict[str, float] = {}
    num_gemms = int(timings.gemm.max()) + 1
    others = {scored.predictor: scored.predicted_us for scored in scores[1:] if scored.has_order}
    for name in (*others, _STATIC):
        start = time.perf_counter()
        order = studies.order_by(timings, others[name] if name in others else -studies.static_points(timings))
        overhead_us[name] = _US_PER_S * (time.perf_counter() - start) / num_gemms
        choices.append(studies.ranked_choice(timings, name, order))
    choices.append(studies.ranked_choice(timings, f"static + profile {_PROFILED[-1]}", order, _PROFILED[-1]))
    overhead_us[choices[-1].method] = overhead_us[_STATIC]
    measured = studies.order_by(timings, timings.measured_us)
    every = studies.ranked_choice(timings, "profile all", measured, len(timings))
    return [*choices, studies.random_choice(timings), every], overhead_us


def _losses(timings: Timings, choices: Sequence[studies.Choices], is_full: Mask) -> Iterator[studies.Loss]:
    regimes = metrics.regime_of(timings)[studies.first_rows(timings)]
    for name, of_group in (("all configs timed", is_full), ("all GEMMs", np.ones(len(is_full), bool))):
        for regime in (metrics.ALL, *(item.name for item in metrics.REGIMES[:-1])):
            gemms = of_group if regime == metrics.ALL else of_group & (regimes == regime)
            if gemms.any():
                yield from (studies.measure_loss(timings, item, gemms, name, regime) for item in choices)


_INT4_WO = "aiconfigurator/int4_wo"


def validate(
    arch: str, data: Sequence[Path] | None, folds: int, seed: int, refit: bool | None, ablation: bool, worst: int
) -> Report:
    """Score our kernels config by config; parameters are the options of the command.

    TensorRT-LLM's public timings stand below, by the model as it is: a fit of that library searches its configs again
    and again, and `gemm-eval validate dense` does it.
    """
    spec = load_arch(arch, GpuSpec)
    of_folds, as_it_is = find_w4a16_tables(spec, data or [], is_fit=refit)
    if not of_folds and not as_it_is:
        raise InvalidOptionError(f"no timings of W4A16 kernels on {spec.name} are committed: give --data FILE")
    if ablation and not of_folds:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")
    scored = [study_w4a16(spec, of_folds, folds, seed)] if of_folds else []
    scored += [study_w4a16(spec, [path], folds, seed, of_folds) for path in as_it_is]
    ablated = configs.run_ablation(W4A16Model(spec), scored[0].timings, folds, seed) if ablation else None
    sets = [] if data else [timings for timings in list_timings(spec.name) if timings.name == _INT4_WO]
    public = [item for of_set in compare(spec, sets, folds, seed, refit=False) for item in of_set]

    def document() -> dict[str, Any]:
        head = {"arch": spec.name, "num_folds": folds, "seed": seed}
        head |= {"parts": [studies.study_document(study, worst) for study in scored]}
        return head | configs.ablation_document(ablated) | {"int4_wo": metrics.report_document(public, worst)}

    def parts() -> Iterator[RenderableType]:
        for study in scored:
            yield from studies.study_report(study, worst)
        yield from configs.ablation_report(ablated) if ablated else ()
        if public:
            note = f"{public[0].note}\n{dense.describe_held_out(spec.name, gpu_model.TRTLLM, _INT4_WO)}".rstrip()
            yield metrics.errors_table(public, note)

    return Report(document, parts)


def calibrate(arch: str, family: str, data: Sequence[Path] | None, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit a family of our kernels; parameters are the options of the command."""
    check_word("--family", family, _FAMILIES)
    spec, folder = dense.load_gpu_of(arch, family), _folder_of(family)
    path = out or dense.calibration_out(spec.name, gpu_model.OURS, family)
    calibration = calibrate_w4a16(spec, family, data or list_w4a16_tables(spec.name, folder=folder), seed=seed)
    yield fitted(calibration, path, dense.family_title(calibration))
