"""The backend for GPUs: kernel configs, and the libraries whose kernels run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, check_carried
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.backend import NUM_PACKED, Backend, Integers, Kind, Records
from gemm_eval.evaluate.explain_gpu import say_padding, say_waves, spec_changes
from gemm_eval.evaluate.interval import CORRECTED, CORRECTION, interval_line
from gemm_eval.evaluate.result import GEMMResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import (
    AS_PRESET,
    AUTO,
    BOUNDS,
    ENGINES,
    GPU_COST_DTYPE,
    GPU_MODEL_VERSION,
    HYPOTHETICAL,
    OURS,
    TERMS,
    LoadRules,
    Packed,
    calibration_stamp,
    check_options,
    coefficients_for,
    corrected_as,
    default_grouped_library,
    default_library,
    engine_kernel,
    engine_library,
    has_sms_of,
    interval_carried,
    interval_ends,
    interval_for,
    interval_rows,
    is_preset,
    library_of,
    library_of_family,
    load_rules,
    loads_of,
    nearest_corrected,
    pack_gpu,
    preset_of,
    question_of,
    regime_place,
    regime_places,
    say_default,
    say_engine,
    unpack_config,
    unpack_gpu_cost,
)
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import W4A16_GROUPED_FAMILIES, coefficients_of, kernel_target
from gemm_eval.search import evaluate_config, find_best_config, find_best_config_many, find_top_configs
from gemm_eval.units import time_text
from gemm_eval.words import shown
from gemm_eval.workload import NOTHING_SAID, GemmProblem, GemmTypes, Layouts, RunOptions, make_problem

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import ResultOrigin
    from gemm_eval.search import PlanOptions, SearchPlan


Floats = npt.NDArray[np.float64]

_CODE_BITS, _CODE_MASK = 16, 0xFFFF  # of several small numbers in one
_NUM_TYPES = 1024  # combinations of data types, or of options, whose answers are remembered
_DEFAULTS = check_options(NOTHING_SAID)._replace(correction=True)
# what a spec says about itself, and about other GPUs, does not change what a GEMM costs
_WORDS = {"name", "title", "notes", "published", "sources", "provenance", "interconnect"}
_FIELDS = {"sram_used_bytes": "smem_bytes", "active_cores": "active_sms"}  # column -> field of a record
_CODES = {"schedule": Schedule, "decomposition": Decomposition, "raster_order": RasterOrder}  # of a `KernelConfig`
_FAMILY_OF_CODE = {family.number: name for name, family in FAMILIES.items()}
_WORD_OF_CODE: dict[str, dict[int, str]] = {  # what a record holds as a code
    "bound": dict(enumerate(BOUNDS)),
    "family": _FAMILY_OF_CODE,
    **{name: {int(item): item.name for item in codes} for name, codes in _CODES.items()},
}


class _Facts(NamedTuple):
    """Facts that answers of one kind share, for configs of one family."""

    rules: LoadRules
    intervals: dict[int, Floats]  # by the bytes that rows start on, see `_find_interval`
    options: FrozenDict[str, Any]
    source: str


_SIDES = np.array([-1.0, 1.0, -1.0, 1.0])  # of the columns of intervals: low, high


class GpuBackend(Backend):
    """See `Backend`."""

    record_dtype = GPU_COST_DTYPE
    search_counts = ("num_candidates", "num_bounded")
    mapping_columns = KernelConfig._fields
    term_columns = (*TERMS, CORRECTION, "hidden_us")
    option_columns = RunOptions._fields
    bounds = BOUNDS
    active_field = "active_sms"
    arch: GpuSpec

    def __init__(self, arch: GpuSpec, plan: PlanOptions | SearchPlan | str, *, allow_idle_cores: bool) -> None:
        name = getattr(plan, "plan", plan)
        if not isinstance(name, str) or name != "exact":
            raise InvalidOptionError(
                f"plan must be exact for a GPU, got {shown(plan)}: plans choose among partitions of multi-core chips, "
                "and every kernel config of a GPU is evaluated anyway"
            )
        if not allow_idle_cores:
            raise InvalidOptionError(
                f"allow_idle_cores must be True for a GPU ({arch.name}): its hardware hands out CTAs, and a problem of "
                "few CTAs leaves SMs idle"
            )
        self.arch = arch
        self._has_kernels = lru_cache(maxsize=_NUM_TYPES)(self._can_pack)
        self._packed = lru_cache(maxsize=NUM_PACKED)(self._pack)
        self._interval = lru_cache(maxsize=_NUM_TYPES)(self._find_interval)
        self._facts = lru_cache(maxsize=_NUM_TYPES)(self._find_facts)
        self._is_preset = is_preset(arch)
        self.highest_tflop_per_s = lru_cache(maxsize=_NUM_TYPES)(arch.highest_tflop_per_s)

    def check(self, asked: RunOptions) -> None:
        check_options(asked)

    def resolve(
        self, types: GemmTypes, asked: RunOptions, preferred: RunOptions = NOTHING_SAID, *, is_grouped: bool = False
    ) -> RunOptions:
        if asked != NOTHING_SAID:
            self.check(asked)
        if is_grouped:
            check_carried(self.arch, "grouped GEMMs")
        library = preferred.library
        if library in ENGINES:
            library = self._of_engine(library, types, is_grouped)
        if library in (None, AUTO) or not (asked.library or self._has_kernels(types, library)):
            library = self._default_library(types, is_grouped)
        if asked.library == AUTO:
            asked = asked._replace(library=self._default_library(types, is_grouped))
        elif asked.library in ENGINES:
            asked = asked._replace(library=engine_library(asked.library, self.arch, types, is_grouped=is_grouped))
        return asked.over(preferred.over(_DEFAULTS)._replace(library=library))

    def _of_engine(self, engine: str, types: GemmTypes, is_grouped: bool) -> str | None:
        try:
            return engine_library(engine, self.arch, types, is_grouped=is_grouped)
        except UnsupportedError:
            return None

    def _default_library(self, types: GemmTypes, is_grouped: bool) -> str:
        return default_grouped_library(self.arch, types) if is_grouped else default_library(self.arch, types)

    def _can_pack(self, types: GemmTypes, library: str) -> bool:
        try:
            self._packed(Kind(types, _DEFAULTS._replace(library=library)))
        except UnsupportedError:
            return False
        return True

    def pack(self, kind: Kind) -> Packed:
        return self._packed(kind)

    def _pack(self, kind: Kind) -> Packed:
        return pack_gpu(self.arch, kind.types, kind.options, call_weights=kind.call_weights)

    def find(self, problem: GemmProblem, packed: Packed) -> Records:
        return find_best_config(self.arch, problem, packed)

    def find_many(
        self, types: Sequence[GemmTypes], packed: Sequence[Packed], kind_of: Integers, sizes: Integers,  # noqa: ARG002
        layouts: Layouts, advance: Callable[[int], None],
    ) -> Records:  # fmt: skip
        return find_best_config_many(packed, kind_of, sizes, layouts=layouts, on_progress=advance)

    def find_top(self, problem: GemmProblem, packed: Packed, k: int, distinct: str) -> Records:
        if distinct != "mapping":
            raise InvalidOptionError(f"distinct must be 'mapping' for a GPU ({self.arch.name}), got {shown(distinct)}")
        return find_top_configs(self.arch, problem, packed, k)

    def replay(self, problem: GemmProblem, packed: Packed, mapping: Any) -> Records:
        return evaluate_config(self.arch, problem, packed, _as_config(mapping))

    def make_result(
        self, problem: GemmProblem, options: RunOptions, record: np.void, origin: ResultOrigin, *, is_found: bool
    ) -> GEMMResult:
        cost = unpack_gpu_cost(record)
        peak_flop_per_us = self.highest_tflop_per_s(problem.input_dtype) * 1e6
        flop = problem.flop
        family = cost.config.family
        facts = self._facts(problem.types, options, family, cost.is_calibrated, cost.correction_factor != 1.0)
        load_bytes = _load_bytes(facts.rules, problem)
        logs = facts.intervals.get(load_bytes)
        if logs is None:
            logs = facts.intervals[load_bytes] = self._interval(Kind(problem.types, options), family, load_bytes)
        G, M, K, N = problem.sizes
        if problem.row_groups is not None:  # the mean, as the sets have it that grouped kernels were fitted on
            G, M = 1, max(1, problem.rows // G)
        low_frac, high_frac = interval_ends(regime_place(G, M, K, N), cost.correction_trust, logs)
        return GEMMResult(
            problem=problem, arch_name=self.arch.name, latency_us=cost.latency_us, physics_us=cost.physics_us,
            low_us=cost.latency_us * low_frac, high_us=cost.latency_us * high_frac, compute_us=cost.compute_us,
            dram_us=cost.dram_us, flop=flop, dram_bytes=cost.dram_bytes,
            utilization_frac=flop / (cost.latency_us * peak_flop_per_us), bound=cost.bound, mapping=cost.config,
            breakdown=cost.breakdown, traffic=cost.traffic, energy_pj=None, sram_used_bytes=cost.smem_bytes,
            active_cores=cost.active_sms, options=facts.options, source=facts.source, model_version=GPU_MODEL_VERSION,
            is_exhaustive=is_found, num_candidates=cost.num_candidates, num_refused=cost.num_refused, _origin=origin,
        )  # fmt: skip

    def _find_facts(
        self, types: GemmTypes, options: RunOptions, family: str, is_calibrated: int, is_corrected: bool
    ) -> _Facts:
        rules = _load_rules(self.arch.sm_arch, Kind(types, options))
        source = self._source(family, is_calibrated, is_corrected)
        return _Facts(rules, {}, _spelled(options, family), source)

    def _find_interval(self, kind: Kind, family: str, load_bytes: int) -> Floats:
        """Return the intervals around answers of a kind, whose best config is of a family, as `interval_rows` has them.

        They are [regimes, 4]: logs of the ends where the answer is corrected, and where it is not.
        """
        library, family = self._home_of(kind, family, load_bytes)
        options = kind.options
        if options.quantize_from == DType.FP16:  # as many bytes as bf16, and the same kernels
            options = options._replace(quantize_from=str(DType.BF16))
        question = question_of(kind.types, options)
        home = self.arch, library, family, question, GPU_MODEL_VERSION
        corrected = of_terms = interval_for(*home, is_corrected=False)
        base, family = preset_of(self.arch), corrected_as(family)
        if base is not None:
            near = nearest_corrected(base, library, family, kind.types, options, GPU_MODEL_VERSION)
            if near is not None and self._is_preset and question_of(kind.types, near) == question:
                corrected = interval_for(base, library, family, question, GPU_MODEL_VERSION, is_corrected=True)
            elif near is not None:
                corrected = interval_carried(base, library, family, kind.types, near, GPU_MODEL_VERSION)
        logs = np.hstack([corrected, of_terms])
        kernel = engine_kernel(str(kind.options.library), self.arch, kind.types)
        if kernel is not None:
            logs = np.copysign(np.hypot(logs, kernel.other_log), _SIDES)
        return read_only(logs)

    def _home_of(self, kind: Kind, family: str, load_bytes: int) -> tuple[str, str]:
        """Return the library and the family whose coefficients a config of a family has.

        They are the library's for the types, whatever family the config is of; but for ours.
        """
        library = library_of(library_of_family(str(kind.options.library), family))
        if FAMILIES[family].is_ours:
            return library.name, coefficients_of(family)
        few_rows = library.few_row_family(self.arch, kind.types)
        if few_rows is not None and few_rows.name != family:
            library = library_of("cublas")
        return library.name, library.family(self.arch, kind.types, load_bytes=load_bytes)

    def intervals(
        self, kinds: Sequence[Kind], kind_of: Integers, sizes: Integers, layouts: Layouts, records: Records
    ) -> npt.NDArray[np.float64]:
        ends = np.full((2, len(records)), np.nan)
        G = np.where(layouts.is_grouped(len(sizes)), 1, sizes[:, 0])
        regimes = regime_places(np.maximum(1, layouts.mean_rows(sizes)), G, *sizes[:, 2:].T)
        loads = np.zeros(len(records), np.int64)
        for number in np.unique(kind_of).tolist():
            rows = kind_of == number
            loads[rows] = loads_of(_load_rules(self.arch.sm_arch, kinds[number]), *sizes[rows, 1:].T)
        feasible = self.is_feasible(records)
        codes = (kind_of << 2 * _CODE_BITS) + (records["family"] << _CODE_BITS) + loads
        for code in np.unique(codes[feasible]).tolist():
            kind, family, load_bytes = code >> 2 * _CODE_BITS, code >> _CODE_BITS & _CODE_MASK, code & _CODE_MASK
            logs = self._interval(kinds[kind], _FAMILY_OF_CODE[family], load_bytes)
            rows = np.flatnonzero(feasible & (codes == code))
            fracs = np.empty((len(rows), 2))
            interval_rows(regimes[rows], records["correction_trust"][rows], logs, fracs)
            ends[:, rows] = records["latency_us"][rows] * fracs.T
        return ends

    def _source(self, family: str, is_calibrated: int, is_corrected: bool) -> str:
        if family in W4A16_GROUPED_FAMILIES:  # their coefficients may be another GPU's than those of the plain kernels
            is_calibrated = int(coefficients_for(self.arch, OURS, family)[1].is_calibrated)
        if is_corrected and is_calibrated == AS_PRESET:
            return f"{CORRECTED} as {self.arch.name}"
        if is_calibrated == 1:
            return CORRECTED if is_corrected else "calibrated"
        return "analytic"  # what corrects it are a sibling's timings

    def spell_options(self, name: str, column: npt.NDArray[Any], records: Records) -> npt.NDArray[Any]:
        if name == "library":
            for row in np.flatnonzero((column == AUTO) & self.is_feasible(records)):
                column[row] = library_of_family(AUTO, unpack_config(records[row]).family)
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
                column = records["latency_us"] - (sum(records[term] for term in TERMS) + column)
            return column
        column = records[_FIELDS.get(name, name)].copy()
        return column

    def stored_as(self) -> Mapping[str, object]:
        return {
            "model": GPU_MODEL_VERSION,
            "arch": self.arch.model_dump(mode="json", exclude=_WORDS),
            "calibration": calibration_stamp(self.arch),
        }

    def say_mapping(self, result: GEMMResult) -> list[str]:
        config = result.mapping
        assert isinstance(config, KernelConfig)
        packed = self.pack(Kind(result.problem.types, RunOptions(**result.options)))
        record = evaluate_config(self.arch, result.problem, packed, config)[0]
        options = result.options

        def latency_of(problem: GemmProblem) -> float:
            kind = Kind(problem.types, _asked(result))
            return float(self.find(problem, self.pack(kind))[0]["latency_us"])

        return [
            f"Kernel ({options['library']}, {options['l2']} L2, {options['clock']} clock): {config}.",
            say_waves(self.arch, record),
            *say_padding(self.arch, result.problem, options["library"], result.latency_us, latency_of),
        ]

    def say_source(self, result: GEMMResult) -> list[str]:
        config, library = result.mapping, result.options["library"]
        assert isinstance(config, KernelConfig)
        kind = Kind(result.problem.types, RunOptions(library))
        load_bytes = _load_bytes(_load_rules(self.arch.sm_arch, kind), result.problem)
        _, family = home = self._home_of(kind, config.family, load_bytes)
        _, origin = coefficients_for(self.arch, *home)
        fitted = family if FAMILIES[config.family].is_ours else config.family
        lines = [f"Source: {result.source}; coefficients of {library}'s {fitted} kernels: {origin.text}."]
        if said := say_engine(library, self.arch, kind.types):
            lines.append(said)
        if not (library == OURS and origin.is_calibrated):
            lines += self._say_default(result)
        if result.latency_us != result.physics_us:
            lines.append(
                f"Corrected: {result.latency_us / result.physics_us:.3f} times the {time_text(result.physics_us)} of "
                f"the terms, by what timings of such GEMMs on {self._timed(kind.types, result.options, home)} showed "
                "beyond them; correction=False leaves that out."
            )
        lines.append(interval_line(result.low_us, result.high_us))
        if library == HYPOTHETICAL:
            lines.append("No such kernels exist: this is what mixed-input kernels of CUTLASS's kind could do.")
        if library == OURS and not (origin.gpu and has_sms_of(self.arch, origin.gpu)):
            lines.append(
                f"These kernels are compiled for {kernel_target(self.arch)}, and none has ever run on a GPU of this "
                "generation: neither their results nor times were checked there."
            )
        return lines

    def _say_default(self, result: GEMMResult) -> list[str]:
        """Explain why a library is the default for 4-bit weights, and where 16 bits are faster."""
        problem, options = result.problem, _asked(result)
        reason = say_default(self.arch, problem.types, str(options.library))
        if not reason or problem.is_grouped:
            return []
        dense = make_problem(*problem.sizes, default_dtype=problem.input_dtype)
        kind = Kind(dense.types, options._replace(library=default_library(self.arch, dense.types)))
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
        asked, home = RunOptions(**options), (home[0], corrected_as(home[1]))
        near = nearest_corrected(preset_of(self.arch) or self.arch, *home, types, asked, GPU_MODEL_VERSION) or asked
        sibling = coefficients_for(self.arch, *home)[1].gpu or self.arch.name
        where = "this GPU" if sibling == self.arch.name else f"{sibling}, its sibling,"
        where = where if self._is_preset else f"{self.arch.name}, of which this spec is a change,"
        if (near.l2, near.clock) != (asked.l2, asked.clock):
            where += f" with {near.l2} L2 and {near.clock} clock"
        return where

    def changes(self, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
        return spec_changes(self.arch, problem)


def _asked(result: GEMMResult) -> RunOptions:
    """Return the options of a result; that corrections are on goes without saying there."""
    return RunOptions(**{"correction": True} | result.options)


def _load_bytes(rules: LoadRules, problem: GemmProblem) -> int:
    """Return the most bytes that all rows of a problem start on, as its library pads them."""
    for load_bytes, rule in rules:
        if rule.takes(*problem.sizes[1:]):
            return load_bytes
    return 1


@lru_cache(maxsize=_NUM_TYPES)
def _load_rules(sm_arch: str, kind: Kind) -> LoadRules:
    """Return which sizes have rows that start on how many bytes, as the library of a kind pads them."""
    library = library_of(HYPOTHETICAL if kind.options.library in (None, AUTO) else str(kind.options.library))
    return load_rules(kind.types, library.padding(sm_arch, kind.types))


def _spelled(options: RunOptions, family: str) -> FrozenDict[str, Any]:
    """Return options with the library that answers; that corrections are on goes without saying."""
    said = {name: value for name, value in options._asdict().items() if value is not None and value is not True}
    return FrozenDict(said | {"library": library_of_family(said["library"], family)})


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
