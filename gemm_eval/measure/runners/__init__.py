"""Who runs GEMMs for a measurement: the vendor's libraries and our own kernels, behind one interface (`Runner`)."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.measure.runners.base import BuildsKernels, BuiltKernel, OperandLayout, Runner
    from gemm_eval.measure.runners.cublaslt_candidates import CandidateRunner
    from gemm_eval.measure.runners.registry import RUNNERS, make_runner
    from gemm_eval.measure.runners.w4a16 import W4A16Runner

__all__ = [
    "RUNNERS",
    "BuildsKernels",
    "BuiltKernel",
    "CandidateRunner",
    "OperandLayout",
    "Runner",
    "W4A16Runner",
    "make_runner",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": (
            "BuildsKernels",
            "BuiltKernel",
            "OperandLayout",
            "Runner",
        ),
        ".cublaslt_candidates": ("CandidateRunner",),
        ".registry": (
            "RUNNERS",
            "make_runner",
        ),
        ".w4a16": ("W4A16Runner",),
    },
)
