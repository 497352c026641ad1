"""A point of a sweep in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gemm_eval.sweep.result import SweepResult

__all__ = ["explain_point"]

_MOST = 5


def explain_point(result: SweepResult, point: int) -> str:
    """See `SweepResult.explain`."""
    row = result.row(point)
    chip = ", ".join(f"{name} {_format_value(row[name])}" for name in result.field_names)
    lines = [f"Point {point}: {row['arch']} with {chip}" if chip else f"Point {point}: {row['arch']}"]
    if row["excluded"]:
        lines.append(f"Excluded: {row['excluded']}")
        if row["excluded"].startswith(("invalid", "unsupported")):  # there is nothing to evaluate
            return "\n".join(lines)
    lines += [f"{name}: {row[name]:,.6g}" for name in result.objectives if _is_known(row[name])]
    of_attention = result.attention(point)
    for workload, table in zip(result.workloads, result.evaluate(point).values(), strict=True):
        counts = np.array([count for _, count in workload.gemms])
        if not table.is_feasible.all():
            lines.append(f"{workload.name}: {int((~table.is_feasible).sum())} of {len(table)} GEMMs do not fit")
            continue
        times = table["latency_us"] * counts
        attention_us = sum(
            count * one.latency_us
            for (_, count), one in zip(workload.attention, of_attention.get(workload.name, ()), strict=True)
        )
        total_us = times.sum() + attention_us
        lines.append(f"{workload.name}: {total_us:,.1f} us")
        if attention_us:
            lines.append(f"  {attention_us / total_us:5.1%}  attention: {attention_us:,.1f} us")
        order = np.argsort(-times, kind="stable")
        for at in order[:_MOST].tolist():
            gemm = table[at]
            lines.append(
                f"  {times[at] / total_us:5.1%}  {workload.gemms[at][1]} x {gemm.problem}: "
                f"{gemm.latency_us:,.1f} us, {gemm.bound}, {gemm.mapping}"
            )
        lines += ["  " + line for line in table[int(order[0])].explain().splitlines()]
    return "\n".join(lines)


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _is_known(value: Any) -> bool:
    return value is not None and not np.isnan(value)
