"""`GemmProblem`, and row groups: the number of rows of each group of a grouped GEMM, packed for numba kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import DType, default_output_of, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidProblemError
from gemm_eval.jit import read_only
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import plain_integer, shown
from gemm_eval.workload.types import LAYOUTS, MAX_DIM, TYPE_NAMES, GemmTypes, check_size, default_scale_of, make_types

MAX_GROUPS = 1024
"""Most groups of a grouped GEMM."""

RowGroups = tuple[int, ...]
"""Rows of A and C of each group; 0 where a group has none."""

_PLAIN = (tuple, list)


def check_row_groups(value: Any) -> RowGroups:
    """Return the rows of each group as plain ints.

    Raises:
        InvalidProblemError: they are no 1 to `MAX_GROUPS` integers in 0..`MAX_DIM`, or all of them are 0.
    """
    if type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "iu":
        value = value.tolist()
    if type(value) in _PLAIN and len(value) <= MAX_GROUPS and set(map(type, value)) == {int}:
        # nearly all there are: a layer has hundreds of groups, and each is looked at in C here
        if min(value) >= 0 and 0 < max(value) <= MAX_DIM:
            return tuple(value)
    elif _is_no_list(value):
        raise InvalidProblemError(f"row_groups must be the rows of each group, (120, 3, 0, 17), got {shown(value)}")
    groups: list[int] = []
    for item in value:  # one by one: what is no list of groups may be endless
        number = plain_integer(item)
        if number is None or not 0 <= number <= MAX_DIM:
            raise InvalidProblemError(
                f"row_groups must be integers in 0..2**40, got {shown(item)} for group {len(groups)}"
            )
        groups.append(number)
        if len(groups) > MAX_GROUPS:
            raise InvalidProblemError(f"row_groups must be at most {MAX_GROUPS:,} groups, got more")
    if not any(groups):
        what = "no group" if not groups else f"{len(groups)} groups without a row"
        raise InvalidProblemError(f"row_groups must have a row in one group at least, got {what}")
    return tuple(groups)


def _is_no_list(value: Any) -> bool:
    is_word = isinstance(value, str | bytes | dict | set | frozenset)
    # an array without dimensions has `__iter__`, which raises
    return is_word or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1


class Layouts(NamedTuple):
    """Row groups of many problems, as numba kernels take them.

    Groups of equally many rows stand together, the largest first, and those without a row are left out: nothing depends
    on the order of groups. `of` [num_problems] is which layout a problem has, -1: none, or [0], where no problem has
    any: G groups of M rows. Groups of layout i are `starts[i]` to `starts[i + 1]` of `rows`, and `counts` of each.
    """

    of: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def take(self, rows: Any) -> Layouts:
        """Return those of some problems."""
        return self._replace(of=read_only(self.of[rows])) if len(self.of) else self

    def row_groups(self, problem: int, num_groups: int) -> RowGroups | None:
        """Return the rows of each of a problem's groups, the largest first; None: it has none of its own."""
        which = int(self.of[problem]) if len(self.of) else -1
        if which < 0:
            return None
        some = slice(*self.starts[which : which + 2].tolist())
        groups = np.repeat(self.rows[some], self.counts[some]).tolist()
        return (*groups, *[0] * (num_groups - len(groups)))

    def mean_rows(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the mean rows of a group of each problem [num, 4], rounded down: M where groups do not differ."""
        means: npt.NDArray[np.int64] = sizes[:, 1].copy()
        grouped = np.flatnonzero(self.of >= 0)
        if len(grouped):
            sums = np.add.reduceat(self.rows * self.counts, self.starts[:-1])
            means[grouped] = sums[self.of[grouped]] // sizes[grouped, 0]
        return means

    def is_grouped(self, num_problems: int) -> npt.NDArray[np.bool_]:
        """Say of each problem [num_problems] whether its groups differ."""
        return self.of >= 0 if len(self.of) else np.zeros(num_problems, np.bool_)


def without_lone_groups(sizes: npt.NDArray[np.int64], layouts: Layouts) -> tuple[npt.NDArray[np.int64], Layouts]:
    """Return sizes [num, 4] and layouts with one GEMM in place of each problem that has rows in a single group.

    So (0, 120, 0) is a GEMM of 120 rows: empty groups are no work.
    """
    if not len(layouts.of):
        return sizes, layouts
    groups = np.add.reduceat(layouts.counts, layouts.starts[:-1])
    is_lone = np.append(groups == 1, False)[layouts.of]  # of -1 too: it is not
    if not is_lone.any():
        return sizes, layouts
    of, sizes = layouts.of.copy(), sizes.copy()
    sizes[is_lone, 0] = 1
    of[is_lone] = -1
    return sizes, layouts._replace(of=read_only(of))


def distinct_groups(
    row_groups: RowGroups | None, G: int, M: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
    """Return rows of groups that have any, the most first, how many groups have so many, and whether these are several.

    None: G groups of M, a batch.
    """
    count_of = {M: G} if row_groups is None else Counter(rows for rows in row_groups if rows)
    rows = sorted(count_of, reverse=True)
    counts = np.array([count_of[size] for size in rows], np.int64)
    return np.array(rows, np.int64), counts, row_groups is not None and int(counts.sum()) > 1


NO_LAYOUTS = Layouts(*(read_only(np.array(values, np.int64)) for values in ([], [0], [], [])))
"""Layouts of any number of problems without row groups."""


def pack_layouts(row_groups: Sequence[RowGroups | None]) -> Layouts:
    """Pack the row groups of problems; None: G groups of M rows."""
    if all(groups is None for groups in row_groups):
        return NO_LAYOUTS
    places: dict[RowGroups, int] = {}
    of = [-1 if groups is None else places.setdefault(groups, len(places)) for groups in row_groups]
    starts, rows, counts = [0], [], []
    for groups in places:
        for num_rows, count in sorted(Counter(groups).items(), reverse=True):
            if num_rows:
                rows.append(num_rows)
                counts.append(count)
        starts.append(len(rows))
    arrays = (np.array(values, np.int64) for values in (of, starts, rows, counts))
    return Layouts(*map(read_only, arrays))


MAX_MACS = 1 << 57
"""Largest G*M*K*N that is taken: beyond it byte counts (at most 32 bytes a MAC) could leave 63-bit integers."""

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """A GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N]. The order of sizes is G, M, K, N everywhere.

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
        layout: how A and B lie in memory, of `gemm_eval.workload.LAYOUTS` (default: ``"tn"``, as of linear layers).
        accumulate: fp8 on Hopper: ``"fast"`` (default: None, the same) or ``"full"``, products added in fp32, as
            `torch._scaled_mm` does where nothing else is said.
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
    layout: str | None = LAYOUTS[0]
    accumulate: str | None = None
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
        _set(self, "types", _types_of(*(getattr(self, name) for name in TYPE_NAMES)))
        for name, word in self.types.words.items():
            _set(self, name, word)

    if not TYPE_CHECKING:  # for mypy, every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            """Set the fields that the types decide, when the first of them is read: see `problem_of`."""
            if name not in TYPE_NAMES:
                raise AttributeError(f"'GemmProblem' object has no attribute {name!r}")
            for type_name, word in self.types.words.items():
                _set(self, type_name, word)
            return object.__getattribute__(self, name)

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
        """True where B is stored in a narrower type than it is multiplied in."""
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
        """Return an expression that makes it anew, without what follows from the rest."""
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
        names += ["layout"] * (self.layout != LAYOUTS[0]) + ["accumulate"] * (self.accumulate is not None)
        values = ((name, getattr(self, name)) for name in names)
        types = (f"{name}={str(value)!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values)
        if self.row_groups is not None:
            return f"GemmProblem.grouped({', '.join([str(self.row_groups), str(self.K), str(self.N), *types])})"
        return f"GemmProblem({', '.join([*map(str, self.sizes), *types])})"

    def __str__(self) -> str:
        a, b = self.types.a, self.types.b
        inputs = str(a) if b.scale is None else f"{a} x {b}"
        layout = "" if self.layout == LAYOUTS[0] else f" {self.layout}"
        return f"{self.sizes_text} {inputs} -> {self.output_dtype}{layout}"


def resolve_types(
    default_dtype: DType, dtype: str | None = None, input_dtype: str | None = None, weight_dtype: str | None = None,
    output_dtype: str | None = None, group_size: int | None = None, zero_dtype: str | None = None,
    scale_dtype: str | None = None, group_n: int | None = None, layout: str | None = None,
    accumulate: str | None = None,
) -> GemmTypes:  # fmt: skip
    """Return the types that users ask for: by a `dtype` shorthand, single types, or both (single types win).

    `group_size` -1 asks for one scale per column where a shorthand would set a group; block-scaled types have no scales
    then.
    """
    scheme = parse_scheme(default_dtype if dtype is None else dtype)
    is_block_scaled = scheme.input_dtype is scheme.weight_dtype and scheme.group_size is not None
    a = scheme.input_dtype if input_dtype is None else parse_dtype(input_dtype, what="input_dtype")
    if weight_dtype is not None:
        b = parse_dtype(weight_dtype, what="weight_dtype")
    else:
        b = a if scheme.weight_dtype is scheme.input_dtype else scheme.weight_dtype
        if is_block_scaled and b is not scheme.weight_dtype:
            raise InvalidProblemError(
                f"dtype {dtype} is block-scaled {scheme.weight_dtype} in A and B, but input_dtype is {a}: give "
                f"weight_dtype too ({scheme.weight_dtype} for quantized weights), or leave dtype out"
            )
    c = scheme.output_dtype if a is scheme.input_dtype else default_output_of(a)
    if plain_integer(group_size) == -1:
        group_size = None
    elif b is scheme.weight_dtype and (a is not b or is_block_scaled):  # its scales too
        group_size = scheme.group_size if group_size is None else group_size
        scale_dtype = scheme.scale_dtype if scale_dtype is None else scale_dtype
        group_n = scheme.group_n if group_n is None else group_n
    return _types_of(
        a, b, c if output_dtype is None else output_dtype, None, group_size, scale_dtype, zero_dtype, group_n, layout,
        accumulate,
    )  # fmt: skip


def make_problem(
    G: int, M: int, K: int, N: int, *, default_dtype: DType, row_groups: RowGroups | None = None, **types: Any
) -> GemmProblem:
    """Build a problem from what users write; `types` as for `resolve_types`."""
    words: Any = resolve_types(default_dtype, **types).words
    return GemmProblem(G, M, K, N, **words, row_groups=row_groups)


def _types_of(*words: Any) -> GemmTypes:
    try:
        return make_types(*words)
    except TypeError:  # no hash: an error in the words of the checks behind
        return make_types.__wrapped__(*words)


def problem_of(types: GemmTypes, G: int, M: int, K: int, N: int, row_groups: RowGroups | None = None) -> GemmProblem:
    """Return the problem of these sizes, which are plain ints that were checked before, as are the groups."""
    problem = object.__new__(GemmProblem)
    _set(problem, "G", G)
    _set(problem, "M", M)
    _set(problem, "K", K)
    _set(problem, "N", N)
    _set(problem, "row_groups", row_groups)
    _set(problem, "types", types)
    return problem
