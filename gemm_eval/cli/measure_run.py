"""The work of `gemm-eval measure`: our kernels beside cuBLAS, and this machine's CPU as an arch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import GpuSpec, MulticoreSpec, load_arch
from gemm_eval.cli.output import format_number, make_console, make_table, plain_lines, print_json, print_line
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
from gemm_eval.storage import make_folder

if TYPE_CHECKING:
    from gemm_eval.measure.host import HostMeasurement, HostTiming
    from gemm_eval.validation.subjects.chips import ChipScore


MakeCampaign = Callable[[Runner, str, str], Campaign]
"""Takes a runner, the name of whose kernels run, and a plan."""


def list_kernel_work(
    shape_sets: Sequence[str], dtype: str, choice: Choice, protocol: TimingProtocol, gpu: str, *, with_cublas: bool
) -> None:
    """Print the GEMMs, how many kernels of each, and about how long it takes; needs no GPU."""

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
        "N", "K", "M", "weights", "timed", "best us", "cuBLAS us", "ratio", "humming us", "ratio", "read us",
        "best kernel",
    )  # fmt: skip
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


_NOISY_FRAC = 0.3
_LEAST_PAIRS = 4  # (N, K) that a fit needs
_LEAST_ROWS = 16  # of the line for what is no decode


def measure_this_host(out: Path | None, num_threads: int | None, budget_s: float, dtype: str, *, as_json: bool) -> None:
    """Measure, fit, write and print; arguments as the options of the command."""

    from gemm_eval.measure.host import check_host_packages, measure_host, write_host_files

    check_host_packages()
    out = _default_folder() if out is None else out
    make_folder(out)  # better refused before the work than after
    measured = measure_host(dtype, num_threads=num_threads, budget_s=budget_s, say=partial(print_line, err=True))
    date = datetime.now(UTC).date().isoformat()
    files = write_host_files(out, measured, date)  # better kept, should the fit fail
    if not as_json:
        for line in _describe(measured):
            print_line(line)
    score = None if files.spec is None else _score(files.spec, files.timings)
    if score is not None:
        files = write_host_files(out, measured, date, score.coefficients)
    if files.spec is None:
        print_line(f"no spec is written: the model has no type {dtype}", err=True)
    written = [str(path) for path in files if path is not None]
    if as_json:
        print_json(_document(measured, score) | {"files": written})
        return
    if score is not None:
        _print_score(score)
    for path in written:
        print_line(f"written to {path}")


def _default_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("gemm_eval", appauthor=False) / "host"


def _score(spec_path: Path, timings_path: Path) -> ChipScore | None:
    """Fit the spec on the timings, each held out once; None where they are too few."""
    from gemm_eval.validation.subjects.chip_fit import read_chip_timings
    from gemm_eval.validation.subjects.chips import score_chip

    spec = load_arch(spec_path, MulticoreSpec)
    timings = read_chip_timings(spec.name, timings_path)
    num_pairs = len({pair for rows in timings.sets for pair in rows.pairs})
    if num_pairs < _LEAST_PAIRS:
        print_line(
            f"{num_pairs} (N, K) are too few for a fit: its rates are first guesses; give it more time", err=True
        )
        return None
    print_line(f"fitting {len(spec.coefficients)} numbers", err=True)
    return score_chip(spec, timings, least_rows=[_LEAST_ROWS])


def _print_score(score: ChipScore) -> None:
    from gemm_eval.cli.score_subjects import chip_table

    make_console().print(chip_table(score.lines[0].chip, score))


def _document(measured: HostMeasurement, score: ChipScore | None) -> dict[str, Any]:
    fastest = _fastest(measured)
    return {
        "cpu": measured.facts.title,
        "num_cores": measured.facts.num_cores.value,
        "clock_ghz": measured.facts.clock_ghz.value,
        "simd_bits": measured.facts.simd_bits.value,
        "blas": str(measured.blas),
        "dtype": measured.dtype,
        "bandwidth": [point._asdict() for point in measured.bandwidth],
        "num_gemms": len(measured.timings),
        "num_left_out": measured.num_left_out,
        "num_noisy": _num_noisy(measured),
        "fastest": fastest.shape._asdict() | {"tflop_per_s": _tflop_per_s(fastest)},
        "folds": "" if score is None else score.folds,
        "coefficients": {} if score is None else score.coefficients,
        "lines": [] if score is None else plain_lines(score.lines),
    }


def _fastest(measured: HostMeasurement) -> HostTiming:
    return max(measured.timings, key=_tflop_per_s)


def _tflop_per_s(timing: HostTiming) -> float:
    return 2e-6 * timing.shape.num_macs / timing.latency_us


def _num_noisy(measured: HostMeasurement) -> int:
    return sum(timing.spread_frac > _NOISY_FRAC for timing in measured.timings)


def _describe(measured: HostMeasurement) -> Iterator[str]:
    facts = measured.facts
    nominal = f", nominal {facts.nominal_ghz.value:.2f}" if facts.nominal_ghz else ""
    clock = f"{facts.clock_ghz.value:.2f} GHz{nominal}"
    yield f"{facts.title}: {facts.num_cores.value} cores, {clock}, {facts.simd_bits.value}-bit vectors"
    caches = (f"L{level} {_size(size)} for {cores} core{'s' * (cores > 1)}" for level, size, cores in facts.caches)
    yield f"caches: {', '.join(caches) or 'none that it tells of'}; memory {_size(facts.memory_bytes)}"
    yield str(measured.blas)
    for point in measured.bandwidth:
        if point.kind == "read":
            yield f"read, {point.num_threads} threads, {_size(point.working_set_bytes)}: {point.gb_per_s:.1f} GB/s"
    fastest = _fastest(measured)
    sizes = " ".join(map(str, fastest.shape))
    yield f"{len(measured.timings)} GEMMs, the fastest {_tflop_per_s(fastest):.3f} TFLOP/s (M K N {sizes})"
    if measured.num_left_out:
        yield f"{measured.num_left_out} more never ran undisturbed, and are left out: was the machine busy?"
    if noisy := _num_noisy(measured):
        yield f"{noisy} of them spread by more than {_NOISY_FRAC:.0%}: was the machine busy?"


def _size(num_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if num_bytes >= 1 << shift:
            return f"{num_bytes / (1 << shift):.4g} {unit}"
    return f"{num_bytes / 1024:.4g} KiB"
