"""nvMatmulHeuristics as a baseline: NVIDIA's own analytical model of its GEMM kernels, where it is installed.

It is a C++ library with a Python binding and needs no GPU (``pip install 'gemm_eval[compare]'``). Its prediction is the
least run time that it estimates among the kernels that it proposes for CUTLASS on the GPU in question.

It knows nothing of 4-bit weights. As a chooser among our W4A16 kernels it proposes tiles for the dense GEMM of the same
sizes, and each is taken to the most similar config of ours that was timed: a factor of two in a size counts 1, another
decomposition 2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.extras import check_extra, has_package, needs_extra
from gemm_eval.mapping import Decomposition
from gemm_eval.validation.choice import TOP, Choices, order_by, ranked_choice
from gemm_eval.validation.fit import robust_fit
from gemm_eval.validation.timings import Floats, Timings

_PACKAGE = "nvMatmulHeuristics"
NUM_PROPOSALS = (
    8  # kernels that it is asked for; more change its mean error by one part in a hundred, at twice the time
)
_US_PER_S = 1e6
_LAYOUT = "NT_ROW_MAJOR"  # A[M,K], B stored as [N,K], C[M,N], as in a linear layer

_KIND_DISTANCE = 2.0
# Names of sizes in a proposal, and in our tables. What it calls a warp's tile is no number of warps, so that is left.
_SIZES = {
    "cta_tile_m": "cta_m", "cta_tile_n": "cta_n", "cta_tile_k": "cta_k", "cluster_m": "cluster_m",
    "cluster_n": "cluster_n", "stages": "num_stages", "split_k": "split_k",
}  # fmt: skip
_TOP = f"nvMMH + profile {NUM_PROPOSALS}"

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


def knows_types(timings: Timings) -> bool:
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

    def fit(self, *train: Timings) -> NvidiaHeuristics:
        """Return one with the affine correction that fits `train` best, by robust least squares of relative errors."""
        if not self.is_refit:
            return self
        raw_us = np.concatenate([self._raw_us(timings) for timings in train])
        measured_us = np.concatenate([timings.measured_us for timings in train])

        def errors(constants: Floats) -> Floats:
            relative: Floats = (constants[0] + constants[1] * raw_us) / measured_us - 1.0
            return relative

        # a bound above 0 on the scale and on the value at the least raw time keeps predictions positive
        lowest = -0.9 * float(raw_us.min())
        offset_us, scale = robust_fit(errors, (0.0, 1.0), (lowest, 0.05), (100.0, 20.0), loss_scale=0.1).tolist()
        return replace(self, offset_us=offset_us, scale=scale)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        latency_us: Floats = np.maximum(self.offset_us + self.scale * self._raw_us(rows), _LEAST_US)
        return latency_us

    def _raw_us(self, rows: Timings) -> Floats:
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
            kernels = self.kernels(*key)
            if not kernels:
                raise UnsupportedError(f"nvMatmulHeuristics proposes no kernel for G={G} M={M} K={K} N={N}")
            self._answers[key] = _US_PER_S * min(kernel["runtime"] for kernel in kernels)
        return self._answers[key]

    def kernels(self, G: int, M: int, K: int, N: int, input_dtype: str, weight_dtype: str) -> list[dict[str, Any]]:
        """Return what it proposes, each with its estimated run time in seconds."""
        precision = _PRECISIONS.get((DType(input_dtype), DType(weight_dtype)))
        if precision is None:
            raise UnsupportedError(f"nvMatmulHeuristics: no {input_dtype} x {weight_dtype}, only fp16 and bf16")
        problem = self._interface.makeNvMatmulHeuristicsProblem(M, N, K, self._layout, G)
        found: list[dict[str, Any]] = self._interface.get(problem, NUM_PROPOSALS, precision)
        return found


_libraries: dict[str, _Library] = {}


def _library_of(gpu: str) -> _Library:
    if gpu not in _libraries:
        _libraries[gpu] = _Library(gpu)
    return _libraries[gpu]


def nvidia_choices(timings: Timings) -> tuple[list[Choices], float] | None:
    """Choose by the first proposal, and by timing all of them; also the median time of asking, in us.

    Returns:
        None where the package is not installed or does not know the GPU.
    """
    if not is_available(timings.gpu):
        return None
    registry = order_by(timings, np.zeros(len(timings)))
    rows_of_gemm = np.split(registry, np.flatnonzero(np.diff(timings.gemm[registry])) + 1)
    logs = np.log2(timings.frame[list(_SIZES.values())].to_numpy(np.float64))
    is_cut = timings.frame["decomposition"].str.upper().to_numpy(str)
    cost, num_kept = np.full(len(timings), np.inf), np.empty(len(rows_of_gemm), np.int64)
    asked_us = np.empty(len(rows_of_gemm))
    for at, rows in enumerate(rows_of_gemm):
        begin = time.perf_counter()
        proposals = _propose(timings, int(rows[0]))
        asked_us[at] = _US_PER_S * (time.perf_counter() - begin)
        kept = list(dict.fromkeys(_nearest(proposal, logs[rows], is_cut[rows]) for proposal in proposals))
        cost[rows[kept]], num_kept[at] = np.arange(len(kept)), len(kept)
    order, how = order_by(timings, cost), "nearest of ours to its tiles for 16-bit weights"
    first = ranked_choice(timings, _PACKAGE, order, 1, how)
    best = ranked_choice(timings, _TOP, order, num_kept, how)
    is_found = best.speeds == 1.0  # else it orders, but not as far as the best
    in_top = np.where(is_found[:, None], best.in_top, 0.0)
    in_top[:, np.array(TOP) > NUM_PROPOSALS] = np.nan
    place = np.where(is_found, best.place, np.nan)
    found = [replace(choices, place=place, in_top=in_top) for choices in (first, best)]
    return found, float(np.median(asked_us))


def _propose(timings: Timings, row: int) -> list[Any]:
    library = _library_of(timings.gpu)
    _, M, K, N = (int(size) for size in timings.sizes[row])
    dtype = DType(timings.frame["input_dtype"].iloc[row])
    found = library.kernels(1, M, K, N, dtype, dtype)
    return [kernel["kernel"] for kernel in sorted(found, key=lambda kernel: float(kernel["runtime"]))]


def _nearest(proposal: Any, logs: Floats, decompositions: npt.NDArray[np.str_]) -> int:
    """Place of the config most like a proposal; logs [configs, sizes] to base 2; the first of equal ones."""
    wanted = np.log2([float(getattr(proposal, name)) for name in _SIZES])
    way = Decomposition.SPLIT_K if proposal.split_k > 1 else Decomposition.DATA_PARALLEL
    distance = np.abs(logs - wanted).sum(axis=1) + _KIND_DISTANCE * (decompositions != way.name)
    return int(distance.argmin())
