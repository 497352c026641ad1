"""The tables of `gemm-eval evaluate`: one column per arch, rows in sections."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.table import Table

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.cli.options import format_mapping
from gemm_eval.cli.output import (
    format_decomposition,
    format_number,
    format_raster,
    format_share,
    format_term,
    make_console,
    make_table,
    print_blocks,
    print_line,
    widest,
)
from gemm_eval.evaluate import GEMMResult
from gemm_eval.units import time_text

__all__ = ["print_evaluation"]

_ROUNDING_FRAC = 1e-9  # a term below this share of the latency is what rounding left of a zero

Pair = tuple[ArchSpec, GEMMResult]


class _Row(NamedTuple):
    label: str
    cells: list[str]


def print_evaluation(pairs: Sequence[Pair], *, has_explanation: bool) -> None:
    """Print results side by side, in as many tables as the width of the terminal asks for, then their explanations.

    `--mapping` is the longest word of all: where not everything stands side by side with it, it has lines of its own.
    """
    console = make_console()
    if widest(console, whole := _table(pairs)) <= console.width:
        console.print(whole)
    else:
        print_blocks(pairs, partial(_table, has_mapping=False))
        console.print()
        for _, result in pairs:
            name = f"{result.arch_name}: " if len(pairs) > 1 else ""
            print_line(f"{name}--mapping {format_mapping(result.mapping)}")
    console.print()
    if has_explanation:
        for _, result in pairs:
            console.print(result.explain())
            console.print()


def _table(pairs: Sequence[Pair], *, has_mapping: bool = True) -> Table:
    names = [result.arch_name for _, result in pairs]
    table = make_table(["", *names], title=pairs[0][1].problem.sizes_text, right=names)
    for title, rows in (
        (None, list(_totals(pairs, has_mapping=has_mapping))),
        ("time (share)", list(_times(pairs))),
        ("traffic, bytes (share)", list(_traffic(pairs))),
    ):
        if title is not None:
            table.add_row(title, style="bold")
        for row in rows:
            table.add_row(row.label if title is None else f"  {row.label}", *row.cells)
        table.add_section()
    return table


def _totals(pairs: Sequence[Pair], *, has_mapping: bool) -> Iterator[_Row]:
    def row(label: str, cell: Callable[[Any, GEMMResult], str]) -> _Row:
        return _Row(label, [cell(arch, result) for arch, result in pairs])

    yield row("type of A", lambda _, r: str(r.problem.types.a))
    yield row("type of B", lambda _, r: str(r.problem.types.b))
    yield row("type of C", lambda _, r: str(r.problem.output_dtype))
    yield row("latency", lambda _, r: time_text(r.latency_us))
    if any(result.low_us is not None for _, result in pairs):
        yield row("80% interval", lambda _, r: _interval(r))
    if any(result.physics_us != result.latency_us for _, result in pairs):
        yield row("model alone", lambda _, r: time_text(r.physics_us))
    yield row("TFLOP/s", lambda _, r: format_number(r.tflop_per_s))
    yield row("utilization of peak", lambda _, r: f"{r.utilization_frac:.1%}")
    yield row("bound by", lambda _, r: r.bound)
    yield row("DRAM, bytes", lambda _, r: f"{r.dram_bytes:,}")
    yield row("DRAM, GB/s (of peak)", lambda a, r: f"{format_number(r.dram_gb_per_s)} (of {a.dram_gb_per_s:,g})")
    if any(result.energy_pj is not None for _, result in pairs):
        yield row("energy, uJ", lambda _, r: "not known" if r.energy_pj is None else format_number(r.energy_pj / 1e6))
    for kind, rows in ((MulticoreSpec, _MULTICORE_ROWS), (GpuSpec, _GPU_ROWS)):
        if any(isinstance(arch, kind) for arch, _ in pairs):
            for label, cell in rows:
                cells = [cell(arch, result) if isinstance(arch, kind) else _NOT_HERE for arch, result in pairs]
                yield _Row(label, cells)
    if has_mapping:
        yield row("--mapping", lambda _, r: format_mapping(r.mapping))
    yield row("search", lambda _, r: "exhaustive" if r.is_exhaustive else "none, mapping given")
    yield row("model", lambda _, r: f"{r.model_version}, {r.source}")
    if any(_is_coarse(arch) for arch, _ in pairs):
        yield row("accuracy", lambda a, _: "coarse" if _is_coarse(a) else "as modelled")


_NOT_HERE = "-"
_Rows = Sequence[tuple[str, Callable[[Any, Any], str]]]
_MULTICORE_ROWS: _Rows = (
    ("partition of G M N K", lambda _, r: " x ".join(map(str, r.mapping.partition))),
    ("tile m x n x k", lambda _, r: " x ".join(map(str, r.mapping.tile))),
    ("loop order", lambda _, r: r.mapping.loop_order.name.lower()),
    ("active cores", lambda a, r: f"{r.active_cores} of {a.num_cores}"),
    ("SRAM, bytes (of usable)", lambda a, r: _with_share(r.sram_used_bytes, a.sram_usable_bytes)),
)
_GPU_ROWS: _Rows = (
    ("library", lambda _, r: r.options["library"]),
    ("L2, clock", lambda _, r: f"{r.options['l2']}, {r.options['clock']}"),
    ("kernel", lambda _, r: r.mapping.family),
    ("CTA m x n x k", lambda _, r: f"{r.mapping.cta_m} x {r.mapping.cta_n} x {r.mapping.cta_k}"),
    ("cluster m x n", lambda _, r: f"{r.mapping.cluster_m} x {r.mapping.cluster_n}"),
    ("warps, stages", lambda _, r: f"{r.mapping.num_warps}, {r.mapping.num_stages}"),
    ("schedule", lambda _, r: r.mapping.schedule.name.lower()),
    ("decomposition", lambda _, r: format_decomposition(r.mapping)),
    ("raster", lambda _, r: format_raster(r.mapping)),
    ("active SMs", lambda a, r: f"{r.active_cores} of {a.num_sms}"),
    ("smem, bytes (of an SM)", lambda a, r: _with_share(r.sram_used_bytes, a.smem_per_sm_bytes)),
)


def _interval(result: GEMMResult) -> str:
    if result.low_us is None or result.high_us is None:
        return _NOT_HERE
    return f"{time_text(result.low_us)} to {time_text(result.high_us)}"


def _is_coarse(arch: ArchSpec) -> bool:
    return isinstance(arch, MulticoreSpec) and arch.is_coarse


def _times(pairs: Sequence[Pair]) -> Iterator[_Row]:
    for name in _all_terms(result.breakdown for _, result in pairs):
        times = [
            (_without_rounding(result.breakdown.get(name, 0.0), result.latency_us), result.latency_us)
            for _, result in pairs
        ]
        if any(us for us, _ in times):
            cells = [f"{time_text(us)} ({format_share(us, latency)})" for us, latency in times]
            yield _Row(format_term(name), _where(name, cells, (result.breakdown for _, result in pairs)))


def _traffic(pairs: Sequence[Pair]) -> Iterator[_Row]:
    for name in _all_terms(result.traffic for _, result in pairs):
        counts = [(result.traffic.get(name, 0), result.dram_bytes) for _, result in pairs]
        if any(count for count, _ in counts):
            cells = [_with_share(count, total) for count, total in counts]
            yield _Row(format_term(name), _where(name, cells, (result.traffic for _, result in pairs)))


def _where(name: str, cells: Iterable[str], terms: Iterable[Container[str]]) -> list[str]:
    """Cells of a term, but where a chip of another kind has none of the name."""
    return [cell if name in names else _NOT_HERE for cell, names in zip(cells, terms, strict=True)]


def _all_terms(terms: Iterable[Iterable[str]]) -> Iterable[str]:
    """Names in the order of their first mention: chips of other kinds have other terms."""
    return dict.fromkeys(name for names in terms for name in names)


def _without_rounding(us: float, latency_us: float) -> float:
    return us if abs(us) > _ROUNDING_FRAC * latency_us else 0.0


def _with_share(count: int, total: int) -> str:
    return f"{count:,} ({format_share(count, total)})"
