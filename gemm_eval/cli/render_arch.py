"""The tables of `gemm-eval arch`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemm_eval.arch import ArchSpec, CheckFinding, ClockState, GpuSpec, Interconnect, MulticoreSpec
from gemm_eval.cli.output import format_number, make_console, rows_table

_MIB = 1 << 20
_SHOWN_APART = {"name", "title", "notes", "published", "sources", "provenance"}

# Units of fields, by a name or the end of one: the first that fits, so longer ones come first.
_UNITS = {
    "cores": "num_cores multicast_readers",
    "SMs": "num_sms",
    "GPUs": "num_gpus",
    "partitions": "num_l2_partitions",
    "caches": "num_l2_caches",
    "elements": "mma_m mma_n_max mma_n_step cube_m cube_k cube_n cube_k_by_dtype",
    "bytes": "mma_k_bytes",
    "warps": "warps_per_mma",
    "registers": "registers_per_sm max_registers_per_thread register_alloc_per_warp",
    "threads": "max_threads_per_sm threads_per_warp",
    "CTAs": "max_ctas_per_sm max_cluster_ctas",
    "copies": "input_buffers output_buffers tile_buffers",
    "rows": "lane_num",
    "exponentials/cycle": "exps_per_cycle",
    "data type": "partial_dtype",
    "pJ/MAC": "mac_pj",
}
_UNITS_OF_SUFFIX = {
    "steps/cycle": "_steps_per_cycle",
    "bytes/cycle": "_bytes_per_cycle",
    "FLOP/cycle": "_flop_per_cycle",
    "warp instructions/cycle": "_slots_per_cycle",
    "ops/cycle": "_ops_per_cycle",
    "ops/element": "_ops_per_elem",
    "pJ/byte": "_pj_per_byte",
    "GB/s (1e9)": "_gb_per_s",
    "GHz": "_ghz",
    "bytes": "_bytes",
    "cycles": "_cycles",
    "0..1": "_frac",
    "ns": "_ns",
    "us": "_us",
    "mm2": "_mm2",
    "W": "_w",
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


def unit_of(field: str) -> str:
    """Return the unit of a spec field, from its name; an empty text for a field that is no number."""
    name = field.rpartition(".")[2] if field.startswith("interconnect.") else field
    of_name = next((unit for unit, names in _UNITS.items() if name in names.split()), None)
    return of_name or next((unit for unit, end in _UNITS_OF_SUFFIX.items() if f"_{name}".endswith(end)), "")


def print_arch_list(archs: Sequence[ArchSpec]) -> None:
    """Print a table for each kind of arch, one row for each arch."""
    console = make_console()
    for rows in (
        [_list_row(arch, "multicore", "cores", "SRAM\nMiB") for arch in archs if isinstance(arch, MulticoreSpec)],
        [_list_row(arch, "gpu", "SMs", "L2\nMiB") for arch in archs if isinstance(arch, GpuSpec)],
    ):
        if rows:
            console.print(rows_table(rows))
            console.print()
    console.print("Peak for the default type of the arch, DRAM in 1e9 bytes/s, SRAM of all cores together.")
    if any(_is_coarse(arch) for arch in archs):
        console.print("* coarse: the chip is not really of this kind; expect rough answers.")


def _list_row(arch: ArchSpec, kind: str, cores: str, memory: str) -> dict[str, str]:
    if isinstance(arch, GpuSpec):
        num_cores, num_bytes = arch.num_sms, arch.l2_bytes
    else:
        num_cores, num_bytes = arch.num_cores, arch.num_cores * arch.sram_bytes
    return {
        kind: arch.name + " *" * _is_coarse(arch),
        cores: f"{num_cores:,}",
        "peak\nTFLOP/s": f"{format_number(arch.peak_tflop_per_s())} {arch.default_dtype}",
        "DRAM\nGB/s": f"{arch.dram_gb_per_s:,.7g}",
        memory: f"{num_bytes / _MIB:,.7g}",
        "title": arch.title,
    }


def _is_coarse(arch: ArchSpec) -> bool:
    return isinstance(arch, MulticoreSpec) and arch.is_coarse


def print_arch(arch: ArchSpec) -> None:
    """Print all that a spec says, the peaks that follow from it, and its references."""
    console = make_console()
    console.print(f"{arch.name}: {arch.title or 'no title'}")
    if arch.notes:
        console.print(arch.notes.strip())
    groups: dict[str | None, list[dict[str, str]]] = {}  # several for a GPU, which has many fields
    title = None
    for field in type(arch).model_fields:
        if field not in _SHOWN_APART:
            title = _GPU_GROUPS.get(field, title) if isinstance(arch, GpuSpec) else None
            groups.setdefault(title, []).extend(_field_rows(arch, field))
    for title, rows in groups.items():
        console.print()
        console.print(rows_table(rows, title=title))
    published = {} if arch.published is None else arch.published.peak_tflop_per_s
    peaks = []
    for dtype in arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle:
        row = {
            "type": str(dtype),
            "peak TFLOP/s": f"{arch.peak_tflop_per_s(dtype):,.7g}",
            "published": f"{published[dtype]:,}" if dtype in published else "-",
        }
        if isinstance(arch, GpuSpec):
            row |= {f"at {word} clock": f"{arch.tensor_tflop_per_s(dtype, word):,.4g}" for word in ClockState}
        peaks.append(row)
    console.print()
    console.print(rows_table(peaks))
    console.print()
    if arch.published is not None:
        console.print(f"Published figures: {arch.published.source}")
    for name, text in arch.sources.items():
        console.print(f"[{name}] {text.strip()}")


def print_findings(checked: Sequence[tuple[str, Sequence[CheckFinding]]]) -> None:
    """Print the findings of each arch, one row each."""
    valid = CheckFinding("", True, "valid; nothing published to compare with")
    rows = [
        {
            "arch": name,
            "result": "note" if finding.is_note else "ok" if finding.ok else "FAILED",
            "field": finding.field,
            "finding": finding.message.removeprefix("note: "),
        }
        for name, findings in checked
        for finding in findings or [valid]
    ]
    make_console().print(rows_table(rows))


def _field_rows(arch: ArchSpec, field: str) -> Iterator[dict[str, str]]:
    value = getattr(arch, field)
    if isinstance(value, Interconnect):
        of_network = {f"network.{key}": item for key, item in value.network or ()}
        value = {key: item for key, item in value if key != "network" or item is None} | of_network
    entries = {f"{field}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {field: value}
    for name, entry in entries.items():
        provenance = arch.provenance.get(name) or arch.provenance.get(field)
        if provenance is not None:
            origin = f"{provenance.kind}: {provenance.source}"
        else:
            is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
            given = "given, no source" if is_number else "choice"
            origin = given if field in arch.model_fields_set else "default"
        unit = unit_of(name if field == "interconnect" else field)
        yield {"field": name, "value": _text(entry), "unit": unit, "kind: source": origin}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)
