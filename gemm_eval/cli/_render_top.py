"""The table of `gemm-eval top`: a ranking, and in words what each mapping does differently from the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from gemm_eval.arch import MulticoreSpec
from gemm_eval.cli._output import format_change, format_number, format_term, make_console, make_table, widest
from gemm_eval.evaluate import GEMMResult

__all__ = ["describe_difference", "print_top"]

_MIN_TIME_FRAC = 1e-5  # a term whose time grows by less of the latency explains nothing

_MIN_WORDS_WIDTH = 28  # of the last column, whose words wrap


class _Column(NamedTuple):
    header: str
    cells: list[str]


def print_top(arch: MulticoreSpec, results: Sequence[GEMMResult]) -> None:
    """Print a ranking, best first, one line for each mapping, or a stack of lines where the terminal is narrow."""
    console = make_console()
    best = results[0]
    title = f"{best.problem} on {arch.name}"
    groups = _column_groups(arch, results)
    columns = [column for group in groups for column in group]
    if widest(console, _table(columns[:-1], title)) + _MIN_WORDS_WIDTH <= console.width:
        table = _table(columns, title)
    else:
        table = _table([_stacked(group) for group in groups], title)
        table.show_lines = True
    console.print(table)
    console.print()
    console.print(f"Partition of G,M,N,K over {arch.num_cores} cores; tile m x n x k; differences are to the best.")


def describe_difference(best: GEMMResult, other: GEMMResult) -> str:
    """Say which choices differ from those of `best`, and what that does to DRAM traffic, time and bound."""
    a, b = best.mapping, other.mapping
    choices = [
        name
        for name, differs in (
            ("partition", a.partition != b.partition),
            ("tile", a.tile != b.tile),
            ("loop order", a.loop_order != b.loop_order),
        )
        if differs
    ]
    parts = [", ".join(choices) or "nothing"]
    if other.active_cores != best.active_cores:
        change = other.active_cores - best.active_cores
        parts.append(f"{abs(change)} {'more' if change > 0 else 'fewer'} active cores")
    for word, sign in (("more", 1), ("less", -1)):
        terms = [format_term(name) for name, count in other.traffic.items() if sign * (count - best.traffic[name]) > 0]
        if terms:
            parts.append(f"{word} DRAM traffic: {', '.join(terms)}")
    name, growth_us = _largest_growth(best, other)
    if growth_us > _MIN_TIME_FRAC * best.latency_us:
        parts.append(f"{format_term(name)} +{format_number(growth_us)} us")
    if other.bound != best.bound:
        parts.append(f"bound by {other.bound}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "same cost"])


def _largest_growth(best: GEMMResult, other: GEMMResult) -> tuple[str, float]:
    """Return the term whose time grows most, DRAM traffic aside: that is told in bytes."""
    growth = {
        name: us - best.breakdown[name]
        for name, us in other.breakdown.items()
        if not name.startswith("dram_") and name != "hidden_us"
    }
    name = max(growth, key=lambda key: growth[key])
    return name, growth[name]


def _column_groups(arch: MulticoreSpec, results: Sequence[GEMMResult]) -> list[list[_Column]]:
    best = results[0]
    return [
        [_Column("#", [str(rank) for rank in range(1, len(results) + 1)])],
        [
            _Column("latency us", [format_number(r.latency_us) for r in results]),
            _Column("vs best", [format_change(r.latency_us, best.latency_us) for r in results]),
        ],
        [
            _Column("partition", [",".join(map(str, r.mapping.partition)) for r in results]),
            _Column("tile", ["x".join(map(str, r.mapping.tile)) for r in results]),
            _Column("order", [r.mapping.loop_order.name.lower() for r in results]),
        ],
        [
            _Column("cores", [f"{r.active_cores} of {arch.num_cores}" for r in results]),
            _Column("bound", [r.bound for r in results]),
        ],
        [
            _Column("DRAM bytes", [f"{r.dram_bytes:,}" for r in results]),
            _Column("vs best", [format_change(r.dram_bytes, best.dram_bytes) for r in results]),
            _Column("SRAM bytes", [f"{r.sram_used_bytes:,}" for r in results]),
        ],
        [
            _Column(
                "differs in",
                ["best", *(describe_difference(best, result) for result in results[1:])],
            )
        ],
    ]


def _stacked(group: Sequence[_Column]) -> _Column:
    header = "\n".join(column.header for column in group)
    return _Column(header, ["\n".join(cells) for cells in zip(*(column.cells for column in group), strict=True)])


def _table(columns: Sequence[_Column], title: str) -> Table:
    headers = [column.header for column in columns]
    table = make_table(
        headers, title=title, right=[header for header in headers if not header.endswith(("order", "bound", " in"))]
    )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table
