"""The score card of `gemm-eval asm`, and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemm_eval.arch import THREADS_PER_WARP, GpuSpec
from gemm_eval.autotune.asm import LoopCycles, OpCounts, ScoreCard
from gemm_eval.cli.output import format_number, format_share, make_console, make_table
from gemm_eval.kernels import Occupancy

__all__ = ["document_of", "print_card"]

_WORDS = {"cp_async": "cp.async", "tma": "TMA", "imad": "integer multiply-add", "special": "special function"}


def print_card(card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None, cycles: LoopCycles | None) -> None:
    """Print all that is known, and what follows from it on a GPU."""
    console, loop = make_console(), card.loop
    console.print(f"{card.kernel}: {card.target or 'unknown GPU'}, read from {_SOURCES[card.source]}")
    for line in _resources(card, spec, occupancy):
        console.print(line)
    console.print()
    where = "main loop" if loop.is_loop else "no loop"
    table = make_table(("instructions of a warp", where, "share", "kernel"), right=(where, "share", "kernel"))
    for name, of_loop, of_all in zip(OpCounts._fields, loop.ops, card.ops, strict=True):
        if of_all:
            table.add_row(_format_name(name), str(of_loop), format_share(of_loop, loop.ops.total), f"{of_all:,}")
    table.add_row("all", f"{loop.ops.total:,}", "", f"{card.ops.total:,}")
    console.print(table)
    console.print()
    if loop.mma:
        headers = ("tensor-core instruction", "bits", "A from", "number")
        table = make_table(headers, right=("bits", "number"))
        for one in loop.mma:
            source = "registers" if one.has_a_in_registers else "shared memory"
            table.add_row(f"m{one.m}n{one.n}k{one.k}", str(one.input_bits), source, str(one.num))
        console.print(table)
        console.print()
    if loop.accesses:
        table = make_table(("memory", "bytes of a lane", "number"), right=("bytes of a lane", "number"))
        for access in loop.accesses:
            width = "bulk" if access.width_bytes is None else str(access.width_bytes)
            table.add_row(_format_name(access.kind), width, str(access.num))
        console.print(table)
        console.print()
    for line in _conclusions(card, spec, cycles):
        console.print(line)


_SOURCES = {"cubin": "a cubin", "sass": "SASS", "ptx": "PTX"}


def _resources(card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None) -> Iterator[str]:
    threads = "unknown" if card.num_threads is None else f"{card.num_threads} ({card.num_warps} warps)"
    limit = "" if card.max_registers is None else f" of {card.max_registers} allowed"
    registers = f"{_number(card.registers)}{limit}"
    yield (
        f"threads {threads}, registers {registers}, stack {_bytes(card.stack_bytes)}, static shared memory "
        f"{_bytes(card.static_smem_bytes)}"
    )
    if card.target is not None and card.target.rstrip("af") != spec.sm_arch:
        yield f"{spec.name} is {spec.sm_arch}: what is said of it is for code as this, compiled for it"
    if occupancy is None:
        said = {"registers": card.registers, "threads": card.num_threads}
        unsaid = " and ".join(name for name, value in said.items() if value is None)
        yield f"occupancy on {spec.name}: unknown, {_SOURCES[card.source]} does not say {unsaid}"
        return
    warps = occupancy.ctas_per_sm * -(-occupancy.num_threads // THREADS_PER_WARP)
    yield (
        f"occupancy on {spec.name}: {occupancy.ctas_per_sm} CTA{'s' * (occupancy.ctas_per_sm != 1)} an SM, {warps} of "
        f"{spec.max_threads_per_sm // THREADS_PER_WARP} warps, limited by {occupancy.limited_by}, with "
        f"{occupancy.smem_bytes:,} bytes of shared memory a CTA"
    )


def _conclusions(card: ScoreCard, spec: GpuSpec, cycles: LoopCycles | None) -> Iterator[str]:
    loop = card.loop
    if not loop.is_loop:
        yield "No loop does the work: counts are of the whole kernel, each instruction once."
    if loop.issue_per_mma is not None:
        yield f"{format_number(loop.issue_per_mma)} issue slots for each tensor-core instruction, its own included."
    if loop.copied_bytes:
        yield (
            f"{loop.copied_bytes:,} bytes of a warp from global memory at most, "
            f"{format_number(loop.flop_per_copied_byte or 0.0)} tensor-core FLOP a byte."
        )
    if loop.mma and cycles is not None:
        yield (
            f"For one warp, an SM of {spec.name} takes {format_number(cycles.tensor)} cycles of its tensor cores and "
            f"{format_number(cycles.issue)} of issue: "
            f"{'tensor cores' if cycles.tensor >= cycles.issue else 'issue slots'} are the first limit of the two."
        )
    if loop.is_serialized:
        yield "Each wgmma is waited for before the next: the compiler serialized them, and tensor cores idle."
    if loop.ops.spill:
        what = "arrays of a thread" if card.source == "ptx" else "spilled registers, or arrays of a thread"
        yield f"{loop.ops.spill} loads and stores of local memory: {what}."


def document_of(
    card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None, cycles: LoopCycles | None
) -> dict[str, Any]:
    """Return everything as plain values."""
    of_gpu: dict[str, Any] = {"arch": spec.name, "occupancy": None, "loop_cycles": None}
    if occupancy is not None:
        names = ("ctas_per_sm", "limited_by", "num_threads", "registers", "smem_bytes")
        of_gpu["occupancy"] = {name: getattr(occupancy, name) for name in names}
    if cycles is not None:
        of_gpu["loop_cycles"] = cycles._asdict()
    return card.to_dict() | of_gpu


def _format_name(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,} bytes"
