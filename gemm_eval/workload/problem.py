"""`GemmProblem`: sizes, data types and quantization of one GEMM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import DType, default_output_of, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidProblemError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload.row_groups import RowGroups, check_row_groups
from gemm_eval.workload.types import TYPE_NAMES, GemmTypes, check_size, default_scale_of, make_types

__all__ = ["MAX_MACS", "GemmProblem", "make_problem", "problem_of"]

MAX_MACS = 1 << 57
"""Largest G*M*K*N that is taken: beyond it byte counts (at most 32 bytes a MAC) could leave 63-bit integers."""

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N]. The order of sizes is G, M, K, N everywhere.

    With `row_groups` it is a grouped GEMM, as the experts of a mixture are: C_i[m_i,N] = A_i[m_i,K] x B_i[K,N] for each
    of G groups, whose m_i rows differ; `grouped` makes one of these alone.

    Attributes:
        G, M, K, N: batch, rows, reduction length, columns; each in 1..2**40, with a product of at most 2**57. Of a
            grouped GEMM G is the number of groups, and M the rows of the largest.
        input_dtype: type of A, and of both operands when the matrix unit multiplies them.
        weight_dtype: type of B as stored (default: `input_dtype`). If narrower, B is weight-only quantized; if fp8 or
            fp4 as A, a `group_size` makes both operands block-scaled.
        output_dtype: type of C as stored (default: see `gemm_eval.dtypes.default_output_of`).
        accumulator_dtype: fp32, or int32 for integer inputs.
        group_size: elements along K that share a scale, of quantized weights, or of A and of B where both are
            block-scaled; None: one scale per column of quantized weights, else no scales.
        scale_dtype: type of the scales (default: see `gemm_eval.workload.types.default_scale_of`).
        zero_dtype: type of the zero points, None for symmetric quantization. Quantized weights only.
        group_n: columns of B that share a scale (default: 1); a scale of A is always of one row.
        row_groups: rows of each group of a grouped GEMM, at most `gemm_eval.workload.MAX_GROUPS`, 0 where a group has
            none; all may have as many. None: a batch of G, each with M rows.
        types: all types as one value, which other sizes can share.

    Raises:
        InvalidProblemError: a size is no positive integer or too large, or the types do not go together.
    """

    G: int
    M: int
    K: int
    N: int
    input_dtype: DType = DType.FP16
    weight_dtype: DType | None = None
    output_dtype: DType | None = None
    accumulator_dtype: DType | None = None
    group_size: int | None = None
    scale_dtype: DType | None = None
    zero_dtype: DType | None = None
    group_n: int | None = None
    row_groups: RowGroups | None = None
    types: GemmTypes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("G", "M", "K", "N"):
            _set(self, name, check_size(name, getattr(self, name)))
        if self.row_groups is not None:
            self._check_row_groups(check_row_groups(self.row_groups))
        macs = self.G * self.M * self.K * self.N
        if macs > MAX_MACS:
            raise InvalidProblemError(
                f"G*M*K*N must be <= 2**57 = {MAX_MACS:.3g} MAC, got {macs:.3g} "
                f"(G={self.G}, M={self.M}, K={self.K}, N={self.N}); split the problem"
            )
        words = [getattr(self, name) for name in TYPE_NAMES]
        try:
            types = make_types(*words)
        except TypeError:  # no hash: an error in the words of the checks behind
            types = make_types.__wrapped__(*words)
        fill_types(self, types)

    def _check_row_groups(self, groups: RowGroups) -> None:
        if (len(groups), max(groups)) != (self.G, self.M):
            raise InvalidProblemError(
                f"with row_groups G is their number and M the rows of the largest, {len(groups)} and {max(groups)}, "
                f"got {self.G} and {self.M}; GemmProblem.grouped(row_groups, K, N) fills them in"
            )
        _set(self, "row_groups", groups)

    @classmethod
    def grouped(cls, row_groups: Iterable[int], K: int, N: int, **types: Any) -> GemmProblem:
        """Make a grouped GEMM of these rows of each group; `types` as for a `GemmProblem`.

        Raises:
            InvalidProblemError: see `GemmProblem`.
        """
        groups = check_row_groups(row_groups)
        return cls(len(groups), max(groups), K, N, row_groups=groups, **types)

    @property
    def is_weight_quantized(self) -> bool:
        """Whether B is stored in a narrower type than it is multiplied in."""
        return self.weight_dtype is not self.input_dtype

    @property
    def rows(self) -> int:
        """Rows of A and C in all: G*M, or those of all groups."""
        return self.G * self.M if self.row_groups is None else sum(self.row_groups)

    @property
    def macs(self) -> int:
        """Multiply-accumulates: G*M*K*N, or K*N for each row of all groups."""
        return self.rows * self.K * self.N

    @property
    def flop(self) -> int:
        """Floating-point (or integer) operations, a MAC being two."""
        return FLOP_PER_MAC * self.macs

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that have to move: A and B with their scales, and C, each once; B of groups that have rows."""
        types, bits = self.types, 0
        groups = {self.M: self.G} if self.row_groups is None else Counter(self.row_groups)
        for num_rows, count in groups.items():
            if num_rows:
                a_bits, b_bits = types.a.total_bits(num_rows, self.K), types.b.total_bits(self.N, self.K)
                bits += count * (a_bits + b_bits - (-num_rows * self.N * types.c.half_bits // 2))
        return -(-bits // 8)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(G, M, K, N); of a grouped GEMM the groups, and the rows of the largest."""
        return self.G, self.M, self.K, self.N

    @property
    def is_grouped(self) -> bool:
        """Say whether it was given as groups of rows, which other kernels may run than those of a batch."""
        return self.row_groups is not None

    @property
    def sizes_text(self) -> str:
        """The sizes with their names: ``"G=4 M=120 K=7168 N=4096"``; of a grouped GEMM all rows instead of M."""
        rows = f"M={self.M}"
        if self.row_groups is not None:
            rows = f"rows={self.rows} (of a group {min(self.row_groups)} to {self.M})"
        return f"G={self.G} {rows} K={self.K} N={self.N}"

    @property
    def size_words(self) -> tuple[str, ...]:
        """The sizes for a short label: G, M, K, N, or of a grouped GEMM ``"(140 in 4)"`` (rows in groups), K, N."""
        if self.row_groups is None:
            return tuple(map(str, self.sizes))
        return f"({self.rows} in {self.G})", str(self.K), str(self.N)

    def __repr__(self) -> str:
        """An expression that makes it anew, without what follows from the rest."""
        scale = self.types.b.scale
        names = ["input_dtype", "output_dtype"]
        if scale is not None:
            names[1:1] = ["group_size"] if self.types.is_block_scaled else ["weight_dtype", "group_size"]
            if scale.zero_dtype is not None:
                names.append("zero_dtype")
            if scale.dtype is not default_scale_of(self.types.a.dtype, self.types.b.dtype, scale.group_size):
                names.append("scale_dtype")
            if scale.group_n > 1:
                names.append("group_n")
        values = ((name, getattr(self, name)) for name in names)
        types = (f"{name}={str(value)!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values)
        if self.row_groups is not None:
            return f"GemmProblem.grouped({', '.join([str(self.row_groups), str(self.K), str(self.N), *types])})"
        return f"GemmProblem({', '.join([*map(str, self.sizes), *types])})"

    def __str__(self) -> str:
        a, b = self.types.a, self.types.b
        inputs = str(a) if b.scale is None else f"{a} x {b}"
        return f"{self.sizes_text} {inputs} -> {self.output_dtype}"


def make_problem(
    G: int,
    M: int,
    K: int,
    N: int,
    *,
    default_dtype: DType,
    dtype: str | None = None,
    input_dtype: str | None = None,
    weight_dtype: str | None = None,
    output_dtype: str | None = None,
    group_size: int | None = None,
    zero_dtype: str | None = None,
    scale_dtype: str | None = None,
    group_n: int | None = None,
    row_groups: RowGroups | None = None,
) -> GemmProblem:
    """Build a problem from what users write: a `dtype` shorthand, single types, or both (single types win).

    `group_size` -1 asks for one scale per column where a shorthand would set a group; block-scaled types have no scales
    then.

    Raises:
        InvalidProblemError: see `GemmProblem`.
    """
    known = parse_scheme(default_dtype if dtype is None else dtype)
    is_block_scaled = known.input_dtype is known.weight_dtype and known.group_size is not None
    a = known.input_dtype if input_dtype is None else parse_dtype(input_dtype, what="input_dtype")
    if weight_dtype is not None:
        b = parse_dtype(weight_dtype, what="weight_dtype")
    else:
        b = a if known.weight_dtype is known.input_dtype else known.weight_dtype
        if is_block_scaled and b is not known.weight_dtype:
            raise InvalidProblemError(
                f"dtype {dtype} is block-scaled {known.weight_dtype} in A and B, but input_dtype is {a}: give "
                f"weight_dtype too ({known.weight_dtype} for quantized weights), or leave dtype out"
            )
    c = known.output_dtype if a is known.input_dtype else default_output_of(a)
    if plain_integer(group_size) == -1:
        group_size = None
    elif b is known.weight_dtype and (a is not b or is_block_scaled):  # its scales too
        group_size = known.group_size if group_size is None else group_size
        scale_dtype = known.scale_dtype if scale_dtype is None else scale_dtype
        group_n = known.group_n if group_n is None else group_n
    return GemmProblem(
        G, M, K, N, a, b, c if output_dtype is None else output_dtype, None, group_size, scale_dtype, zero_dtype,  # type: ignore[arg-type]
        group_n, row_groups,
    )  # fmt: skip


def fill_types(problem: GemmProblem, types: GemmTypes) -> None:
    """Set the fields of a problem that its types decide."""
    _set(problem, "types", types)
    for name, word in types.words.items():
        _set(problem, name, word)


def problem_of(types: GemmTypes, G: int, M: int, K: int, N: int, row_groups: RowGroups | None = None) -> GemmProblem:
    """Return the problem of these sizes, which are plain ints that were checked before, as are the groups."""
    problem = object.__new__(GemmProblem)
    _set(problem, "G", G)
    _set(problem, "M", M)
    _set(problem, "K", K)
    _set(problem, "N", N)
    _set(problem, "row_groups", row_groups)
    fill_types(problem, types)
    return problem
