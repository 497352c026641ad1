"""The backend for multi-core chips: partition, tile and loop order."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.checks import check_word
from gemm_eval.errors import InfeasibleError, UnsupportedError
from gemm_eval.evaluate.backend import NUM_PACKED
from gemm_eval.evaluate.explain_multicore import spec_changes
from gemm_eval.evaluate.result import GEMMResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import LoopOrder
from gemm_eval.models.multicore import (
    BOUNDS,
    COST_DTYPE,
    MODEL_VERSION,
    MulticoreCost,
    evaluate_mapping,
    pack_params,
    unpack_cost,
)
from gemm_eval.search import (
    AnalyticCostModel,
    PlanOptions,
    SearchPlan,
    as_plan_options,
    check_idle_cores,
    find_best,
    find_best_few,
    find_best_many,
    find_best_of_each_partition,
    find_planned,
    replay_mappings,
)
from gemm_eval.words import shown
from gemm_eval.workload import NOTHING_SAID, GemmProblem, GemmTypes, Layouts, RunOptions, problem_of

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Kind, Records
    from gemm_eval.evaluate.result_origin import ResultOrigin

__all__ = ["MulticoreBackend"]

# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}
_NO_OPTIONS: FrozenDict[str, Any] = FrozenDict()
_BOUND_NAMES = tuple(BOUNDS)


class MulticoreBackend:
    """See `Backend`."""

    record_dtype = COST_DTYPE
    search_counts = (
        "num_candidates", "num_refused_sram", "num_partitions", "num_partitions_bounded", "num_partitions_dropped",
    )  # fmt: skip
    mapping_columns = ("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order")
    option_columns = ()

    def __init__(self, arch: MulticoreSpec, plan: PlanOptions | SearchPlan | str, *, allow_idle_cores: bool) -> None:
        check_idle_cores(arch, allow_idle_cores=allow_idle_cores)
        self.arch = arch
        if not isinstance(plan, PlanOptions):
            check_word("plan", plan, SearchPlan)
        self._plan = as_plan_options(plan)
        self._allow_idle_cores = allow_idle_cores
        self.is_exhaustive = self._plan.plan is SearchPlan.EXACT
        self._packed = lru_cache(maxsize=NUM_PACKED)(partial(pack_params, arch))

    @property
    def costs_as(self) -> Hashable:
        return self.arch, self._plan, self._allow_idle_cores

    def check(self, asked: RunOptions) -> None:
        for name, value in zip(asked._fields, asked, strict=True):
            if value is not None:
                raise UnsupportedError(
                    f"{name} is for GPUs, and {self.arch.name} is a multi-core chip: leave it out, got {shown(value)}"
                )

    def resolve(
        self,
        types: GemmTypes,  # noqa: ARG002
        asked: RunOptions,
        preferred: RunOptions = NOTHING_SAID,  # noqa: ARG002
        *,
        is_grouped: bool = False,  # noqa: ARG002
    ) -> RunOptions:
        if asked != NOTHING_SAID:
            self.check(asked)
        return asked

    def pack(self, kind: Kind) -> Records:
        return self._packed(kind.types)

    def find(self, problem: GemmProblem, packed: Records) -> Records:
        if self.is_exhaustive:
            return find_best(self.arch, problem, packed, allow_idle_cores=self._allow_idle_cores)
        found = find_planned(
            AnalyticCostModel(self.arch), self.arch, problem, self._plan, allow_idle_cores=self._allow_idle_cores
        )
        cost = evaluate_mapping(self.arch, problem, packed, found.mapping)
        cost["num_candidates"] = found.num_evaluated
        return cost

    def find_many(
        self,
        types: Sequence[GemmTypes],
        packed: Sequence[Records],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        advance: Callable[[int], None],
    ) -> Records:
        if self.is_exhaustive:
            return find_best_many(
                self.arch, np.concatenate(packed), kind_of, sizes, layouts=layouts,
                allow_idle_cores=self._allow_idle_cores, on_progress=advance,
            )  # fmt: skip
        records = np.zeros(len(sizes), COST_DTYPE)
        for row, (kind, of_row) in enumerate(zip(kind_of.tolist(), sizes.tolist(), strict=True)):
            G, M, K, N = of_row
            groups = layouts.row_groups(row, G)
            with contextlib.suppress(InfeasibleError):  # its row stays zero, which is how a table marks it
                records[row] = self.find(problem_of(types[kind], G, M, K, N, groups), packed[kind])[0]
            advance(1)
        return records

    def find_top(self, problem: GemmProblem, packed: Records, k: int, distinct: str) -> Records:
        if distinct == "mapping":
            return find_best_few(self.arch, problem, packed, k, allow_idle_cores=self._allow_idle_cores)
        found = find_best_of_each_partition(self.arch, problem, packed, allow_idle_cores=self._allow_idle_cores)
        return found[:k]

    def replay(self, problem: GemmProblem, packed: Records, mapping: Any) -> Records:
        return evaluate_mapping(self.arch, problem, packed, mapping)

    def is_feasible(self, records: Records) -> npt.NDArray[np.bool_]:
        feasible: npt.NDArray[np.bool_] = records["active_cores"] > 0
        return feasible

    def make_result(
        self,
        problem: GemmProblem,
        options: RunOptions,  # noqa: ARG002
        record: np.void,
        origin: ResultOrigin,
        *,
        is_found: bool,
    ) -> GEMMResult:
        cost = unpack_cost(record)
        peak_flop_per_us = self.arch.highest_tflop_per_s(problem.input_dtype) * 1e6
        return GEMMResult(
            problem=problem,
            arch_name=self.arch.name,
            latency_us=cost.latency_us,
            physics_us=cost.latency_us,
            low_us=None,
            high_us=None,
            compute_us=cost.compute_us,
            dram_us=cost.dram_us,
            flop=problem.flop,
            dram_bytes=cost.dram_bytes,
            utilization_frac=problem.flop / (cost.latency_us * peak_flop_per_us),
            bound=_BOUND_NAMES[cost.bound],
            mapping=cost.mapping,
            breakdown=FrozenDict(cost.breakdown),
            traffic=FrozenDict(_traffic(cost)),
            energy_pj=cost.energy_pj,
            sram_used_bytes=cost.sram_used_bytes,
            active_cores=cost.active_cores,
            options=_NO_OPTIONS,
            source="analytic",
            model_version=MODEL_VERSION,
            is_exhaustive=is_found and self.is_exhaustive,
            num_candidates=cost.num_candidates,
            num_refused=FrozenDict(
                sram=cost.num_refused_sram,
                partition_bound=cost.num_partitions_bounded,
                partition_dropped=cost.num_partitions_dropped,
            ),
            _origin=origin,
        )

    def spell_options(self, name: str, column: npt.NDArray[Any], records: Records) -> npt.NDArray[Any]:  # noqa: ARG002
        return column

    def column(self, name: str, records: Records) -> npt.NDArray[Any]:
        column: npt.NDArray[Any]
        if name == "physics_us":
            return self.column("latency_us", records)
        if name == "source":
            column = np.full(len(records), "analytic", object)
            column[~self.is_feasible(records)] = None
            return column
        words = {"bound": _BOUND_NAMES, "loop_order": tuple(LoopOrder.__members__)}.get(name)
        if words is not None:
            column = np.array([*words, None], object)[np.where(self.is_feasible(records), records[name], len(words))]
            return column
        column = records[name].copy()
        if column.dtype.kind == "f":
            column[~self.is_feasible(records)] = np.nan
        return column

    def intervals(
        self,
        kinds: Sequence[Kind],  # noqa: ARG002
        kind_of: npt.NDArray[np.int64],  # noqa: ARG002
        sizes: npt.NDArray[np.int64],  # noqa: ARG002
        layouts: Layouts,  # noqa: ARG002
        records: Records,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return np.full(len(records), np.nan), np.full(len(records), np.nan)  # nobody timed such chips

    def stored_as(self) -> Mapping[str, object]:
        return {
            "model": MODEL_VERSION,
            "arch": self.arch.model_dump(mode="json", exclude=_WORDS),
            "options": {"allow_idle_cores": self._allow_idle_cores, "plan": dataclasses.astuple(self._plan)},
        }

    def replay_many(
        self,
        packed: Sequence[Records],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        found: Records,
    ) -> Records:
        return replay_mappings(np.concatenate(packed), kind_of, sizes, found, layouts=layouts)

    def say_bound(self, bound: str) -> str:
        return BOUNDS[bound]

    def say_mapping(self, result: GEMMResult) -> list[str]:
        return [
            f"Mapping: {result.mapping}; {result.active_cores} of {self.arch.num_cores} cores, "
            f"{result.sram_used_bytes / self.arch.sram_usable_bytes:.0%} of usable SRAM."
        ]

    def say_source(self, result: GEMMResult) -> list[str]:  # noqa: ARG002
        return [f"{self.arch.name} is described coarsely; expect a rough answer."] if self.arch.is_coarse else []

    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:  # noqa: ARG002
        return spec_changes(self.arch)


def _traffic(cost: MulticoreCost) -> dict[str, int]:
    return {
        "a_bytes": cost.a_bytes,
        "b_bytes": cost.b_bytes,
        "scale_bytes": cost.scale_bytes,
        "c_store_bytes": cost.c_store_bytes,
        "c_spill_bytes": cost.c_spill_bytes,
        "c_refill_bytes": cost.c_refill_bytes,
        "reduction_bytes": cost.reduction_bytes,
    }
