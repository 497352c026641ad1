"""Which sizes kernels take: rows of A, B and C have to start where their loads and stores can."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gemm_eval.models.gpu.cost_kernels import ROW_BYTES
from gemm_eval.workload import GemmProblem, GemmTypes

__all__ = ["ANY_SIZE", "SizeRule", "aligned_rows", "is_row_aligned"]


class SizeRule(NamedTuple):
    """Rows of A and B are K long, those of C are N long.

    Attributes:
        k_multiple: K must be a multiple of it, in elements.
        n_multiple: likewise N.
        has_one_column: N = 1 is taken too: a single column is one row.
    """

    k_multiple: int
    n_multiple: int
    has_one_column: bool

    def takes(self, K: Any, N: Any) -> Any:
        """Whether kernels take a problem of these sizes: of integers, or elementwise of arrays of them."""
        return (K % self.k_multiple == 0) & ((N % self.n_multiple == 0) | ((N == 1) & self.has_one_column))


ANY_SIZE = SizeRule(1, 1, True)


def aligned_rows(types: GemmTypes) -> SizeRule:
    """Return the sizes whose rows start on 16 bytes; weight-only kernels have columns on the instruction's rows."""
    k_multiple = math.lcm(*(_multiple(bits) for bits in (types.a.dtype.bits, types.b.dtype.bits)))
    return SizeRule(k_multiple, _multiple(types.c.bits), not types.is_weight_quantized)


def _multiple(bits: int) -> int:
    """Elements of so many bits whose rows fill whole 16 bytes."""
    return ROW_BYTES * 8 // math.gcd(bits, ROW_BYTES * 8)


def is_row_aligned(problem: GemmProblem) -> bool:
    """Whether the rows of A, B and C start on 16 bytes."""
    return bool(aligned_rows(problem.types).takes(problem.K, problem.N))
