"""The table of `gemm-eval evaluate` for many GEMMs: a row for each, on each arch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemm_eval.cli.output import format_number, make_console, print_rows
from gemm_eval.cli.shapes import Answer, records
from gemm_eval.units import time_text

__all__ = ["print_shapes", "say_misfits"]

_ARCH, _TYPES, _BOUND, _SOURCE = "arch", "types", "bound", "source"
_SIZES = ("G", "M", "K", "N")
_COSTS = ("time", "TFLOP/s", "of peak", "DRAM GB/s", _BOUND, _SOURCE)
_LEFT = (_ARCH, _TYPES, _BOUND, _SOURCE)
_MISFIT = "does not fit"


def print_shapes(answers: Sequence[Answer]) -> None:
    """Print answers in their order; what all have in common stands above them.

    Where the terminal is too narrow costs follow in further tables, each with the sizes in front.
    """
    cells = [_cells(answer, row) for answer, row in zip(answers, records(answers), strict=True)]
    common = [name for name in (_ARCH, *_SIZES, _TYPES) if len({row[name] for row in cells}) == 1]
    words = [f"{name}={cells[0][name].replace(',', '')}" for name in _SIZES if name in common]  # as others show them
    words += [cells[0][_TYPES]] * (_TYPES in common) + [f"on {cells[0][_ARCH]}"] * (_ARCH in common)
    title = f"{len(cells):,} GEMMs{': ' * bool(words)}{' '.join(words)}"
    keys = [name for name in (_ARCH, *_SIZES, _TYPES) if name not in common]
    print_rows(cells, keys, _COSTS, title=title, left=_LEFT)
    if said := say_misfits(answers):
        make_console().print(f"\n{said}")


def say_misfits(answers: Sequence[Answer]) -> str:
    """Say how many GEMMs do not fit, and why the first does not; an empty text where all do."""
    misfits = [answer for answer in answers if not answer.is_feasible]
    if not misfits:
        return ""
    first = misfits[0]
    return f"{len(misfits):,} of {len(answers):,} do not fit; the first, on {first.arch_name}: {first.why_not}"


def _cells(answer: Answer, row: dict[str, Any]) -> dict[str, str]:
    problem, groups = answer.problem, answer.problem.row_groups
    sizes = dict(zip(_SIZES, (f"{size:,}" for size in problem.sizes), strict=True))
    if groups is not None:
        sizes["M"] = f"{min(groups):,} to {max(groups):,}"
    cells = {_ARCH: answer.arch_name, **sizes, _TYPES: problem.types.inputs}
    if not answer.is_feasible:
        return cells | dict.fromkeys(_COSTS, "-") | {"time": _MISFIT}
    return cells | {
        "time": time_text(row["latency_us"]),
        "TFLOP/s": format_number(row["tflop_per_s"]),
        "of peak": f"{row['utilization_frac']:.1%}",
        "DRAM GB/s": format_number(row["dram_bytes"] / row["latency_us"] / 1e3),
        _BOUND: row["bound"],
        _SOURCE: row["source"],
    }
