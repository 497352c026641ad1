"""The backend for multi-core chips: partition, tile and loop order."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.checks import check_word
from gemm_eval.dtypes import DType
from gemm_eval.errors import InfeasibleError, InvalidMappingError, InvalidOptionError, UnsupportedError
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
    find_ruled_few,
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
    from gemm_eval.evaluate.result import ResultOrigin


# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "setting", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}
_WORDS |= {"calibration", "coefficients"}  # where fitted numbers come from; the numbers are in the fields
_LEAST_GAIN = 0.005
FIDELITY = ("cube_steps_per_cycle",)
"""Fields that say how exactly the matrix unit multiplies: fewer passes over the mantissas are more steps a cycle."""
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
        self.highest_tflop_per_s = lru_cache(maxsize=NUM_PACKED)(self._find_peak)
        self._paths = LibraryPaths(arch, self._rules.paths if self._rules else {}, self._on_path)

    def _on_path(self, arch: MulticoreSpec) -> MulticoreBackend:
        return self._with(arch, self.policy)

    def _with(self, arch: MulticoreSpec, policy: Policy) -> MulticoreBackend:
        return MulticoreBackend(arch, self._plan, allow_idle_cores=self._allow_idle_cores, policy=policy)

    @cached_property
    def _library(self) -> MulticoreBackend | None:
        """The library at the rates of this policy, where it has mappings of its own that policy best must not miss."""
        rules = self.arch.rules
        if self.policy is Policy.LIBRARY or rules is None or not self.is_exhaustive or not rules.changes_chip:
            return None

        def without_fidelity(changes: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in changes.items() if name not in FIDELITY}

        return self._with(self.arch.with_(rules=rules.map_changes(without_fidelity)), Policy.LIBRARY)

    @cached_property
    def _best(self) -> MulticoreBackend:
        """Policy best at the rates of this policy: a peak belongs to a fidelity."""
        rates = {name: getattr(self._chip, name) for name in FIDELITY}
        return self._with(self.arch.with_(**rates), Policy.BEST)

    def _find_peak(self, dtype: DType) -> float:
        """Return the peak of the chip as this policy uses it, on the fastest of a library's paths, in TFLOP/s."""
        own = self._chip.for_dtype(dtype).highest_tflop_per_s(dtype)
        return max([own, *(path.highest_tflop_per_s(dtype) for path in self._paths.backends)])

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
        return self._packed(kind.types)

    def packed_of(self, types: GemmTypes) -> Records:
        """Return the parameters for these types."""
        return self._packed(types)

    def find(self, problem: GemmProblem, packed: Records) -> Records:
        if (path := self._paths.backend_of(problem)) is not None:
            return path.find(problem, path.packed_of(problem.types))
        if self._rules is not None:
            return self._find_ruled(problem, packed)
        if self._library is not None:
            return self.find_top(problem, packed, 1, "mapping")
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
            self._raise_ruled_out(problem, packed)
        return found

    def _raise_ruled_out(self, problem: GemmProblem, packed: Records) -> NoReturn:
        find_best(self._chip, problem, packed, allow_idle_cores=self._allow_idle_cores)  # raises if nothing fits
        assert self._rules is not None
        believed = self._packed_as_believed(problem.types)
        raise ruled_out_error(self._chip, self._rules, problem, believed, allow_idle_cores=self._allow_idle_cores)

    def _find_ruled_top(self, problem: GemmProblem, packed: Records, k: int, distinct: str) -> Records:
        """Return the mappings that the library ranks highest by what it believes, with what they cost."""
        assert self._rules is not None
        found = find_ruled_few(
            self._chip, self._rules, problem, self._packed_as_believed(problem.types), k,
            by_partition=distinct == "partition", allow_idle_cores=self._allow_idle_cores,
        )  # fmt: skip
        if not len(found):
            self._raise_ruled_out(problem, packed)
        num = len(found)
        layouts = NO_LAYOUTS if problem.row_groups is None else pack_layouts([problem.row_groups] * num)
        sizes = np.array([problem.sizes] * num, np.int64)
        return self._replay_found(packed, np.zeros(num, np.int64), sizes, layouts, found)

    def _replay_found(
        self, costs: Records, kind_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], layouts: Layouts,
        found: Records,
    ) -> Records:  # fmt: skip
        """Return what the mappings of a search cost, with the counts of the search."""
        replayed = replay_mappings(costs, kind_of, sizes, found, layouts=layouts)
        for name in self.search_counts:
            replayed[name] = found[name]
        return replayed

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
        return self._replay_found(costs, kind_of, sizes, layouts, found)

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
            found = find_best_many(
                self.arch, np.concatenate(packed), kind_of, sizes, layouts=layouts,
                allow_idle_cores=self._allow_idle_cores, on_progress=advance,
            )  # fmt: skip
            return found if self._library is None else self._or_library(found, types, kind_of, sizes, layouts)
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
        if self._rules is not None:
            return self._find_ruled_top(problem, packed, k, distinct)
        library = None
        if self._library is not None:
            with contextlib.suppress(InfeasibleError):
                library = self._library.find(problem, self._library.packed_of(problem.types))
        try:
            if distinct == "mapping":
                found = find_best_few(self._chip, problem, packed, k, allow_idle_cores=self._allow_idle_cores)
            else:
                found = find_best_of_each_partition(
                    self._chip, problem, packed, allow_idle_cores=self._allow_idle_cores
                )
        except InfeasibleError:
            if library is None:
                raise
            return library
        if library is not None and library["latency_us"][0] < found["latency_us"][0]:
            found = np.concatenate([library, found])
        return found[:k]

    def replay(self, problem: GemmProblem, packed: Records, mapping: Any) -> Records:
        if (path := self._paths.backend_of(problem)) is not None:
            return path.replay(problem, path.packed_of(problem.types), mapping)
        if self._library is not None:
            with contextlib.suppress(InfeasibleError):
                library = self._library.find(problem, self._library.packed_of(problem.types))
                if unpack_cost(library[0]).mapping == mapping and self._is_faster(library, problem, packed, mapping):
                    return library
        return evaluate_mapping(self._chip, problem, packed, mapping)

    def _is_faster(self, library: Records, problem: GemmProblem, packed: Records, mapping: Any) -> bool:
        """Say whether the library's answer is faster than its mapping on the chip, or does not fit there."""
        try:
            own = evaluate_mapping(self._chip, problem, packed, mapping)
        except InvalidMappingError:
            return True
        return bool(library["latency_us"][0] < own["latency_us"][0])

    def _or_library(
        self,
        found: Records,
        types: Sequence[GemmTypes],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        layouts: Layouts,
    ) -> Records:
        """Return records with the library's answers where those are faster; the rest as for `find_many`."""
        assert self._library is not None
        packed = [self._library.packed_of(of) for of in types]
        library = self._library.find_many(types, packed, kind_of, sizes, layouts, lambda num: None)  # noqa: ARG005
        is_faster = (library["active_cores"] > 0) & (
            (library["latency_us"] < found["latency_us"]) | (found["active_cores"] == 0)
        )
        return np.where(is_faster, library, found)

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
        peak_flop_per_us = self.highest_tflop_per_s(problem.input_dtype) * 1e6
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
        # calibrations of these chips have errors of whole sets of rows, not the residuals that intervals take
        return np.full(len(records), np.nan), np.full(len(records), np.nan)

    def stored_as(self) -> Mapping[str, object]:
        return {
            "model": MODEL_VERSION,
            "arch": self.arch.model_dump(mode="json", exclude=_WORDS),
            "options": {"allow_idle_cores": self._allow_idle_cores, "plan": dataclasses.astuple(self._plan)}
            | ({"policy": str(self.policy)} if self.arch.rules else {}),
        }

    def say_bound(self, bound: str) -> str:
        return BOUNDS[bound]

    def say_mapping(self, result: GEMMResult) -> list[str]:
        return [
            f"Mapping: {result.mapping}; {result.active_cores} of {self.arch.num_cores} cores, "
            f"{result.sram_used_bytes / self.arch.sram_usable_bytes:.0%} of usable SRAM."
        ]

    def say_source(self, result: GEMMResult) -> list[str]:
        said = [f"{self.arch.name} is described coarsely; expect a rough answer."] if self.arch.is_coarse else []
        if self.arch.setting:
            said.append(f"Setting: {self.arch.setting.strip()}")
        if self.arch.calibration:
            said.append(f"Some of its numbers were fitted on timings: {self.arch.calibration}.")
        if (path := self._paths.backend_of(result.problem)) is not None:
            said.append(f"The library takes its path {self._paths.name_of(result.problem)} for GEMMs of this size.")
            return [*said, *path.say_source(result)[self.arch.is_coarse + bool(self.arch.setting) :]]
        if self._rules is not None:
            library = self._rules.title or "its library"
            dtype = result.problem.input_dtype
            own, best_rate = (
                chip.for_dtype(dtype).cube_steps_per_cycle[dtype] for chip in (self._chip, self.arch)
            )  # fmt: skip
            if own != best_rate:
                said.append(
                    f"{library} multiplies {dtype} in {best_rate / own:g} of the passes of policy best; the peak here "
                    f"is that of its passes, {self.highest_tflop_per_s(dtype):,.1f} TFLOP/s."
                )
            best = unpack_cost(self._best.find(result.problem, self._best.packed_of(result.problem.types))[0])
            gain = 1.0 - best.latency_us / result.latency_us
            if gain <= 0.0:
                said.append(f"{library} chooses this mapping, and none is better.")
            elif gain < _LEAST_GAIN:
                said.append(f"{library} chooses this mapping, and the best is {gain:.2%} faster.")
            else:
                better = f"the best takes {time_text(best.latency_us)} (-{gain:.0%}): {best.mapping}"
                said.append(f"{library} chooses this mapping; {better}.")
        return said

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
