"""nvMatmulHeuristics as a baseline: NVIDIA's own analytical model of its GEMM kernels, where it is installed.

It is a C++ library with a Python binding and needs no GPU (``pip install 'gemm_eval[compare]'``). Its prediction is the
least run time that it estimates among the kernels that it proposes for CUTLASS on the GPU in question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gemm_eval._extras import check_extra, has_package, needs_extra
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.validation.timings import Floats, TimingSet

__all__ = ["NvidiaHeuristics", "is_available", "knows_types"]

_PACKAGE = "nvMatmulHeuristics"
_NUM_KERNELS = 8  # more change its mean error by one part in a hundred, at twice the time
_US_PER_S = 1e6
_LAYOUT = "NT_ROW_MAJOR"  # A[M,K], B stored as [N,K], C[M,N], as in a linear layer

_GPUS = {
    "a100-sxm-80gb": "A100_SXM_80GB",
    "a100-pcie-80gb": "A100_PCIE_80GB",
    "l4": "L4",
    "l40s": "L40S",
    "rtx-4090": "RTX_4090",
    "h100-sxm": "H100_SXM",
    "h100-pcie": "H100_PCIE",
    "h100-nvl": "H100_NVL",
    "h200-sxm": "H200_SXM",
    "b200": "B200",
}
_PRECISIONS = {(DType.FP16, DType.FP16): "HSH", (DType.BF16, DType.BF16): "TST"}  # inputs, accumulator, output
_WITH_CLUSTERS = ("h100", "h200", "b200")


def is_available(gpu: str) -> bool:
    """Whether the package is installed and knows `gpu` (an arch name)."""
    return gpu in _GPUS and has_package(_PACKAGE)


def knows_types(timings: TimingSet) -> bool:
    """Whether it can answer for the data types of all rows."""
    types = zip(timings.column("input_dtype"), timings.column("weight_dtype"), strict=True)
    return set(types) <= set(_PRECISIONS)


@dataclass(frozen=True)
class NvidiaHeuristics:
    """Predicted run time of nvMatmulHeuristics' best kernel, raw or as offset_us + scale * raw.

    Attributes:
        gpu: arch name.
        is_refit: whether `fit` fits offset and scale, an affine correction; raw: 0 and 1.

    Raises:
        UnsupportedError: it has no such GPU, or no such types (`predict`).
        GemmEvalError: it is not installed.
    """

    gpu: str
    is_refit: bool = False
    offset_us: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.gpu not in _GPUS:
            raise UnsupportedError(f"nvMatmulHeuristics has no {self.gpu}; it has {', '.join(_GPUS)}")
        check_extra("comparing with nvMatmulHeuristics", "compare", "nvMatmulHeuristics")

    @property
    def name(self) -> str:
        """Name in tables and plots."""
        return "nvMMH, refitted" if self.is_refit else _PACKAGE

    def fit(self, *train: TimingSet) -> NvidiaHeuristics:
        """Return one with the affine correction that fits `train` best, by robust least squares of relative errors."""
        if not self.is_refit:
            return self
        from scipy.optimize import least_squares

        raw_us = np.concatenate([self._raw_us(timings) for timings in train])
        measured_us = np.concatenate([timings.latency_us for timings in train])

        def errors(constants: Floats) -> Floats:
            relative: Floats = (constants[0] + constants[1] * raw_us) / measured_us - 1.0
            return relative

        # a bound above 0 on the scale and on the value at the least raw time keeps predictions positive
        lowest = -0.9 * float(raw_us.min())
        found = least_squares(errors, (0.0, 1.0), bounds=((lowest, 0.05), (100.0, 20.0)), loss="soft_l1", f_scale=0.1)
        offset_us, scale = (float(value) for value in found.x)
        return replace(self, offset_us=offset_us, scale=scale)

    def predict(self, rows: TimingSet) -> Floats:
        """Return the latency of each row, in microseconds."""
        latency_us: Floats = np.maximum(self.offset_us + self.scale * self._raw_us(rows), _LEAST_US)
        return latency_us

    def _raw_us(self, rows: TimingSet) -> Floats:
        names = ("G", "M", "K", "N", "input_dtype", "weight_dtype")
        columns = [rows.column(name).tolist() for name in names]
        return np.array([self._library.best_us(*row) for row in zip(*columns, strict=True)], dtype=np.float64)

    @cached_property
    def _library(self) -> _Library:
        return _library_of(self.gpu)


_LEAST_US = 0.1  # an offset below 0 must not make a prediction negative


class _Library:
    """One handle of the C++ library, and the answers that it gave."""

    def __init__(self, gpu: str) -> None:
        with needs_extra("comparing with nvMatmulHeuristics", "compare"):
            import nvMatmulHeuristics

        module: Any = nvMatmulHeuristics
        target = module.NvMatmulHeuristicsTarget
        self._layout = module.NvMatmulHeuristicsMatmulLayout[_LAYOUT]
        self._interface = module.NvMatmulHeuristicsInterfaceEx(
            backend=target.CUTLASS3 if gpu.startswith(_WITH_CLUSTERS) else target.CUTLASS,
            flags=module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            gpu=module.NvMatmulHeuristicsNvidiaGpu[_GPUS[gpu]],
        )
        self._answers: dict[tuple[int | str, ...], float] = {}

    def best_us(self, G: int, M: int, K: int, N: int, input_dtype: str, weight_dtype: str) -> float:
        """Return the least estimated run time, in microseconds."""
        key = (G, M, K, N, input_dtype, weight_dtype)
        if key not in self._answers:
            precision = _PRECISIONS.get((DType(input_dtype), DType(weight_dtype)))
            if precision is None:
                raise UnsupportedError(f"nvMatmulHeuristics: no {input_dtype} x {weight_dtype}, only fp16 and bf16")
            problem = self._interface.makeNvMatmulHeuristicsProblem(M, N, K, self._layout, G)
            kernels = self._interface.get(problem, _NUM_KERNELS, precision)
            if not kernels:
                raise UnsupportedError(f"nvMatmulHeuristics proposes no kernel for G={G} M={M} K={K} N={N}")
            self._answers[key] = _US_PER_S * min(kernel["runtime"] for kernel in kernels)
        return self._answers[key]


_libraries: dict[str, _Library] = {}


def _library_of(gpu: str) -> _Library:
    if gpu not in _libraries:
        _libraries[gpu] = _Library(gpu)
    return _libraries[gpu]
