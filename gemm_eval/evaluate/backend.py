"""`Backend`: the search and the cost model of one kind of architecture, as an evaluator needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.workload import NOTHING_SAID, GemmProblem, GemmTypes, Layouts, RunOptions

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult


NUM_PACKED = 256
"""Combinations of data types and options whose packed form a backend remembers."""

Records: TypeAlias = npt.NDArray[np.void]
Integers: TypeAlias = npt.NDArray[np.int64]


class Kind(NamedTuple):
    """Facts that GEMMs of other sizes can share: data types, and options that a backend has resolved.

    Attributes:
        types: data types.
        options: resolved options.
        call_weights: bytes of weights that a repeated call reads in all, over those of this GEMM: a warm L2 has to
            hold all of them. 1 for a GEMM that is called alone.
    """

    types: GemmTypes
    options: RunOptions
    call_weights: float = 1.0


class Problems(NamedTuple):
    """Many checked problems: kinds with what `Backend.pack` made of each, and for each problem the index of its kind.

    `sizes` [num_problems, 4] are G, M, K, N, and `layouts` the rows of groups that differ.
    """

    kinds: Sequence[Kind]
    packed: Sequence[Any]
    kind_of: Integers
    sizes: Integers
    layouts: Layouts

    def take(self, rows: Integers) -> Problems:
        """Return some of the problems."""
        return self._replace(kind_of=self.kind_of[rows], sizes=self.sizes[rows], layouts=self.layouts.take(rows))


class Backend(ABC):
    """The search and the cost model of one arch. Stateless but for caches, and safe to use from many threads.

    A record is one element of an array of `record_dtype`; all but the backend treat it as bytes. `packed` is what
    `pack` returns, and only the backend knows what that is.

    Attributes:
        record_dtype: structured type of the costs, of plain integers and floats.
        search_counts: fields of a record that tell of the search and not of its result.
        mapping_columns: columns of a table that say which mapping was found.
        term_columns: names of the terms of `GEMMResult.breakdown`, which are columns of a table too.
        option_columns: fields of `RunOptions` that mean something here.
        bounds: each bound in words, to follow "bound by".
        active_field: field of a record that counts the busy parts of the chip: above 0 where the record is an answer.
        arch: the architecture.
        highest_tflop_per_s: the rate, in 1e12 FLOP/s, that no GEMM with inputs of a type can beat.
    """

    record_dtype: ClassVar[np.dtype[np.void]]
    search_counts: ClassVar[tuple[str, ...]]
    mapping_columns: ClassVar[tuple[str, ...]]
    term_columns: ClassVar[tuple[str, ...]]
    option_columns: ClassVar[tuple[str, ...]]
    bounds: ClassVar[Mapping[str, str]]
    active_field: ClassVar[str]
    arch: ArchSpec
    highest_tflop_per_s: Callable[[DType], float]

    @abstractmethod
    def check(self, asked: RunOptions) -> None:
        """Check options that hold for any data types; raises as `resolve`."""

    @abstractmethod
    def resolve(
        self, types: GemmTypes, asked: RunOptions, preferred: RunOptions = NOTHING_SAID, *, is_grouped: bool = False
    ) -> RunOptions:
        """Check options and fill in the defaults for these data types; sizes do not matter.

        Args:
            types: data types.
            asked: holds, or is refused later by `pack`.
            preferred: checked before; holds where nothing is asked and, a library, where it has kernels for the types.
            is_grouped: the problem is given as groups of rows, which other kernels may run than those of a batch.

        Raises:
            InvalidOptionError: a value that is not allowed.
            UnsupportedError: options that an arch of this kind has no use for.
        """

    @abstractmethod
    def pack(self, kind: Kind) -> Any:
        """Return what searches take; raises `UnsupportedError` where the arch cannot run such a kind."""

    @abstractmethod
    def find(self, problem: GemmProblem, packed: Any) -> Records:
        """Return the record [1] of the best mapping; raises `InfeasibleError` where none fits."""

    @abstractmethod
    def find_many(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        """Return the records [num_problems] of the best mappings, to the bit those of `find`; zeros where none fits.

        `advance` is called now and then with the number of problems newly done.
        """

    @abstractmethod
    def find_top(self, problem: GemmProblem, packed: Any, k: int, distinct: str) -> Records:
        """Return the records of the `k` best mappings, best first; see `GEMMEvaluator.top`."""

    @abstractmethod
    def replay(self, problem: GemmProblem, packed: Any, mapping: Any) -> Records:
        """Return the record [1] of a mapping that a user gives; raises `InvalidMappingError` where it breaks a rule."""

    @abstractmethod
    def result_fields(self, problem: GemmProblem, kind: Kind, record: np.void, is_found: bool) -> dict[str, Any]:
        """Return the fields of a result but problem, latency and origin; `is_found` by a search, or replayed."""

    @abstractmethod
    def words_of(self, name: str, records: Records) -> npt.NDArray[Any] | None:
        """Return a column of words of answers; None: it is a column of numbers."""

    @abstractmethod
    def numbers_of(self, name: str, records: Records) -> npt.NDArray[Any]:
        """Return a column of numbers."""

    @abstractmethod
    def stored_as(self) -> Mapping[str, object]:
        """Return what decides the costs, as values for JSON: the key of what is kept on disk."""

    @abstractmethod
    def say_mapping(self, result: GEMMResult) -> list[str]:
        """Return lines about the mapping and how it uses the chip."""

    @abstractmethod
    def say_source(self, result: GEMMResult) -> list[str]:
        """Return lines about what the numbers rest on; none when there is nothing to add."""

    @abstractmethod
    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
        """Return changes of the spec that could help, in words and as arguments of `with_`."""

    def is_feasible(self, records: Records) -> npt.NDArray[np.bool_]:
        """Return True for each record that is an answer, and not the zeros of `find_many`."""
        feasible: npt.NDArray[np.bool_] = records[self.active_field] > 0
        return feasible

    def column(self, name: str, records: Records) -> npt.NDArray[Any]:
        """Return a column of a table: a number of `GEMMResult`, its bound, a term, or one of `mapping_columns`.

        Rows that are not feasible are nan, 0, or None for words.
        """
        feasible = self.is_feasible(records)
        column: npt.NDArray[Any] = np.full(len(records), None, object)
        words = self.words_of(name, records[feasible])
        if words is not None:
            column[feasible] = words
            return column
        column = self.numbers_of(name, records)
        if column.dtype.kind == "f":
            column[~feasible] = np.nan
        return column

    def spell_options(self, name: str, column: npt.NDArray[Any], records: Records) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return a column of types or options with what the answers say instead of what was left to them."""
        return column

    @abstractmethod
    def intervals(self, problems: Problems, records: Records) -> npt.NDArray[np.float64]:
        """Return the ends [2, num] of the 80% intervals around latencies, in us; nan where none is known."""


def make_backend(arch: ArchSpec, *, allow_idle_cores: bool, policy: str | None = None) -> Backend:
    """Return the backend for an arch."""
    if isinstance(arch, MulticoreSpec):
        from gemm_eval.evaluate.multicore import MulticoreBackend

        return MulticoreBackend(arch, allow_idle_cores=allow_idle_cores, policy=policy)
    from gemm_eval.evaluate.gpu import GpuBackend

    if policy is not None:
        raise UnsupportedError(
            f"policy is for multi-core chips, and {arch.name} is a GPU: library says whose kernels run"
        )
    return GpuBackend(arch, allow_idle_cores=allow_idle_cores)
