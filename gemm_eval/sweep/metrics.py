"""The columns of a sweep: metrics, which way is better, constraints, and the types of all columns."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.sweep.fields import Choices, Dependent
from gemm_eval.sweep.workload import Workload
from gemm_eval.units import per_s, tflop_per_s, watt
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.sweep.space import Space


Column = npt.NDArray[np.float64]

SUMS = ("latency_us", "energy_pj", "dram_bytes")
"""The metrics that are sums over what runs."""

METRICS = (
    "latency_us", "tokens_per_s", "energy_pj", "energy_delay_pj_us", "power_w", "dram_bytes",
    "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w",
)  # fmt: skip
"""The metrics of each workload; energy, and what follows from it, is nan where the spec has no figures."""

MAXIMIZED = {"tokens_per_s", "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w"}
"""Metrics of which more is better."""

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTRAINT = re.compile(r"([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S.*)")
_MAX_CHARS = 200  # of a constraint


def metric_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return the metric columns: those of all workloads together, then of each where there are several."""

    def named(prefix: str, *, has_tokens: bool) -> list[str]:
        return [f"{prefix}{metric}" for metric in METRICS if metric != "tokens_per_s" or has_tokens]

    names = named("", has_tokens=any(load.num_tokens for load in workloads))
    for load in workloads if len(workloads) > 1 else ():
        names += named(f"{load.name}_", has_tokens=bool(load.num_tokens))
    return tuple(names)


def is_maximized(name: str, workloads: Sequence[Workload]) -> bool:
    """Say whether more is better: as the name of the metric says, with or without a workload before it."""
    return name in MAXIMIZED or any(
        name.startswith(f"{load.name}_") and name.removeprefix(f"{load.name}_") in MAXIMIZED for load in workloads
    )


def metric_columns(
    workloads: Sequence[Workload],
    totals: Sequence[Mapping[str, Column]],
    *,
    ideal_us: Sequence[Column],
    area_mm2: Column,
) -> dict[str, Column]:
    """Return all metric columns [num_points], given each workload's `SUMS` and time at its peak."""
    together = {key: add_up(total[key] for total in totals) for key in SUMS}
    columns = _metrics(workloads, together, add_up(ideal_us), area_mm2)
    if len(workloads) > 1:
        for load, total, ideal in zip(workloads, totals, ideal_us, strict=True):
            of_one = _metrics([load], total, ideal, area_mm2)
            columns |= {f"{load.name}_{name}": column for name, column in of_one.items()}
    return columns


def _metrics(
    workloads: Sequence[Workload], total: Mapping[str, Column], ideal_us: Column, area_mm2: Column
) -> dict[str, Column]:
    latency_us, energy_pj = total["latency_us"], total["energy_pj"]
    rate = tflop_per_s(float(sum(load.flop for load in workloads)), latency_us)
    power_w = watt(energy_pj, latency_us)
    return {
        **total,
        "tokens_per_s": per_s(sum(load.num_tokens or 0 for load in workloads), latency_us),
        "energy_delay_pj_us": energy_pj * latency_us,
        "power_w": power_w,
        "tflop_per_s": rate,
        "utilization_frac": ideal_us / latency_us,
        "tflop_per_s_per_mm2": rate / area_mm2,
        "tflop_per_s_per_w": rate / power_w,
    }


def add_up(columns: Iterable[Column]) -> Column:
    """Sum in the order given, point by point: the same to the bit however many points there are."""
    return reduce(operator.add, columns)


@dataclass(frozen=True)
class Constraint:
    """A condition on a column: ``Constraint("area_mm2", "<=", 800)``, or ``"area_mm2 <= 800"``."""

    column: str
    sign: str
    limit: float

    def __post_init__(self) -> None:
        if self.sign not in _SIGNS:
            raise InvalidOptionError(f"a constraint compares with {', '.join(_SIGNS)}, got {shown(self.sign)}")
        limit = self.limit.item() if isinstance(self.limit, np.number) else self.limit
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not abs(limit) <= math.inf:
            raise InvalidOptionError(f"the limit of a constraint on {self.column} must be a number, got {shown(limit)}")
        object.__setattr__(self, "limit", limit)

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {_format_limit(self.limit)}"

    def violated(self, value: Any) -> str:
        """Return why a value breaks it, or nothing; what is not known breaks it too."""
        if value is None or value != value:  # noqa: PLR0124  nan
            return f"{self.column} is not known, and must be {self.sign} {_format_limit(self.limit)}"
        if _SIGNS[self.sign](value, self.limit):
            return ""
        return f"{self.column} = {value:.6g}, not {self.sign} {_format_limit(self.limit)}"


def _format_limit(limit: float) -> str:
    text = f"{limit:g}"
    return text if float(text) == limit else repr(limit)


def as_constraints(constraints: Any) -> tuple[Constraint, ...]:
    """Read constraints: one or several, as `Constraint` or text such as ``"area_mm2 <= 800"``."""
    if isinstance(constraints, str | Constraint):
        constraints = [constraints]
    if not isinstance(constraints, Iterable):
        raise InvalidOptionError(f"constraints are a list of conditions, 'area_mm2 <= 800', got {shown(constraints)}")
    return tuple(limit if isinstance(limit, Constraint) else _parsed(limit) for limit in constraints)


def _parsed(text: Any) -> Constraint:
    match = _CONSTRAINT.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= _MAX_CHARS else None
    try:
        limit = float(match[3].replace("_", "")) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or math.isnan(limit):
        raise InvalidOptionError(f"a constraint is a column, a sign and a number, 'area_mm2 <= 800', got {shown(text)}")
    return Constraint(match[1], match[2], limit)


_ARROW = {"whole": "int64", "number": "float64", "truth": "bool", "text": "string", "json": "string"}


def import_pyarrow() -> Any:
    """Return pyarrow."""
    with needs_extra("a sweep", "sweep"):
        import pyarrow as pa
        import pyarrow.parquet
    return pa


class Schema:
    """Columns of a sweep by name, each with its kind: whole, number, truth, text, or json for anything else."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = dict(kinds)

    def arrow(self) -> Any:
        """Return it as pyarrow has it."""
        pa = import_pyarrow()
        return pa.schema([(name, pa.type_for_alias(_ARROW[kind])) for name, kind in self.kinds.items()])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return a pyarrow Table of these columns."""
        pa = import_pyarrow()
        schema = self.arrow()
        arrays = []
        for name, kind in self.kinds.items():
            values = columns[name]
            if not isinstance(values, np.ndarray):
                values = [_PLAIN[kind](value) for value in values]
            arrays.append(pa.array(values, schema.field(name).type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def plain(self, name: str, value: Any) -> Any:
        """Return a value of a column as a field of a spec has it."""
        return json.loads(value) if self.kinds[name] == "json" and isinstance(value, str) else value


def make_schema(space: Space, workloads: Sequence[Workload], first_rows: Sequence[tuple[Any, ...]]) -> Schema:
    """Return the columns of a sweep; the choices of some points show what a dependent variable is."""
    points = [space.values(row)[0] for row in first_rows]
    kinds = {"point": "whole"}
    for name in space.names:
        field = space.variables.get(name)
        if field is None:
            kinds[name] = space.kinds.get(name, "text")  # the base arch
        elif isinstance(field, Choices):
            kinds[name] = _kind_of(field.values)
        elif isinstance(field, Dependent):
            kind = _kind_of([point[name] for point in points])
            kinds[name] = "number" if kind == "whole" else kind  # another point's may have a fraction
        else:
            kinds[name] = "whole" if field.is_whole else "number"
    kinds.setdefault("area_mm2", "number")
    metrics = metric_names(workloads)
    clash = sorted(set(kinds) & {*metrics, "excluded"}) or sorted({name for name in metrics if metrics.count(name) > 1})
    if clash:
        raise InvalidOptionError(
            f"columns need names of their own; variables or workloads make a second {', '.join(clash)}"
        )
    return Schema(kinds | dict.fromkeys(metrics, "number") | {"excluded": "text"})


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number else None
    except OverflowError:
        return None


# a value that a field cannot have, 8.5 cores, is none in the table; why the point is excluded tells it
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "whole": _whole,
    "number": _number,
    "json": lambda value: json.dumps(value, sort_keys=True, default=lambda of: of.item()),
    "truth": lambda value: value if isinstance(value, bool) else None,
    "text": lambda value: str(value) if isinstance(value, str) else None,
}


_TYPES: tuple[tuple[str, set[type]], ...] = (("truth", {bool}), ("whole", {int}), ("number", {int, float}))


def _kind_of(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "number"
    types = {type(value) for value in known}
    text = "text" if all(isinstance(value, str) for value in known) else "json"
    return next((kind for kind, allowed in _TYPES if types <= allowed), text)
