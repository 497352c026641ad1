"""Tables and documents of `gemm-eval profile` and `gemm-eval asm`: kernels that were timed, or whose code was read."""

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.asm import LoopCycles, OpCounts, ScoreCard
from gemm_eval.cli.output import (
    format_change,
    format_decomposition,
    format_number,
    format_raster,
    format_share,
    make_console,
    print_table,
)
from gemm_eval.kernels import Occupancy
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure import Profile, ProfiledKernel
from gemm_eval.units import tflop_per_s

_BYTES_PER_US_PER_GB_PER_S = 1e3
_PREFIX = "w4a16_"  # of the names of all families


class Chosen(NamedTuple):
    """A kernel that somebody would have run, and the time that was expected of it."""

    by: str
    config: KernelConfig
    predicted_us: float


def print_profile(profile: Profile, choices: Sequence[Chosen], gpu: str, dtype: str, count: int) -> None:
    """Print the fastest kernels, and a line for each choice."""
    gemm, console = profile.gemm, make_console()
    weights = gemm.mode.name.lower() + (f" of {gemm.group_size}" if gemm.group_size else "")
    title = f"M {gemm.M}, N {gemm.N}, K {gemm.K}, {dtype} x int4 (scales: {weights}) on {gpu}"
    rows = [{"#": str(rank)} | _cells(profile, kernel) for rank, kernel in enumerate(profile.kernels[:count], 1)]
    print_table(rows, title=title)
    console.print()
    failed = f"; {len(profile.errors)} failed" if profile.errors else ""
    console.print(
        f"{len(profile.kernels)} kernels timed{failed}; tile m x n x k, cluster m x n; spills in bytes a thread."
    )
    for config, error in profile.errors.items():
        console.print(f"failed: {_in_short(config)}: {error}")
    for chosen in choices:
        console.print(_sentence(profile, chosen))


def _cells(profile: Profile, kernel: ProfiledKernel) -> dict[str, str]:
    config, timing, built = kernel
    tflops, gb_per_s = _rates(profile, kernel)
    return {
        "us": format_number(timing.latency_us),
        "vs best": format_change(timing.latency_us, profile.kernels[0].timing.latency_us),
        "kernel": config.family.removeprefix(_PREFIX),
        "tile": f"{config.cta_m}x{config.cta_n}x{config.cta_k}",
        "clus-\nter": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule.name.lower(),
        "work": format_decomposition(config),
        "spread": f"{timing.spread_frac:.1%}",
        "TFLOP/s": format_number(tflops),
        "GB/s": format_number(gb_per_s),
        "stages": str(config.num_stages),
        "warps": str(config.num_warps),
        "registers": str(built.registers),
        "spills": str(built.spill_bytes),
        "CTAs/SM": str(built.ctas_per_sm),
    }


def _in_short(config: KernelConfig) -> str:
    return (
        f"{config.family.removeprefix(_PREFIX)} {config.cta_m}x{config.cta_n}x{config.cta_k}, cluster "
        f"{config.cluster_m}x{config.cluster_n}, {config.num_stages} stages, {config.num_warps} warps, "
        f"{config.schedule.name.lower()}, {format_decomposition(config)}, {format_raster(config)}"
    )


def profile_document(
    profile: Profile, choices: Sequence[Chosen], gpu: str, dtype: str, count: int | None = None
) -> dict[str, Any]:
    """Return everything as plain values: all kernels, or the `count` fastest."""
    return {
        "gpu": gpu,
        "gemm": _plain(profile.gemm._asdict()) | {"dtype": dtype, "bytes_moved": profile.bytes_moved},
        "num_kernels": len(profile.kernels),
        "kernels": [
            {"place": rank} | _plain(kernel.config._asdict()) | vars(kernel.timing)
            | dict(zip(("tflop_per_s", "gb_per_s"), _rates(profile, kernel), strict=True)) | kernel.built._asdict()
            for rank, kernel in enumerate(profile.kernels[:count], 1)
        ],
        "choices": [_choice(profile, chosen) for chosen in choices],
        "errors": [{**_plain(config._asdict()), "error": error} for config, error in profile.errors.items()],
    }  # fmt: skip


def _rates(profile: Profile, kernel: ProfiledKernel) -> tuple[float, float]:
    """TFLOP/s and GB/s."""
    us = kernel.timing.latency_us
    return tflop_per_s(profile.gemm.flop, us), profile.bytes_moved / us / _BYTES_PER_US_PER_GB_PER_S


def _choice(profile: Profile, chosen: Chosen) -> dict[str, Any]:
    index, kernel = profile.find(chosen.config) or (None, None)
    us = None if kernel is None else kernel.timing.latency_us
    return {
        "by": chosen.by,
        "config": _plain(chosen.config._asdict()),
        "predicted_us": chosen.predicted_us,
        "place": None if index is None else index + 1,
        "latency_us": us,
        "over_best_frac": None if us is None else us / profile.kernels[0].timing.latency_us - 1.0,
    }


def _sentence(profile: Profile, chosen: Chosen) -> str:
    choice = _choice(profile, chosen)
    config, predicted = _in_short(chosen.config), f"predicted {format_number(chosen.predicted_us)} us"
    if choice["place"] is None:
        return f"Choice of the {chosen.by}: {config}, {predicted}: not timed."
    us, rank = format_number(choice["latency_us"]), choice["place"]
    change = "the best" if rank == 1 else f"{choice['over_best_frac']:+.1%} from the best"
    return f"Choice of the {chosen.by}: {us} us ({predicted}), {change}, place {rank}: {config}."


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.name.lower() if isinstance(value, enum.IntEnum) else value for name, value in values.items()}


_WORDS = {"cp_async": "cp.async", "tma": "TMA", "imad": "integer multiply-add", "special": "special function"}


def print_card(card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None, cycles: LoopCycles | None) -> None:
    """Print all that is known, and what follows from it on a GPU."""
    console, loop = make_console(), card.loop
    console.print(f"{card.kernel}: {card.target or 'unknown GPU'}, read from {_SOURCES[card.source]}")
    for line in _resources(card, spec, occupancy):
        console.print(line)
    console.print()
    here = "main loop" if loop.is_loop else "no loop"
    counts = zip(OpCounts._fields, loop.ops, card.ops, strict=True)
    ops = [
        {"instructions of a warp": _format_name(name), here: str(of_loop),
         "share": format_share(of_loop, loop.ops.total), "in all": f"{of_all:,}"}
        for name, of_loop, of_all in counts
        if of_all
    ]  # fmt: skip
    total = {"instructions of a warp": "all", here: f"{loop.ops.total:,}", "share": "", "in all": f"{card.ops.total:,}"}
    mma = [
        {"tensor-core instruction": f"m{x.m}n{x.n}k{x.k}", "bits": str(x.input_bits),
         "A from": "registers" if x.has_a_in_registers else "shared memory", "number": str(x.num)}
        for x in loop.mma
    ]  # fmt: skip
    accesses = [
        {"memory": _format_name(x.kind), "bytes of a lane": "bulk" if x.width_bytes is None else str(x.width_bytes),
         "number": str(x.num)}
        for x in loop.accesses
    ]  # fmt: skip
    for rows in filter(None, ([*ops, total], mma, accesses)):
        print_table(rows)
        console.print()
    for line in _conclusions(card, spec, cycles):
        console.print(line)


_SOURCES = {"cubin": "a cubin", "sass": "SASS", "ptx": "PTX"}


def _resources(card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None) -> Iterator[str]:
    threads = "unknown" if card.num_threads is None else f"{card.num_threads} ({card.num_warps} warps)"
    limit = "" if card.max_registers is None else f" of {card.max_registers} allowed"
    registers = f"{'unknown' if card.registers is None else card.registers}{limit}"
    yield (
        f"threads {threads}, registers {registers}, stack {_bytes(card.stack_bytes)}, static shared memory "
        f"{_bytes(card.static_smem_bytes)}"
    )
    if card.target is not None and card.target.rstrip("af") != spec.sm_arch:
        yield f"{spec.name} is {spec.sm_arch}: what is said of it is for code as this, compiled for it"
    if occupancy is None:
        needed = {"registers": card.registers, "threads": card.num_threads}
        missing = " and ".join(name for name, value in needed.items() if value is None)
        yield f"occupancy on {spec.name}: unknown, {_SOURCES[card.source]} does not say {missing}"
        return
    warps = occupancy.ctas_per_sm * -(-occupancy.num_threads // spec.threads_per_warp)
    yield (
        f"occupancy on {spec.name}: {occupancy.ctas_per_sm} CTA{'s' * (occupancy.ctas_per_sm != 1)} an SM, {warps} of "
        f"{spec.max_warps_per_sm} warps, limited by {occupancy.limited_by}, with "
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
        cause = "arrays of a thread" if card.source == "ptx" else "spilled registers, or arrays of a thread"
        yield f"{loop.ops.spill} loads and stores of local memory: {cause}."


def card_document(
    card: ScoreCard, spec: GpuSpec, occupancy: Occupancy | None, cycles: LoopCycles | None
) -> dict[str, Any]:
    """Return everything as plain values."""
    names = ("ctas_per_sm", "limited_by", "num_threads", "registers", "smem_bytes")
    return card.to_dict() | {
        "arch": spec.name,
        "occupancy": None if occupancy is None else {name: getattr(occupancy, name) for name in names},
        "loop_cycles": None if cycles is None else cycles._asdict(),
    }


def _format_name(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,} bytes"
