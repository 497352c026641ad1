"""What `measure --kernel w4a16` does: our kernels, cuBLAS on the same GEMMs, and a table of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import geometric_mean

from gemm_eval.cli.output import format_number, make_console, make_table, print_line
from gemm_eval.measure import (
    Campaign,
    Choice,
    ComparedGemm,
    GemmShape,
    KernelItem,
    QuantShape,
    Runner,
    TimingProtocol,
    W4A16Runner,
    compare_kernels,
    estimate_seconds,
    list_items,
    list_quant_shapes,
    make_runner,
)

__all__ = ["list_kernel_work", "measure_kernels", "print_comparison"]

MakeCampaign = Callable[[Runner, str, str], Campaign]
"""Takes a runner, the name of whose kernels run, and a plan."""


def list_kernel_work(
    shape_sets: Sequence[str], dtype: str, choice: Choice, protocol: TimingProtocol, gpu: str, *, with_cublas: bool
) -> None:
    """Print the GEMMs, how many kernels of each, and about how long it takes; needs no GPU."""
    from gemm_eval.arch import GpuSpec, load_arch

    gemms, spec = _gemms(shape_sets), load_arch(gpu, GpuSpec)
    total_s = estimate_seconds(_dense(gemms), protocol) if with_cublas else 0.0
    items: list[KernelItem] = []
    for gemm in gemms:
        chosen = list_items([gemm], dtype, spec, choice)
        print_line(f"{' '.join(map(str, gemm[:4]))} {gemm.mode.name.lower()} {gemm.group_size} {len(chosen)}")
        items += chosen
    total_s += estimate_seconds(items, protocol)
    print_line(
        f"{len(gemms)} GEMMs (G M K N mode group_size kernels), {choice}: {len(items)} kernels to time, at most about "
        f"{total_s:.0f} s on {gpu}",
        err=True,
    )


def measure_kernels(
    shape_sets: Sequence[str],
    dtype: str,
    choice: Choice,
    gpu: Callable[[Runner], str],
    make_campaign: MakeCampaign,
    *,
    with_cublas: bool,
) -> None:
    """Time cuBLAS first, which takes little of a budget, then our kernels, and print what compares."""
    gemms = _gemms(shape_sets)
    cublas = None
    if with_cublas:
        dense = make_campaign(make_runner("cublas", dtype), "w4a16-cublas", "")
        cublas = dense.run(_dense(gemms))
        del dense  # and its weights
    runner = W4A16Runner(dtype)
    campaign = make_campaign(runner, runner.kernel, f"{', '.join(shape_sets)}: {choice}")
    path = campaign.run(list_items(gemms, dtype, runner.spec, choice))
    print_line(str(path))
    print_comparison(compare_kernels(path, cublas, gpu(runner), dtype))


def _gemms(shape_sets: Sequence[str]) -> list[QuantShape]:
    return list(dict.fromkeys(gemm for name in shape_sets for gemm in list_quant_shapes(name)))


def _dense(gemms: Sequence[QuantShape]) -> list[GemmShape]:
    return list(dict.fromkeys(gemm.shape for gemm in gemms))


def print_comparison(gemms: Sequence[ComparedGemm]) -> None:
    """Print a line for each GEMM: our best kernel, and others beside it."""
    headers = (
        "N",
        "K",
        "M",
        "weights",
        "timed",
        "best us",
        "cuBLAS us",
        "ratio",
        "humming us",
        "ratio",
        "read us",
        "best kernel",
    )
    table = make_table(
        headers,
        title="Our best kernel; ratio: the other's time over it; read: one pass over the weights",
        right=headers[:3] + headers[4:11],
    )
    for gemm in gemms:
        weights = f"{gemm.mode} {gemm.group_size}" if gemm.group_size > 0 else gemm.mode
        table.add_row(
            f"{gemm.N:,}", f"{gemm.K:,}", f"{gemm.M:,}", weights, str(gemm.num_configs), format_number(gemm.best_us),
            *_beside(gemm.cublas_us, gemm.best_us), *_beside(gemm.humming_us, gemm.best_us),
            "-" if gemm.read_us is None else format_number(gemm.read_us), gemm.best,
        )  # fmt: skip
    console = make_console()
    console.print(table)
    console.print()
    for name, least, most in (("M <= 32", 1, 32), ("M = 33..512", 33, 512), ("M > 512", 513, 1 << 40)):
        here = [gemm for gemm in gemms if least <= gemm.M <= most]
        cublas = [gemm.cublas_us / gemm.best_us for gemm in here if gemm.cublas_us is not None]
        humming = [gemm.humming_us / gemm.best_us for gemm in here if gemm.humming_us is not None]
        means = [
            f"{geometric_mean(ratios):.2f} times as fast as {other} ({len(ratios)} GEMMs, at least {min(ratios):.2f})"
            for other, ratios in (("cuBLAS", cublas), ("humming", humming))
            if ratios
        ]
        if means:
            console.print(f"{name}: in the geometric mean {', '.join(means)}")


def _beside(other_us: float | None, best_us: float) -> tuple[str, str]:
    return ("-", "-") if other_us is None else (format_number(other_us), f"{other_us / best_us:.2f}")
