"""The tables of `gemm-eval arch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from gemm_eval.arch import ArchSpec, CheckFinding, GpuSpec, Interconnect, MulticoreSpec
from gemm_eval.cli.output import format_number, make_console, make_table

_MIB = 1 << 20
_SHOWN_APART = {"name", "title", "notes", "published", "sources", "provenance"}

# The first suffix that fits names the unit, so longer ones come first.
_UNITS_BY_SUFFIX = {
    "_steps_per_cycle": "steps/cycle",
    "_bytes_per_cycle": "bytes/cycle",
    "_flop_per_cycle": "FLOP/cycle",
    "_slots_per_cycle": "warp instructions/cycle",
    "_ops_per_cycle": "ops/cycle",
    "_ops_per_elem": "ops/element",
    "_pj_per_byte": "pJ/byte",
    "_gb_per_s": "GB/s (1e9)",
    "_ghz": "GHz",
    "_bytes": "bytes",
    "_cycles": "cycles",
    "_frac": "0..1",
    "_ns": "ns",
    "_us": "us",
    "_mm2": "mm2",
    "_w": "W",
}
# The first field of each group, in the order of the class; the rest of the group follows it there.
_GPU_GROUPS = {
    "type": "chip and clocks",
    "tensor_flop_per_cycle": "tensor cores of an SM",
    "smem_per_sm_bytes": "shared memory, registers and occupancy of an SM",
    "issue_slots_per_cycle": "instruction issue and ALUs of an SM",
    "l2_bytes": "L2 and DRAM of the chip",
    "launch_us": "fixed costs",
    "interconnect": "other GPUs of the node",
}
_UNITS = {
    "num_cores": "cores",
    "num_sms": "SMs",
    "num_gpus": "GPUs",
    "num_l2_partitions": "partitions",
    "mma_m": "elements",
    "mma_n_max": "elements",
    "mma_n_step": "elements",
    "mma_k_bytes": "bytes",
    "warps_per_mma": "warps",
    "registers_per_sm": "registers",
    "max_registers_per_thread": "registers",
    "register_alloc_per_warp": "registers",
    "max_threads_per_sm": "threads",
    "max_ctas_per_sm": "CTAs",
    "max_cluster_ctas": "CTAs",
    "cube_m": "elements",
    "cube_k": "elements",
    "cube_n": "elements",
    "cube_k_by_dtype": "elements",
    "input_buffers": "copies",
    "output_buffers": "copies",
    "tile_buffers": "copies",
    "multicast_readers": "cores",
    "lane_num": "rows",
    "partial_dtype": "data type",
    "mac_pj": "pJ/MAC",
}


def unit_of(field: str) -> str:
    """Unit of a spec field, from the suffix of its name; empty for a field that is no number."""
    name = field.removeprefix("interconnect.")
    if name in _UNITS:
        return _UNITS[name]
    return next((unit for suffix, unit in _UNITS_BY_SUFFIX.items() if f"_{name}".endswith(suffix)), "")


def print_arch_list(archs: Sequence[ArchSpec]) -> None:
    """Print a table for each kind of arch, one row for each arch."""
    gpus = [arch for arch in archs if isinstance(arch, GpuSpec)]
    multicores = [arch for arch in archs if isinstance(arch, MulticoreSpec)]
    console = make_console()
    if multicores:
        numbers = ("cores", "peak\nTFLOP/s", "DRAM\nGB/s", "SRAM\nMiB")
        table = make_table(["multicore", *numbers, "title"], right=numbers)
        for arch in multicores:
            table.add_row(
                f"{arch.name} *" if arch.is_coarse else arch.name,
                f"{arch.num_cores:,}",
                *_rates(arch),
                f"{arch.num_cores * arch.sram_bytes / _MIB:,.7g}",
                arch.title,
            )
        console.print(table)
        console.print()
    if gpus:
        numbers = ("SMs", "peak\nTFLOP/s", "DRAM\nGB/s", "L2\nMiB")
        table = make_table(["gpu", *numbers, "title"], right=numbers)
        for gpu in gpus:
            table.add_row(gpu.name, f"{gpu.num_sms:,}", *_rates(gpu), f"{gpu.l2_bytes / _MIB:,.7g}", gpu.title)
        console.print(table)
        console.print()
    console.print("Peak for the default type of the arch, DRAM in 1e9 bytes/s, SRAM of all cores together.")
    if any(arch.is_coarse for arch in multicores):
        console.print("* coarse: the chip is not really of this kind; expect rough answers.")


def _rates(arch: ArchSpec) -> tuple[str, str]:
    return f"{format_number(arch.peak_tflop_per_s())} {arch.default_dtype}", f"{arch.dram_gb_per_s:,.7g}"


def print_arch(arch: ArchSpec) -> None:
    """Print all that a spec says, the peaks that follow from it, and its references."""
    console = make_console()
    console.print(f"{arch.name}: {arch.title or 'no title'}")
    if arch.notes:
        console.print(arch.notes.strip())
    for title, fields in _groups(arch):
        table = make_table(["field", "value", "unit", "kind: source"], title=title, right=["value"])
        for field in fields:
            for row in _field_rows(arch, field):
                table.add_row(*row)
        console.print()
        console.print(table)
    console.print()
    console.print(_peaks_table(arch))
    console.print()
    if arch.published is not None:
        console.print(f"Published figures: {arch.published.source}")
    for name, text in arch.sources.items():
        console.print(f"[{name}] {text.strip()}")


def _peaks_table(arch: ArchSpec) -> Table:
    published = {} if arch.published is None else arch.published.peak_tflop_per_s
    is_gpu = isinstance(arch, GpuSpec)
    columns = ["peak TFLOP/s", "published", *(["at burst clock", "at sustained clock"] if is_gpu else [])]
    table = make_table(["type", *columns], right=columns)
    for dtype in arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle:
        row = [f"{arch.peak_tflop_per_s(dtype):,.7g}", f"{published[dtype]:,}" if dtype in published else "-"]
        if isinstance(arch, GpuSpec):
            row += [f"{arch.tensor_tflop_per_s(dtype, 'burst'):,.4g}"]
            row += [f"{arch.tensor_tflop_per_s(dtype, 'sustained'):,.4g}"]
        table.add_row(str(dtype), *row)
    return table


def print_findings(checked: Sequence[tuple[str, Sequence[CheckFinding]]]) -> None:
    """Print the findings of each arch, one row each."""
    table = make_table(["arch", "result", "field", "finding"])
    for name, findings in checked:
        for finding in findings:
            result = "note" if finding.is_note else "ok" if finding.ok else "FAILED"
            table.add_row(name, result, finding.field, finding.message.removeprefix("note: "))
        if not findings:
            table.add_row(name, "ok", "", "valid; nothing published to compare with")
    make_console().print(table)


def _groups(arch: ArchSpec) -> list[tuple[str | None, list[str]]]:
    """Titles, and the fields under them: several groups for a GPU, which has many fields."""
    groups: list[tuple[str | None, list[str]]] = []
    for field in type(arch).model_fields:
        if field in _SHOWN_APART:
            continue
        if not groups or (isinstance(arch, GpuSpec) and field in _GPU_GROUPS):
            groups.append((_GPU_GROUPS[field] if isinstance(arch, GpuSpec) else None, []))
        groups[-1][1].append(field)
    return groups


def _field_rows(arch: ArchSpec, field: str) -> Iterator[tuple[str, str, str, str]]:
    value = getattr(arch, field)
    value = dict(value) if isinstance(value, Interconnect) else value
    entries = {f"{field}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {field: value}
    for name, entry in entries.items():
        known = arch.provenance.get(name) or arch.provenance.get(field)
        if known is not None:
            origin = f"{known.kind}: {known.source}"
        else:
            is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
            given = "given, no source" if is_number else "choice"
            origin = given if field in arch.model_fields_set else "default"
        yield name, _text(entry), unit_of(name if field == "interconnect" else field), origin


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)
