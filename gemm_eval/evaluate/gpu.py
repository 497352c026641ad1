"""The backend for GPUs: kernel configs, and the libraries whose kernels run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, check_carried
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.backend import NUM_PACKED, Backend, Kind, Problems, Records
from gemm_eval.evaluate.interval import CORRECTED, CORRECTION, interval_line
from gemm_eval.frozen import FrozenDict
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models import gpu as model
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import W4A16_GROUPED_FAMILIES, coefficients_of, kernel_target
from gemm_eval.search import evaluate_config, find_best_config, find_best_config_many, find_top_configs
from gemm_eval.units import time_text
from gemm_eval.words import shown
from gemm_eval.workload import NOTHING_SAID, GemmProblem, GemmTypes, RunOptions, make_problem

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult


Floats = npt.NDArray[np.float64]

_CODE_BITS, _CODE_MASK = 16, 0xFFFF  # of several small numbers in one
_NUM_TYPES = 1024  # combinations of data types, or of options, whose answers are remembered
_DEFAULTS = model.check_options(NOTHING_SAID)._replace(correction=True)
# what a spec says about itself, and about other GPUs, does not change what a GEMM costs
_WORDS = {"name", "title", "notes", "published", "sources", "provenance", "interconnect"}
_FIELDS = {"sram_used_bytes": "smem_bytes", "active_cores": "active_sms"}  # column -> field of a record
_CODES = {"schedule": Schedule, "decomposition": Decomposition, "raster_order": RasterOrder}  # of a `KernelConfig`
_FAMILY_OF_CODE = {family.number: name for name, family in FAMILIES.items()}
_WORD_OF_CODE: dict[str, dict[int, str]] = {  # what a record holds as a code
    "bound": dict(enumerate(model.BOUNDS)),
    "family": _FAMILY_OF_CODE,
    **{name: {int(item): item.name for item in codes} for name, codes in _CODES.items()},
}


_SIDES = np.array([-1.0, 1.0, -1.0, 1.0])  # of the columns of intervals: low, high


class GpuBackend(Backend):
    """See `Backend`."""

    record_dtype = model.GPU_COST_DTYPE
    search_counts = ("num_candidates", "num_bounded")
    mapping_columns = KernelConfig._fields
    term_columns = (*model.TERMS, CORRECTION, "hidden_us")
    option_columns = RunOptions._fields
    bounds = model.BOUNDS
    active_field = "active_sms"
    arch: GpuSpec

    def __init__(self, arch: GpuSpec, *, allow_idle_cores: bool) -> None:
        if not allow_idle_cores:
            raise InvalidOptionError(
                f"allow_idle_cores must be True for a GPU ({arch.name}): its hardware hands out CTAs, and a problem of "
                "few CTAs leaves SMs idle"
            )
        self.arch = arch
        self._has_kernels = lru_cache(maxsize=_NUM_TYPES)(self._can_pack)
        self._packed = lru_cache(maxsize=NUM_PACKED)(self._pack)
        self._interval = lru_cache(maxsize=_NUM_TYPES)(self._find_interval)
        self._is_preset = model.is_preset(arch)
        self.highest_tflop_per_s = lru_cache(maxsize=_NUM_TYPES)(arch.highest_tflop_per_s)

    def check(self, asked: RunOptions) -> None:
        model.check_options(asked)

    def resolve(
        self, types: GemmTypes, asked: RunOptions, preferred: RunOptions = NOTHING_SAID, *, is_grouped: bool = False
    ) -> RunOptions:
        if asked != NOTHING_SAID:
            self.check(asked)
        if is_grouped:
            check_carried(self.arch, "grouped GEMMs")
        library = preferred.library
        if library in model.ENGINES:
            library = self._of_engine(library, types, is_grouped)
        if library in (None, model.AUTO) or not (asked.library or self._has_kernels(types, library)):
            library = self._default_library(types, is_grouped)
        if asked.library == model.AUTO:
            asked = asked._replace(library=self._default_library(types, is_grouped))
        elif asked.library in model.ENGINES:
            asked = asked._replace(library=model.engine_library(asked.library, self.arch, types, is_grouped=is_grouped))
        return asked.over(preferred.over(_DEFAULTS)._replace(library=library))

    def _of_engine(self, engine: str, types: GemmTypes, is_grouped: bool) -> str | None:
        try:
            return model.engine_library(engine, self.arch, types, is_grouped=is_grouped)
        except UnsupportedError:
            return None

    def _default_library(self, types: GemmTypes, is_grouped: bool) -> str:
        return (
            model.default_grouped_library(self.arch, types) if is_grouped else model.default_library(self.arch, types)
        )

    def _can_pack(self, types: GemmTypes, library: str) -> bool:
        try:
            self._packed(Kind(types, _DEFAULTS._replace(library=library)))
        except UnsupportedError:
            return False
        return True

    def pack(self, kind: Kind) -> model.Packed:
        return self._packed(kind)

    def _pack(self, kind: Kind) -> model.Packed:
        return model.pack_gpu(self.arch, kind.types, kind.options, call_weights=kind.call_weights)

    def find(self, problem: GemmProblem, packed: model.Packed) -> Records:
        return find_best_config(self.arch, problem, packed)

    def find_many(self, problems: Problems, advance: Callable[[int], None]) -> Records:
        _, packed, kind_of, sizes, layouts = problems
        return find_best_config_many(packed, kind_of, sizes, layouts=layouts, on_progress=advance)

    def find_top(self, problem: GemmProblem, packed: model.Packed, k: int, distinct: str) -> Records:
        if distinct != "mapping":
            raise InvalidOptionError(f"distinct must be 'mapping' for a GPU ({self.arch.name}), got {shown(distinct)}")
        return find_top_configs(self.arch, problem, packed, k)

    def replay(self, problem: GemmProblem, packed: model.Packed, mapping: Any) -> Records:
        return evaluate_config(self.arch, problem, packed, _as_config(mapping))

    def result_fields(self, problem: GemmProblem, kind: Kind, record: np.void, is_found: bool) -> dict[str, Any]:
        cost = model.unpack_gpu_cost(record)
        peak_flop_per_us = self.highest_tflop_per_s(problem.types.a.dtype) * 1e6
        flop = problem.flop
        family = cost.config.family
        G, M, K, N = problem.sizes
        load_bytes = _load_bytes(_load_rules(self.arch.sm_arch, kind), M, K, N)
        logs = self._interval(kind, family, load_bytes)
        if problem.row_groups is not None:  # the mean, as the sets have it that grouped kernels were fitted on
            G, M = 1, max(1, problem.rows // G)
        low_frac, high_frac = model.interval_ends(model.regime_place(G, M, K, N), cost.correction_trust, logs)
        return {
            "physics_us": cost.physics_us, "compute_us": cost.compute_us, "dram_us": cost.dram_us,
            "dram_bytes": cost.dram_bytes, "bound": cost.bound, "breakdown": cost.breakdown, "traffic": cost.traffic,
            "num_candidates": cost.num_candidates, "num_refused": cost.num_refused,
            "arch_name": self.arch.name, "low_us": cost.latency_us * low_frac, "high_us": cost.latency_us * high_frac,
            "flop": flop, "utilization_frac": flop / (cost.latency_us * peak_flop_per_us), "mapping": cost.config,
            "energy_pj": None, "sram_used_bytes": cost.smem_bytes, "active_cores": cost.active_sms,
            "options": _spelled(kind.options, family), "model_version": model.GPU_MODEL_VERSION,
            "is_exhaustive": is_found,
            "source": self._source(family, cost.is_calibrated, cost.correction_factor != 1.0),
        }  # fmt: skip

    def _find_interval(self, kind: Kind, family: str, load_bytes: int) -> Floats:
        """Return the intervals around answers of a kind, whose best config is of a family, as `interval_rows` has them.

        They are [regimes, 4]: logs of the ends where the answer is corrected, and where it is not.
        """
        library, family = self._home_of(kind, family, load_bytes)
        options = kind.options
        if options.quantize_from == DType.FP16:  # as many bytes as bf16, and the same kernels
            options = options._replace(quantize_from=str(DType.BF16))
        question = model.question_of(kind.types, options)
        home = self.arch, library, family, question, model.GPU_MODEL_VERSION
        corrected = of_terms = model.interval_for(*home, is_corrected=False)
        base, family = model.preset_of(self.arch), model.corrected_as(family)
        if base is not None:
            near = model.nearest_corrected(base, library, family, kind.types, options, model.GPU_MODEL_VERSION)
            if near is not None and self._is_preset and model.question_of(kind.types, near) == question:
                corrected = model.interval_for(
                    base, library, family, question, model.GPU_MODEL_VERSION, is_corrected=True
                )
            elif near is not None:
                corrected = model.interval_carried(base, library, family, kind.types, near, model.GPU_MODEL_VERSION)
        logs = np.hstack([corrected, of_terms])
        kernel = model.engine_kernel(str(kind.options.library), self.arch, kind.types)
        if kernel is not None:
            logs = np.copysign(np.hypot(logs, kernel.other_log), _SIDES)
        return read_only(logs)

    def _home_of(self, kind: Kind, family: str, load_bytes: int) -> tuple[str, str]:
        """Return the library and the family whose coefficients a config of a family has.

        They are the library's for the types, whatever family the config is of; but for ours.
        """
        library = model.library_of(model.library_of_family(str(kind.options.library), family))
        if FAMILIES[family].is_ours:
            return library.name, coefficients_of(family)
        few_rows = library.few_row_family(self.arch, kind.types)
        if few_rows is not None and few_rows.name != family:
            library = model.library_of("cublas")
        return library.name, library.family(self.arch, kind.types, load_bytes=load_bytes)

    def intervals(self, problems: Problems, records: Records) -> npt.NDArray[np.float64]:
        kinds, _, kind_of, sizes, layouts = problems
        ends = np.full((2, len(records)), np.nan)
        G = np.where(layouts.is_grouped(len(sizes)), 1, sizes[:, 0])
        regimes = model.regime_places(np.maximum(1, layouts.mean_rows(sizes)), G, *sizes[:, 2:].T)
        loads = np.zeros(len(records), np.int64)
        for number in np.unique(kind_of).tolist():
            rows = kind_of == number
            loads[rows] = model.loads_of(_load_rules(self.arch.sm_arch, kinds[number]), *sizes[rows, 1:].T)
        feasible = self.is_feasible(records)
        codes = (kind_of << 2 * _CODE_BITS) + (records["family"] << _CODE_BITS) + loads
        for code in np.unique(codes[feasible]).tolist():
            kind, family, load_bytes = code >> 2 * _CODE_BITS, code >> _CODE_BITS & _CODE_MASK, code & _CODE_MASK
            logs = self._interval(kinds[kind], _FAMILY_OF_CODE[family], load_bytes)
            rows = np.flatnonzero(feasible & (codes == code))
            fracs = np.empty((len(rows), 2))
            model.interval_rows(regimes[rows], records["correction_trust"][rows], logs, fracs)
            ends[:, rows] = records["latency_us"][rows] * fracs.T
        return ends

    def _source(self, family: str, is_calibrated: int, is_corrected: bool) -> str:
        if family in W4A16_GROUPED_FAMILIES:  # their coefficients may be another GPU's than those of the plain kernels
            is_calibrated = int(model.coefficients_for(self.arch, model.OURS, family)[1].is_calibrated)
        if is_corrected and is_calibrated == model.AS_PRESET:
            return f"{CORRECTED} as {self.arch.name}"
        if is_calibrated == 1:
            return CORRECTED if is_corrected else "calibrated"
        return "analytic"  # what corrects it are a sibling's timings

    def spell_options(self, name: str, column: npt.NDArray[Any], records: Records) -> npt.NDArray[Any]:
        if name == "library":
            for row in np.flatnonzero((column == model.AUTO) & self.is_feasible(records)):
                column[row] = model.library_of_family(model.AUTO, model.unpack_gpu_cost(records[row]).config.family)
        return column

    def words_of(self, name: str, records: Records) -> npt.NDArray[Any] | None:
        if name == "source":
            columns = (records[key].tolist() for key in ("family", "is_calibrated", "correction_factor"))
            facts = [(family, own, factor != 1.0) for family, own, factor in zip(*columns, strict=True)]
            words = {key: self._source(_FAMILY_OF_CODE.get(key[0], ""), *key[1:]) for key in set(facts)}
            return np.array([words[key] for key in facts], object)
        if name in _WORD_OF_CODE:
            return np.array([_WORD_OF_CODE[name][code] for code in records[name].tolist()], object)
        return None

    def numbers_of(self, name: str, records: Records) -> npt.NDArray[Any]:
        if name == "energy_pj":
            return np.full(len(records), np.nan)
        column: npt.NDArray[Any]
        if name in (CORRECTION, "hidden_us"):  # these two as `unpack_gpu_cost` has them
            column = records["latency_us"] - records["physics_us"]
            if name == "hidden_us":
                column = records["latency_us"] - (sum(records[term] for term in model.TERMS) + column)
            return column
        column = records[_FIELDS.get(name, name)].copy()
        return column

    def stored_as(self) -> Mapping[str, object]:
        return {
            "model": model.GPU_MODEL_VERSION,
            "arch": self.arch.model_dump(mode="json", exclude=_WORDS),
            "calibration": model.calibration_stamp(self.arch),
        }

    def say_mapping(self, result: GEMMResult) -> list[str]:
        config = result.mapping
        assert isinstance(config, KernelConfig)
        packed = self.pack(Kind(result.problem.types, RunOptions(**result.options)))  # the terms alone
        record = evaluate_config(self.arch, result.problem, packed, config)[0]
        options = result.options

        def latency_of(problem: GemmProblem) -> float:
            return float(self.find(problem, self.pack(result.kind._replace(types=problem.types)))[0]["latency_us"])

        return [
            f"Kernel ({options['library']}, {options['l2']} L2, {options['clock']} clock): {config}.",
            say_waves(self.arch, record),
            *say_padding(self.arch, result.problem, options["library"], result.latency_us, latency_of),
        ]

    def say_source(self, result: GEMMResult) -> list[str]:
        config, library = result.mapping, result.options["library"]
        assert isinstance(config, KernelConfig)
        kind = Kind(result.problem.types, RunOptions(library))
        load_bytes = _load_bytes(_load_rules(self.arch.sm_arch, kind), *result.problem.sizes[1:])
        _, family = home = self._home_of(kind, config.family, load_bytes)
        _, origin = model.coefficients_for(self.arch, *home)
        fitted = family if FAMILIES[config.family].is_ours else config.family
        lines = [f"Source: {result.source}; coefficients of {library}'s {fitted} kernels: {origin.text}."]
        if said := model.say_engine(library, self.arch, kind.types):
            lines.append(said)
        if not (library == model.OURS and origin.is_calibrated):
            lines += self._say_default(result)
        if result.latency_us != result.physics_us:
            lines.append(
                f"Corrected: {result.latency_us / result.physics_us:.3f} times the {time_text(result.physics_us)} of "
                f"the terms, by what timings of such GEMMs on {self._timed(kind.types, result.options, home)} showed "
                "beyond them; correction=False leaves that out."
            )
        lines.append(interval_line(result.low_us, result.high_us))
        if library == model.HYPOTHETICAL:
            lines.append("No such kernels exist: this is what mixed-input kernels of CUTLASS's kind could do.")
        if library == model.OURS and not (origin.gpu and model.has_sms_of(self.arch, origin.gpu)):
            lines.append(
                f"These kernels are compiled for {kernel_target(self.arch)}, and none has ever run on a GPU of this "
                "generation: neither their results nor times were checked there."
            )
        return lines

    def _say_default(self, result: GEMMResult) -> list[str]:
        """Explain why a library is the default for 4-bit weights, and where 16 bits are faster."""
        problem, options = result.problem, result.kind.options
        reason = model.say_default(self.arch, problem.types, str(options.library))
        if not reason or problem.is_grouped:
            return []
        dense = make_problem(*problem.sizes, default_dtype=problem.input_dtype)
        kind = Kind(dense.types, options._replace(library=model.default_library(self.arch, dense.types)))
        dense_us = float(self.find(dense, self.pack(kind))[0]["latency_us"])
        if dense_us >= result.latency_us:
            return [f"Library: {reason}"]
        return [
            f"Library: {reason}",
            f"In {problem.input_dtype} the same GEMM takes {time_text(dense_us)} by {kind.options.library}: these "
            "weights save memory, and no time.",
        ]

    def _timed(self, types: GemmTypes, options: Mapping[str, Any], home: tuple[str, str]) -> str:
        """Name the GPU and the states in which the timings were taken that correct an answer."""
        asked, home = RunOptions(**options), (home[0], model.corrected_as(home[1]))
        near = (
            model.nearest_corrected(
                model.preset_of(self.arch) or self.arch, *home, types, asked, model.GPU_MODEL_VERSION
            )
            or asked
        )
        sibling = model.coefficients_for(self.arch, *home)[1].gpu or self.arch.name
        where = "this GPU" if sibling == self.arch.name else f"{sibling}, its sibling,"
        where = where if self._is_preset else f"{self.arch.name}, of which this spec is a change,"
        if (near.l2, near.clock) != (asked.l2, asked.clock):
            where += f" with {near.l2} L2 and {near.clock} clock"
        return where

    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
        return spec_changes(self.arch, problem)


def _load_bytes(rules: model.LoadRules, M: int, K: int, N: int) -> int:
    """Return the most bytes that all rows of a problem start on, as its library pads them."""
    for load_bytes, rule in rules:
        if rule.takes(M, K, N):
            return load_bytes
    return 1


@lru_cache(maxsize=_NUM_TYPES)
def _load_rules(sm_arch: str, kind: Kind) -> model.LoadRules:
    """Return which sizes have rows that start on how many bytes, as the library of a kind pads them."""
    library = model.library_of(
        model.HYPOTHETICAL if kind.options.library in (None, model.AUTO) else str(kind.options.library)
    )
    return model.load_rules(kind.types, library.padding(sm_arch, kind.types))


@lru_cache(maxsize=_NUM_TYPES)
def _spelled(options: RunOptions, family: str) -> FrozenDict[str, Any]:
    """Return options with the library that answers; that corrections are on goes without saying."""
    said = {name: value for name, value in options._asdict().items() if value is not None and value is not True}
    return FrozenDict(said | {"library": model.library_of_family(said["library"], family)})


def _as_config(mapping: Any) -> KernelConfig:
    """Take plain tuples and names too, and make sure that every number is a positive int."""
    try:
        values: dict[str, Any] = KernelConfig(*mapping)._asdict()
        for name, kind in _CODES.items():
            value = values[name]
            if isinstance(value, bool | float):
                raise TypeError
            values[name] = kind[value.upper()] if isinstance(value, str) else kind(value)
        if not isinstance(values["family"], str):
            raise TypeError
    except (TypeError, ValueError, KeyError, AttributeError):
        raise InvalidMappingError(
            f"a mapping on a GPU is a KernelConfig ({', '.join(KernelConfig._fields)}), got {shown(mapping)}",
            rule="form",
        ) from None
    for name, value in values.items():
        if name in _WORD_OF_CODE:
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value < 1 << 31:
            raise InvalidMappingError(f"{name} must be an integer >= 1, got {shown(value)}", rule="form")
        values[name] = int(value)
    return KernelConfig(**values)


def say_waves(arch: GpuSpec, record: np.void) -> str:
    """Describe how the CTAs of a kernel, by its record of `GPU_COST_DTYPE`, fill the SMs."""
    cost = model.unpack_gpu_cost(record)
    config = cost.config
    num_ctas = min(cost.num_ctas, cost.ctas_per_sm * cost.active_sms)  # some kernels launch more, which wait
    resident = -(-num_ctas // cost.active_sms)
    tiles = f"{record['num_tiles']:,} tiles of C" if record["num_tiles"] > 1 else "1 tile of C"
    if config.cluster_m * config.cluster_n > 1:
        tiles += " (in whole clusters)"
    if config.split_k > 1:
        tiles += f" x {config.split_k} parts of K"
    ctas = f"{'1 CTA' if num_ctas == 1 else f'{num_ctas:,} CTAs'} at once, {resident} an SM"
    fill = f"{record['last_wave_frac']:.0%} full"
    if config.decomposition is Decomposition.STREAM_K:
        work = f"{tiles}, shared evenly by {ctas}"
    elif cost.num_waves == 1:
        work = f"{tiles}, {ctas}; one wave, {fill}"
    else:
        work = f"{tiles}, {ctas}; {cost.num_waves:,} waves, the last {fill}"
    return (
        f"Waves: {work}; {cost.active_sms} of {arch.num_sms} SMs at work, shared memory "
        f"{cost.smem_bytes / 1024:,.0f} of {arch.smem_per_sm_bytes / 1024:,.0f} KiB an SM."
    )


def say_padding(
    arch: GpuSpec, problem: GemmProblem, library: str, latency_us: float, latency_of: Callable[[GemmProblem], float]
) -> list[str]:
    """Describe how rows are padded, and how much padding would save where they do not start on 16 bytes.

    `latency_us` is of the problem by the library, `latency_of` evaluates a padded one, in microseconds.
    """
    rules, types = model.library_of(library), problem.types
    if not rules.runs_unaligned(types):
        return []
    run = model.pad_problem(problem, rules.padding(arch.sm_arch, types))
    lines = []
    if run is not problem:
        none = "no timed" if types.a.dtype is DType.INT8 else "no"
        lines.append(
            f"Padding: {_said(problem, run)}, which the time includes: {library} has {none} {types.b.dtype} kernels "
            "for other rows."
        )
    loads = model.load_bytes_of(run)
    if loads < model.LOAD_BYTES[0]:
        aligned = model.pad_problem(problem, model.padding_to(types, model.LOAD_BYTES[0]))
        aligned_us = latency_of(aligned)
        by = "single elements" if loads < model.LOAD_BYTES[1] else f"{model.LOAD_BYTES[1]} bytes"
        if aligned_us < latency_us:
            lines.append(
                f"Padding: {_said(problem, aligned)} would take {time_text(aligned_us)}, {aligned_us / latency_us:.0%} "
                f"of this: not all rows of A, B and C start on 16 bytes, and {library} loads others by {by}."
            )
    return lines


def _said(problem: GemmProblem, padded: GemmProblem) -> str:
    sizes = (("K", problem.K, padded.K), ("N", problem.N, padded.N))
    return " and ".join(f"{name} padded from {old:,} to {new:,}" for name, old, new in sizes if old != new)


def spec_changes(arch: GpuSpec, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of what can be bought, faster clocks, and the removal of fixed costs."""

    def times(factor: float, *fields: str) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in fields:
            value = getattr(arch, field)
            if isinstance(value, Mapping):
                changes[field] = {dtype: rate * factor for dtype, rate in value.items()}
            else:
                changes[field] = type(value)(value * factor)
        return changes

    clocks = ("max_clock_ghz", "boost_clock_ghz", "tensor_clock_burst_ghz", "tensor_clock_sustained_ghz")
    changes = [
        ("dram_gb_per_s x2", times(2, "dram_gb_per_s")),
        ("dram_latency_ns / 2", times(0.5, "dram_latency_ns")),
        ("num_sms x2", times(2, "num_sms")),
        ("tensor_flop_per_cycle x2", times(2, "tensor_flop_per_cycle")),
        ("clocks x1.2", times(1.2, *clocks)),
        ("l2_bytes x2", times(2, "l2_bytes")),
        ("l2_bytes_per_cycle x2", times(2, "l2_bytes_per_cycle")),
        ("shared memory x2", times(2, "smem_per_sm_bytes", "smem_per_cta_bytes")),
        ("smem_bytes_per_cycle x2", times(2, "smem_bytes_per_cycle")),
        ("no launch overhead", {"launch_us": 0.0, "graph_node_us": 0.0}),
    ]
    if problem.is_weight_quantized:
        alus = ("issue_slots_per_cycle", "fp32_ops_per_cycle", "half2_ops_per_cycle", "int32_ops_per_cycle")
        changes.append(("ALUs and issue slots x2", times(2, *alus, "conversion_ops_per_cycle")))
    return changes
