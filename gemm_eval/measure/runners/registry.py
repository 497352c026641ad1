"""The runners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.runners.base import Runner
from gemm_eval.measure.runners.cublas import CublasRunner
from gemm_eval.measure.runners.cublaslt import CublasLtRunner
from gemm_eval.measure.runners.cublaslt_candidates import CandidateRunner
from gemm_eval.measure.runners.grouped import GroupedRunner
from gemm_eval.measure.runners.w4a16 import W4A16Runner
from gemm_eval.words import shown

__all__ = ["RUNNERS", "make_runner"]

RUNNERS: Mapping[str, Callable[[str], Runner]] = {
    runner.kernel: runner for runner in (CublasRunner, CublasLtRunner, CandidateRunner, GroupedRunner, W4A16Runner)
}
"""Kernel names that `make_runner` knows, with the classes that run them."""


def make_runner(kernel: str, dtype: str) -> Runner:
    """Return a runner on device 0.

    Raises:
        InvalidOptionError: no such kernel.
        UnsupportedError: the kernel has no such data type.
        GemmEvalError: there is no GPU, or a package is missing.
    """
    if kernel not in RUNNERS:
        raise InvalidOptionError(f"--kernel must be one of {', '.join(RUNNERS)}, got {shown(kernel)}")
    return RUNNERS[kernel](dtype)
