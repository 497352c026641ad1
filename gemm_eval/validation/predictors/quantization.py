"""The fit of the kernels that quantize A by one scale, on timings of them alone (column ``quant_us``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import (
    GPU_MODEL_VERSION,
    TRTLLM,
    Calibration,
    ErrorFigures,
    pack_coefficients,
    pack_gpu,
    quantize_rows,
)
from gemm_eval.models.gpu.families import QUANTIZE
from gemm_eval.validation.fit import MIN_ROWS, Ranges, Search, fit_logs, provenance, rounded
from gemm_eval.validation.folds import fold_of_pairs
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.timings import QUANT_COLUMN, Floats, Ints, Timings
from gemm_eval.workload import RunOptions

__all__ = ["calibrate_quantization", "hash_of_times", "times_of_quantization"]

_FOLDS = 5
_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-4, evaluations=200)
_NOT_IN_DATA = {"scale_cast_us"}
_FREE = tuple(item for item in QUANTIZE.coefficients if item.name not in _NOT_IN_DATA)


def calibrate_quantization(arch: GpuSpec, sets: Sequence[Timings], *, seed: int = 0) -> Calibration:
    """Fit what quantization loses; errors are held out by (M, K), as N plays no part.

    Args:
        arch: the GPU that the timings are of.
        sets: timings of GEMMs; those with the column ``quant_us`` count, the time of the quantization of their A alone.
        seed: deals sizes to the folds.

    Raises:
        InvalidInputError: too few sizes, or sets of another GPU, or of several types.
    """
    kept = [timings for timings in sets if QUANT_COLUMN in timings.frame and timings.quantize_from]
    times = times_of_quantization(kept)
    if len(times) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs {MIN_ROWS} sizes of A with {QUANT_COLUMN}, got {len(times)}")
    params = _pack(arch, kept)
    sizes, measured_us = times[["M", "K"]].to_numpy(np.int64), times[QUANT_COLUMN].to_numpy(np.float64)
    pairs = list(zip(*sizes.T.tolist(), strict=True))
    fold_of = fold_of_pairs(set(pairs), _FOLDS, seed, f"{QUANT_COLUMN} on {arch.name}")
    fold = np.array([fold_of[pair] for pair in pairs])
    predicted_us = np.empty(len(sizes))
    for number in range(_FOLDS):
        held = fold == number
        predicted_us[held] = _predict(params, _fit(params, sizes[~held], measured_us[~held]), sizes[held])
    errors = ErrorFigures(
        data=f"{'/'.join(kept[0].name.split('/')[:2])} {QUANT_COLUMN}", sha256=hash_of_times(times),
        **error_figures(measured_us, predicted_us),
    )  # fmt: skip
    return Calibration(
        gpu=arch.name, library=TRTLLM, family=QUANTIZE.name, model_version=GPU_MODEL_VERSION,
        coefficients=rounded(_fit(params, sizes, measured_us)), fitted=tuple(item.name for item in _FREE),
        errors=(errors,), **provenance(_FOLDS, "sets", seed, by="(M, K)"),
    )  # fmt: skip


def times_of_quantization(sets: Sequence[Timings]) -> pd.DataFrame:
    """Return M, K and ``quant_us`` of sets that have it: the median over the GEMMs of that A."""
    columns = ["M", "K", QUANT_COLUMN]
    frame = pd.concat([timings.frame[columns] for timings in sets]) if sets else pd.DataFrame(columns=columns)
    return frame.groupby(["M", "K"], as_index=False).median()


def hash_of_times(times: pd.DataFrame) -> str:
    """Return the SHA-256 of what `times_of_quantization` gives."""
    return hashlib.sha256(times.to_csv(index=False, lineterminator="\n").encode()).hexdigest()


def _pack(arch: GpuSpec, sets: Sequence[Timings]) -> npt.NDArray[np.void]:
    """What decides the time of quantization besides sizes, [1] of `GPU_PARAMS_DTYPE`."""
    kinds = {(timings.quantize_from, problem.types) for timings in sets for problem in timings.problems()}
    if len(kinds) != 1 or {timings.gpu for timings in sets} != {arch.name}:
        raise InvalidInputError(
            f"a fit of the quantization of A needs timings of one type on {arch.name}, got "
            f"{', '.join(sorted(f'{types.inputs} from {source}' for source, types in kinds))} "
            f"on {', '.join(sorted({timings.gpu for timings in sets}))}"
        )
    ((source, types),) = kinds
    return pack_gpu(arch, types, RunOptions(quantize_from=source)).params


def _fit(params: npt.NDArray[np.void], sizes: Ints, measured_us: Floats) -> dict[str, float]:
    defaults = QUANTIZE.defaults
    ranges = Ranges(_FREE, {name: defaults[name] for name in _NOT_IN_DATA})
    start = ranges.shares(defaults, _SEARCH.off_bounds)
    found = fit_logs(ranges, lambda values: _predict(params, values, sizes), measured_us, start, _SEARCH)
    return ranges.values(found)


def _predict(params: npt.NDArray[np.void], values: dict[str, float], sizes: Ints) -> Floats:
    out = np.empty(len(sizes))
    quantize_rows(params, pack_coefficients(params, values), sizes, out)
    return out
