"""The table of `gemm-eval gemms`: one row for each kind of GEMM, with the sums of a layer and of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from gemm_eval.arch import ArchSpec
from gemm_eval.cli.output import format_share, make_console, make_table, widest
from gemm_eval.evaluate import GEMMResult
from gemm_eval.transformer import WHAT_COUNTS, LayerGemm, ModelConfig, ModelMemory, say_memory
from gemm_eval.units import time_text

__all__ = ["print_memory", "print_notes", "print_phase"]

_RIGHT = ("G·M·K·N", "layers", "time", "in all", "share", "of peak")
_SHAPES = ("GEMM", "types", "G·M·K·N", "layers")
_MEMORY = ("part", "type", "elements", "GB")
_TIMES = ("bound", "time", "in all", "share", "of peak")


def print_phase(title: str, config: ModelConfig, rows: Sequence[tuple[LayerGemm, GEMMResult]], tokens: int) -> None:
    """Print one forward pass over `tokens` tokens: each kind of GEMM alone, and in all layers that have it.

    A table of shapes and one of times where the terminal is too narrow for both at once.
    """
    total_us = sum(gemm.total_count * result.latency_us for gemm, result in rows)
    cells = [_cells(gemm, result, total_us) for gemm, result in rows]
    console = make_console()
    whole = _table((*_SHAPES, *_TIMES), cells, title)
    if widest(console, whole) <= console.width:
        console.print(whole)
    else:
        console.print(_table(_SHAPES, cells, title))
        console.print()
        console.print(_table((_SHAPES[0], *_TIMES), cells, None))
    in_layers_us = sum(gemm.total_count * result.latency_us for gemm, result in rows if gemm.name != "lm_head")
    console.print(
        f"GEMMs of a layer: {time_text(in_layers_us / config.num_layers)} in the mean; of the model: "
        f"{time_text(total_us)}, {time_text(total_us / tokens)} a token\n"
    )


def print_notes(memory: ModelMemory, arch: ArchSpec, memory_frac: float) -> None:
    """Print what the model takes of a device, and what the sums say of a whole pass."""
    console = make_console()
    console.print(f"Memory: {say_memory(memory, arch, memory_frac)}.")
    console.print(WHAT_COUNTS)


def print_memory(document: Mapping[str, Any]) -> None:
    """Print what takes the memory of a device, part by part, from what `memory_document` says."""
    table = make_table(_MEMORY, title=f"Memory of a device (stage {document['stage']})", right=_MEMORY[2:])
    for part in document["weights"]:
        table.add_row(part["name"], part["types"], f"{part['num_elems']:,}", f"{part['num_bytes'] / 1e9:,.3f}")
    for name in ("kv_cache", "activation", "total"):
        table.add_row(name.replace("_", " "), "", "", f"{document[f'{name}_bytes'] / 1e9:,.3f}")
    console = make_console()
    console.print(table)
    if "largest_batch" in document:
        console.print(
            f"In {document['limit_bytes'] / 1e9:,.1f} GB, {document['memory_frac']:g} of the DRAM: at most "
            f"{document['largest_batch']:,} such sequences, or positions of {document['largest_seq_len']:,} each."
        )
    console.print()


def _cells(gemm: LayerGemm, result: GEMMResult, total_us: float) -> dict[str, str]:
    problem = result.problem
    all_us = gemm.total_count * result.latency_us
    times = "" if gemm.count_per_layer == 1 else f" x {gemm.count_per_layer}"
    return {
        "GEMM": gemm.name,
        "types": problem.types.inputs,
        "G·M·K·N": "·".join(problem.size_words),
        "layers": f"{gemm.num_layers}{times}",
        "bound": result.bound,
        "time": time_text(result.latency_us),
        "in all": time_text(all_us),
        "share": format_share(all_us, total_us),
        "of peak": format_share(result.utilization_frac, 1.0),
    }


def _table(headers: Sequence[str], rows: Sequence[dict[str, str]], title: str | None) -> Table:
    table = make_table(headers, title=title, right=_RIGHT)
    for row in rows:
        table.add_row(*(row[header] for header in headers))
    return table
