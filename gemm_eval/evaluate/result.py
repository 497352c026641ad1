"""`Result`, the base of all answers, and `GEMMResult`: its explanation, its page in a notebook, and JSON schemas."""

from __future__ import annotations

import contextlib
import enum
import inspect
import os
import statistics
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Union, get_args, get_origin

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate.backend import Backend, Kind, make_backend
from gemm_eval.evaluate.interval import CORRECTION
from gemm_eval.frozen import FrozenDict
from gemm_eval.units import FLOP_PER_MAC, pj_per_us, tflop_per_s, time_text
from gemm_eval.words import MAX_ROWS, html_table, value_rows
from gemm_eval.workload import GemmProblem, RunOptions

if TYPE_CHECKING:
    import numpy as np

    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate.batch import GEMMTable
    from gemm_eval.evaluate.evaluator import GEMMEvaluator
    from gemm_eval.mapping import KernelConfig, MulticoreMapping


class Result:
    """The predicted time of one operation on an arch.

    Each has `arch_name`, `latency_us`, the ends `low_us` and `high_us` of the interval that holds 80% of measured times
    (MODEL.md, "Intervals"), its `breakdown` by term (microseconds that add up to it), the `bound` that limits it, and
    the `source` of its numbers: ``corrected`` or ``calibrated`` where coefficients were fitted on timings of this very
    chip, with or without what these showed beyond the terms (`correction_us`, of either sign); else ``analytic``.
    """

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ()  # properties that `to_dict` has beside the fields
    _derived_before: ClassVar[str] = ""  # the field that they stand before; empty: at the end

    @classmethod
    def plain_fields(cls) -> list[str]:
        """Return the names of what `to_dict` has."""
        names = [item.name for item in fields(cls) if item.init and not item.name.startswith("_")]  # type: ignore[arg-type]
        place = names.index(cls._derived_before) if cls._derived_before else len(names)
        return [*names[:place], *cls._derived, *names[place:]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for JSON."""
        return {name: as_plain(getattr(self, name)) for name in self.plain_fields()}

    def _repr_html_(self) -> str:
        return html_table(repr(self), value_rows(self.to_dict()))


def as_plain(value: Any) -> Any:
    """Return a value of a result as JSON has it: enums by name, tuples with names as dicts."""
    if isinstance(value, GemmProblem):
        groups = None if value.row_groups is None else list(value.row_groups)
        words = {name: as_plain(word) for name, word in value.types.words.items()}
        return dict(zip("GMKN", value.sizes, strict=True)) | {"row_groups": groups} | words
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, enum.IntEnum):
        return value.name
    if is_dataclass(value):
        return {item.name: as_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        if hasattr(value, "_asdict"):
            return {name: as_plain(item) for name, item in value._asdict().items()}
        return list(map(as_plain, value))
    if isinstance(value, str):
        return str(value)
    return dict(value) if isinstance(value, dict) else value


def term_lines(breakdown: Mapping[str, float], meanings: Mapping[str, str], least_us: float = 0.0) -> list[str]:
    """Return a line of text for each term that takes `least_us` or more: its name, its time, what it goes to."""
    return [
        f"  {name.removesuffix('_us'):8} {time_text(us):>9}  {meanings.get(name, '')}"
        for name, us in breakdown.items()
        if abs(us) >= least_us
    ]


class ResultOrigin:
    """A cost model with its search, and the options to make an evaluator with: what it takes to explain a result.

    What an evaluator remembers is no part of it: who keeps one result does not keep all others of its evaluator.

    Args:
        arch: the architecture.
        settings: the other arguments of `GEMMEvaluator`, by name; not to be changed.
    """

    __slots__ = ("_changed", "_settings", "backend")

    def __init__(self, arch: ArchSpec, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._changed: dict[str, Backend | None] = {}
        self.backend = self._backend_of(arch)

    def __reduce__(self) -> tuple[Any, ...]:
        return ResultOrigin, (self.arch, self._settings)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self.backend.arch

    def make_result(self, problem: GemmProblem, kind: Kind, record: np.void, *, is_found: bool) -> GEMMResult:
        """Turn a record into a result; `is_found` by a search, or replayed."""
        result = object.__new__(GEMMResult)
        vars(result).update(
            problem=problem, latency_us=float(record["latency_us"]), _origin=self, _found=(kind, record, is_found)
        )
        return result

    def on(self, arch: ArchSpec | str | os.PathLike[str]) -> GEMMEvaluator:
        """Return an evaluator with the same options for an arch, which remembers nothing yet."""
        from gemm_eval.evaluate.evaluator import GEMMEvaluator

        return GEMMEvaluator(arch, **self._settings)

    def changed(self, name: str, changes: Mapping[str, Any]) -> Backend | None:
        """Return the backend for the arch after a named change; None: the change makes no valid spec."""
        if name not in self._changed:
            try:
                self._changed[name] = self._backend_of(self.arch.with_(**changes))
            except GemmEvalError:
                self._changed[name] = None
        return self._changed[name]

    def _backend_of(self, arch: ArchSpec) -> Backend:
        options = {name: self._settings[name] for name in ("allow_idle_cores", "policy")}
        return make_backend(arch, **options)


_MIN_GAIN_FRAC = 0.005
_NUM_LEVERS_SHOWN = 3
_WORDS = {"dram": "DRAM", "noc": "NoC", "l2": "L2", "smem": "shared memory", "a": "A", "b": "B", "c": "C",
          "hidden": "hidden by overlap"}  # fmt: skip


class Lever(NamedTuple):
    """A change of the spec and the time of a GEMM with it, the mapping being searched anew."""

    change: str
    latency_us: float
    gain_frac: float  # share of the latency that it saves


def rank_levers(result: GEMMResult, origin: ResultOrigin) -> list[Lever]:
    """Evaluate the GEMM on a dozen changed archs, most helpful change first.

    A changed arch has the correction of this one as a factor, of itself (GPUs) or here (multi-core chips), so only the
    model tells the two apart.
    """
    levers, kind, is_chip = [], result.kind, isinstance(origin.arch, MulticoreSpec)
    for text, changes in origin.backend.changes(result.problem):
        backend = origin.changed(text, changes)
        if backend is None:  # a change that takes the spec out of its range helps nobody
            continue
        try:
            record = backend.find(result.problem, backend.pack(kind))[0]
        except GemmEvalError:
            continue
        is_carried = is_chip and record[CORRECTION] == 0.0
        latency_us = float(record["latency_us"]) * (result.latency_us / result.physics_us if is_carried else 1.0)
        levers.append(Lever(text, latency_us, 1.0 - latency_us / result.latency_us))
    return sorted(levers, key=lambda lever: (-lever.gain_frac, lever.change))


def explain_result(result: GEMMResult, origin: ResultOrigin) -> str:
    """Return the text of `GEMMResult.explain`."""
    arch, backend = origin.arch, origin.backend
    shown_us = {term: us for term, us in result.breakdown.items() if abs(us) >= 0.005}
    lines = [
        f"{result.problem} on {arch.name}: {time_text(result.latency_us)}, {result.tflop_per_s:,.1f} TFLOP/s "
        f"({result.utilization_frac:.0%} of peak), bound by {backend.bounds[result.bound]}.",
        *say_groups(result.problem),
        *backend.say_mapping(result),
        "Time: " + ", ".join(f"{_words(name)} {time_text(us)}" for name, us in shown_us.items()),
        f"DRAM: {result.dram_bytes / 1e6:,.2f} MB, {_say_share(result)}, "
        f"at {result.dram_gb_per_s:,.0f} of {arch.dram_gb_per_s:,.0f} GB/s.",
        *_say_energy(result, arch),
    ]
    levers = [lever for lever in rank_levers(result, origin) if lever.gain_frac >= _MIN_GAIN_FRAC]
    if levers:
        shown = [f"{lever.change}: {time_text(lever.latency_us)} (-{lever.gain_frac:.0%})" for lever in levers]
        lines.append("Would help most: " + "; ".join(shown[:_NUM_LEVERS_SHOWN]) + ".")
    else:
        lines.append("No single doubling of the spec saves more than 0.5%.")
    return "\n".join([*lines, *backend.say_source(result)])


def _say_share(result: GEMMResult) -> str:
    """Compare DRAM traffic with A, B and C, of which L2 may have some from the kernel before."""
    share = result.dram_bytes / result.problem.compulsory_bytes
    if share < 1.0:
        return f"{share:.1%} of A, B and C: L2 has the rest"
    return f"{share:.2f}x the compulsory traffic"


def _say_energy(result: GEMMResult, arch: ArchSpec) -> list[str]:
    """Say the energy of a GEMM and what it goes to; no line where the spec gives no energies."""
    if result.energy_pj is None or not isinstance(arch, MulticoreSpec):
        return []
    parts = {
        "MACs": result.problem.flop / FLOP_PER_MAC * arch.mac_pj.get(result.problem.types.a.dtype, 0.0),
        "DRAM": result.dram_bytes * (arch.dram_pj_per_byte or 0.0),
        "static": result.physics_us * pj_per_us(arch.static_w),
    }
    parts["SRAM and NoC"] = result.energy_pj - sum(parts.values())
    shares = ", ".join(f"{name} {pj / result.energy_pj:.0%}" for name, pj in parts.items() if pj > 0)
    return [f"Energy: {result.energy_pj / 1e6:,.1f} uJ: {shares}."]


def say_groups(problem: GemmProblem) -> list[str]:
    """Describe how the rows of a grouped GEMM lie in its groups; no line for others."""
    groups = problem.row_groups
    if groups is None:
        return []
    num_empty = groups.count(0)
    empty = f"; {num_empty:,} {'has' if num_empty == 1 else 'have'} none" if num_empty else ""
    return [
        f"Groups: {problem.rows:,} rows in {len(groups):,} groups of {min(groups):,} to {max(groups):,}, "
        f"{statistics.median(groups):,g} in the median{empty}."
    ]


def _words(term: str) -> str:
    return " ".join(_WORDS.get(word, word) for word in term.removesuffix("_us").split("_"))


_HEADERS = ("GEMM", "latency", "80% interval", "of peak", "bound", "mapping", "source")
_KERNEL_HEADERS = tuple("kernel" if name == "mapping" else name for name in _HEADERS)
_NOT_KNOWN = "-"
_DOES_NOT_FIT = "does not fit"


def result_html(result: GEMMResult) -> str:
    """Return a result as a table, a line for each figure."""
    problem, *cells = _cells(result)
    options = ", ".join(
        option if isinstance(option, str) else f"{name} {option}" for name, option in result.options.items()
    )
    figures = zip(_headers(result.arch.type)[1:], cells, strict=True)
    return html_table(f"{problem} on {result.arch_name}{f', {options}' if options else ''}", figures)


def table_html(table: GEMMTable) -> str:
    """Return the first rows of a table of results, and how many more there are."""
    arch = table.evaluator.arch
    num_shown, rows = min(len(table), MAX_ROWS), []
    for row in range(num_shown):
        if table.is_feasible[row]:
            cells = _cells(table[row])
        else:
            cells = [str(table.problem(row)), _DOES_NOT_FIT, *[_NOT_KNOWN] * (len(_HEADERS) - 2)]
        rows.append(cells)
    more = f", the first {num_shown:,} of them" if num_shown < len(table) else ""
    caption = f"{len(table):,} GEMM{'' if len(table) == 1 else 's'} on {arch.name}{more}"
    return html_table(caption, rows, _headers(arch.type))


def _headers(arch_type: str) -> Sequence[str]:
    return _KERNEL_HEADERS if arch_type == "gpu" else _HEADERS


def _cells(result: GEMMResult) -> list[str]:
    """Return what stands under `_HEADERS`."""
    interval = f"{time_text(result.low_us)} to {time_text(result.high_us)}"
    return [
        str(result.problem), time_text(result.latency_us), interval, f"{result.utilization_frac:.1%}", result.bound,
        str(result.mapping), result.source,
    ]  # fmt: skip


@dataclass(frozen=True)
class GEMMResult(Result):
    """The best mapping of a GEMM on an arch (or a mapping that the user gave), its cost, and why.

    Times are in microseconds.

    Attributes:
        latency_us: time of the whole GEMM.
        physics_us: by the terms of the model alone, before what timings showed beyond them is added; `latency_us` where
            nothing is corrected.
        low_us, high_us: the interval around `latency_us` that holds 80% of measured times, by what was held out of
            fits; 2/3 to 3/2 of the latency where nothing was fitted, on multi-core chips half to twice.
        compute_us: time that the compute units of the slowest core (GPU: the tensor cores) need, overlap left aside.
        dram_us: time that DRAM needs for the slowest core (GPU: for all), overlap left aside.
        dram_bytes: DRAM traffic of the whole chip, reads and writes.
        utilization_frac: achieved over the highest FLOP/s of the whole chip, for the input type: at most 1.
        bound: what limits: ``compute`` (matrix unit), ``vector``, ``dram``, ``noc``, ``reduction`` or ``launch``; on a
            GPU ``compute``, ``dequant``, ``latency``, ``l2``, ``dram``, ``reduction``, ``launch`` or ``store``.
        breakdown: microseconds by term; they add up to `latency_us`. `hidden_us` is negative: what overlaps;
            `correction_us`, on GPUs, has either sign.
        traffic: DRAM bytes by operand; they add up to `dram_bytes`.
        energy_pj: energy in picojoules, or None when the arch gives no figures.
        sram_used_bytes: SRAM of one core that the tiles occupy, buffers included; on a GPU the shared memory of one SM
            that its CTAs occupy.
        active_cores: cores that have work; on a GPU SMs.
        options: what was asked besides the problem: library, l2 and clock on a GPU, and correction where it was turned
            off; nothing on a multi-core chip.
        source: where the numbers come from: ``analytic``, ``calibrated``, ``corrected`` (calibrated, and what timings
            showed beyond the terms added) or ``measured``.
        is_exhaustive: the mapping is the best of its whole space (False for a mapping that the user gave).
        num_candidates: mappings whose cost was computed; bounds dismissed the rest.
        num_refused: choices dismissed, by reason.
    """

    problem: GemmProblem
    arch_name: str
    latency_us: float
    physics_us: float
    low_us: float
    high_us: float
    compute_us: float
    dram_us: float
    flop: int
    dram_bytes: int
    utilization_frac: float
    bound: str
    mapping: MulticoreMapping | KernelConfig
    breakdown: FrozenDict[str, float]
    traffic: FrozenDict[str, int]
    energy_pj: float | None
    sram_used_bytes: int
    active_cores: int
    options: FrozenDict[str, Any]
    source: str
    model_version: str
    is_exhaustive: bool
    num_candidates: int
    num_refused: FrozenDict[str, int]
    _origin: ResultOrigin = field(repr=False, compare=False)
    _derived: ClassVar = ("tflop_per_s", "dram_gb_per_s")

    if not TYPE_CHECKING:  # for mypy, every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            """Make the fields that a result does not have yet, when the first of them is read."""
            if name not in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            values = vars(self)
            values.update(self._origin.backend.result_fields(self.problem, *values["_found"]))
            return values[name]

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __repr__(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return (
            f"<GEMMResult {self.problem} on {self.arch_name}{options}: {self.latency_us:.4g} us, bound {self.bound}, "
            f"{self.source}>"
        )

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self._origin.arch

    @property
    def backend(self) -> Backend:
        """The cost model and search behind it."""
        return self._origin.backend

    @property
    def kind(self) -> Kind:
        """The data types and options that this answer is for, defaults filled in."""
        return Kind(self.problem.types, RunOptions(**{"correction": True} | self.options))

    @property
    def evaluator(self) -> GEMMEvaluator:
        """A new evaluator with the arch and options of the one that made it."""
        return self._origin.on(self.arch)

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    @property
    def dram_gb_per_s(self) -> float:
        """Achieved DRAM bandwidth in 1e9 bytes/s."""
        return self.dram_bytes / self.latency_us / 1e3

    def explain(self) -> str:
        """Return a short text: what bounds this GEMM, where the time goes, which spec change would help most."""
        return explain_result(self, self._origin)


DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of JSON Schema that schemas are written in."""

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def answer_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of values of a type, as `to_dict` and `--json` write them.

    >>> answer_schema(tuple[float, ...] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'number'}}, {'type': 'null'}]}

    A result has its fields and the properties that `to_dict` adds. Mappings, specs and engines are objects; a type that
    is not known allows any value.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [answer_schema(item) for item in args]}
    if origin is tuple:
        of_items = answer_schema(args[0]) if args[-1] is Ellipsis else {"anyOf": list(map(answer_schema, args))}
        return {"type": "array", "items": of_items}
    if isinstance(origin, type) and issubclass(origin, dict):
        return {"type": "object", "additionalProperties": answer_schema(args[1])}
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, str):
        return {"type": "string"}
    names = _names(kind)
    if not names:
        return {"type": "object", "title": kind.__name__} if hasattr(kind, "to_dict") or is_dataclass(kind) else {}
    properties = {name: answer_schema(_hint(kind, name)) for name in names}
    required = [name for name in names if name not in getattr(kind, "optional_names", ())]
    return {"type": "object", "title": kind.__name__, "properties": properties, "required": required}


def _names(kind: type) -> tuple[str, ...]:
    """Return what the dict of a value has: fields and properties of a result, else `plain_names`, else all fields."""
    if issubclass(kind, Result):
        return tuple(kind.plain_fields())
    if hasattr(kind, "to_dict") or kind is GemmProblem:
        return tuple(getattr(kind, "plain_names", ()))
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else getattr(kind, "_fields", ())


def _hint(kind: type, name: str) -> Any:
    """Return the type of a field or a property; any value where its module does not import the type."""
    for base in kind.__mro__:
        value: Any = vars(base).get(name)
        is_property = isinstance(value, property)
        text: Any = inspect.get_annotations(value.fget if is_property else base).get("return" if is_property else name)
        if text is not None:
            with contextlib.suppress(NameError):
                return eval(text, vars(sys.modules[base.__module__])) if isinstance(text, str) else text
    return Any
