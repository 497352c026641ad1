"""Operators of this package and of quantization packages, by their names and arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.torch.matmuls import Precision, type_of
from gemm_eval.torch.work import Work
from gemm_eval.transformer import GemmWork
from gemm_eval.workload import GemmProblem

__all__ = ["custom_works"]


def _w4a16_linear(bound: Mapping[str, Any], precision: Precision) -> tuple[Work, ...]:
    from gemm_eval.kernels import WeightMode

    x, N, K = bound["x"], bound["N"], bound["K"]
    mode, group_size = WeightMode(bound["mode"]), bound["group_size"] or None
    M = math.prod(x.shape[:-1])
    if not M:
        return ()
    dtype = type_of(x.dtype, precision.matmul_tf32)
    assert dtype is not None
    weight = DType.FP4 if mode.is_fp4 else DType.INT4
    zero = DType.INT4 if mode is WeightMode.GROUP_ZERO else None
    return (GemmWork(GemmProblem(1, M, K, N, dtype, weight, dtype, group_size=group_size, zero_dtype=zero)),)


_KNOWN: Mapping[str, Callable[[Mapping[str, Any], Precision], tuple[Work, ...]]] = {
    "gemm_eval.w4a16_linear": _w4a16_linear,
}


def custom_works(full_name: str, bound: Mapping[str, Any], precision: Precision) -> tuple[Work, ...] | None:
    """Return what a custom operator is for the models; None: it is none that is known.

    Args:
        full_name: ``"namespace.name"``.
        bound: its arguments by name.
        precision: of fp32.
    """
    known = _KNOWN.get(full_name)
    return None if known is None else known(bound, precision)
