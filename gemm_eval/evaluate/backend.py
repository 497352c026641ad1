"""What an evaluator needs of a cost model and its search: one backend for each kind of architecture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.workload import NOTHING_SAID, GemmProblem, GemmTypes, Layouts, RunOptions

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult, ResultOrigin
    from gemm_eval.search import PlanOptions, SearchPlan


NUM_PACKED = 256
"""Combinations of data types and options whose packed form a backend remembers."""

Records: TypeAlias = npt.NDArray[np.void]


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


class Backend(Protocol):
    """The search and the cost model of one arch. Stateless but for caches, and safe to use from many threads.

    A record is one element of an array of `record_dtype`; all but the backend treat it as bytes. `packed` is what
    `pack` returns, and only the backend knows what that is.
    """

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        ...

    @property
    def record_dtype(self) -> np.dtype[np.void]:
        """Structured type of the costs, of plain integers and floats."""
        ...

    @property
    def search_counts(self) -> tuple[str, ...]:
        """Fields of a record that tell of the search and not of what it found."""
        ...

    @property
    def is_exhaustive(self) -> bool:
        """Whether `find` returns the best of the whole space."""
        ...

    @property
    def costs_as(self) -> Hashable:
        """What decides the costs, besides problem and options: equal for backends that give equal answers."""
        ...

    def highest_tflop_per_s(self, dtype: DType) -> float:
        """Return the FLOP/s, 1e12/s, that no GEMM with inputs of this type can beat: the peak of `utilization_frac`."""
        ...

    @property
    def mapping_columns(self) -> tuple[str, ...]:
        """Names of the columns of a table that say which mapping was found."""
        ...

    @property
    def term_columns(self) -> tuple[str, ...]:
        """Names of the terms of `GEMMResult.breakdown`, which are columns of a table too."""
        ...

    @property
    def option_columns(self) -> tuple[str, ...]:
        """Fields of `RunOptions` that mean something here."""
        ...

    def check(self, asked: RunOptions) -> None:
        """Check options that hold for any data types.

        Raises: as `resolve`.
        """
        ...

    def resolve(
        self, types: GemmTypes, asked: RunOptions, preferred: RunOptions = NOTHING_SAID, *, is_grouped: bool = False
    ) -> RunOptions:
        """Check options and fill in the defaults for these data types; sizes do not matter.

        Args:
            types: any problem of the data types.
            asked: holds, or is refused later by `pack`.
            preferred: checked before; holds where nothing is asked and, a library, where it has kernels for the types.
            is_grouped: the problem is given as groups of rows, which other kernels may run than those of a batch.

        Raises:
            InvalidOptionError: a value that is not allowed.
            UnsupportedError: options that an arch of this kind has no use for.
        """
        ...

    def pack(self, kind: Kind) -> Any:
        """Return what searches take; the same object for the kinds that were asked for last.

        Raises:
            UnsupportedError: the arch cannot run these types with these options.
        """
        ...

    def find(self, problem: GemmProblem, packed: Any) -> Records:
        """Return the record [1] of the best mapping.

        Raises:
            InfeasibleError: no mapping fits.
        """
        ...

    def find_many(
        self,
        types: Sequence[GemmTypes],
        packed: Sequence[Any],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        advance: Callable[[int], None],
    ) -> Records:
        """Return the records [num_problems] of the best mappings, to the bit those of `find`.

        Args:
            types, packed: of each kind.
            kind_of: [num_problems], index into both.
            sizes: [num_problems, 4] of G, M, K, N.
            layouts: [num_problems], the rows of groups that differ.
            advance: to be called now and then with the number of problems newly done.

        Returns:
            Records of zeros where nothing fits.
        """
        ...

    def find_top(self, problem: GemmProblem, packed: Any, k: int, distinct: str) -> Records:
        """Return the records of the `k` best mappings, best first; fewer when there are not so many.

        Raises:
            InvalidOptionError: no such `distinct`.
            InfeasibleError: no mapping fits.
        """
        ...

    def replay(self, problem: GemmProblem, packed: Any, mapping: Any) -> Records:
        """Return the record [1] of a mapping that a user gives.

        Raises:
            InvalidMappingError: the mapping breaks a rule.
        """
        ...

    def is_feasible(self, records: Records) -> npt.NDArray[np.bool_]:
        """Say of each record whether it is an answer, and not the zeros of `find_many`."""
        ...

    def make_result(
        self, problem: GemmProblem, options: RunOptions, record: np.void, origin: ResultOrigin, *, is_found: bool
    ) -> GEMMResult:
        """Turn a record into a result; `is_found` by a search, or replayed."""
        ...

    def spell_options(self, name: str, column: npt.NDArray[Any], records: Records) -> npt.NDArray[Any]:
        """Return a column of types or options with what the answers say instead of what was left to them."""
        ...

    def column(self, name: str, records: Records) -> npt.NDArray[Any]:
        """Return a column of a table: a number of `GEMMResult`, its bound, a term, or one of `mapping_columns`.

        Rows that are not feasible are nan, 0, or None for words.
        """
        ...

    def intervals(
        self,
        kinds: Sequence[Kind],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        records: Records,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the ends of the 80% intervals around latencies, in us; nan where none is known or nothing fits."""
        ...

    def stored_as(self) -> Mapping[str, object]:
        """Return what decides the costs, as values for JSON: the key of what is kept on disk."""
        ...

    def say_bound(self, bound: str) -> str:
        """Return a bound in words, to follow "bound by"."""
        ...

    def say_mapping(self, result: GEMMResult) -> list[str]:
        """Return lines about the mapping and how it uses the chip."""
        ...

    def say_source(self, result: GEMMResult) -> list[str]:
        """Return lines about what the numbers rest on; none when there is nothing to add."""
        ...

    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
        """Return changes of the spec that could help, in words and as arguments of `with_`."""
        ...


def make_backend(
    arch: ArchSpec, plan: PlanOptions | SearchPlan | str, *, allow_idle_cores: bool, policy: str | None = None
) -> Backend:
    """Return the backend for an arch.

    Raises:
        InvalidOptionError: options that this kind of arch does not take.
    """
    if isinstance(arch, MulticoreSpec):
        from gemm_eval.evaluate.multicore import MulticoreBackend

        return MulticoreBackend(arch, plan, allow_idle_cores=allow_idle_cores, policy=policy)
    from gemm_eval.errors import UnsupportedError
    from gemm_eval.evaluate.gpu import GpuBackend

    if policy is not None:
        raise UnsupportedError(
            f"policy is for multi-core chips, and {arch.name} is a GPU: library says whose kernels run"
        )
    return GpuBackend(arch, plan, allow_idle_cores=allow_idle_cores)
