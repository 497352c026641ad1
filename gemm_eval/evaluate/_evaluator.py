"""`GEMMEvaluator`: the facade that users call."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval._frozen import FrozenDict
from gemm_eval.arch import MulticoreSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InfeasibleError, InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.evaluate._batch import ProblemBatch, read_batch, types_alone
from gemm_eval.evaluate._progress import progress_bar
from gemm_eval.evaluate._records import RecordCache, RecordCacheInfo, RecordKey
from gemm_eval.evaluate._result import GEMMResult
from gemm_eval.evaluate._table import GEMMTable
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.multicore.cost_kernels import BOUNDS, COST_DTYPE
from gemm_eval.models.multicore.model import MODEL_VERSION, MulticoreCost, evaluate_mapping, unpack_cost
from gemm_eval.models.multicore.params import pack_params
from gemm_eval.search.multicore import (
    check_idle_cores,
    find_best,
    find_best_few,
    find_best_many,
    find_best_of_each_partition,
    infeasible_error,
)
from gemm_eval.search.plans import AnalyticCostModel, PlanOptions, SearchPlan, as_plan_options, find_planned
from gemm_eval.workload import GemmProblem, make_problem

if TYPE_CHECKING:
    from gemm_eval.evaluate._disk import CostStore

__all__ = ["CacheInfo", "GEMMEvaluator"]

_CACHE_SIZE = 1 << 14  # results of about 3 KB each
_PARAMS_CACHE_SIZE = 256
_RECORD_CACHE_SIZE = 1 << 18  # costs of about 0.6 KB each


class CacheInfo(NamedTuple):
    """Hits and misses of the results that an evaluator keeps in memory, its bound, and how many it holds.

    `records` tells the same of the costs, which `evaluate_problem` and `evaluate_many` share with `evaluate`.
    """

    hits: int
    misses: int
    maxsize: int | None
    currsize: int
    records: RecordCacheInfo


class GEMMEvaluator:
    """Evaluates GEMMs on one architecture.

    >>> ev = GEMMEvaluator(load_arch("demo-8core"))
    >>> r = ev.evaluate(1, 4096, 4096, 4096)      # G, M, K, N
    >>> r.latency_us, r.bound, r.mapping          # doctest: +SKIP

    Safe to call from many threads at once. Results are kept in memory (the last 16,384) and shared, so they are frozen.

    Args:
        arch: an architecture, or the name or path of one.
        plan: how much of the space to search: ``"exact"``, the default and the fastest, or heuristics to compare
            with: ``"balanced"``, ``"aggressive"``, ``PlanOptions.heuristic(top_k, top_tiles)``.
        allow_idle_cores: also consider partitions that leave cores idle; off, P_G*P_M*P_N*P_K is exactly num_cores.
            On, more cores never make the best latency worse where DRAM bandwidth is shared fairly.
        disk_cache: read, at the first evaluation, what `save_to_disk` or `prewarm` kept for this arch: from the user's
            cache folder (True; ``GEMM_EVAL_CACHE_DIR`` moves it), from a file of your own (a path), or not at all.

    Raises:
        ArchError: `arch` names no valid architecture.
        InvalidInputError: `arch` is something else.
        InvalidOptionError: `allow_idle_cores` on a chip of more than `gemm_eval.search.multicore.MAX_IDLE_CORES` cores.
    """

    def __init__(
        self,
        arch: MulticoreSpec | str | os.PathLike[str],
        *,
        plan: PlanOptions | SearchPlan | str = SearchPlan.EXACT,
        allow_idle_cores: bool = True,
        disk_cache: bool | str | os.PathLike[str] = True,
    ) -> None:
        if isinstance(arch, str | os.PathLike):
            arch = load_arch(arch)
        if not isinstance(arch, MulticoreSpec):
            raise InvalidInputError(f"arch must be a spec, a preset name or a path, got {arch!r}")
        if not isinstance(allow_idle_cores, bool):
            raise InvalidOptionError(f"allow_idle_cores must be True or False, got {allow_idle_cores!r}")
        if not isinstance(disk_cache, bool | str | os.PathLike):
            raise InvalidOptionError(f"disk_cache must be True, False or a path, got {disk_cache!r}")
        check_idle_cores(arch, allow_idle_cores=allow_idle_cores)
        self._arch = arch
        self._plan = as_plan_options(plan)
        self._is_exact = self._plan.plan is SearchPlan.EXACT
        self._allow_idle_cores = allow_idle_cores
        self._disk_cache = disk_cache
        self._disk_lock = threading.Lock()
        self._is_disk_read = False
        # typed: True must not find the result of 1
        self._evaluate_cached = lru_cache(maxsize=_CACHE_SIZE, typed=True)(self._evaluate)
        self._params_cached = lru_cache(maxsize=_PARAMS_CACHE_SIZE)(self._pack)
        self._records = RecordCache(_RECORD_CACHE_SIZE)
        self._type_numbers: dict[GemmProblem, int] = {}
        self._next_number = count()

    def __repr__(self) -> str:
        return f"GEMMEvaluator({self._arch.name!r}, allow_idle_cores={self._allow_idle_cores})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._arch, self._plan, self._allow_idle_cores, self._disk_cache)

    @property
    def arch(self) -> MulticoreSpec:
        """The architecture."""
        return self._arch

    def on(self, arch: MulticoreSpec | str | os.PathLike[str]) -> GEMMEvaluator:
        """Return an evaluator with the same options for another arch."""
        return _rebuild(arch, self._plan, self._allow_idle_cores, self._disk_cache)

    def evaluate(
        self,
        G: int,
        M: int,
        K: int,
        N: int,
        dtype: str | None = None,
        *,
        input_dtype: str | None = None,
        weight_dtype: str | None = None,
        output_dtype: str | None = None,
        group_size: int | None = None,
        zero_dtype: str | None = None,
    ) -> GEMMResult:
        """Find the best mapping of C[G,M,N] = A[G,M,K] x B[G,K,N] and say what it costs.

        Args:
            G, M, K, N: batch, rows, reduction length, columns.
            dtype: shorthand: a type for everything (``"fp16"``), or ``"w4a16"``, ``"w8a16"``, ``"w4a8"``, ``"w8a8"``.
                Default: the arch's default type.
            input_dtype, weight_dtype, output_dtype: single types; they win over the shorthand.
            group_size: quantized weights: weights along K that share a scale; -1 for one scale per column.
            zero_dtype: quantized weights: type of zero points; None for symmetric quantization.

        Raises:
            InvalidProblemError: sizes or types that make no GEMM.
            UnsupportedError: the arch cannot run these types.
            InfeasibleError: no mapping fits.
        """
        try:
            return self._evaluate_cached(
                G, M, K, N, dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype
            )
        except (
            TypeError
        ):  # an unhashable argument is an error, in the words of the problem's own checks, or a 0-d array
            return self._evaluate(G, M, K, N, dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype)

    def evaluate_problem(self, problem: GemmProblem) -> GEMMResult:
        """Find the best mapping of a `GemmProblem`; see `evaluate`."""
        self._read_disk_once()
        key = (self._number_of_types(types_alone(_checked(problem))), *problem.sizes)
        record = self._records.get(key)
        if record is None:
            cost = self._find(problem)
            self._records.put_many([(key, cost.tobytes())])
        else:
            cost = np.frombuffer(record, COST_DTYPE)
        return self.result_of_record(problem, cost[0])

    def evaluate_many(
        self,
        problems: Any,
        dtype: str | None = None,
        *,
        input_dtype: str | None = None,
        weight_dtype: str | None = None,
        output_dtype: str | None = None,
        group_size: int | None = None,
        zero_dtype: str | None = None,
        errors: Literal["raise", "mark"] = "raise",
        progress: bool | None = None,
    ) -> GEMMTable:
        """Find the best mapping of many GEMMs, on all cores of this machine; the same results as one by one.

        Repeated problems, and problems evaluated before, cost next to nothing.

        Args:
            problems: an iterable of (G, M, K, N) or `GemmProblem`, an integer array [num_problems, 4] of G, M, K, N, or
                a DataFrame with columns G, M, K, N and any of dtype, input_dtype, weight_dtype, output_dtype,
                group_size, zero_dtype.
            dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype: as for `evaluate`, for all problems
                that do not say otherwise; a row's own `dtype` replaces all of them.
            errors: ``"raise"`` an `InfeasibleError` for the first problem that does not fit, or ``"mark"`` its row.
            progress: show a progress bar on stderr; None: if stderr is a terminal and the work takes over a second.

        Raises:
            InvalidProblemError: something in `problems` is no GEMM; nothing has been computed then.
            UnsupportedError: the arch cannot run the types.
            InfeasibleError: no mapping fits a problem, with ``errors="raise"``.
        """
        if errors not in ("raise", "mark"):
            raise InvalidOptionError(f"errors must be 'raise' or 'mark', got {errors!r}")
        if progress is not None and not isinstance(progress, bool):
            raise InvalidOptionError(f"progress must be True, False or None, got {progress!r}")
        given = {
            "dtype": dtype, "input_dtype": input_dtype, "weight_dtype": weight_dtype, "output_dtype": output_dtype,
            "group_size": group_size, "zero_dtype": zero_dtype,
        }  # fmt: skip

        def make(G: int, M: int, K: int, N: int, **types: Any) -> GemmProblem:
            if "dtype" in types:  # a row's own shorthand replaces every type of the call
                return self._make_problem(G, M, K, N, *(dict.fromkeys(given) | types).values())
            return self._make_problem(G, M, K, N, *(given | types).values())

        batch = read_batch(problems, make)
        self._read_disk_once()
        for types in batch.types:
            self._params(types)  # types that the arch cannot run are refused before any work
        numbers = np.array([self._number_of_types(types) for types in batch.types], np.int64)
        keys = list(zip(numbers[batch.type_of].tolist(), *batch.sizes.T.tolist(), strict=True))
        found = self._records.get_many(keys)
        places: dict[RecordKey, int] = {}  # each missing problem once, and where it stands first
        for place, record in enumerate(found):
            if record is None:
                places.setdefault(keys[place], place)
        if places:
            chosen = np.fromiter(places.values(), np.int64, len(places))
            with progress_bar(len(chosen), f"GEMMs on {self._arch.name}", progress) as advance:
                records = self._find_many(batch, chosen, advance)
            fresh = {key: record.tobytes() for key, record in zip(places, records, strict=True)}
            feasible = (records["active_cores"] > 0).tolist()  # only answers are worth remembering
            self._records.put_many(entry for entry, is_kept in zip(fresh.items(), feasible, strict=True) if is_kept)
            found = [fresh[key] if record is None else record for key, record in zip(keys, found, strict=True)]
        table = GEMMTable(self, batch, np.frombuffer(b"".join(found), COST_DTYPE))  # type: ignore[arg-type]
        if errors == "raise" and not table.is_feasible.all():
            place = int(np.argmin(table.is_feasible))
            problem = self.problem_of(batch.types[batch.type_of[place]], batch.sizes[place])
            raise infeasible_error(self._arch, problem, self._params(problem), allow_idle_cores=self._allow_idle_cores)
        return table

    def evaluate_mapping(self, problem: GemmProblem, mapping: MulticoreMapping) -> GEMMResult:
        """Replay a mapping that the user gives: ((P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), loop order).

        Raises:
            InvalidMappingError: the mapping breaks a rule of the arch or the problem; the message says which.
            UnsupportedError: the arch cannot run these types.
        """
        cost = evaluate_mapping(self._arch, _checked(problem), self._params(problem), mapping)
        return self._result(problem, unpack_cost(cost[0]), is_exhaustive=False)

    def top(
        self, problem: GemmProblem, k: int = 5, *, distinct: Literal["mapping", "partition"] = "mapping"
    ) -> list[GEMMResult]:
        """Return the `k` best mappings, best first; fewer when there are not so many.

        Mappings that another one stands for are not listed: the same data movement under another loop order's name, a
        larger tile with the same trip counts, a tile_k smaller than what fits.

        Args:
            problem: the GEMM.
            k: how many, 1 to 10,000.
            distinct: ``"mapping"``, or ``"partition"`` for the best mapping of each partition.

        Raises:
            InvalidOptionError: `k` or `distinct` out of range; otherwise as `evaluate`.
        """
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= 10_000:
            raise InvalidOptionError(f"k must be an integer in 1..10000, got {k!r}")
        params = self._params(_checked(problem))
        if distinct == "mapping":
            costs = find_best_few(self._arch, problem, params, k, allow_idle_cores=self._allow_idle_cores)
            return [self._result(problem, unpack_cost(cost), is_exhaustive=True) for cost in costs]
        if distinct == "partition":
            costs = find_best_of_each_partition(self._arch, problem, params, allow_idle_cores=self._allow_idle_cores)
            return [self._result(problem, unpack_cost(cost), is_exhaustive=True) for cost in costs[:k]]
        raise InvalidOptionError(f"distinct must be 'mapping' or 'partition', got {distinct!r}")

    def cache_info(self) -> CacheInfo:
        """Return how the memory of results is doing: that of `evaluate` calls, and that of costs behind all calls."""
        return CacheInfo(*self._evaluate_cached.cache_info(), self._records.info())

    def cache_clear(self) -> None:
        """Forget all results in memory."""
        self._evaluate_cached.cache_clear()
        self._records.clear()

    def problem_of(self, types: GemmProblem, sizes: Iterable[int]) -> GemmProblem:
        """Return the problem of these sizes with the data types of another."""
        G, M, K, N = (int(size) for size in sizes)
        return dataclasses.replace(types, G=G, M=M, K=K, N=N)

    def result_of_record(self, problem: GemmProblem, record: np.void) -> GEMMResult:
        """Return the result that a record of `COST_DTYPE`, found by this evaluator's plan, stands for."""
        return self._result(problem, unpack_cost(record), is_exhaustive=self._is_exact)

    def _find(self, problem: GemmProblem) -> npt.NDArray[np.void]:
        params = self._params(problem)
        if self._is_exact:
            return find_best(self._arch, problem, params, allow_idle_cores=self._allow_idle_cores)
        found = find_planned(
            AnalyticCostModel(self._arch), self._arch, problem, self._plan, allow_idle_cores=self._allow_idle_cores
        )
        cost = evaluate_mapping(self._arch, problem, params, found.mapping)
        cost["num_candidates"] = found.num_evaluated
        return cost

    def _find_many(
        self, batch: ProblemBatch, chosen: npt.NDArray[np.int64], advance: Callable[[int], None]
    ) -> npt.NDArray[np.void]:
        if self._is_exact:
            params = np.concatenate([self._params(types) for types in batch.types])
            return find_best_many(
                self._arch, params, batch.type_of[chosen], batch.sizes[chosen],
                allow_idle_cores=self._allow_idle_cores, on_progress=advance,
            )  # fmt: skip
        records = np.zeros(len(chosen), COST_DTYPE)
        for row, place in enumerate(chosen):
            with contextlib.suppress(InfeasibleError):  # its row stays zero, which is how a table marks it
                records[row] = self._find(self.problem_of(batch.types[batch.type_of[place]], batch.sizes[place]))[0]
            advance(1)
        return records

    def save_to_disk(self, table: GEMMTable) -> int:
        """Keep the results of `evaluate_many` for later processes, in the user's cache folder.

        An evaluator of the same arch and options reads them back at its first evaluation. Nothing is kept unasked: a
        search costs less than a write.

        Returns:
            How many were written: 0 where the disk cache is off or cannot be written.

        Raises:
            InvalidInputError: the table was made for another arch, or by other options.
        """
        if table.evaluator.costs_as != self.costs_as:
            raise InvalidInputError(f"the table was made by {table.evaluator!r}, whose costs are not those of {self!r}")
        if self._disk_path is None:
            return 0
        rows = np.flatnonzero(table.is_feasible)
        return self._store().save((table.problem(int(row)) for row in rows), table.records[rows])

    @property
    def costs_as(self) -> tuple[MulticoreSpec, PlanOptions, bool]:
        """What decides the costs: evaluators in which this is equal give equal answers."""
        return self._arch, self._plan, self._allow_idle_cores

    @property
    def _disk_path(self) -> Path | None:
        if isinstance(self._disk_cache, bool):
            from gemm_eval.cache import default_path

            return default_path() if self._disk_cache else None
        return Path(self._disk_cache)

    def _store(self) -> CostStore:
        from gemm_eval.evaluate._disk import CostStore  # sqlite3 only where it is needed

        options = {"allow_idle_cores": self._allow_idle_cores, "plan": dataclasses.astuple(self._plan)}
        return CostStore(self._disk_path, self._arch, options)

    def _read_disk_once(self) -> None:
        if self._is_disk_read:
            return
        with self._disk_lock:
            if not self._is_disk_read:
                path = self._disk_path
                if path is not None and os.path.exists(path):  # noqa: PTH110  Path.exists raises if a name is too long
                    self._records.put_many(
                        ((self._number_of_types(types_alone(problem)), *problem.sizes), record)
                        for problem, record in self._store().load()
                    )
                self._is_disk_read = True

    def _number_of_types(self, types: GemmProblem) -> int:
        # a fresh number for each try: by len(), two threads could give one number to two combinations of types
        number = self._type_numbers.get(types)
        return self._type_numbers.setdefault(types, next(self._next_number)) if number is None else number

    def _make_problem(
        self, G: int, M: int, K: int, N: int, dtype: str | None, input_dtype: str | None, weight_dtype: str | None,
        output_dtype: str | None, group_size: int | None, zero_dtype: str | None,
    ) -> GemmProblem:  # fmt: skip
        return make_problem(
            G, M, K, N, default_dtype=self._arch.default_dtype, dtype=dtype, input_dtype=input_dtype,
            weight_dtype=weight_dtype, output_dtype=output_dtype, group_size=group_size, zero_dtype=zero_dtype,
        )  # fmt: skip

    def _evaluate(self, *args: Any) -> GEMMResult:
        return self.evaluate_problem(self._make_problem(*args))

    def _params(self, problem: GemmProblem) -> npt.NDArray[np.void]:
        return self._params_cached(
            problem.input_dtype, problem.weight_dtype, problem.output_dtype, problem.group_size,
            problem.scale_dtype, problem.zero_dtype,
        )  # fmt: skip

    def _pack(
        self, a: DType, b: DType, c: DType, group_size: int | None, scale: DType | None, zero: DType | None
    ) -> npt.NDArray[np.void]:
        return pack_params(self._arch, GemmProblem(1, 1, 1, 1, a, b, c, None, group_size, scale, zero))

    def _result(self, problem: GemmProblem, cost: MulticoreCost, *, is_exhaustive: bool) -> GEMMResult:
        peak_flop_per_us = self._arch.peak_tflop_per_s(problem.input_dtype) * 1e6
        noc_wait_us = cost.dma_us - cost.dram_us
        busy_us = (
            cost.cube_us + cost.fill_drain_us + cost.vector_us
            + cost.dram_a_us + cost.dram_b_us + cost.dram_c_us + noc_wait_us
        )  # fmt: skip
        breakdown = {
            "launch_us": self._arch.launch_us,
            "matrix_us": cost.cube_us,
            "fill_drain_us": cost.fill_drain_us,
            "vector_us": cost.vector_us,
            "dram_a_us": cost.dram_a_us,
            "dram_b_us": cost.dram_b_us,
            "dram_c_us": cost.dram_c_us,
            "noc_wait_us": noc_wait_us,
            "hidden_us": cost.main_us - busy_us,
            "reduction_dram_us": cost.reduction_dram_us,
            "reduction_noc_us": cost.reduction_noc_us,
            "reduction_add_us": cost.reduction_add_us,
        }
        traffic = {
            "a_bytes": cost.a_bytes,
            "b_bytes": cost.b_bytes,
            "scale_bytes": cost.scale_bytes,
            "c_store_bytes": cost.c_store_bytes,
            "c_spill_bytes": cost.c_spill_bytes,
            "c_refill_bytes": cost.c_refill_bytes,
            "reduction_bytes": cost.reduction_bytes,
        }
        refused = {
            "sram": cost.num_refused_sram,
            "partition_bound": cost.num_partitions_bounded,
            "partition_dropped": cost.num_partitions_dropped,
        }
        return GEMMResult(
            problem=problem,
            arch_name=self._arch.name,
            latency_us=cost.latency_us,
            compute_us=cost.compute_us,
            dram_us=cost.dram_us,
            flop=problem.flop,
            dram_bytes=cost.dram_bytes,
            utilization_frac=problem.flop / (cost.latency_us * peak_flop_per_us),
            bound=BOUNDS[cost.bound],
            mapping=cost.mapping,
            breakdown=FrozenDict(breakdown),
            traffic=FrozenDict(traffic),
            energy_pj=cost.energy_pj,
            sram_used_bytes=cost.sram_used_bytes,
            active_cores=cost.active_cores,
            source="analytic",
            model_version=MODEL_VERSION,
            is_exhaustive=is_exhaustive,
            num_candidates=cost.num_candidates,
            num_refused=FrozenDict(refused),
            _evaluator=self,
        )


def _rebuild(
    arch: MulticoreSpec | str | os.PathLike[str],
    plan: PlanOptions,
    allow_idle_cores: bool,
    disk_cache: bool | str | os.PathLike[str],
) -> GEMMEvaluator:
    return GEMMEvaluator(arch, plan=plan, allow_idle_cores=allow_idle_cores, disk_cache=disk_cache)


def _checked(problem: GemmProblem) -> GemmProblem:
    if not isinstance(problem, GemmProblem):
        raise InvalidProblemError(f"problem must be a GemmProblem, got {problem!r}; evaluate(G, M, K, N) takes sizes")
    return problem
