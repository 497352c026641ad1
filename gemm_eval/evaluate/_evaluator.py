"""`GEMMEvaluator`: the facade that users call."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval._frozen import FrozenDict
from gemm_eval.arch import MulticoreSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.evaluate._result import GEMMResult
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.multicore.model import MODEL_VERSION, MulticoreCost, evaluate_mapping
from gemm_eval.models.multicore.params import pack_params
from gemm_eval.search.multicore import SearchCounts, find_best, find_best_few, find_best_of_each_partition
from gemm_eval.workload import GemmProblem, make_problem

__all__ = ["CacheInfo", "GEMMEvaluator"]

_CACHE_SIZE = 1 << 16
_PARAMS_CACHE_SIZE = 256


class CacheInfo(NamedTuple):
    """Hits and misses of the results that an evaluator keeps in memory, its bound, and how many it holds."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class GEMMEvaluator:
    """Evaluates GEMMs on one architecture.

    >>> ev = GEMMEvaluator(load_arch("demo-8core"))
    >>> r = ev.evaluate(1, 4096, 4096, 4096)      # G, M, K, N
    >>> r.latency_us, r.bound, r.mapping          # doctest: +SKIP

    Safe to call from many threads at once. Results are kept in memory (the last 65,536) and shared, so they are frozen.

    Args:
        arch: an architecture, or the name or path of one.
        allow_idle_cores: also consider partitions that leave cores idle; off, P_G*P_M*P_N*P_K is exactly num_cores.
            On, more cores never make the best latency worse where DRAM bandwidth is shared fairly.

    Raises:
        ArchError: `arch` names no valid architecture.
        InvalidInputError: `arch` is something else.
        InvalidOptionError: `allow_idle_cores` on a chip of more than `gemm_eval.search.multicore.MAX_IDLE_CORES` cores.
    """

    def __init__(self, arch: MulticoreSpec | str | os.PathLike[str], *, allow_idle_cores: bool = True) -> None:
        if isinstance(arch, str | os.PathLike):
            arch = load_arch(arch)
        if not isinstance(arch, MulticoreSpec):
            raise InvalidInputError(f"arch must be a spec, a preset name or a path, got {arch!r}")
        if not isinstance(allow_idle_cores, bool):
            raise InvalidOptionError(f"allow_idle_cores must be True or False, got {allow_idle_cores!r}")
        self._arch = arch
        self._allow_idle_cores = allow_idle_cores
        # typed: True must not find the result of 1
        self._evaluate_cached = lru_cache(maxsize=_CACHE_SIZE, typed=True)(self._evaluate)
        self._params_cached = lru_cache(maxsize=_PARAMS_CACHE_SIZE)(self._pack)

    def __repr__(self) -> str:
        return f"GEMMEvaluator({self._arch.name!r}, allow_idle_cores={self._allow_idle_cores})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._arch, self._allow_idle_cores)

    @property
    def arch(self) -> MulticoreSpec:
        """The architecture."""
        return self._arch

    def on(self, arch: MulticoreSpec | str | os.PathLike[str]) -> GEMMEvaluator:
        """Return an evaluator with the same options for another arch."""
        return GEMMEvaluator(arch, allow_idle_cores=self._allow_idle_cores)

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
        except TypeError:  # an unhashable argument: say which one, in the words of the problem's own checks
            self._make_problem(G, M, K, N, dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype)
            raise

    def evaluate_problem(self, problem: GemmProblem) -> GEMMResult:
        """Find the best mapping of a `GemmProblem`; see `evaluate`."""
        params = self._params(_checked(problem))
        cost, counts = find_best(self._arch, problem, params, allow_idle_cores=self._allow_idle_cores)
        return self._result(problem, cost, counts)

    def evaluate_mapping(self, problem: GemmProblem, mapping: MulticoreMapping) -> GEMMResult:
        """Replay a mapping that the user gives: ((P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), loop order).

        Raises:
            InvalidMappingError: the mapping breaks a rule of the arch or the problem; the message says which.
            UnsupportedError: the arch cannot run these types.
        """
        cost = evaluate_mapping(self._arch, _checked(problem), self._params(problem), mapping)
        return self._result(problem, cost, None)

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
            costs, counts = find_best_few(self._arch, problem, params, k, allow_idle_cores=self._allow_idle_cores)
            return [self._result(problem, cost, counts) for cost in costs]
        if distinct == "partition":
            costs = find_best_of_each_partition(self._arch, problem, params, allow_idle_cores=self._allow_idle_cores)
            return [self._result(problem, cost, None) for cost in costs[:k]]
        raise InvalidOptionError(f"distinct must be 'mapping' or 'partition', got {distinct!r}")

    def cache_info(self) -> CacheInfo:
        """Return how the memory of results is doing."""
        return CacheInfo(*self._evaluate_cached.cache_info())

    def cache_clear(self) -> None:
        """Forget all results."""
        self._evaluate_cached.cache_clear()

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

    def _result(self, problem: GemmProblem, cost: MulticoreCost, counts: SearchCounts | None) -> GEMMResult:
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
        refused: dict[str, int] = {}
        if counts is not None:
            refused = {
                "sram": counts.num_refused_sram,
                "partition_bound": counts.num_partitions_bounded,
                "partition_dropped": counts.num_partitions_dropped,
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
            bound=_bound_of(self._arch.launch_us, cost),
            mapping=cost.mapping,
            breakdown=FrozenDict(breakdown),
            traffic=FrozenDict(traffic),
            energy_pj=cost.energy_pj,
            sram_used_bytes=cost.sram_used_bytes,
            active_cores=cost.active_cores,
            source="analytic",
            model_version=MODEL_VERSION,
            is_exhaustive=counts is not None,
            num_candidates=1 if counts is None else counts.num_candidates,
            num_refused=FrozenDict(refused),
            _evaluator=self,
        )


def _rebuild(arch: MulticoreSpec, allow_idle_cores: bool) -> GEMMEvaluator:
    return GEMMEvaluator(arch, allow_idle_cores=allow_idle_cores)


def _checked(problem: GemmProblem) -> GemmProblem:
    if not isinstance(problem, GemmProblem):
        raise InvalidProblemError(f"problem must be a GemmProblem, got {problem!r}; evaluate(G, M, K, N) takes sizes")
    return problem


def _bound_of(launch_us: float, cost: MulticoreCost) -> str:
    """Name the largest of the parts that follow one another, and inside the main loop the longer of its two sides."""
    if cost.reduction_us > max(cost.main_us, launch_us):
        return "reduction"
    if launch_us > cost.main_us:
        return "launch"
    if cost.compute_us >= cost.dma_us:
        return "vector" if cost.vector_us > cost.cube_us + cost.fill_drain_us else "compute"
    return "noc" if cost.noc_us > cost.dram_us else "dram"
