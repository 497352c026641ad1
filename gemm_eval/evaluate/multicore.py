"""The backend for multi-core chips: partition, tile and loop order."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.checks import check_word
from gemm_eval.errors import InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.backend import NUM_PACKED
from gemm_eval.evaluate.explain_multicore import spec_changes
from gemm_eval.evaluate.library_paths import LibraryPaths
from gemm_eval.evaluate.result import GEMMResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import LoopOrder
from gemm_eval.models.multicore import (
    BOUNDS,
    COST_DTYPE,
    MODEL_VERSION,
    TERMS,
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
    find_ruled_many,
    replay_mappings,
    ruled_out_error,
)
from gemm_eval.units import time_text
from gemm_eval.words import shown
from gemm_eval.workload import (
    NO_LAYOUTS,
    NOTHING_SAID,
    GemmProblem,
    GemmTypes,
    Layouts,
    RunOptions,
    pack_layouts,
    problem_of,
)

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Kind, Records
    from gemm_eval.evaluate.result_origin import ResultOrigin

__all__ = ["MulticoreBackend", "Policy"]

# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}
_WORDS |= {"calibration", "coefficients"}  # where fitted numbers come from; the numbers are in the fields
_LEAST_GAIN = 0.005
_NO_OPTIONS: FrozenDict[str, Any] = FrozenDict()
_BOUND_NAMES = tuple(BOUNDS)


class Policy(enum.StrEnum):
    """Whose mapping an answer is of."""

    LIBRARY = "library"  # what the chip's library does
    BEST = "best"  # what the chip could do


def _policy_of(arch: MulticoreSpec, policy: str | None, *, is_exhaustive: bool) -> Policy:
    if policy is None:
        return Policy.LIBRARY if arch.rules and arch.rules.is_default and is_exhaustive else Policy.BEST
    check_word("policy", policy, Policy)
    if policy == Policy.LIBRARY and arch.rules is None:
        raise UnsupportedError(f"{arch.name} has no rules of a library: only policy best is known (rules in its YAML)")
    if policy == Policy.LIBRARY and not is_exhaustive:
        raise InvalidOptionError("policy library goes with plan exact: what a library chooses is no heuristic of ours")
    return Policy(policy)


class MulticoreBackend:
    """See `Backend`."""

    record_dtype = COST_DTYPE
    search_counts = (
        "num_candidates", "num_refused_sram", "num_partitions", "num_partitions_bounded", "num_partitions_dropped",
    )  # fmt: skip
    mapping_columns = ("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order")
    term_columns = (*TERMS, "hidden_us")
    option_columns = ()

    def __init__(
        self,
        arch: MulticoreSpec,
        plan: PlanOptions | SearchPlan | str,
        *,
        allow_idle_cores: bool,
        policy: str | None = None,
    ) -> None:
        check_idle_cores(arch, allow_idle_cores=allow_idle_cores)
        self.arch = arch
        if not isinstance(plan, PlanOptions):
            check_word("plan", plan, SearchPlan)
        self._plan = as_plan_options(plan)
        self._allow_idle_cores = allow_idle_cores
        self._source = "calibrated" if arch.calibration else "analytic"
        self.is_exhaustive = self._plan.plan is SearchPlan.EXACT
        self.policy = _policy_of(arch, policy, is_exhaustive=self.is_exhaustive)
        self._rules = arch.rules if self.policy is Policy.LIBRARY else None
        self._chip = arch.under_library() if self._rules else arch
        self._packed = lru_cache(maxsize=NUM_PACKED)(partial(pack_params, self._chip))
        believed = self._chip.with_(**self._rules.believes) if self._rules and self._rules.believes else self._chip
        self._packed_as_believed = lru_cache(maxsize=NUM_PACKED)(partial(pack_params, believed))
        self._peak_flop_per_us = cache(lambda dtype: arch.highest_tflop_per_s(dtype) * 1e6)
        self._types_of: dict[bytes, GemmTypes] = {}
        self._paths = LibraryPaths(arch, self._rules.paths if self._rules else {}, self._on_path)

    def _on_path(self, arch: MulticoreSpec) -> MulticoreBackend:
        return MulticoreBackend(arch, self._plan, allow_idle_cores=self._allow_idle_cores, policy=self.policy)

    @property
    def costs_as(self) -> Hashable:
        return self.arch, self._plan, self._allow_idle_cores, self.policy

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
        packed = self._packed(kind.types)
        if self._paths:
            self._types_of[packed.tobytes()] = kind.types  # of equal parameters any types will do
        return packed

    def packed_of(self, types: GemmTypes) -> Records:
        """Return the parameters for these types."""
        return self._packed(types)

    def find(self, problem: GemmProblem, packed: Records) -> Records:
        if (path := self._paths.backend_of(problem)) is not None:
            return path.find(problem, path.packed_of(problem.types))
        if self._rules is not None:
            return self._find_ruled(problem, packed)
        if self.is_exhaustive:
            return find_best(self.arch, problem, packed, allow_idle_cores=self._allow_idle_cores)
        found = find_planned(
            AnalyticCostModel(self.arch), self.arch, problem, self._plan, allow_idle_cores=self._allow_idle_cores
        )
        cost = evaluate_mapping(self.arch, problem, packed, found.mapping)
        cost["num_candidates"] = found.num_evaluated
        return cost

    def _find_ruled(self, problem: GemmProblem, packed: Records) -> Records:
        """What the library would choose; where groups differ, of all mappings."""
        layouts = NO_LAYOUTS if problem.row_groups is None else pack_layouts([problem.row_groups])
        rows = np.array([problem.sizes], np.int64)
        found = self._find_ruled_many([problem.types], [packed], np.zeros(1, np.int64), rows, layouts, None)
        if not found["active_cores"][0]:
            find_best(self._chip, problem, packed, allow_idle_cores=self._allow_idle_cores)  # raises if nothing fits
            assert self._rules is not None
            believed = self._packed_as_believed(problem.types)
            raise ruled_out_error(self._chip, self._rules, problem, believed, allow_idle_cores=self._allow_idle_cores)
        return found

    def _find_ruled_many(
        self,
        types: Sequence[GemmTypes],
        packed: Sequence[Records],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        advance: Callable[[int], None] | None,
    ) -> Records:
        assert self._rules is not None
        costs, believed = np.concatenate(packed), np.concatenate([self._packed_as_believed(of) for of in types])
        found = find_ruled_many(
            self._chip, self._rules, believed, kind_of, sizes, layouts,
            allow_idle_cores=self._allow_idle_cores, on_progress=advance,
        )  # fmt: skip
        replayed = replay_mappings(costs, kind_of, sizes, found, layouts=layouts)
        for name in self.search_counts:
            replayed[name] = found[name]
        return replayed

    def find_many(
        self,
        types: Sequence[GemmTypes],
        packed: Sequence[Records],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        advance: Callable[[int], None],
    ) -> Records:
        if self._paths:
            return self._paths.of_each(
                types, kind_of, sizes,
                lambda path, rows: path.find_many(
                    types, [path.packed_of(of) for of in types], kind_of[rows], sizes[rows], layouts.take(rows), advance
                ),
                lambda rows: self._find_ruled_many(
                    types, packed, kind_of[rows], sizes[rows], layouts.take(rows), advance
                ),
            )  # fmt: skip
        if self._rules is not None:
            return self._find_ruled_many(types, packed, kind_of, sizes, layouts, advance)
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
        if (path := self._paths.backend_of(problem)) is not None:
            return path.find_top(problem, path.packed_of(problem.types), k, distinct)
        if distinct == "mapping":
            return find_best_few(self._chip, problem, packed, k, allow_idle_cores=self._allow_idle_cores)
        found = find_best_of_each_partition(self._chip, problem, packed, allow_idle_cores=self._allow_idle_cores)
        return found[:k]

    def replay(self, problem: GemmProblem, packed: Records, mapping: Any) -> Records:
        if (path := self._paths.backend_of(problem)) is not None:
            return path.replay(problem, path.packed_of(problem.types), mapping)
        return evaluate_mapping(self._chip, problem, packed, mapping)

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
        peak_flop_per_us = self._peak_flop_per_us(problem.input_dtype)
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
            source=self._source,
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
            column = np.full(len(records), self._source, object)
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
            "options": {"allow_idle_cores": self._allow_idle_cores, "plan": dataclasses.astuple(self._plan)}
            | ({"policy": str(self.policy)} if self.arch.rules else {}),
        }

    def replay_many(
        self,
        packed: Sequence[Records],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
        found: Records,
    ) -> Records:
        if self._paths:
            types = [self._types_of[of.tobytes()] for of in packed]
            return self._paths.of_each(
                types, kind_of, sizes,
                lambda path, rows: path.replay_many(
                    [path.packed_of(of) for of in types], kind_of[rows], sizes[rows], layouts.take(rows), found[rows]
                ),
                lambda rows: replay_mappings(
                    np.concatenate(packed), kind_of[rows], sizes[rows], found[rows], layouts=layouts.take(rows)
                ),
            )  # fmt: skip
        return replay_mappings(np.concatenate(packed), kind_of, sizes, found, layouts=layouts)

    def say_bound(self, bound: str) -> str:
        return BOUNDS[bound]

    def say_mapping(self, result: GEMMResult) -> list[str]:
        return [
            f"Mapping: {result.mapping}; {result.active_cores} of {self.arch.num_cores} cores, "
            f"{result.sram_used_bytes / self.arch.sram_usable_bytes:.0%} of usable SRAM."
        ]

    def say_source(self, result: GEMMResult) -> list[str]:
        said = [f"{self.arch.name} is described coarsely; expect a rough answer."] if self.arch.is_coarse else []
        if self.arch.calibration:
            said.append(f"Some of its numbers were fitted on timings: {self.arch.calibration}.")
        if (path := self._paths.backend_of(result.problem)) is not None:
            said.append(f"The library takes its path {self._paths.name_of(result.problem)} for GEMMs of this size.")
            return [*said, *path.say_source(result)[self.arch.is_coarse :]]
        if self._rules is not None:
            best = self._best_of(result.problem)
            gain = 1.0 - best.latency_us / result.latency_us if best else 0.0
            library = self._rules.title or "its library"
            if best is None:
                said.append(f"{library} chooses this mapping; without what it changes, none fits.")
            elif gain < _LEAST_GAIN:
                said.append(f"{library} chooses this mapping, and none is better.")
            else:
                better = f"the best takes {time_text(best.latency_us)} (-{gain:.0%}): {best.mapping}"
                said.append(f"{library} chooses this mapping; {better}.")
        return said

    def _best_of(self, problem: GemmProblem) -> MulticoreCost | None:
        """What policy "best" finds, on the chip without what its library changes; None: nothing fits."""
        packed = pack_params(self.arch, problem.types)
        with contextlib.suppress(InfeasibleError):
            return unpack_cost(find_best(self.arch, problem, packed, allow_idle_cores=self._allow_idle_cores)[0])
        return None

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
