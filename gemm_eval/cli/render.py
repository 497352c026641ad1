"""Tables of GEMMs on stdout: results side by side, and rankings."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.cli.output import (
    Column,
    KeyTable,
    format_change,
    format_decomposition,
    format_number,
    format_raster,
    format_share,
    format_term,
    make_console,
    make_table,
    print_line,
    print_table,
    widest,
)
from gemm_eval.cli.values import format_mapping
from gemm_eval.evaluate import GEMMResult
from gemm_eval.mapping import KernelConfig, MulticoreMapping
from gemm_eval.units import interval_text, time_text

_ROUNDING_FRAC = 1e-9  # a term below this share of the latency is what rounding left of a zero

Pair = tuple[ArchSpec, GEMMResult]
_Row = tuple[str, list[str]]


def print_evaluation(pairs: Sequence[Pair], *, has_explanation: bool) -> None:
    """Print results side by side, a long `--mapping` in lines of its own, then their explanations."""
    console = make_console()
    table = _table(pairs)
    is_whole = widest(console, table) <= console.width
    console.print(table if is_whole else _table(pairs, has_mapping=False))
    console.print()
    for _, result in () if is_whole else pairs:
        name = f"{result.arch_name}: " if len(pairs) > 1 else ""
        print_line(f"{name}--mapping {format_mapping(result.mapping)}")
    if not is_whole:
        console.print()
    for _, result in pairs if has_explanation else ():
        console.print(result.explain())
        console.print()


def _table(pairs: Sequence[Pair], *, has_mapping: bool = True) -> KeyTable:
    names = [result.arch_name for _, result in pairs]
    table = make_table(["", *names], title=pairs[0][1].problem.sizes_text, right=names)
    for title, rows in (
        (None, _totals(pairs, has_mapping=has_mapping)),
        ("time (share)", _terms(pairs, "breakdown", "latency_us", time_text, _ROUNDING_FRAC)),
        ("traffic, bytes (share)", _terms(pairs, "traffic", "dram_bytes", "{:,}".format, 0.0)),
    ):
        if title is not None:
            table.add_row(title, style="bold")
        for label, cells in rows:
            table.add_row(label if title is None else f"  {label}", *cells)
        table.add_section()
    return table


def _totals(pairs: Sequence[Pair], *, has_mapping: bool) -> Iterator[_Row]:
    def row(label: str, cell: Callable[[Any, GEMMResult], str]) -> _Row:
        return label, [cell(arch, result) for arch, result in pairs]

    yield row("type of A", lambda _, r: str(r.problem.types.a))
    yield row("type of B", lambda _, r: str(r.problem.types.b))
    yield row("type of C", lambda _, r: str(r.problem.output_dtype))
    yield row("latency", lambda _, r: time_text(r.latency_us))
    yield row("80% interval", lambda _, r: interval_text(r.low_us, r.high_us))
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
                yield label, cells
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


def _is_coarse(arch: ArchSpec) -> bool:
    return isinstance(arch, MulticoreSpec) and arch.is_coarse


def _terms(
    pairs: Sequence[Pair], field: str, total: str, text: Callable[[Any], str], rounding_frac: float
) -> Iterator[_Row]:
    """Yield the terms of a field that are not 0 everywhere, in the order of their first mention."""
    columns = [(getattr(result, field), getattr(result, total)) for _, result in pairs]
    for name in dict.fromkeys(name for terms, _ in columns for name in terms):
        values = [terms.get(name, 0) for terms, _ in columns]
        values = [
            value if abs(value) > rounding_frac * whole else 0
            for value, (_, whole) in zip(values, columns, strict=True)
        ]
        if any(values):
            cells = [
                f"{text(value)} ({format_share(value, whole)})" if name in terms else _NOT_HERE
                for value, (terms, whole) in zip(values, columns, strict=True)
            ]
            yield format_term(name), cells


def _with_share(count: int, total: int) -> str:
    return f"{count:,} ({format_share(count, total)})"


_MIN_TIME_FRAC = 1e-5  # a term whose time grows by less of the latency explains nothing


def print_top(arch: ArchSpec, results: Sequence[GEMMResult]) -> None:
    """Print a ranking, one line for each mapping: the best first, or that which the chip's library chooses."""
    best, is_chip = results[0], isinstance(arch, MulticoreSpec)
    count = arch.num_cores if isinstance(arch, MulticoreSpec) else arch.num_sms
    title = "best" if all(best.latency_us <= r.latency_us for r in results) else "chosen by the library"
    columns: tuple[Column, ...] = (
        ("#", "rank", ""),
        ("latency", "result", lambda r: time_text(r.latency_us)),
        ("vs first", "result", lambda r: format_change(r.latency_us, best.latency_us)),
        ("80% within", "result", lambda r: interval_text(r.low_us, r.high_us)),
        *(_CHIP_COLUMNS if is_chip else _GPU_COLUMNS),
        ("cores" if is_chip else "SMs", "result", lambda r: f"{r.active_cores} of {count}"),
        ("bound", "result", lambda r: r.bound),
        ("DRAM bytes", "result", lambda r: f"{r.dram_bytes:,}"),
        ("vs first", "result", lambda r: format_change(r.dram_bytes, best.dram_bytes)),
        ("SRAM bytes" if is_chip else "smem bytes", "result", lambda r: f"{r.sram_used_bytes:,}"),
        ("differs in", "result", lambda r: title if r is best else describe_difference(best, r)),
    )
    rows = [{"rank": rank, "result": result} for rank, result in enumerate(results, 1)]
    print_table(rows, columns, title=f"{best.problem} on {arch.name}")
    of_chip = f"Partition of G,M,N,K over {count} cores; tile m x n x k"
    legend = of_chip if is_chip else "CTA tile m x n x k; cluster m x n; " + ", ".join(best.options.values())
    make_console().print(f"\n{legend}; differences are to the first. Source: {best.source}.")


_CHIP_COLUMNS: tuple[Column, ...] = (
    ("partition", "result", lambda r: ",".join(map(str, r.mapping.partition))),
    ("tile", "result", lambda r: "x".join(map(str, r.mapping.tile))),
    ("order", "result", lambda r: r.mapping.loop_order.name.lower()),
)
_GPU_COLUMNS: tuple[Column, ...] = (
    ("CTA", "result", lambda r: f"{r.mapping.cta_m}x{r.mapping.cta_n}x{r.mapping.cta_k}"),
    ("cluster", "result", lambda r: f"{r.mapping.cluster_m}x{r.mapping.cluster_n}"),
    ("stages", "result", lambda r: str(r.mapping.num_stages)),
    ("kernel", "result", lambda r: r.mapping.family),
    ("schedule", "result", lambda r: r.mapping.schedule.name.lower()),
    ("work", "result", lambda r: format_decomposition(r.mapping)),
    ("raster", "result", lambda r: format_raster(r.mapping)),
)


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
    growth = {  # DRAM traffic is told in bytes
        name: us - best.breakdown.get(name, 0.0)
        for name, us in other.breakdown.items()
        if not name.startswith("dram_") and name != "hidden_us"
    }
    name, growth_us = max(growth.items(), key=lambda item: item[1])
    if growth_us > _MIN_TIME_FRAC * best.latency_us:
        parts.append(f"{format_term(name)} +{time_text(growth_us)}")
    elif (gain_us := best.latency_us - other.latency_us) > _MIN_TIME_FRAC * best.latency_us:
        parts.append(f"{time_text(gain_us)} faster")
    if other.bound != best.bound:
        parts.append(f"bound by {other.bound}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "same cost"])


def _choices(mapping: MulticoreMapping | KernelConfig) -> dict[str, object]:
    """Return the choices of a mapping, by a short name."""
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
