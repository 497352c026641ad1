"""The backend for multi-core chips: partition, tile and loop order."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from gemm_eval import search
from gemm_eval.arch import LibraryPath, MulticoreSpec
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, DType
from gemm_eval.errors import InfeasibleError, InvalidMappingError, UnsupportedError
from gemm_eval.evaluate.backend import NUM_PACKED, Backend, Integers, Kind, Problems, Records
from gemm_eval.evaluate.interval import CORRECTED, CORRECTION, chip_correction, chip_interval, interval_line
from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import LoopOrder
from gemm_eval.models import multicore as model
from gemm_eval.units import time_text
from gemm_eval.words import check_word, shown
from gemm_eval.workload import (
    LAYOUTS,
    NO_LAYOUTS,
    NOTHING_SAID,
    GemmProblem,
    GemmTypes,
    Layouts,
    RunOptions,
    pack_layouts,
)

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult


# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "setting", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}
_WORDS |= {"calibration", "coefficients"}  # where fitted numbers come from; the numbers are in the fields
_WORDS |= {"dram_bytes", "interconnect", "host_us"}  # of whole models, not of a GEMM
_LEAST_GAIN = 0.005
_ROUNDING = 1e-12
FIDELITY = ("cube_steps_per_cycle",)
"""Fields that say how exactly the matrix unit multiplies: fewer passes over the mantissas are more steps a cycle."""
_NO_OPTIONS: FrozenDict[str, Any] = FrozenDict()
_BOUND_NAMES = tuple(model.BOUNDS)
_WORDS_OF_CODES = {"bound": _BOUND_NAMES, "loop_order": tuple(LoopOrder.__members__)}
_TRAFFIC = tuple(f"{name}_bytes" for name in ("a", "b", "scale", "c_store", "c_spill", "c_refill", "reduction"))
_NO_PATH = -1
_COPIED = (
    "compute_us", "dram_us", "dram_bytes", "mapping", "breakdown", "energy_pj", "sram_used_bytes", "active_cores",
    "num_candidates",
)  # fmt: skip


class Policy(enum.StrEnum):
    """Choice of the mapping that an answer is for."""

    LIBRARY = "library"  # what the chip's library does
    BEST = "best"  # what the chip could do


def _policy_of(arch: MulticoreSpec, policy: str | None) -> Policy:
    if policy is None:
        return Policy.LIBRARY if arch.rules and arch.rules.is_default else Policy.BEST
    check_word("policy", policy, Policy)
    if policy == Policy.LIBRARY and arch.rules is None:
        raise UnsupportedError(f"{arch.name} has no rules of a library: only policy best is known (rules in its YAML)")
    return Policy(policy)


class MulticoreBackend(Backend):
    """See `Backend`."""

    record_dtype = model.COST_DTYPE
    search_counts = (
        "num_candidates", "num_refused_sram", "num_partitions", "num_partitions_bounded", "num_partitions_dropped",
    )  # fmt: skip
    mapping_columns = ("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order")
    term_columns = (*model.TERMS, CORRECTION, "hidden_us")
    option_columns = ()
    bounds = model.BOUNDS
    active_field = "active_cores"
    arch: MulticoreSpec

    def __init__(self, arch: MulticoreSpec, *, allow_idle_cores: bool, policy: str | None = None) -> None:
        search.check_idle_cores(arch, allow_idle_cores=allow_idle_cores)
        self.arch = arch
        self._idle: dict[str, bool] = {"allow_idle_cores": allow_idle_cores}
        self._source = "calibrated" if arch.calibration else "analytic"
        self.policy = _policy_of(arch, policy)
        is_as_timed = bool(arch.calibration) and self.policy is _policy_of(arch, None)
        self._correction = chip_correction(arch) if is_as_timed else None
        self._rules = arch.rules if self.policy is Policy.LIBRARY else None
        self._chip = arch.under_library() if self._rules else arch
        self._packed = lru_cache(maxsize=NUM_PACKED)(partial(model.pack_params, self._chip))
        believed = self._chip.with_(**self._rules.believes) if self._rules and self._rules.believes else self._chip
        self._packed_as_believed = lru_cache(maxsize=NUM_PACKED)(partial(model.pack_params, believed))
        self.highest_tflop_per_s = lru_cache(maxsize=NUM_PACKED)(self._find_peak)
        self._paths: tuple[LibraryPath, ...] = ()
        self._on_paths: tuple[tuple[str, MulticoreBackend], ...] = ()
        if self._rules and self._rules.paths:
            self._paths = tuple(self._rules.paths.values())
            self._on_paths = tuple(
                (name, self._with(arch.with_(rules=self._rules.on_path(name)), self.policy))
                for name in self._rules.paths
            )

    def _with(self, arch: MulticoreSpec, policy: Policy) -> MulticoreBackend:
        return MulticoreBackend(arch, **self._idle, policy=policy)

    @cached_property
    def _library(self) -> MulticoreBackend | None:
        """The library at the rates of this policy, where it has mappings of its own that policy best must not miss."""
        rules = self.arch.rules
        if self.policy is Policy.LIBRARY or rules is None or not rules.changes_chip:
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
        return max([own, *(path.highest_tflop_per_s(dtype) for _, path in self._on_paths)])

    def check(self, asked: RunOptions) -> None:
        for name, value in asked._asdict().items():
            if value is not None:
                raise UnsupportedError(
                    f"{name} is for GPUs, and {self.arch.name} is a multi-core chip: leave it out, got {shown(value)}"
                )

    def resolve(
        self, types: GemmTypes, asked: RunOptions, preferred: RunOptions = NOTHING_SAID, *, is_grouped: bool = False  # noqa: ARG002
    ) -> RunOptions:  # fmt: skip
        if asked != NOTHING_SAID:
            self.check(asked)
        return asked

    def pack(self, kind: Kind) -> Records:
        return self._packed(kind.types)

    def _path_of(self, problem: GemmProblem) -> tuple[str, MulticoreBackend] | None:
        """Return the path of the library that a GEMM takes, if any, by its name, and the backend of it."""
        if not self._paths:
            return None
        place = int(_choose_paths(self._paths, problem.types, np.array([problem.sizes], np.int64))[0])
        return None if place == _NO_PATH else self._on_paths[place]

    def find(self, problem: GemmProblem, packed: Records) -> Records:
        return self.find_top(problem, packed, 1, "mapping")

    def _corrected(self, problem: GemmProblem, records: Records) -> Records:
        """Return records of mappings of a problem with its correction; groups of rows have none."""
        if self._correction is None or problem.row_groups is not None:
            return records
        self._correct(problem.types, np.array([problem.sizes] * len(records), np.int64), records)
        return records

    def _correct(self, types: GemmTypes, sizes: Integers, records: Records) -> None:
        assert self._correction is not None
        self._correction.correct(types, sizes, records, self.highest_tflop_per_s(types.a.dtype))

    def find_of(self, problem: GemmProblem) -> Records:
        """Return the record [1] of the best mapping, packing its types."""
        return self.find(problem, self._packed(problem.types))

    def _raise_ruled_out(self, problem: GemmProblem, packed: Records) -> NoReturn:
        search.find_best(self._chip, problem, packed, **self._idle)  # raises if nothing fits
        assert self._rules is not None
        raise search.ruled_out_error(
            self._chip, self._rules, problem, self._packed_as_believed(problem.types), **self._idle
        )

    def _find_ruled_top(self, problem: GemmProblem, packed: Records, k: int, distinct: str) -> Records:
        """Return the mappings that the library ranks highest by what it believes, with what they cost."""
        assert self._rules is not None
        believed = self._packed_as_believed(problem.types)
        by_partition = distinct == "partition"
        ranked = search.find_ruled_few(
            self._chip, self._rules, problem, believed, k, by_partition=by_partition, **self._idle
        )
        if not len(ranked):
            self._raise_ruled_out(problem, packed)
        num = len(ranked)
        layouts = NO_LAYOUTS if problem.row_groups is None else pack_layouts([problem.row_groups] * num)
        return self._replayed(packed, np.zeros(num, np.int64), np.array([problem.sizes] * num), layouts, ranked)

    def _find_ruled_many(self, problems: Problems, advance: Callable[[int], None] | None) -> Records:
        """Return what the library would choose; where groups differ, of all mappings."""
        assert self._rules is not None
        believed = np.concatenate([self._packed_as_believed(kind.types) for kind in problems.kinds])
        _, packed, kind_of, sizes, layouts = problems
        run = partial(search.run_in_chunks, on_progress=advance)
        chosen = search.find_ruled_many(
            self._chip, self._rules, believed, kind_of, sizes, layouts, run=run, **self._idle
        )
        return self._replayed(np.concatenate(packed), kind_of, sizes, layouts, chosen)

    def _replayed(
        self, packed: Records, kind_of: Integers, sizes: Integers, layouts: Layouts, chosen: Records
    ) -> Records:
        records = search.replay_mappings(packed, kind_of, sizes, chosen, layouts=layouts)
        for name in self.search_counts:
            records[name] = chosen[name]
        return records

    def find_many(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        records = self._find_many(problems, advance)
        if self._correction is not None:
            is_corrected = self.is_feasible(records) & ~problems.layouts.is_grouped(len(records))
            for kind in np.unique(problems.kind_of):
                rows = np.flatnonzero(is_corrected & (problems.kind_of == kind))
                corrected = records[rows]
                self._correct(problems.kinds[kind].types, problems.sizes[rows], corrected)
                records[rows] = corrected
        return records

    def _find_many(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        if self._paths:
            return self._find_many_by_path(problems, advance)
        if self._rules is not None:
            return self._find_ruled_many(problems, advance)
        _, packed, kind_of, sizes, layouts = problems
        run = partial(search.run_in_chunks, on_progress=advance)
        records = search.find_best_many(
            self.arch.num_cores, np.concatenate(packed), kind_of, sizes, layouts, run=run, **self._idle
        )
        if self._library is None:
            return records
        library = self._library._find_anew(problems, lambda _: None)  # half of the search, without its progress
        is_faster = library["latency_us"] < records["latency_us"]
        is_faster |= ~self.is_feasible(records)
        return np.where(is_faster & self.is_feasible(library), library, records)

    def _find_anew(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        return self.find_many(problems._replace(packed=[self.pack(kind) for kind in problems.kinds]), advance)

    def _find_many_by_path(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        path_of = np.full(len(problems.sizes), _NO_PATH, np.int64)
        for kind in np.unique(problems.kind_of):
            rows = np.flatnonzero(problems.kind_of == kind)
            path_of[rows] = _choose_paths(self._paths, problems.kinds[kind].types, problems.sizes[rows])
        records = np.zeros(len(path_of), model.COST_DTYPE)
        for place in np.unique(path_of).tolist():
            rows = np.flatnonzero(path_of == place)
            find = self._find_ruled_many if place == _NO_PATH else self._on_paths[place][1]._find_anew
            records[rows] = find(problems.take(rows), advance)
        return records

    def find_top(self, problem: GemmProblem, packed: Records, k: int, distinct: str) -> Records:
        return self._corrected(problem, self._find_top(problem, packed, k, distinct))

    def _find_top(self, problem: GemmProblem, packed: Records, k: int, distinct: str) -> Records:
        if (path := self._path_of(problem)) is not None:
            return path[1].find_top(problem, path[1]._packed(problem.types), k, distinct)
        if self._rules is not None:
            return self._find_ruled_top(problem, packed, k, distinct)
        library = None
        if self._library is not None:
            with contextlib.suppress(InfeasibleError):
                library = self._library.find_of(problem)
        try:
            if distinct == "mapping":
                records = search.find_best(self._chip, problem, packed, k, **self._idle)
            else:
                records = search.find_best_of_each_partition(self._chip, problem, packed, **self._idle)
        except InfeasibleError:
            if library is None:
                raise
            return library
        if library is not None and library["latency_us"][0] < records["latency_us"][0]:
            records = np.concatenate([library, records])
        return records[:k]

    def replay(self, problem: GemmProblem, packed: Records, mapping: Any) -> Records:
        return self._corrected(problem, self._replay(problem, packed, mapping))

    def _replay(self, problem: GemmProblem, packed: Records, mapping: Any) -> Records:
        if (path := self._path_of(problem)) is not None:
            return path[1].replay(problem, path[1]._packed(problem.types), mapping)
        if self._library is not None:
            with contextlib.suppress(InfeasibleError):
                library = self._library.find_of(problem)
                if model.unpack_cost(library[0]).mapping == mapping and self._is_faster(
                    library, problem, packed, mapping
                ):
                    return library
        return model.evaluate_mapping(self._chip, problem, packed, mapping)

    def _is_faster(self, library: Records, problem: GemmProblem, packed: Records, mapping: Any) -> bool:
        """Return True if the library's answer is faster than its mapping on the chip, or does not fit there."""
        try:
            own = model.evaluate_mapping(self._chip, problem, packed, mapping)
        except InvalidMappingError:
            return True
        return bool(library["latency_us"][0] < own["latency_us"][0])

    def result_fields(
        self, problem: GemmProblem, kind: Kind, record: np.void, is_found: bool  # noqa: ARG002
    ) -> dict[str, Any]:  # fmt: skip
        row = model.cost_fields(record)
        flop, latency_us, correction_us = problem.flop, row["latency_us"], row["correction_us"]
        low_us, high_us = latency_us * row["low_frac"], latency_us * row["high_frac"]
        if not row["high_frac"]:
            low_us, high_us = chip_interval(self.arch, latency_us)
        return {name: row[name] for name in _COPIED} | {
            "arch_name": self.arch.name, "physics_us": latency_us - correction_us, "low_us": low_us, "high_us": high_us,
            "flop": flop,
            "utilization_frac": flop / (latency_us * (self.highest_tflop_per_s(problem.types.a.dtype) * 1e6)),
            "bound": _BOUND_NAMES[row["bound"]], "traffic": FrozenDict({name: row[name] for name in _TRAFFIC}),
            "options": _NO_OPTIONS, "source": CORRECTED if correction_us else self._source,
            "model_version": model.MODEL_VERSION, "is_exhaustive": is_found,
            "num_refused": FrozenDict(
                sram=row["num_refused_sram"], partition_bound=row["num_partitions_bounded"],
                partition_dropped=row["num_partitions_dropped"],
            ),
        }  # fmt: skip

    def intervals(self, problems: Problems, records: Records) -> npt.NDArray[np.float64]:  # noqa: ARG002
        latency_us = records["latency_us"]
        learned = latency_us * (records["low_frac"], records["high_frac"])
        return np.where(records["high_frac"] > 0.0, learned, chip_interval(self.arch, latency_us))

    def words_of(self, name: str, records: Records) -> npt.NDArray[Any] | None:
        if name == "source":
            return np.where(records[CORRECTION] != 0.0, CORRECTED, self._source).astype(object)
        words = _WORDS_OF_CODES.get(name)
        return None if words is None else np.array(words, object)[records[name]]

    def numbers_of(self, name: str, records: Records) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = records["latency_us" if name == "physics_us" else name].copy()
        return column - records[CORRECTION] if name == "physics_us" else column

    def stored_as(self) -> Mapping[str, object]:
        return {
            "model": model.MODEL_VERSION,
            "arch": self.arch.model_dump(mode="json", exclude=_WORDS),
            "options": self._idle
            | ({"policy": str(self.policy)} if self.arch.rules else {})
            | ({"correction": True} if self._correction is not None else {}),
        }

    def say_mapping(self, result: GEMMResult) -> list[str]:
        return [
            f"Mapping: {result.mapping}; {result.active_cores} of {self.arch.num_cores} cores, "
            f"{result.sram_used_bytes / self.arch.sram_usable_bytes:.0%} of usable SRAM."
        ]

    def say_source(self, result: GEMMResult) -> list[str]:
        lines = [f"{self.arch.name} is described coarsely; expect a rough answer."] if self.arch.is_coarse else []
        if self.arch.setting:
            lines.append(f"Setting: {self.arch.setting.strip()}")
        if result.problem.layout != LAYOUTS[0]:
            lines.append("Layout: its spec says nothing of layouts, so it takes the same in all of them.")
        if self.arch.calibration:
            lines.append(f"Some of its numbers were fitted on timings: {self.arch.calibration}.")
        if result.latency_us != result.physics_us:
            lines.append(
                f"Corrected: {result.latency_us / result.physics_us:.3f} times the {time_text(result.physics_us)} of "
                "the terms, by what timings of such GEMMs on this chip showed beyond them."
            )
        lines.append(interval_line(result.low_us, result.high_us))
        if (path := self._path_of(result.problem)) is not None:
            lines.append(f"The library takes its path {path[0]} for GEMMs of this size.")
            return [*lines, *path[1]._say_library(result)]
        return [*lines, *self._say_library(result)]

    def _say_library(self, result: GEMMResult) -> list[str]:
        """Compare the mapping of the library, if it chooses, with the best."""
        if self._rules is None:
            return []
        lines = []
        library = self._rules.title or "its library"
        dtype = result.problem.input_dtype
        own, best_rate = (chip.for_dtype(dtype).cube_steps_per_cycle[dtype] for chip in (self._chip, self.arch))
        if own != best_rate:
            lines.append(
                f"{library} multiplies {dtype} in {best_rate / own:g} of the passes of policy best; the peak here "
                f"is that of its passes, {self.highest_tflop_per_s(dtype):,.1f} TFLOP/s."
            )
        best = model.unpack_cost(self._best.find_of(result.problem)[0])
        factor = result.latency_us / result.physics_us  # of the same GEMM
        gain = 1.0 - best.latency_us / result.physics_us
        if gain <= _ROUNDING:
            better = "and none is better"
        elif gain < _LEAST_GAIN:
            better = f"and the best is {gain:.2%} faster"
        else:
            better = f"the best takes {time_text(factor * best.latency_us)} (-{gain:.0%}): {best.mapping}"
        separator = "; " if gain >= _LEAST_GAIN else ", "
        return [*lines, f"{library} chooses this mapping{separator}{better}."]

    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:  # noqa: ARG002
        return spec_changes(self.arch)


def _choose_paths(paths: Sequence[LibraryPath], types: GemmTypes, sizes: Integers) -> Integers:
    """Return the place [num] of the first path whose limits hold, of GEMMs of one kind; -1: none."""
    _, M, K, N = sizes.T.astype(object)  # Python ints: products of any size
    half_bits = M * K * types.a.dtype.half_bits + K * N * types.b.dtype.half_bits + M * N * types.c.half_bits
    path_of = np.full(len(sizes), _NO_PATH, np.int64)
    for place, path in reversed(list(enumerate(paths))):
        most_half_bits = None if path.max_bytes is None else path.max_bytes * HALF_BITS_PER_BYTE
        holds = np.ones(len(sizes), bool)
        for size, most in (
            (M, path.max_rows), (N, path.max_columns), (K, path.max_reduction), (M * K * N, path.max_macs),
            (half_bits, most_half_bits),
        ):  # fmt: skip
            if most is not None:
                holds &= (size <= most).astype(bool)
        path_of[holds] = place
    return path_of


_DOUBLED = (
    ("dram_gb_per_s", "dram_core_limit_gb_per_s", "dram_write_gb_per_s"), ("dram_core_limit_gb_per_s",),
    ("dram_write_gb_per_s",), ("shared_gb_per_s",), ("shared_bytes",), ("noc_gb_per_s",), ("cube_steps_per_cycle",),
    ("feed_bytes_per_cycle",), ("vector_ops_per_cycle",), ("pack_gb_per_s",), ("num_cores",), ("sram_bytes",),
    ("frequency_ghz",),
)  # fmt: skip
"""Fields that are doubled together; the first names the change."""

_IDEAL = {
    "input_buffers": 2, "output_buffers": 2, "overlap_frac": 1.0, "launch_us": 0.0, "launch_floor_us": 0.0,
    "task_us": 0.0, "sync_us": 0.0, "weight_load_cycles": 0.0,
}  # fmt: skip
"""Fields that are set to what they are at best."""


def spec_changes(arch: MulticoreSpec) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of everything that can be bought, and the removal of fixed costs: (words, changed fields) each.

    What a data type, or the library, has of a field is changed with it.
    """
    changes = [(f"{fields[0]} x2", _changed(arch, dict.fromkeys(fields))) for fields in _DOUBLED]
    changes += [
        (f"{name} {value:g}", _changed(arch, {name: value}))
        for name, value in _IDEAL.items()
        if arch.timing == "overlap" or name not in ("input_buffers", "overlap_frac")
    ]
    return [(words, fields) for words, fields in changes if fields]


def _changed(arch: MulticoreSpec, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a spec that put wanted values in place, or double where None is wanted; {}: nothing new."""

    def of(name: str, value: Any) -> Any:
        if value is None:
            return None
        if wanted[name] is not None:
            return wanted[name]
        return {key: rate * 2 for key, rate in value.items()} if isinstance(value, Mapping) else value * 2

    def of_table(table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(name, value) if name in wanted else value for name, value in table.items()}

    changes: dict[str, Any] = {
        name: value for name in wanted if (value := of(name, getattr(arch, name))) != getattr(arch, name)
    }
    by_dtype = {dtype: of_table(fields) for dtype, fields in arch.by_dtype.items()}
    if by_dtype != arch.by_dtype:
        changes["by_dtype"] = by_dtype
    if arch.rules is not None and (rules := arch.rules.map_changes(of_table)) != arch.rules:
        changes["rules"] = rules
    return changes
