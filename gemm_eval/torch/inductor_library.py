"""Whether a candidate of Inductor's can beat the kernel of the library: both predicted as they run in a CUDA graph.

The Triton model predicts what a tuner's timing shows: events around a launch, after a flush that leaves L2 full of
dirty lines. The library's model predicts a kernel among others in a graph. So the first is taken without either.

Nothing is decided but where both models were held against timings: 16-bit operands whose rows start on 16 bytes, plain
kernels (no TMA, none persistent), a chip of the generation whose Triton kernels were timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu.triton import TritonConfig, triton_coefficients
from gemm_eval.torch.inductor_ranking import KernelTraits, model_times_us
from gemm_eval.workload import GemmProblem

__all__ = ["TRITON_ERROR_FRAC", "Library", "LibraryTime", "graph_times_us", "has_epilogue"]

Array = npt.NDArray[np.float64]

TRITON_ERROR_FRAC = 0.19
"""Of 16-bit kernels that were held out 90% are nearer (arch/calibration/h200-sxm/triton.yaml: p90_percent)."""

_EVENTS_US = 2.7  # around a graph of one empty kernel (floor_us in arch/measured/h200-sxm/cublas/*.meta.yaml)
_DTYPES = (DType.FP16, DType.BF16)
_COPY_BYTES = 16
_BITS_PER_BYTE = 8
_NOT_FUSED = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_grouped_mm", "convolution")


class LibraryTime(NamedTuple):
    """What a GEMM takes without templates, in us.

    Attributes:
        latency_us: the library's kernel.
        latest_us: the same and the kernel behind it that a template would save; nine of ten such GEMMs are faster.
    """

    latency_us: float
    latest_us: float

    def beats(self, graph_us: float) -> bool:
        """Whether a candidate is slower even if its prediction is as much too long as one in ten, or one in twenty."""
        return graph_us > self.latest_us * (1.0 + TRITON_ERROR_FRAC)


class Library:
    """Predicts the library's kernels of one GPU.

    Args:
        arch: the GPU.
    """

    def __init__(self, arch: GpuSpec) -> None:
        self.arch = arch
        self._evaluator = GEMMEvaluator(arch, l2="cold", disk_cache=False)

    def time(self, problem: GemmProblem, *, has_epilogue: bool) -> LibraryTime | None:
        """Return what the library takes; None: what is predicted is not sure enough to drop anything.

        Args:
            problem: the GEMM.
            has_epilogue: a template would also do what the next kernel does, which otherwise reads and writes C.
        """
        if not {problem.input_dtype, problem.weight_dtype, problem.output_dtype} <= set(_DTYPES):
            return None
        if not _is_timed_generation(self.arch):
            return None
        found = self._evaluator.evaluate_problem(problem)
        if found.high_us is None:
            return None
        epilogue_us = 0.0
        if has_epilogue:
            assert problem.output_dtype is not None
            c_bytes = problem.G * problem.M * problem.N * problem.output_dtype.bits / _BITS_PER_BYTE
            epilogue_us = self._evaluator.evaluate_memory_bound(c_bytes, c_bytes).latency_us
        return LibraryTime(found.latency_us, found.high_us + epilogue_us)


@cache
def _is_timed_generation(arch: GpuSpec) -> bool:
    timed = triton_coefficients(arch)[1].gpu
    if timed is None:
        return False
    try:
        spec = load_arch(timed)
    except ArchError:
        return timed == arch.name
    return isinstance(spec, GpuSpec) and spec.sm_arch == arch.sm_arch


def graph_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> Array | None:
    """Return what candidates take in a CUDA graph; None: kernels like these were not timed.

    Args:
        arch, problem, configs, traits: as for `rank_times`, which knows them by the model.
    """
    if traits.is_tma or traits.is_persistent or min(traits.a_copy_bytes, traits.b_copy_bytes) < _COPY_BYTES:
        return None
    fitted = triton_coefficients(arch)[0]
    in_graph = {**fitted, "evict_frac": 0.0, "kernel_us": max(0.0, fitted["kernel_us"] - _EVENTS_US)}
    return model_times_us(arch, problem, configs, traits, in_graph)


def has_epilogue(node: Any) -> bool:
    """Return whether a template's kernel may do more than a node of torch.fx says; in doubt it may.

    Args:
        node: a GEMM, or a view of its result.
    """
    if node is None:
        return True
    for user in node.users:
        if user.op == "output":
            continue
        if getattr(user.target, "is_view", False):
            if has_epilogue(user):
                return True
            continue
        name = str(user.target).partition(".")[2].partition(".")[0]  # aten.mm.default
        if name not in _NOT_FUSED and not name.startswith("_scaled_dot_product"):
            return True
    return False
