"""The table of `gemm-eval profile`, and its JSON document."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.cli.output import (
    format_change,
    format_decomposition,
    format_number,
    format_raster,
    make_console,
    make_table,
    widest,
)
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure import Profile, ProfiledKernel
from gemm_eval.units import tflop_per_s

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Chosen", "document_of", "print_profile"]

_BYTES_PER_US_PER_GB_PER_S = 1e3
_LEFT = ("kernel", "tile", "clus-\nter", "schedule", "work")
_PREFIX = "w4a16_"  # of the names of all families


class Chosen(NamedTuple):
    """What somebody would have run.

    Attributes:
        by: who.
        config: the kernel.
        predicted_us: what was expected of it, in microseconds.
    """

    by: str
    config: KernelConfig
    predicted_us: float


def print_profile(found: Profile, choices: Sequence[Chosen], gpu: str, dtype: str, count: int) -> None:
    """Print the fastest kernels, and a line for each choice; in two tables where one is wider than the terminal."""
    gemm, console = found.gemm, make_console()
    weights = gemm.mode.name.lower() + (f" of {gemm.group_size}" if gemm.group_size else "")
    title = f"M {gemm.M}, N {gemm.N}, K {gemm.K}, {dtype} x int4 (scales: {weights}) on {gpu}"
    listed = found.kernels[:count]
    which, how = [_which(found, kernel) for kernel in listed], [_how(found, kernel) for kernel in listed]
    table = _table([first | second for first, second in zip(which, how, strict=True)], title)
    if widest(console, table) <= console.width:
        console.print(table)
    else:
        console.print(_table(which, title))
        console.print()
        console.print(_table(how, "The same kernels: what they reach, and how they are built"))
    console.print()
    failed = f"; {len(found.errors)} failed" if found.errors else ""
    console.print(
        f"{len(found.kernels)} kernels timed{failed}; tile m x n x k, cluster m x n; spills in bytes a thread."
    )
    for config, error in found.errors.items():
        console.print(f"failed: {_in_short(config)}: {error}")
    for chosen in choices:
        console.print(_sentence(found, chosen))


def _table(rows: Sequence[dict[str, str]], title: str) -> Table:
    """Rank the rows; each has cells by header."""
    headers = ("#", *rows[0])
    table = make_table(headers, title=title, right=[header for header in headers if header not in _LEFT])
    for rank, row in enumerate(rows, 1):
        table.add_row(str(rank), *row.values())
    return table


def _which(found: Profile, kernel: ProfiledKernel) -> dict[str, str]:
    """What it takes, and which it is."""
    config, us = kernel.config, kernel.timing.latency_us
    return {
        "us": format_number(us),
        "vs best": format_change(us, found.kernels[0].timing.latency_us),
        "kernel": config.family.removeprefix(_PREFIX),
        "tile": f"{config.cta_m}x{config.cta_n}x{config.cta_k}",
        "clus-\nter": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule.name.lower(),
        "work": format_decomposition(config),
    }


def _how(found: Profile, kernel: ProfiledKernel) -> dict[str, str]:
    """What it reaches, and how it is built."""
    config, timing, built = kernel
    tflops, gb_per_s = _rates(found, kernel)
    return {
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


def document_of(
    found: Profile, choices: Sequence[Chosen], gpu: str, dtype: str, count: int | None = None
) -> dict[str, Any]:
    """Return everything as plain values: all kernels, or the `count` fastest."""
    return {
        "gpu": gpu,
        "gemm": _plain(found.gemm._asdict()) | {"dtype": dtype, "bytes_moved": found.bytes_moved},
        "num_kernels": len(found.kernels),
        "kernels": [{"place": place} | _kernel(found, kernel) for place, kernel in enumerate(found.kernels[:count], 1)],
        "choices": [_choice(found, chosen) for chosen in choices],
        "errors": [{**_plain(config._asdict()), "error": error} for config, error in found.errors.items()],
    }


def _rates(found: Profile, kernel: ProfiledKernel) -> tuple[float, float]:
    """TFLOP/s and GB/s."""
    us = kernel.timing.latency_us
    return tflop_per_s(found.gemm.shape.flop, us), found.bytes_moved / us / _BYTES_PER_US_PER_GB_PER_S


def _sentence(found: Profile, chosen: Chosen) -> str:
    place = found.find(chosen.config)
    predicted = f"predicted {format_number(chosen.predicted_us)} us"
    if place is None:
        return f"Choice of the {chosen.by}: {_in_short(chosen.config)}, {predicted}: not timed."
    rank, kernel = place
    us, best_us = kernel.timing.latency_us, found.kernels[0].timing.latency_us
    change = "the best" if rank == 0 else f"{us / best_us - 1.0:+.1%} from the best"
    return (
        f"Choice of the {chosen.by}: {format_number(us)} us ({predicted}), {change}, place {rank + 1}: "
        f"{_in_short(chosen.config)}."
    )


def _choice(found: Profile, chosen: Chosen) -> dict[str, Any]:
    place = found.find(chosen.config)
    us = None if place is None else place[1].timing.latency_us
    return {
        "by": chosen.by,
        "config": _plain(chosen.config._asdict()),
        "predicted_us": chosen.predicted_us,
        "place": None if place is None else place[0] + 1,
        "latency_us": us,
        "over_best_frac": None if us is None else us / found.kernels[0].timing.latency_us - 1.0,
    }


def _kernel(found: Profile, kernel: ProfiledKernel) -> dict[str, Any]:
    tflops, gb_per_s = _rates(found, kernel)
    rates = {"tflop_per_s": tflops, "gb_per_s": gb_per_s}
    return _plain(kernel.config._asdict()) | vars(kernel.timing) | rates | kernel.built._asdict()


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.name.lower() if isinstance(value, enum.IntEnum) else value for name, value in values.items()}
