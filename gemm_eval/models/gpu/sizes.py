"""Sizes that kernels take, since rows have to start where loads and stores can; and how A becomes narrower before."""

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.cost_kernels import NARROW_BYTES, ODD_COLUMNS, ROW_BYTES
from gemm_eval.words import refusal
from gemm_eval.workload import GemmProblem, GemmTypes

QUANTIZED_FROM = (DType.BF16, DType.FP16, DType.FP32)
"""Types that activations have before they are quantized."""


class Quantization(NamedTuple):
    """The kernels before a GEMM that make A narrower."""

    num_passes: int  # over A: one scale for all of A needs its largest element first, one for a row or a block does not
    elem_bytes: float  # of an element of A before
    has_cast: bool  # whether a kernel of its own casts the one scale of A


NO_QUANTIZATION = Quantization(0, 0.0, has_cast=False)


def quantization_of(types: GemmTypes, quantize_from: str | None) -> Quantization:
    """Return how A of these types is made of another type; None: A is there already.

    Per tensor (fp8 and fp4 without scales in the GEMM) TensorRT-LLM 1.3 runs a kernel that finds the largest element,
    one that converts, and one that casts the scale (arch/measured/h200-sxm/quantization); block-scaled types and int8,
    whose scales are of a block or a row, take one kernel.

    Raises:
        InvalidOptionError: activations have no such type, or A is not narrower.
    """
    if quantize_from is None:
        return NO_QUANTIZATION
    if quantize_from not in QUANTIZED_FROM:
        raise InvalidOptionError(refusal("quantize_from", quantize_from, QUANTIZED_FROM))
    source = parse_dtype(quantize_from)
    if types.a.dtype.bits >= min(source.bits, DType.FP16.bits):
        raise InvalidOptionError(
            f"quantize_from {source} needs a narrower type of A (fp8, fp4 or int8, block-scaled or not), "
            f"but A is multiplied as {types.a.dtype}: leave quantize_from out"
        )
    is_per_tensor = not (types.is_block_scaled or types.a.dtype.is_integer)
    return Quantization(2 if is_per_tensor else 1, source.bits / 8, is_per_tensor)


LOAD_BYTES = (ROW_BYTES, NARROW_BYTES, 1)
"""What rows start on, by the loads of kernels: TMA and the widest cp.async; the narrowest cp.async; single elements."""


class Padding(NamedTuple):
    """K and N are rounded up to multiples of these, in elements; 1: not at all.

    Attributes:
        whole_columns: GEMMs of another N than multiples of this have kernels of their own; 1: they do not.
    """

    k_multiple: int = 1
    n_multiple: int = 1
    whole_columns: int = 1


class SizeRule(NamedTuple):
    """Multiples, in elements, that M, K and N must be where they run along memory in A, B or C.

    Attributes:
        has_one_column: N = 1 is taken too: a single column is one row.
        k_pad, n_pad: K and N are padded to multiples of these first; not N = 1, where one column is taken.
        m_multiple: of M, but M = 1: a single row of A lies in one piece, and its K decides.
    """

    k_multiple: int
    n_multiple: int
    has_one_column: bool
    k_pad: int = 1
    n_pad: int = 1
    m_multiple: int = 1
    row_multiple: int = 1  # of K where M = 1

    def takes(self, M: Any, K: Any, N: Any) -> Any:
        """Return True if kernels take a problem of these sizes: of integers, or elementwise of arrays of them."""
        k, n = -(-K // self.k_pad) * self.k_pad, -(-N // self.n_pad) * self.n_pad
        is_taken = (k % self.k_multiple == 0) & ((n % self.n_multiple == 0) | ((N == 1) & self.has_one_column))
        return is_taken & ((M % self.m_multiple == 0) | ((M == 1) & (k % self.row_multiple == 0)))


Ints: TypeAlias = npt.NDArray[np.int64]

LoadRules: TypeAlias = tuple[tuple[int, SizeRule], ...]

ANY_SIZE = SizeRule(1, 1, True)
NO_PADDING = Padding()


def padding_to(types: GemmTypes, num_bytes: int) -> Padding:
    """Return the padding with which rows of A, B and C fill whole pieces of so many bytes, a power of two."""
    k_multiple = math.lcm(*(_multiple(bits, num_bytes) for bits in (types.a.dtype.bits, types.b.dtype.bits)))
    return Padding(k_multiple, _multiple(types.c.bits, num_bytes))


def pad_problem(problem: GemmProblem, padding: Padding) -> GemmProblem:
    """Return the problem with padded K and N: what a library's kernels run instead."""
    k, n, _ = padding
    if problem.N == 1 and not problem.is_weight_quantized:  # one column is one row
        n = 1
    if problem.K % k == problem.N % n == 0:
        return problem
    return dataclasses.replace(problem, K=-(-problem.K // k) * k, N=-(-problem.N // n) * n)


def load_levels(padding: Padding) -> tuple[int, ...]:
    """Return the levels of loads that kernels differ by: `LOAD_BYTES`, and `ODD_COLUMNS` where those are apart."""
    return LOAD_BYTES if padding.whole_columns == 1 else (ROW_BYTES, ODD_COLUMNS, *LOAD_BYTES[1:])


def rows_on(types: GemmTypes, num_bytes: int, padding: Padding = NO_PADDING) -> SizeRule:
    """Return the sizes whose rows, once padded, start on so many bytes, of `load_levels`.

    Weight-only kernels have columns on the instruction's rows, so one column is no row of C to them.
    """
    if num_bytes == 1:
        return ANY_SIZE
    whole_columns = padding.whole_columns if num_bytes == ROW_BYTES else 1
    num_bytes = ROW_BYTES if num_bytes == ODD_COLUMNS else num_bytes
    a, b, c = (_multiple(bits, num_bytes) for bits in (types.a.dtype.bits, types.b.dtype.bits, types.c.bits))
    along_k = (1 if types.is_a_along_m else a, 1 if types.is_b_along_n else b)
    along_n = (b if types.is_b_along_n else 1, c, whole_columns)
    along_m = (a, a) if types.is_a_along_m else (1, 1)
    return SizeRule(math.lcm(*along_k), math.lcm(*along_n), not types.is_weight_quantized, *padding[:2], *along_m)


def _multiple(bits: int, num_bytes: int) -> int:
    """Elements of so many bits whose rows fill whole pieces of so many bytes."""
    return num_bytes * 8 // math.gcd(bits, num_bytes * 8)


def load_bytes_of(problem: GemmProblem, padding: Padding = NO_PADDING) -> int:
    """Return the most of `load_levels` that all rows of A, B and C, once padded, start on."""
    rules = load_rules(problem.types, padding)
    return next(num for num, rule in rules if rule.takes(*problem.sizes[1:]))


def load_rules(types: GemmTypes, padding: Padding) -> LoadRules:
    """Return the sizes whose rows, once padded, start on each of `load_levels`, the most first."""
    return tuple((num_bytes, rows_on(types, num_bytes, padding)) for num_bytes in load_levels(padding))


def loads_of(rules: LoadRules, M: Ints, K: Ints, N: Ints) -> Ints:
    """Return the most bytes that all rows start on, by `load_rules`, for problems [num]."""
    loads = np.ones(len(K), np.int64)
    for num_bytes, rule in reversed(rules):
        loads[rule.takes(M, K, N)] = num_bytes
    return loads
