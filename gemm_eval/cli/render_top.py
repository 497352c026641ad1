"""The table of `gemm-eval top`: a ranking, and in words what each mapping does differently from the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.cli.output import (
    format_change,
    format_decomposition,
    format_raster,
    format_term,
    make_console,
    make_table,
    print_blocks,
    widest,
)
from gemm_eval.evaluate import GEMMResult
from gemm_eval.mapping import KernelConfig, MulticoreMapping
from gemm_eval.units import time_text

__all__ = ["describe_difference", "print_top"]

_MIN_TIME_FRAC = 1e-5  # a term whose time grows by less of the latency explains nothing

_LEFT = ("order", "bound", " in", "schedule", "raster")  # last words of the headers of columns of words

_MIN_WORDS_WIDTH = 28  # of the last column, whose words wrap


class _Column(NamedTuple):
    header: str
    cells: list[str]


def print_top(arch: ArchSpec, results: Sequence[GEMMResult]) -> None:
    """Print a ranking, best first, one line for each mapping, or a stack of lines where the terminal is narrow.

    Where the words of the last column have no room beside the stacks either, they follow in a table of their own.
    """
    console = make_console()
    best = results[0]
    title = f"{best.problem} on {arch.name}"
    groups = _column_groups(arch, results)
    columns = [column for group in groups for column in group]
    if widest(console, _table(columns[:-1], title)) + _MIN_WORDS_WIDTH <= console.width:
        console.print(_table(columns, title))
    else:
        _print_stacks([_stacked(group) for group in groups], title)
    console.print()
    if isinstance(arch, MulticoreSpec):
        what = f"Partition of G,M,N,K over {arch.num_cores} cores; tile m x n x k"
    else:
        what = "CTA tile m x n x k; cluster m x n; " + ", ".join(best.options.values())
    console.print(f"{what}; differences are to the best.")


def _print_stacks(columns: Sequence[_Column], title: str) -> None:
    def lined(some: Sequence[_Column]) -> Table:
        table = _table(some, title)
        table.show_lines = True
        return table

    console = make_console()
    rank, *others, words = columns
    if widest(console, lined([rank, *others])) + _MIN_WORDS_WIDTH <= console.width:
        console.print(lined(columns))
        return
    print_blocks(others, lambda some: lined([rank, *some]))
    console.print()
    console.print(_table([rank, words], None))


def describe_difference(best: GEMMResult, other: GEMMResult) -> str:
    """Say which choices differ from those of `best`, and what that does to DRAM traffic, time and bound."""
    a, b = _choices(best.mapping), _choices(other.mapping)
    choices = [name for name, choice in a.items() if b[name] != choice]
    parts = [", ".join(choices) or "nothing"]
    if other.active_cores != best.active_cores:
        change = other.active_cores - best.active_cores
        noun = "SMs" if isinstance(best.mapping, KernelConfig) else "cores"
        parts.append(f"{abs(change)} {'more' if change > 0 else 'fewer'} active {noun}")
    for word, sign in (("more", 1), ("less", -1)):
        terms = [
            format_term(name) for name, count in other.traffic.items() if sign * (count - best.traffic.get(name, 0)) > 0
        ]
        if terms:
            parts.append(f"{word} DRAM traffic: {', '.join(terms)}")
    name, growth_us = _largest_growth(best, other)
    if growth_us > _MIN_TIME_FRAC * best.latency_us:
        parts.append(f"{format_term(name)} +{time_text(growth_us)}")
    if other.bound != best.bound:
        parts.append(f"bound by {other.bound}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "same cost"])


def _largest_growth(best: GEMMResult, other: GEMMResult) -> tuple[str, float]:
    """Return the term whose time grows most, DRAM traffic aside: that is told in bytes."""
    growth = {
        name: us - best.breakdown.get(name, 0.0)
        for name, us in other.breakdown.items()
        if not name.startswith("dram_") and name != "hidden_us"
    }
    name = max(growth, key=lambda key: growth[key])
    return name, growth[name]


def _choices(mapping: MulticoreMapping | KernelConfig) -> dict[str, object]:
    """What a mapping chooses, by a short name."""
    if isinstance(mapping, MulticoreMapping):
        return {"partition": mapping.partition, "tile": mapping.tile, "loop order": mapping.loop_order}
    return {
        "kernel": mapping.family,
        "CTA tile": mapping[1:4],
        "cluster": (mapping.cluster_m, mapping.cluster_n),
        "warps": mapping.num_warps,
        "stages": mapping.num_stages,
        "schedule": mapping.schedule,
        "split of K": (mapping.decomposition, mapping.split_k),
        "raster": (mapping.raster_order, mapping.raster_swizzle),
    }


def _column_groups(arch: ArchSpec, results: Sequence[GEMMResult]) -> list[list[_Column]]:
    best = results[0]
    is_multicore = isinstance(arch, MulticoreSpec)
    count = arch.num_cores if isinstance(arch, MulticoreSpec) else arch.num_sms
    return [
        [_Column("#", [str(rank) for rank in range(1, len(results) + 1)])],
        [
            _Column("latency", [time_text(r.latency_us) for r in results]),
            _Column("vs best", [format_change(r.latency_us, best.latency_us) for r in results]),
        ],
        *_mapping_groups([r.mapping for r in results]),
        [
            _Column("cores" if is_multicore else "SMs", [f"{r.active_cores} of {count}" for r in results]),
            _Column("bound", [r.bound for r in results]),
        ],
        [
            _Column("DRAM bytes", [f"{r.dram_bytes:,}" for r in results]),
            _Column("vs best", [format_change(r.dram_bytes, best.dram_bytes) for r in results]),
            _Column("SRAM bytes" if is_multicore else "smem bytes", [f"{r.sram_used_bytes:,}" for r in results]),
        ],
        [
            _Column(
                "differs in",
                ["best", *(describe_difference(best, result) for result in results[1:])],
            )
        ],
    ]


def _mapping_groups(mappings: Sequence[MulticoreMapping | KernelConfig]) -> list[list[_Column]]:
    multicore = [mapping for mapping in mappings if isinstance(mapping, MulticoreMapping)]
    if multicore:
        return [
            [
                _Column("partition", [",".join(map(str, m.partition)) for m in multicore]),
                _Column("tile", ["x".join(map(str, m.tile)) for m in multicore]),
                _Column("order", [m.loop_order.name.lower() for m in multicore]),
            ]
        ]
    configs = [mapping for mapping in mappings if isinstance(mapping, KernelConfig)]
    return [
        [
            _Column("CTA", [f"{c.cta_m}x{c.cta_n}x{c.cta_k}" for c in configs]),
            _Column("cluster", [f"{c.cluster_m}x{c.cluster_n}" for c in configs]),
            _Column("stages", [str(c.num_stages) for c in configs]),
        ],
        [
            _Column("kernel", [c.family for c in configs]),
            _Column("schedule", [c.schedule.name.lower() for c in configs]),
            _Column("work", [format_decomposition(c) for c in configs]),
            _Column("raster", [format_raster(c) for c in configs]),
        ],
    ]


def _stacked(group: Sequence[_Column]) -> _Column:
    header = "\n".join(column.header for column in group)
    return _Column(header, ["\n".join(cells) for cells in zip(*(column.cells for column in group), strict=True)])


def _table(columns: Sequence[_Column], title: str | None) -> Table:
    headers = [column.header for column in columns]
    table = make_table(headers, title=title, right=[header for header in headers if not header.endswith(_LEFT)])
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table
