"""The fit of the kernels that quantize A by one scale, on timings of them alone (column ``quant_us``)."""

from __future__ import annotations

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
from gemm_eval.validation.timings import Floats, Timings
from gemm_eval.workload import RunOptions

__all__ = ["QUANT_COLUMN", "calibrate_quantization"]

QUANT_COLUMN = "quant_us"
"""Of tables that have the time of the quantization of A apart."""

_FOLDS = 5
_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-4, evaluations=200)
_NOT_IN_DATA = {"scale_cast_us"}


def calibrate_quantization(arch: GpuSpec, sets: Sequence[Timings], *, seed: int = 0) -> Calibration:
    """Fit what quantization loses; errors are held out by (M, K), as N plays no part.

    Args:
        arch: the GPU that the timings are of.
        sets: timings of GEMMs with the column ``quant_us``, the time of the quantization of their A alone.
        seed: deals sizes to the folds.

    Raises:
        InvalidInputError: too few sizes.
    """
    kept = [timings for timings in sets if QUANT_COLUMN in timings.frame and timings.quantize_from]
    frame = pd.concat([item.frame for item in kept]) if kept else pd.DataFrame(columns=["M", "K", QUANT_COLUMN])
    rows = frame.groupby(["M", "K"], as_index=False)[QUANT_COLUMN].median()
    if len(rows) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs {MIN_ROWS} sizes of A with {QUANT_COLUMN}, got {len(rows)}")
    first = kept[0]
    problem = first.problems()[0]
    params = pack_gpu(arch, problem.types, RunOptions(first.library, first.l2, first.clock, first.quantize_from)).params
    sizes, measured_us = rows[["M", "K"]].to_numpy(np.int64), rows[QUANT_COLUMN].to_numpy(np.float64)
    values = _fit(params, sizes, measured_us)
    pairs = list(zip(*sizes.T.tolist(), strict=True))
    fold_of = fold_of_pairs(set(pairs), _FOLDS, seed, f"{QUANT_COLUMN} on {arch.name}")
    fold = np.array([fold_of[pair] for pair in pairs])
    predicted_us = np.empty(len(sizes))
    for number in range(_FOLDS):
        held = fold == number
        predicted_us[held] = _predict(params, _fit(params, sizes[~held], measured_us[~held]), sizes[held])
    errors = ErrorFigures(
        data=f"{'/'.join(first.name.split('/')[:2])} {QUANT_COLUMN}", sha256=first.content_hash.removeprefix("sha256:"),
        **error_figures(measured_us, predicted_us),
    )  # fmt: skip
    said = provenance(_FOLDS, "sizes of A", seed)
    return Calibration(
        gpu=arch.name, library=TRTLLM, family=QUANTIZE.name, model_version=GPU_MODEL_VERSION,
        coefficients=rounded(values), fitted=tuple(sorted(set(values) - _NOT_IN_DATA)), errors=(errors,),
        code_version=said["code_version"], date=said["date"], folds=f"{_FOLDS}-fold by (M, K), seed {seed}",
    )  # fmt: skip


def _fit(params: npt.NDArray[np.void], sizes: npt.NDArray[np.int64], measured_us: Floats) -> dict[str, float]:
    ranges = Ranges(
        [item for item in QUANTIZE.coefficients if item.name not in _NOT_IN_DATA],
        {name: value for name, value in QUANTIZE.defaults.items() if name in _NOT_IN_DATA},
    )
    start = ranges.shares(QUANTIZE.defaults, _SEARCH.off_bounds)
    found = fit_logs(ranges, lambda values: _predict(params, values, sizes), measured_us, start, _SEARCH)
    return ranges.values(found)


def _predict(params: npt.NDArray[np.void], values: dict[str, float], sizes: npt.NDArray[np.int64]) -> Floats:
    out = np.empty(len(sizes))
    quantize_rows(params, pack_coefficients(params, values), sizes, out)
    return out
