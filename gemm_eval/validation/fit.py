"""Fitting the coefficients of a kernel library on measured timings.

A timing without a config is explained by the best config that the model finds, as the library's own choice is. So a fit
alternates: with the coefficients as they are, search the config of each row; with the configs fixed, fit the
coefficients (scipy's robust least squares on log latencies, within bounds). Timings whose config is known, such as those
with the name of a cuBLAS kernel, count at that config as well.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.calibration import Calibration, ErrorFigures, coefficients_for
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, default_coefficients
from gemm_eval.models.gpu.libraries import LIBRARIES
from gemm_eval.models.gpu.menu import MENU_DTYPE, Resources, menu_row
from gemm_eval.models.gpu.model import GPU_MODEL_VERSION
from gemm_eval.models.gpu.params import pack_gpu_params, with_coefficients
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu import join_menus
from gemm_eval.search.gpu_kernels import evaluate_rows, find_best_rows
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

    params: npt.NDArray[np.void]  # [kinds]
    menus: npt.NDArray[np.void]
    ranges: npt.NDArray[np.int64]
    kind_of: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]  # rows whose config is known
    known_which: npt.NDArray[np.int64]  # [known, 3]
    measured_us: Floats


@dataclass(frozen=True)
class ModelPredictor:
    """The GPU cost model with one set of coefficients of a library; see `Predictor`."""

    arch: GpuSpec
    library: str
    coefficients: dict[str, float]
    name: str = "gemm_eval"

    def fit(self, train: TimingSet) -> ModelPredictor:
        return replace(self, coefficients=_fit(self.arch, self.library, [train], _ROUNDS))

    def predict(self, rows: TimingSet) -> Floats:
        packed = _pack(self.arch, self.library, [rows])
        return _best(packed, _with(packed, self.coefficients))[0]


def model_predictor(arch: GpuSpec, library: str) -> ModelPredictor:
    """Return the model with the coefficients that it has for this GPU and library."""
    return ModelPredictor(arch, library, coefficients_for(arch, library)[0])


def calibrate(
    arch: GpuSpec, library: str, sets: Sequence[TimingSet], *, max_evaluations: int = _ROUNDS, seed: int = 0
) -> Calibration:
    """Fit the coefficients of `library` on all sets together; errors are held out by (N, K) over the union of the sets.

    Args:
        arch: the GPU that the timings are of.
        library: whose kernels ran.
        sets: timings, with or without the configs; rows of a band that is reported apart do not count.
        max_evaluations: rounds of search and fit.
        seed: deals the pairs to the folds.

    Raises:
        InvalidInputError: no rows, or sets of another GPU or library.
    """
    for item in sets:
        if item.gpu != arch.name or item.library != library:
            raise InvalidInputError(f"{item.name} is of {item.library} on {item.gpu}, not of {library} on {arch.name}")
    sets = [item.select(~item.in_band) for item in sets]
    if not sum(map(len, sets)):
        raise InvalidInputError("there is no row to fit on")
    fitted = _fit(arch, library, sets, max_evaluations)
    predictions = [np.full(len(item), np.nan) for item in sets]
    numbers = assign_joint_folds(sets, _FOLDS, seed)
    for fold in range(_FOLDS):
        train = [item.select(number != fold) for item, number in zip(sets, numbers, strict=True)]
        held = _fit(arch, library, [item for item in train if len(item)], max_evaluations)
        predictor = ModelPredictor(arch, library, held)
        for item, number, prediction in zip(sets, numbers, predictions, strict=True):
            if (number == fold).any():
                prediction[number == fold] = predictor.predict(item.select(number == fold))
    errors = []
    for item, prediction in zip(sets, predictions, strict=True):
        score = measure_errors(item.latency_us, prediction)
        errors.append(
            ErrorFigures(
                data=item.name, sha256=item.content_hash.removeprefix("sha256:"), num_rows=len(item),
                mape_percent=score.mape_frac * 100, median_percent=score.median_frac * 100,
                p90_percent=score.p90_frac * 100, bias_percent=score.bias_frac * 100,
                kendall_tau=score.kendall_tau or 0.0,
            )
        )  # fmt: skip
    from gemm_eval import __version__

    return Calibration(
        gpu=arch.name, library=library, sm_arch=arch.sm_arch, model_version=GPU_MODEL_VERSION,
        code_version=__version__, date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        folds=f"{_FOLDS}-fold by (N, K), seed {seed}", coefficients=fitted, fitted=_fitted_names(sets),
        errors=tuple(errors),
    )  # fmt: skip


_FOLDS = 5


def _fitted_names(sets: Sequence[TimingSet]) -> tuple[str, ...]:
    """The coefficients that the rows can tell something about."""
    quantized = any((item.frame["weight_dtype"] != item.frame["input_dtype"]).any() for item in sets)
    dequant = {"dequant", "dequant_exposed"}
    return tuple(item.name for item in COEFFICIENTS if item.name != "fixup_us" and (quantized or item.name not in dequant))


def _pack(arch: GpuSpec, library: str, sets: Sequence[TimingSet]) -> _Rows:
    start = default_coefficients(LIBRARIES[library].main_family(arch))
    kinds: dict[object, int] = {}
    records, extra, known, known_which = [], [], [], []
    kind_of, sizes, measured = [], [], []
    num_rows = 0
    for item in sets:
        names = item.column("kernel") if "kernel" in item.frame.columns else None
        grids = item.frame[["grid_x", "grid_y", "grid_z"]].to_numpy() if names is not None else None
        for place, problem in enumerate(item.problems()):
            types = (problem.input_dtype, problem.weight_dtype, problem.output_dtype, problem.group_size, item.l2, item.clock)
            kind = kinds.get(types)
            if kind is None:
                kind = kinds[types] = len(records)
                records.append(
                    pack_gpu_params(arch, problem, library, start, l2=item.l2, clock=item.clock, is_calibrated=False)
                )
            kind_of.append(kind)
            sizes.append(problem.sizes)
            if names is not None and grids is not None and isinstance(names[place], str):
                config = config_of_kernel(names[place], int(np.prod(grids[place])), problem.M, problem.N, problem.G)
                if config is not None:
                    known.append(num_rows)
                    known_which.append((len(extra), config.split_k, 0))
                    extra.append(menu_row(arch, problem, config, _RESOURCES))
            num_rows += 1
        measured.append(item.latency_us)
    params = np.concatenate(records)
    menus, ranges = join_menus(params)
    which = np.array(known_which, np.int64).reshape(-1, 3)
    which[:, 0] += len(menus)
    return _Rows(
        params, np.concatenate([menus, np.array(extra, MENU_DTYPE)]), ranges, np.array(kind_of, np.int64),
        np.array(sizes, np.int64).reshape(-1, 4), np.array(known, np.int64), which, np.concatenate(measured),
    )  # fmt: skip


_RESOURCES = Resources(smem_bytes=0, registers=0, threads=384, ctas_per_sm=1)


def _with(rows: _Rows, coefficients: dict[str, float]) -> npt.NDArray[np.void]:
    return with_coefficients(rows.params, coefficients)


def _best(rows: _Rows, params: npt.NDArray[np.void]) -> tuple[Floats, npt.NDArray[np.int64]]:
    num = len(rows.kind_of)
    out_us, which = np.empty(num), np.empty((num, 3), np.int64)

    def work(start: int, stop: int) -> None:
        find_best_rows(params, rows.menus, rows.ranges, rows.kind_of, rows.sizes, start, stop, out_us, which)

    run_in_chunks(work, num)
    return out_us, which


def _fit(
    arch: GpuSpec, library: str, sets: Sequence[TimingSet], num_rounds: int
) -> dict[str, float]:
    """Fit from the family's defaults on, so that nothing of an earlier fit is in the result."""
    from scipy.optimize import least_squares

    start = default_coefficients(LIBRARIES[library].main_family(arch))
    rows = _pack(arch, library, sets)
    names = _fitted_names(sets)
    items = [item for item in COEFFICIENTS if item.name in names]
    low, high = np.array([item.low for item in items]), np.array([item.high for item in items])
    kind_of = np.concatenate([rows.kind_of, rows.kind_of[rows.known]])
    sizes = np.concatenate([rows.sizes, rows.sizes[rows.known]])
    measured = np.concatenate([rows.measured_us, rows.measured_us[rows.known]])
    weights = np.concatenate([np.ones(len(rows.kind_of)), np.full(len(rows.known), _KNOWN_CONFIG_WEIGHT)])
    out_us = np.empty(len(kind_of))

    def coefficients(x: Floats) -> dict[str, float]:
        return start | dict(zip(names, (low + x * (high - low)).tolist(), strict=True))

    x = np.clip((np.array([start[name] for name in names]) - low) / (high - low), 1e-4, 1 - 1e-4)
    best_x, best_cost = x, np.inf
    for _ in range(num_rounds):
        _, which = _best(rows, _with(rows, coefficients(x)))
        places = np.concatenate([which, rows.known_which])

        def residuals(x: Floats, places: npt.NDArray[np.int64] = places) -> Floats:
            evaluate_rows(_with(rows, coefficients(x)), rows.menus, kind_of, sizes, places, out_us)
            return cast("Floats", weights * np.log(out_us / measured))

        cost = _robust(residuals(x))
        if cost < best_cost:
            best_x, best_cost = x, cost
        found = least_squares(
            residuals, x, bounds=(np.zeros(len(x)), np.ones(len(x))), loss="soft_l1", f_scale=_LOSS_SCALE,
            diff_step=_STEP, max_nfev=12,
        )  # fmt: skip
        x = found.x
    _, which = _best(rows, _with(rows, coefficients(x)))
    evaluate_rows(_with(rows, coefficients(x)), rows.menus, kind_of, sizes, np.concatenate([which, rows.known_which]), out_us)
    if _robust(weights * np.log(out_us / measured)) < best_cost:
        best_x = x
    return coefficients(best_x)


def _robust(residuals: Floats) -> float:
    return float(np.sum(2.0 * (np.sqrt(1.0 + (residuals / _LOSS_SCALE) ** 2) - 1.0)))
