"""The tables of `gemm-eval arch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemm_eval.arch import CheckFinding, MulticoreSpec
from gemm_eval.cli._output import format_number, make_console, make_table

__all__ = ["print_arch", "print_arch_list", "print_findings", "unit_of"]

_MIB = 1 << 20
_SHOWN_APART = {"name", "title", "notes", "published", "sources", "provenance"}

# The first suffix that fits names the unit, so longer ones come first.
_UNITS_BY_SUFFIX = {
    "_steps_per_cycle": "steps/cycle",
    "_ops_per_cycle": "ops/cycle",
    "_ops_per_elem": "ops/element",
    "_pj_per_byte": "pJ/byte",
    "_gb_per_s": "GB/s (1e9)",
    "_ghz": "GHz",
    "_bytes": "bytes",
    "_cycles": "cycles",
    "_frac": "0..1",
    "_us": "us",
    "_mm2": "mm2",
    "_w": "W",
}
_UNITS = {
    "num_cores": "cores",
    "cube_m": "elements",
    "cube_k": "elements",
    "cube_n": "elements",
    "cube_k_by_dtype": "elements",
    "input_buffers": "copies",
    "output_buffers": "copies",
    "lane_num": "rows",
    "mac_pj": "pJ/MAC",
}


def unit_of(field: str) -> str:
    """Unit of a spec field, from the suffix of its name; empty for a field that is no number."""
    if field in _UNITS:
        return _UNITS[field]
    return next((unit for suffix, unit in _UNITS_BY_SUFFIX.items() if field.endswith(suffix)), "")


def print_arch_list(archs: Sequence[MulticoreSpec]) -> None:
    """Print one row for each arch."""
    numbers = ("cores", "peak\nTFLOP/s", "DRAM\nGB/s", "SRAM\nMiB")
    table = make_table(["name", *numbers, "title"], right=numbers)
    for arch in archs:
        table.add_row(
            f"{arch.name} *" if arch.is_coarse else arch.name,
            f"{arch.num_cores:,}",
            f"{format_number(arch.peak_tflop_per_s())} {arch.default_dtype}",
            f"{arch.dram_gb_per_s:,.7g}",
            f"{arch.num_cores * arch.sram_bytes / _MIB:,.7g}",
            arch.title,
        )
    console = make_console()
    console.print(table)
    console.print()
    console.print("Peak for the default type of the arch, DRAM in 1e9 bytes/s, SRAM of all cores together.")
    if any(arch.is_coarse for arch in archs):
        console.print("* coarse: the chip is not really of this kind; expect rough answers.")


def print_arch(arch: MulticoreSpec) -> None:
    """Print all that a spec says, the peaks that follow from it, and its references."""
    console = make_console()
    console.print(f"{arch.name}: {arch.title or 'no title'}")
    if arch.notes:
        console.print(arch.notes.strip())
    table = make_table(["field", "value", "unit", "kind: source"], right=["value"])
    for field in type(arch).model_fields:
        if field not in _SHOWN_APART:
            for row in _field_rows(arch, field):
                table.add_row(*row)
    console.print()
    console.print(table)
    console.print()
    peaks = make_table(["type", "peak TFLOP/s", "published"], right=["peak TFLOP/s", "published"])
    published = {} if arch.published is None else arch.published.peak_tflop_per_s
    for dtype in arch.cube_steps_per_cycle:
        figure = f"{published[dtype]:,}" if dtype in published else "-"
        peaks.add_row(str(dtype), f"{arch.peak_tflop_per_s(dtype):,.7g}", figure)
    console.print(peaks)
    console.print()
    if arch.published is not None:
        console.print(f"Published figures: {arch.published.source}")
    for name, text in arch.sources.items():
        console.print(f"[{name}] {text.strip()}")


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


def _field_rows(arch: MulticoreSpec, field: str) -> Iterator[tuple[str, str, str, str]]:
    value = getattr(arch, field)
    entries = {f"{field}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {field: value}
    for name, entry in entries.items():
        known = arch.provenance.get(name) or arch.provenance.get(field)
        if known is not None:
            origin = f"{known.kind}: {known.source}"
        else:
            is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
            given = "given, no source" if is_number else "choice"
            origin = given if field in arch.model_fields_set else "default"
        yield name, _text(entry), unit_of(field), origin


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)
