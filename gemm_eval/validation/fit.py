"""Fitting the coefficients of a kernel library on measured timings.

A timing without a config is explained by the best config that the model finds, as the library's own choice is. So a fit
alternates: with the coefficients as they are, search the config of each row; with the configs fixed, fit the
coefficients (scipy's robust least squares on log latencies, within bounds). Timings whose config is known, such as those
with the name of a cuBLAS kernel, count at that config as well.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.calibration import Calibration, ErrorFigures, coefficients_for
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, default_coefficients
from gemm_eval.models.gpu.libraries import FAMILIES, LIBRARIES
from gemm_eval.models.gpu.menu import MENU_DTYPE, Resources, menu_row
from gemm_eval.models.gpu.model import GPU_MODEL_VERSION
from gemm_eval.models.gpu.params import pack_gpu_params, with_coefficients
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu import join_menus
from gemm_eval.search.gpu_kernels import evaluate_rows, find_best_rows, is_aligned
from gemm_eval.validation.folds import assign_joint_folds
from gemm_eval.validation.kernel_names import config_of_kernel
from gemm_eval.validation.metrics import measure_errors
from gemm_eval.validation.timings import Floats, TimingSet

__all__ = ["ModelPredictor", "calibrate", "model_predictor"]

_ROUNDS = 8
_LOSS_SCALE = 0.05  # log ratio: errors well below are squared, those well above count by their size
_KNOWN_CONFIG_WEIGHT = 0.4  # a measured config is a second look at a row that counts at its best config already
_STEP = 1e-3


class _Rows(NamedTuple):
    """Rows of several sets, packed for the kernels."""

    params: npt.NDArray[np.void]  # [2 * kinds], see `find_best_of_range`
    families: tuple[str, ...]  # of each record
    menus: npt.NDArray[np.void]
    ranges: npt.NDArray[np.int64]
    kind_of: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    family_of: npt.NDArray[np.str_]
    known: npt.NDArray[np.int64]  # rows whose config is known
    known_which: npt.NDArray[np.int64]  # [known, 3]
    measured_us: Floats


Coefficients = Mapping[str, Mapping[str, float]]
"""Kernel family -> coefficient -> value."""


@dataclass(frozen=True)
class ModelPredictor:
    """The GPU cost model with coefficients of a library's kernel families; see `Predictor`."""

    arch: GpuSpec
    library: str
    coefficients: Coefficients
    name: str = "gemm_eval"

    def fit(self, train: TimingSet) -> ModelPredictor:
        rows = _pack(self.arch, self.library, [train])
        fitted = {
            family: _fit(rows, family, _ROUNDS)
            for family in FAMILIES
            if np.count_nonzero(rows.family_of == family) >= _MIN_ROWS
        }
        return replace(self, coefficients={**self.coefficients, **fitted})

    def predict(self, rows: TimingSet) -> Floats:
        packed = _pack(self.arch, self.library, [rows])
        return _best(packed, _with(packed, self.coefficients))[0]


def model_predictor(arch: GpuSpec, library: str) -> ModelPredictor:
    """Return the model with the coefficients that it has for this GPU and library."""
    return ModelPredictor(
        arch, library, {family: coefficients_for(arch, library, family)[0] for family in FAMILIES}
    )


def calibrate(
    arch: GpuSpec,
    library: str,
    family: str,
    sets: Sequence[TimingSet],
    *,
    max_evaluations: int = _ROUNDS,
    seed: int = 0,
) -> Calibration:
    """Fit a kernel family on all sets together; errors are held out by (N, K) over the union of the sets.

    Rows that the library runs with another family, and those of a band that is reported apart, do not count.

    Args:
        arch: the GPU that the timings are of.
        library: whose kernels ran.
        family: the kernel family whose coefficients are fitted.
        sets: timings, with or without the configs.
        max_evaluations: rounds of search and fit.
        seed: deals the pairs to the folds.

    Raises:
        InvalidInputError: no rows of the family, or sets of another GPU or library.
    """
    for item in sets:
        if item.gpu != arch.name or item.library != library:
            raise InvalidInputError(f"{item.name} is of {item.library} on {item.gpu}, not of {library} on {arch.name}")
    kept = []
    for item in sets:
        mask = (_pack(arch, library, [item]).family_of == family) & ~item.in_band
        if mask.any():
            kept.append(item.select(mask))
    if not kept:
        raise InvalidInputError(f"no row of the data runs a {family} kernel of {library} on {arch.name}")
    fitted = _fit(_pack(arch, library, kept), family, max_evaluations)
    predictions = [np.full(len(item), np.nan) for item in kept]
    numbers = assign_joint_folds(kept, _FOLDS, seed)
    for fold in range(_FOLDS):
        train = [item.select(number != fold) for item, number in zip(kept, numbers, strict=True)]
        held = _fit(_pack(arch, library, [item for item in train if len(item)]), family, max_evaluations)
        predictor = ModelPredictor(arch, library, {family: held})
        for item, number, prediction in zip(kept, numbers, predictions, strict=True):
            if (number == fold).any():
                prediction[number == fold] = predictor.predict(item.select(number == fold))
    from gemm_eval import __version__

    return Calibration(
        gpu=arch.name, library=library, family=family, model_version=GPU_MODEL_VERSION, code_version=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(), folds=f"{_FOLDS}-fold by (N, K), seed {seed}",
        coefficients=fitted, fitted=_fitted_names(family, kept),
        errors=tuple(_figures(item, prediction) for item, prediction in zip(kept, predictions, strict=True)),
    )  # fmt: skip


_FOLDS = 5
_MIN_ROWS = 30


def _figures(timings: TimingSet, predicted_us: Floats) -> ErrorFigures:
    errors = measure_errors(timings.latency_us, predicted_us)
    return ErrorFigures(
        data=timings.name, sha256=timings.content_hash.removeprefix("sha256:"), num_rows=len(timings),
        mape_percent=errors.mape_frac * 100, median_percent=errors.median_frac * 100,
        p90_percent=errors.p90_frac * 100, bias_percent=errors.bias_frac * 100, kendall_tau=errors.kendall_tau or 0.0,
    )  # fmt: skip


def _fitted_names(family: str, sets: Sequence[TimingSet]) -> tuple[str, ...]:
    is_quantized = any((item.frame["weight_dtype"] != item.frame["input_dtype"]).any() for item in sets)
    names = _names_for(family, is_quantized=is_quantized)
    return tuple(item.name for item in COEFFICIENTS if item.name in names)


def _pack(arch: GpuSpec, library: str, sets: Sequence[TimingSet]) -> _Rows:
    rules = LIBRARIES[library]
    kinds: dict[object, int] = {}
    records, families, extra, known, known_which = [], [], [], [], []
    kind_of, sizes, family_of, measured = [], [], [], []
    num_rows = 0
    for item in sets:
        names = item.column("kernel") if "kernel" in item.frame.columns else None
        grids = item.frame[["grid_x", "grid_y", "grid_z"]].to_numpy() if names is not None else None
        for place, problem in enumerate(item.problems()):
            types = (problem.input_dtype, problem.weight_dtype, problem.output_dtype, problem.group_size, item.l2, item.clock)
            kind = kinds.get(types)
            if kind is None:
                kind = kinds[types] = len(records)
                record = None
                for is_unaligned in (True, False):
                    family = rules.family(arch, problem, is_unaligned=is_unaligned)
                    record = pack_gpu_params(
                        arch, problem, library, default_coefficients(family), l2=item.l2, clock=item.clock,
                        is_calibrated=False, unaligned=record,
                    )  # fmt: skip
                    families.append(family)
                assert record is not None
                records.append(record)
            kind_of.append(kind)
            sizes.append(problem.sizes)
            family_of.append(
                families[2 * kind + 1] if is_aligned(records[kind], problem.K, problem.N) else families[2 * kind]
            )
            if names is not None and grids is not None and isinstance(names[place], str):
                config = config_of_kernel(names[place], int(np.prod(grids[place])), problem.M, problem.N, problem.G)
                if config is not None:
                    known.append(num_rows)
                    known_which.append((len(extra), config.split_k, 0))
                    extra.append(menu_row(arch, problem, config, _RESOURCES))
            num_rows += 1
        measured.append(item.latency_us)
    both, menus, ranges = join_menus(np.concatenate(records))
    which = np.array(known_which, np.int64).reshape(-1, 3)
    which[:, 0] += len(menus)
    in_turn = tuple(name for pair in zip(families[1::2], families[::2], strict=True) for name in pair)
    return _Rows(
        both, in_turn, np.concatenate([menus, np.array(extra, MENU_DTYPE)]), ranges, np.array(kind_of, np.int64),
        np.array(sizes, np.int64).reshape(-1, 4), np.array(family_of), np.array(known, np.int64), which,
        np.concatenate(measured),
    )  # fmt: skip


_RESOURCES = Resources(smem_bytes=0, registers=0, threads=384, ctas_per_sm=1)


def _with(rows: _Rows, coefficients: Coefficients) -> npt.NDArray[np.void]:
    parts = [
        with_coefficients(rows.params[place : place + 1], coefficients.get(family) or default_coefficients(family))
        for place, family in enumerate(rows.families)
    ]
    return np.concatenate(parts)


def _best(rows: _Rows, params: npt.NDArray[np.void]) -> tuple[Floats, npt.NDArray[np.int64]]:
    num = len(rows.kind_of)
    out_us, which = np.empty(num), np.empty((num, 3), np.int64)

    def work(start: int, stop: int) -> None:
        find_best_rows(params, rows.menus, rows.ranges, rows.kind_of, rows.sizes, start, stop, out_us, which)

    run_in_chunks(work, num)
    return out_us, which


def _of_family(rows: _Rows, family: str) -> _Rows:
    mask = rows.family_of == family
    known = mask[rows.known]
    place = np.cumsum(mask) - 1
    return rows._replace(
        kind_of=rows.kind_of[mask], sizes=rows.sizes[mask], family_of=rows.family_of[mask],
        known=place[rows.known[known]], known_which=rows.known_which[known], measured_us=rows.measured_us[mask],
    )  # fmt: skip


def _fit(rows: _Rows, family: str, num_rounds: int) -> dict[str, float]:
    """Fit from the family's defaults on, so that nothing of an earlier fit is in the result."""
    from scipy.optimize import least_squares

    start = default_coefficients(family)
    rows = _of_family(rows, family)
    is_quantized = bool((rows.params["b_elem_bytes"] < rows.params["a_elem_bytes"]).any())
    items = [item for item in COEFFICIENTS if item.name in _names_for(family, is_quantized=is_quantized)]
    names = [item.name for item in items]
    low, high = np.array([item.low for item in items]), np.array([item.high for item in items])
    kind_of = np.concatenate([rows.kind_of, rows.kind_of[rows.known]])
    sizes = np.concatenate([rows.sizes, rows.sizes[rows.known]])
    measured = np.concatenate([rows.measured_us, rows.measured_us[rows.known]])
    weights = np.concatenate([np.ones(len(rows.kind_of)), np.full(len(rows.known), _KNOWN_CONFIG_WEIGHT)])
    out_us = np.empty(len(kind_of))

    def params_at(x: Floats) -> npt.NDArray[np.void]:
        return _with(rows, {family: start | dict(zip(names, (low + x * (high - low)).tolist(), strict=True))})

    def errors_at(x: Floats, places: npt.NDArray[np.int64]) -> Floats:
        evaluate_rows(params_at(x), rows.menus, kind_of, sizes, places, out_us)
        return cast("Floats", weights * np.log(out_us / measured))

    x = np.clip((np.array([start[name] for name in names]) - low) / (high - low), 1e-4, 1 - 1e-4)
    best_x, best_cost = x, np.inf
    for round_number in range(num_rounds + 1):
        _, which = _best(rows, params_at(x))
        places = np.concatenate([which, rows.known_which])
        cost = _robust(errors_at(x, places))
        if cost < best_cost:
            best_x, best_cost = x, cost
        if round_number < num_rounds:
            found = least_squares(
                errors_at, x, args=(places,), bounds=(np.zeros(len(x)), np.ones(len(x))), loss="soft_l1",
                f_scale=_LOSS_SCALE, diff_step=_STEP, max_nfev=12,
            )  # fmt: skip
            x = found.x
    return start | dict(zip(names, (low + best_x * (high - low)).tolist(), strict=True))


def _names_for(family: str, *, is_quantized: bool) -> set[str]:
    """The coefficients that timings of such kernels can tell something about."""
    names = {item.name for item in COEFFICIENTS} - {"fixup_us"}
    if not is_quantized:
        names -= {"dequant", "dequant_exposed"}
    if family == "sm80_mma":
        names -= {"coop_step_cycles", "coop_tile_cycles", "pingpong_cycles"}
    else:
        names -= {"unaligned_frac"}
    return names


def _robust(residuals: Floats) -> float:
    return float(np.sum(2.0 * (np.sqrt(1.0 + (residuals / _LOSS_SCALE) ** 2) - 1.0)))
