"""The model of dense GEMMs and of the quantization of A: fits, calibrations, the origin of coefficients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.mapping import Schedule
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu.families import FAMILIES, GENERIC, QUANTIZE, default_coefficients
from gemm_eval.models.gpu.triton import triton_calibration_path
from gemm_eval.validation import fit
from gemm_eval.validation.exam import MODEL
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.subjects import dense_rows
from gemm_eval.validation.tables import QUANT_COLUMN, Floats, Ints, Mask, Timings
from gemm_eval.words import check_word
from gemm_eval.workload import RunOptions


def load_gpu_of(arch: str, family: str) -> GpuSpec:
    """Return the spec of a GPU that runs a kernel family; InvalidOptionError: it does not."""
    spec = load_arch(arch, GpuSpec)
    if spec.sm_arch not in FAMILIES[family].sm_archs:
        raise InvalidOptionError(f"--family {family} does not run on {spec.name}, which is {spec.sm_arch}")
    return spec


def family_title(calibration: gpu_model.Calibration) -> str:
    """Return the title of the errors of a kernel family."""
    family, gpu = calibration.family, calibration.gpu
    return f"{family} kernels of {calibration.library} on {gpu}: errors {calibration.folds}"


def calibration_out(gpu: str, library: str, family: str) -> Path:
    """Return where a calibration is committed; that of Triton's kernels of any code has no family."""
    if data_root().name == "_arch_data":
        raise InvalidOptionError("--out must be given: this is no checkout, and an installed package is not written to")
    is_of_any_code = library == "triton" and not family
    return triton_calibration_path(gpu) if is_of_any_code else gpu_model.calibration_path(gpu, library, family)


def _committed(gpu: str, library: str) -> list[gpu_model.Calibration]:
    return [
        gpu_model.load_calibration(path)
        for path in sorted((data_root() / "calibration" / gpu).glob(f"{library}-*.yaml"))
    ]


def fitted_sets(gpu: str, library: str) -> frozenset[str]:
    """Return the names of the sets that the calibrations of a GPU and a library are fitted on."""
    return frozenset(errors.data for calibration in _committed(gpu, library) for errors in calibration.errors)


def describe_held_out(gpu: str, library: str, data: str) -> str:
    """Return the held-out errors that the calibrations of a GPU and a library give for a set, a line each."""
    return "\n".join(
        f"{calibration.family}: held out {errors.mape_percent:.1f}% MAPE, {errors.median_percent:.1f}% median, "
        f"{errors.p90_percent:.1f}% p90 ({calibration.folds})"
        for calibration in _committed(gpu, library)
        for errors in calibration.errors
        if errors.data == data
    )


def origin_of(arch: GpuSpec, timings: Timings) -> gpu_model.Origin:
    """Return where the coefficients of the family that most rows of a set run with come from."""
    return gpu_model.coefficients_for(arch, timings.library, dense_rows.families_of(arch, timings)[0])[1]


def describe_origin(arch: GpuSpec, timings: Timings, main: gpu_model.Origin) -> str:
    """Return where the coefficients of the main family come from, and those of other families where that differs."""
    texts = {
        name: gpu_model.coefficients_for(arch, timings.library, name)[1].text
        for name in dense_rows.families_of(arch, timings)[1:]
    }
    return "; ".join([main.text, *(f"{name}: {text}" for name, text in texts.items() if text != main.text)])


ROUNDS = 8
"""Rounds of search and fit; more do not change the errors."""

_FOLDS = 5
_SEARCH = fit.Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-4, evaluations=12)  # of a round
_KNOWN_CONFIG_WEIGHT = 0.7  # a measured config is a second look at a row that counts at its best config already
# old kernels of many kinds: with more free coefficients a fit explains the pairs (N, K), not the kernels. Fixed costs
# stay at their defaults, as no row has a short K, and sizes without rows would be fast or slow by what absorbs errors
_FREE_OF_NARROW = {
    "step_cycles", "dram_frac", "unaligned_frac", "line_conflict", "reduce_us", "reduce_frac",
    "epilogue_bytes_per_cycle", "vector_step_cycles", "vector_frac",
}  # fmt: skip
_OF_WARPGROUPS = {
    "coop_step_cycles", "coop_tile_cycles", "pingpong_cycles", "cluster_loss", "outside_rows_per_cycle"
}  # fmt: skip
# rows that are all this long tell little of fixed costs, reductions and kernels for few rows, which keep their defaults
_LONG_US = 100.0
_PROBE = 0.01  # of a coefficient's range: what moves no latency by this much, no row determines


@dataclass(frozen=True)
class ModelPredictor:
    """The GPU cost model with a library's coefficients, or defaults; a fit takes `num_rounds` of search and fit."""

    arch: GpuSpec
    library: str
    coefficients: dense_rows.Coefficients = field(default_factory=dict)
    num_rounds: int = ROUNDS
    name: str = MODEL

    def fit(self, *train: Timings) -> ModelPredictor:
        """Return one fitted on `train` alone; families with fewer than `MIN_ROWS` rows get their defaults."""
        timings = dense_rows.pack_timings(self.arch, self.library, train)
        fitted = {
            family: fit_family(timings, family, self.library, self.num_rounds)[0]
            for family in GENERIC
            if np.count_nonzero(timings.rows.family_of == family) >= fit.MIN_ROWS
        }
        return replace(self, coefficients=fitted)

    def predict(self, rows: Timings) -> Floats:
        packed = dense_rows.pack_problems(self.arch, self.library, [rows])
        return dense_rows.best_configs(packed, dense_rows.with_families(packed, self.coefficients))[0] + rows.timer_us


def model_predictor(arch: GpuSpec, library: str) -> ModelPredictor:
    """Return the model with the coefficients that it has for this GPU and library."""
    return ModelPredictor(
        arch, library, {family: gpu_model.coefficients_for(arch, library, family)[0] for family in GENERIC}
    )


def calibrate(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, max_evaluations: int = ROUNDS, seed: int = 0
) -> gpu_model.Calibration:
    """Fit a kernel family on all sets together; errors are held out by (N, K) over the union of the sets.

    Rows that the library runs with another family, and those of a band that is reported apart, do not count.
    `max_evaluations` are rounds of search and fit; `seed` deals the pairs to the folds.

    Raises:
        InvalidOptionError: no such library or family.
        InvalidInputError: too few rows or pairs of the family, or sets of another GPU or library.
    """
    kept = rows_of_family(arch, library, family, sets)
    coefficients, fitted = fit_family(dense_rows.pack_timings(arch, library, kept), family, library, max_evaluations)
    crossed = fit.cross_fit(ModelPredictor(arch, library, num_rounds=max_evaluations), kept, _FOLDS, seed)
    predicted = [(item, crossed.predict(item, index)) for index, item in enumerate(kept)]
    errors = (error_figures(item.name, item.sha256, item.measured_us, us) for item, us in predicted)
    log_errors = np.concatenate([item.log_errors(us) for item, us in predicted])
    places, pairs = (
        np.concatenate([item.regime_places for item in kept]),
        [pair for item in kept for pair in item.pairs],
    )
    return gpu_model.Calibration(
        gpu=arch.name, library=library, family=family, model_version=gpu_model.GPU_MODEL_VERSION,
        coefficients=fit.rounded(coefficients), fitted=fitted, errors=tuple(errors),
        intervals=gpu_model.fit_intervals(places, log_errors, pairs),
        **fit.provenance(_FOLDS, "sets", seed),
    )  # fmt: skip


def rows_of_family(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, has_siblings: bool = False
) -> list[Timings]:
    """Return a library's rows of a family, without bands; `has_siblings`: of GPUs with the same coefficients too."""
    check_word("library", library, gpu_model.LIBRARIES)
    check_word("family", family, FAMILIES)
    kept = []
    for item in sets:
        if (item.gpu != arch.name and not has_siblings) or item.library != library:
            raise InvalidInputError(f"{item.name} is of {item.library} on {item.gpu}, not of {library} on {arch.name}")
        if len(item):
            mask = (dense_rows.pack_problems(arch, library, [item]).family_of == family) & ~item.in_band
            kept += [item.select(mask)] if mask.any() else []
    num_rows = sum(len(item) for item in kept)
    num_pairs = len({pair for item in kept for pair in item.pairs})
    if num_rows < fit.MIN_ROWS or num_pairs < _FOLDS:
        raise InvalidInputError(
            f"a fit needs at least {fit.MIN_ROWS} rows and {_FOLDS} (N, K) pairs that {library} runs with {family} "
            f"kernels on {arch.name}, got {num_rows} rows and {num_pairs} pairs"
        )
    return kept


def fit_family(
    timings: dense_rows.KnownRows, family: str, library: str, num_rounds: int = ROUNDS
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fit the coefficients of `family` on its rows, at least one, from the family's defaults on.

    The best of all rounds counts, its loss being that at the configs which are best with its coefficients. Returns all
    coefficients, and the names of those that the rows determine; what changes nothing stays at its default.
    """
    goal = _Goal(timings.of_family(family), family, library)
    x = goal.ranges.shares(default_coefficients(family), _SEARCH.off_bounds)
    rounds = [(x, goal.configs(goal.ranges.values(x)))]
    for _ in range(num_rounds):
        x = goal.fit(*rounds[-1])
        rounds.append((x, goal.configs(goal.ranges.values(x))))
    return goal.settled(*min(rounds, key=lambda of_round: goal.loss(*of_round)))


class _Goal:
    """Errors of the model on the rows of one family, over its free coefficients as shares 0..1 of their ranges."""

    def __init__(self, timings: dense_rows.KnownRows, family: str, library: str) -> None:
        rows, known = timings.rows, timings.known
        self._rows, self._family, self._known_configs = rows, family, timings.known_configs
        is_quantized = bool((rows.params["b_elem_bytes"] < rows.params["a_elem_bytes"])[rows.kind_of].any())
        has_vector, has_coop = (
            bool((rows.candidates["schedule"] == of).any()) for of in (Schedule.VECTOR, Schedule.COOPERATIVE)
        )
        free = _free_names(family, library, is_quantized=is_quantized, has_vector=has_vector, has_coop=has_coop)
        items = [item for item in FAMILIES[family].coefficients if item.name in free]
        if timings.measured_us.min() >= _LONG_US:
            items = [item for item in items if item.unit != "us" and not item.name.startswith(("reduce_", "vector_"))]
        self.ranges = fit.Ranges(items, default_coefficients(family))
        # every row at its best config, then the known ones at theirs
        self._kind_of, self._sizes, self._timer_us, self._measured_us = (
            np.concatenate([column, column[known]])
            for column in (rows.kind_of, rows.sizes, timings.timer_us, timings.measured_us)
        )
        self._weights = np.concatenate([np.ones(len(rows.kind_of)), np.full(len(known), _KNOWN_CONFIG_WEIGHT)])

    def configs(self, values: dict[str, float]) -> Ints:
        best = dense_rows.best_configs(self._rows, dense_rows.with_families(self._rows, {self._family: values}))[1]
        return np.concatenate([best, self._known_configs])

    def fit(self, x: Floats, configs: Ints) -> Floats:
        return fit.fit_logs(
            self.ranges, lambda values: self._latencies(values, configs), self._measured_us, x, _SEARCH, self._weights
        )

    def loss(self, x: Floats, configs: Ints) -> float:
        errors = np.log(self._latencies(self.ranges.values(x), configs)) - np.log(self._measured_us)
        return fit.soft_l1(self._weights * errors, _SEARCH.loss_scale)

    def settled(self, x: Floats, configs: Ints) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return coefficients, of which those that change no latency have their defaults, and the others' names."""
        values = self.ranges.values(x)
        here, determined = self._latencies(values, configs), []
        for index, item in enumerate(self.ranges.items):
            probe = x.copy()
            probe[index] += _PROBE if x[index] < 0.5 else -_PROBE
            if (self._latencies(self.ranges.values(probe), configs) != here).any():
                determined.append(item.name)
        best = self._latencies(values, self.configs(values))
        for item in self.ranges.items:
            if item.name not in determined:
                other = {**values, item.name: item.default}
                values = other if np.array_equal(self._latencies(other, self.configs(other)), best) else values
        return values, tuple(determined)

    def _latencies(self, values: dict[str, float], configs: Ints) -> Floats:
        packed = dense_rows.with_families(self._rows, {self._family: values})
        latency_us = dense_rows.latencies(self._rows, packed, self._kind_of, self._sizes, configs)
        # where the library's choice is known, nothing is lost by it
        latency_us[len(self._rows.kind_of) :] /= 1.0 + values["choice_loss"]
        latency_us += self._timer_us
        return latency_us


def _free_names(family: str, library: str, *, is_quantized: bool, has_vector: bool, has_coop: bool) -> set[str]:
    """Return the coefficients that timings of such kernels can tell something about."""
    if family in ("mma_unaligned", "mma_elementwise"):
        return _FREE_OF_NARROW
    of_family = FAMILIES[family]
    names = {item.name for item in of_family.coefficients} - {"line_conflict"}
    if not gpu_model.LIBRARIES[library].has_stream_k:
        names -= {"fixup_us"}
    if of_family.block_scaled is not None:  # one pass over A, no cast of a scale
        names -= {"scale_cast_us", "choice_loss"}
    if of_family.block_scaled is not None or gpu_model.LIBRARIES[library].never_splits(family):
        names -= {"reduce_us", "reduce_frac", "reduce_part_us"}
    if not is_quantized:
        names -= {name for name in names if name.startswith(("dequant", "vector_dequant"))}
    if not has_vector:
        names -= {name for name in names if name.startswith("vector_")}
    if not of_family.is_warp_specialized:
        names -= {"l2_frac", "l2_first"} if of_family.operands == "lanes" else set()
        return names - ({"pingpong_cycles", "outside_rows_per_cycle"} if has_coop else _OF_WARPGROUPS)
    names -= {"unaligned_frac"}  # TMA loads aligned rows only
    # fits end at the bounds of these, or do without them; fewer coefficients generalize better
    names -= {"l2_frac", "l2_first", "store_exposed_frac", "tile_cycles"}
    return names - {"matrix_frac"} if of_family.block_scaled is None else names


_QUANTIZATION_SEARCH = fit.Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-4, evaluations=200)
_FREE = tuple(item for item in QUANTIZE.coefficients if item.name != "scale_cast_us")  # which is not in the data


def calibrate_quantization(arch: GpuSpec, sets: Sequence[Timings], *, seed: int = 0) -> gpu_model.Calibration:
    """Fit the losses of quantizing A on sets with ``quant_us``; errors are held out by (M, K), dealt by `seed`."""
    kept = [timings for timings in sets if QUANT_COLUMN in timings.frame and timings.quantize_from]
    times = times_of_quantization(kept)
    if len(times) < fit.MIN_ROWS:
        raise InvalidInputError(f"a fit needs {fit.MIN_ROWS} sizes of A with {QUANT_COLUMN}, got {len(times)}")
    params = _pack_quantization(arch, kept)
    sizes, measured_us = times[["M", "K"]].to_numpy(np.int64), times[QUANT_COLUMN].to_numpy(np.float64)
    pairs = [(int(M), int(K)) for M, K in sizes]
    folds = fit.deal_pairs(pairs, _FOLDS, seed, f"{QUANT_COLUMN} on {arch.name}")
    ranges = fit.Ranges(_FREE, QUANTIZE.defaults)

    def predict(values: dict[str, float], rows: Mask) -> Floats:
        out = np.empty(np.count_nonzero(rows))
        gpu_model.quantize_rows(params, gpu_model.pack_coefficients(params, values), sizes[rows], out)
        return out

    def fit_rows(train: Mask) -> dict[str, float]:
        return ranges.fit(lambda values: predict(values, train), measured_us[train], _QUANTIZATION_SEARCH)

    predicted_us = fit.held_out(folds, lambda train, rows: {MODEL: predict(fit_rows(train), rows)})[MODEL]
    data = f"{'/'.join(kept[0].name.split('/')[:2])} {QUANT_COLUMN}"
    times_hash = hashlib.sha256(times.to_csv(index=False, lineterminator="\n").encode()).hexdigest()
    return gpu_model.Calibration(
        gpu=arch.name, library=gpu_model.TRTLLM, family=QUANTIZE.name, model_version=gpu_model.GPU_MODEL_VERSION,
        coefficients=fit.rounded(fit_rows(np.ones(len(sizes), bool))), fitted=tuple(item.name for item in _FREE),
        errors=(error_figures(data, times_hash, measured_us, predicted_us),),
        **fit.provenance(_FOLDS, "sets", seed, by="(M, K)"),
    )  # fmt: skip


def times_of_quantization(sets: Sequence[Timings]) -> pd.DataFrame:
    """Return M, K and ``quant_us`` of sets that have it: the median over the GEMMs of that A."""
    columns = ["M", "K", QUANT_COLUMN]
    frame = pd.concat([timings.frame[columns] for timings in sets]) if sets else pd.DataFrame(columns=columns)
    return frame.groupby(["M", "K"], as_index=False).median()


def _pack_quantization(arch: GpuSpec, sets: Sequence[Timings]) -> npt.NDArray[np.void]:
    """Return what decides the time of quantization besides sizes, [1] of `GPU_PARAMS_DTYPE`."""
    kinds = {(timings.quantize_from, problem.types) for timings in sets for problem in timings.problems()}
    if len(kinds) != 1 or {timings.gpu for timings in sets} != {arch.name}:
        raise InvalidInputError(
            f"a fit of the quantization of A needs timings of one type on {arch.name}, got "
            f"{', '.join(sorted(f'{types.inputs} from {source}' for source, types in kinds))} "
            f"on {', '.join(sorted({timings.gpu for timings in sets}))}"
        )
    ((source, types),) = kinds
    return gpu_model.pack_gpu(arch, types, RunOptions(quantize_from=source)).params
