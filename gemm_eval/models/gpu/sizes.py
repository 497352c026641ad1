"""Which sizes kernels take: rows of A, B and C have to start where their loads and stores can."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.cost_kernels import NARROW_BYTES, ROW_BYTES
from gemm_eval.workload import GemmProblem, GemmTypes

__all__ = [
    "ANY_SIZE",
    "LOAD_BYTES",
    "Padding",
    "SizeRule",
    "is_row_aligned",
    "load_bytes_of",
    "pad_problem",
    "padding_of",
    "rows_on",
]

LOAD_BYTES = (ROW_BYTES, NARROW_BYTES, 1)
"""What rows start on, by the loads of kernels: TMA and the widest cp.async; the narrowest cp.async; single elements."""

_PAD_BYTES = {DType.FP8: ROW_BYTES, DType.INT8: NARROW_BYTES}
"""What rows are padded to, as cuBLAS has no kernels for others.

fp8: cublasLtMatmul wants 16 bytes ("Narrow Precision Data Types Usage", https://docs.nvidia.com/cuda/cublas); cuBLASLt
13.1 on an H200 proposes no algorithm where rows of A and B, or of a bf16 C, start on 8, 4 or 1. int8: leading
dimensions are multiples of 4 (same manual, cublasGemmEx).
"""


class Padding(NamedTuple):
    """K and N are rounded up to multiples of these, in elements; 1: not at all."""

    k_multiple: int
    n_multiple: int


class SizeRule(NamedTuple):
    """Rows of A and B are K long, those of C are N long.

    Attributes:
        k_multiple: K must be a multiple of it, in elements.
        n_multiple: likewise N.
        has_one_column: N = 1 is taken too: a single column is one row.
        k_pad, n_pad: K and N are padded to multiples of these first; not N = 1, where one column is taken.
    """

    k_multiple: int
    n_multiple: int
    has_one_column: bool
    k_pad: int = 1
    n_pad: int = 1

    def takes(self, K: Any, N: Any) -> Any:
        """Whether kernels take a problem of these sizes: of integers, or elementwise of arrays of them."""
        k, n = -(-K // self.k_pad) * self.k_pad, -(-N // self.n_pad) * self.n_pad
        return (k % self.k_multiple == 0) & ((n % self.n_multiple == 0) | ((N == 1) & self.has_one_column))


ANY_SIZE = SizeRule(1, 1, True)


def padding_of(types: GemmTypes) -> Padding:
    """Return what K and N are padded to before a library's kernels run GEMMs of these types.

    A framework stores weights with padded rows once, lets the kernel that quantizes tokens write padded rows, and leaves
    out columns of C beyond N, which costs nothing.
    """
    num_bytes = _PAD_BYTES.get(types.a.dtype, 0)
    if types.is_weight_quantized or types.is_block_scaled or not num_bytes:
        return Padding(1, 1)
    return Padding(*(_multiple(bits, num_bytes) for bits in (types.a.dtype.bits, types.c.bits)))


def pad_problem(problem: GemmProblem) -> GemmProblem:
    """Return the problem that a library's kernels run instead: with K and N as `padding_of` its types says."""
    k, n = padding_of(problem.types)
    if problem.N == 1:
        n = 1
    if problem.K % k == problem.N % n == 0:
        return problem
    return dataclasses.replace(problem, K=-(-problem.K // k) * k, N=-(-problem.N // n) * n)


def rows_on(types: GemmTypes, num_bytes: int) -> SizeRule:
    """Return the sizes whose rows, padded or not, start on so many bytes, a power of two.

    Weight-only kernels have columns on the instruction's rows, so one column is no row of C to them.
    """
    k_multiple = math.lcm(*(_multiple(bits, num_bytes) for bits in (types.a.dtype.bits, types.b.dtype.bits)))
    n_multiple = _multiple(types.c.bits, num_bytes)
    if num_bytes == 1:
        return ANY_SIZE
    return SizeRule(k_multiple, n_multiple, not types.is_weight_quantized, *padding_of(types))


def _multiple(bits: int, num_bytes: int) -> int:
    """Elements of so many bits whose rows fill whole pieces of so many bytes."""
    return num_bytes * 8 // math.gcd(bits, num_bytes * 8)


def load_bytes_of(problem: GemmProblem) -> int:
    """Return the most of `LOAD_BYTES` that all rows of A, B and C, padded or not, start on."""
    return next(num for num in LOAD_BYTES if rows_on(problem.types, num).takes(problem.K, problem.N))


def is_row_aligned(problem: GemmProblem) -> bool:
    """Whether the rows of A, B and C, padded or not, start on 16 bytes."""
    return load_bytes_of(problem) == ROW_BYTES
