"""`GemmProblem`: sizes, data types and quantization of one GEMM."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import DType, default_output_of, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload.types import TYPE_NAMES, GemmTypes, check_size, default_scale_of, make_types

__all__ = ["MAX_MACS", "GemmProblem", "make_problem", "problem_of"]

MAX_MACS = 1 << 57
"""Largest G*M*K*N that is taken: beyond it byte counts (at most 32 bytes a MAC) could leave 63-bit integers."""

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N]. The order of sizes is G, M, K, N everywhere.

    Attributes:
        G, M, K, N: batch, rows, reduction length, columns; each in 1..2**40, with a product of at most 2**57.
        input_dtype: type of A, and of both operands when the matrix unit multiplies them.
        weight_dtype: type of B as stored (default: `input_dtype`). If narrower, B is weight-only quantized.
        output_dtype: type of C as stored (default: see `gemm_eval.dtypes.default_output_of`).
        accumulator_dtype: fp32, or int32 for integer inputs.
        group_size: weights along K that share a scale; None: one scale per column. Quantized weights only.
        scale_dtype: type of the scales (default: the input type if it is a 16-bit float, else fp16).
        zero_dtype: type of the zero points, None for symmetric quantization.
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
    types: GemmTypes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("G", "M", "K", "N"):
            _set(self, name, check_size(name, getattr(self, name)))
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

    @property
    def is_weight_quantized(self) -> bool:
        """Whether B is stored in a narrower type than it is multiplied in."""
        return self.weight_dtype is not self.input_dtype

    @property
    def macs(self) -> int:
        """Multiply-accumulates: G*M*K*N."""
        return self.G * self.M * self.K * self.N

    @property
    def flop(self) -> int:
        """Floating-point (or integer) operations, a MAC being two."""
        return FLOP_PER_MAC * self.macs

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(G, M, K, N)."""
        return self.G, self.M, self.K, self.N

    def __repr__(self) -> str:
        """An expression that makes it anew, without what follows from the rest."""
        names = ["input_dtype", *(["weight_dtype", "group_size"] if self.scale_dtype else []), "output_dtype"]
        if self.zero_dtype is not None:
            names.append("zero_dtype")
        if self.scale_dtype not in (None, default_scale_of(self.input_dtype)):
            names.append("scale_dtype")
        values = ((name, getattr(self, name)) for name in names)
        types = (f"{name}={str(value)!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values)
        return f"GemmProblem({', '.join([*map(str, self.sizes), *types])})"

    def __str__(self) -> str:
        weights = ""
        if self.scale_dtype is not None:
            group = "per column" if self.group_size is None else f"group {self.group_size}"
            weights = f" x {self.weight_dtype} ({group})"
        return f"G={self.G} M={self.M} K={self.K} N={self.N} {self.input_dtype}{weights} -> {self.output_dtype}"


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
) -> GemmProblem:
    """Build a problem from what users write: a `dtype` shorthand, single types, or both (single types win).

    `group_size` -1 asks for one scale per column where a shorthand would set a group.

    Raises:
        InvalidProblemError: see `GemmProblem`.
    """
    types = make_types(default_dtype) if dtype is None else GemmTypes.parse(dtype)
    a, weight, c, group = types.a.dtype, types.b.dtype, types.c, types.group_size
    if input_dtype is not None and (asked := parse_dtype(input_dtype, what="input_dtype")) is not a:
        weight = asked if weight is a else weight
        a, c, group = asked, default_output_of(asked), None if weight is asked else group
    if weight_dtype is not None and (asked := parse_dtype(weight_dtype, what="weight_dtype")) is not weight:
        weight, group = asked, None
    if group_size is not None:
        group = None if plain_integer(group_size) == -1 else group_size
    return GemmProblem(
        G, M, K, N, a, weight, c if output_dtype is None else output_dtype, None, group, None, zero_dtype  # type: ignore[arg-type]
    )  # fmt: skip


def fill_types(problem: GemmProblem, types: GemmTypes) -> None:
    """Set the fields of a problem that its types decide."""
    _set(problem, "types", types)
    for name, word in types.words.items():
        _set(problem, name, word)


def problem_of(types: GemmTypes, G: int, M: int, K: int, N: int) -> GemmProblem:
    """Return the problem of these sizes, which are plain ints that were checked before."""
    problem = object.__new__(GemmProblem)
    _set(problem, "G", G)
    _set(problem, "M", M)
    _set(problem, "K", K)
    _set(problem, "N", N)
    fill_types(problem, types)
    return problem
