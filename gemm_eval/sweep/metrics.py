"""The columns of a sweep that say how good a point is, and which way is better."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.workload import Workload
from gemm_eval.units import per_s, tflop_per_s, watt
from gemm_eval.words import shown

__all__ = [
    "MAXIMIZED",
    "METRICS",
    "Constraint",
    "add_up",
    "as_constraints",
    "is_maximized",
    "metric_columns",
    "metric_names",
]

Column = npt.NDArray[np.float64]

METRICS = (
    "latency_us", "tokens_per_s", "energy_pj", "energy_delay_pj_us", "power_w", "dram_bytes",
    "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w",
)  # fmt: skip
"""What is known of each workload; energy, and what follows from it, is nan where the spec has no figures."""

MAXIMIZED = {"tokens_per_s", "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w"}
"""Metrics of which more is better."""

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTRAINT = re.compile(r"([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S.*)")
_MAX_CHARS = 200  # of a constraint


def metric_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return the metric columns: those of all workloads together, then of each where there are several."""
    names = list(METRICS) if any(one.num_tokens for one in workloads) else [m for m in METRICS if m != "tokens_per_s"]
    if len(workloads) > 1:
        for one in workloads:
            names += [f"{one.name}_{metric}" for metric in METRICS if metric != "tokens_per_s" or one.num_tokens]
    return tuple(names)


def is_maximized(name: str, workloads: Sequence[Workload]) -> bool:
    """Say whether more is better: as the name of the metric says, with or without a workload before it."""
    return name in MAXIMIZED or any(
        name.startswith(f"{one.name}_") and name.removeprefix(f"{one.name}_") in MAXIMIZED for one in workloads
    )


def metric_columns(
    workloads: Sequence[Workload],
    totals: Sequence[Mapping[str, Column]],
    *,
    ideal_us: Sequence[Column],
    area_mm2: Column,
) -> dict[str, Column]:
    """Return all metric columns of some points.

    Args:
        workloads: what runs.
        totals: of each workload, the sums [num_points] of latency_us, energy_pj and dram_bytes.
        ideal_us: of each workload, [num_points], the time that it would take at the peak of its types.
        area_mm2: [num_points], nan where it is not known.
    """
    sums = {key: add_up(total[key] for total in totals) for key in ("latency_us", "energy_pj", "dram_bytes")}
    flop = float(sum(one.flop for one in workloads))
    tokens = sum(one.num_tokens or 0 for one in workloads)
    columns = _metrics(sums, flop, add_up(ideal_us), area_mm2, tokens, "")
    if len(workloads) > 1:
        for one, total, ideal in zip(workloads, totals, ideal_us, strict=True):
            columns |= _metrics(total, float(one.flop), ideal, area_mm2, one.num_tokens or 0, f"{one.name}_")
    return columns


def _metrics(
    total: Mapping[str, Column], flop: float, ideal_us: Column, area_mm2: Column, tokens: int, prefix: str
) -> dict[str, Column]:  # fmt: skip
    latency_us, energy_pj = total["latency_us"], total["energy_pj"]
    rate = tflop_per_s(flop, latency_us)
    power_w = watt(energy_pj, latency_us)
    columns = {
        "latency_us": latency_us,
        "energy_pj": energy_pj,
        "energy_delay_pj_us": energy_pj * latency_us,
        "power_w": power_w,
        "dram_bytes": total["dram_bytes"],
        "tflop_per_s": rate,
        "utilization_frac": ideal_us / latency_us,
        "tflop_per_s_per_mm2": rate / area_mm2,
        "tflop_per_s_per_w": rate / power_w,
    }
    if tokens:
        columns["tokens_per_s"] = per_s(tokens, latency_us)
    return {prefix + name: columns[name] for name in METRICS if name in columns}


def add_up(columns: Iterable[Column]) -> Column:
    """Sum in the order given, point by point: the same to the bit however many points there are."""
    total: Column | None = None
    for column in columns:
        total = column.copy() if total is None else total + column
    assert total is not None
    return total


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
    """Read constraints: one or several, as `Constraint` or text such as ``"area_mm2 <= 800"``.

    Raises:
        InvalidOptionError: a text is no such condition.
    """
    if isinstance(constraints, str | Constraint):
        constraints = [constraints]
    if not isinstance(constraints, Iterable):
        raise InvalidOptionError(f"constraints are a list of conditions, 'area_mm2 <= 800', got {shown(constraints)}")
    found = []
    for one in constraints:
        if isinstance(one, Constraint):
            found.append(one)
            continue
        match = _CONSTRAINT.fullmatch(one.strip()) if isinstance(one, str) and len(one) <= _MAX_CHARS else None
        try:
            limit = float(match[3].replace("_", "")) if match else float("nan")
        except ValueError:
            limit = float("nan")
        if match is None or limit != limit:  # noqa: PLR0124
            raise InvalidOptionError(
                f"a constraint is a column, a sign and a number, 'area_mm2 <= 800', got {shown(one)}"
            )
        found.append(Constraint(match[1], match[2], limit))
    return tuple(found)
