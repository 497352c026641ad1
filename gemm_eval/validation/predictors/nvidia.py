"""nvMatmulHeuristics, NVIDIA's own analytical model of its GEMM kernels, as a baseline where it is installed.

It needs no GPU (``pip install 'gemm_eval[compare]'``). Its prediction is the least run time that it estimates among the
CUTLASS kernels that it proposes. It knows nothing of 4-bit weights: among our W4A16 kernels each of its proposals for
the dense GEMM is taken to the most similar config that was timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.extras import check_extra, has_package, needs_extra
from gemm_eval.mapping import Decomposition
from gemm_eval.validation.choice import TOP, Choices, order_by, ranked_choice
from gemm_eval.validation.fit import robust_fit
from gemm_eval.validation.metrics import rows_by_gemm
from gemm_eval.validation.timings import Floats, Timings

_PACKAGE = "nvMatmulHeuristics"
NUM_PROPOSALS = 8
"""Kernels that it is asked for; more change its mean error by one part in a hundred, at twice the time."""
_US_PER_S = 1e6
_LAYOUT = "NT_ROW_MAJOR"  # A[M,K], B stored as [N,K], C[M,N], as in a linear layer
_LEAST_US = 0.1  # an offset below 0 must not make a prediction negative
_ASKED = ["G", "M", "K", "N", "input_dtype", "weight_dtype"]

_KIND_DISTANCE = 2.0  # another decomposition; a factor of two in a size counts 1
# Names of sizes in a proposal, and in our tables. What it calls a warp's tile is no number of warps, so that is left.
_SIZES = {
    "cta_tile_m": "cta_m", "cta_tile_n": "cta_n", "cta_tile_k": "cta_k", "cluster_m": "cluster_m",
    "cluster_n": "cluster_n", "stages": "num_stages", "split_k": "split_k",
}  # fmt: skip

_GPUS = (
    "a100-sxm-80gb", "a100-pcie-80gb", "l4", "l40s", "rtx-4090", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "b200"
)  # fmt: skip
_PRECISIONS = {("fp16", "fp16"): "HSH", ("bf16", "bf16"): "TST"}  # inputs, accumulator, output
_WITH_CLUSTERS = ("h100", "h200", "b200")


def is_available(gpu: str) -> bool:
    """Return whether the package is installed and knows `gpu` (an arch name)."""
    return gpu in _GPUS and has_package(_PACKAGE)


def knows_types(timings: Timings) -> bool:
    """Return whether it can answer for the data types of all rows."""
    return set(zip(timings.column("input_dtype"), timings.column("weight_dtype"), strict=True)) <= set(_PRECISIONS)


@dataclass(frozen=True)
class NvidiaHeuristics:
    """Run time of nvMatmulHeuristics' best kernel: raw, or with `is_refit` a fitted offset_us + scale * raw.

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
        asked = rows.frame[_ASKED].itertuples(index=False, name=None)
        return np.array([_proposals(self.gpu, *row)[0]["runtime"] for row in asked]) * _US_PER_S


@cache
def _library(gpu: str) -> tuple[Any, Any]:
    """Return the C++ library's interface, and the layout of matrices."""
    with needs_extra("comparing with nvMatmulHeuristics", "compare"):
        import nvMatmulHeuristics

    module: Any = nvMatmulHeuristics
    target = module.NvMatmulHeuristicsTarget
    return module.NvMatmulHeuristicsInterfaceEx(
        backend=target.CUTLASS3 if gpu.startswith(_WITH_CLUSTERS) else target.CUTLASS,
        flags=module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=module.NvMatmulHeuristicsNvidiaGpu[gpu.upper().replace("-", "_")],
    ), module.NvMatmulHeuristicsMatmulLayout[_LAYOUT]  # fmt: skip


def _ask(gpu: str, G: int, M: int, K: int, N: int, input_dtype: str, weight_dtype: str) -> list[dict[str, Any]]:
    """Return the kernels that it proposes, the fastest first, each with its estimated run time in seconds."""
    precision = _PRECISIONS.get((DType(input_dtype), DType(weight_dtype)))
    if precision is None:
        raise UnsupportedError(f"nvMatmulHeuristics: no {input_dtype} x {weight_dtype}, only fp16 and bf16")
    interface, layout = _library(gpu)
    kernels = interface.get(interface.makeNvMatmulHeuristicsProblem(M, N, K, layout, G), NUM_PROPOSALS, precision)
    if not kernels:
        raise UnsupportedError(f"nvMatmulHeuristics proposes no kernel for G={G} M={M} K={K} N={N}")
    return sorted(kernels, key=lambda kernel: float(kernel["runtime"]))


_proposals = cache(_ask)


def nvidia_choices(timings: Timings) -> tuple[list[Choices], float] | None:
    """Choose by the first proposal, and by timing all of them; also the median time of asking, in us.

    None where the package is not installed or does not know the GPU.
    """
    if not is_available(timings.gpu):
        return None
    logs = np.log2(timings.frame[list(_SIZES.values())].to_numpy(np.float64))
    decompositions = timings.frame["decomposition"].str.upper().to_numpy(str)
    registry = order_by(timings, np.zeros(len(timings)))
    cost, num_kept, asked_us = np.full(len(timings), np.inf), [], []
    for rows in (registry[of_gemm] for of_gemm in rows_by_gemm(timings.gemm[registry])):
        begin = time.perf_counter()
        _, M, K, N = timings.sizes[rows[0]].tolist()
        dtype = timings.frame["input_dtype"].iloc[rows[0]]
        proposals = [kernel["kernel"] for kernel in _ask(timings.gpu, 1, M, K, N, dtype, dtype)]
        asked_us.append(_US_PER_S * (time.perf_counter() - begin))
        nearest = []
        for proposal in proposals:
            wanted = np.log2([float(getattr(proposal, name)) for name in _SIZES])
            way = Decomposition.SPLIT_K if proposal.split_k > 1 else Decomposition.DATA_PARALLEL
            distance = np.abs(logs[rows] - wanted).sum(axis=1) + _KIND_DISTANCE * (decompositions[rows] != way.name)
            nearest.append(int(distance.argmin()))  # the first of equal ones
        kept = list(dict.fromkeys(nearest))
        cost[rows[kept]] = np.arange(len(kept))
        num_kept.append(len(kept))
    order, how = order_by(timings, cost), "nearest of ours to its tiles for 16-bit weights"
    best = ranked_choice(timings, f"nvMMH + profile {NUM_PROPOSALS}", order, np.array(num_kept), how)
    is_found = best.speeds == 1.0  # else it orders, but not as far as the best
    in_top = np.where(is_found[:, None], best.in_top, 0.0)
    in_top[:, np.array(TOP) > NUM_PROPOSALS] = np.nan
    place = np.where(is_found, best.place, np.nan)
    choices = [ranked_choice(timings, _PACKAGE, order, 1, how), best]
    return [replace(choice, place=place, in_top=in_top) for choice in choices], float(np.median(asked_us))
