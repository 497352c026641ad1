"""The work of `gemm-eval measure`: GEMMs on this machine's GPU, and its CPU as an arch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from gemm_eval import measure
from gemm_eval.arch import GpuSpec, L2State, MulticoreSpec, gpu_slug, load_arch
from gemm_eval.cli.output import Column, format_number, make_console, print_json, print_line, print_table
from gemm_eval.cli.values import refuse
from gemm_eval.errors import InvalidOptionError
from gemm_eval.storage import make_folder

if TYPE_CHECKING:
    import typer

    from gemm_eval.cli.arch import GpuOptions
    from gemm_eval.measure.host import HostMeasurement, HostTiming
    from gemm_eval.validation.subjects.chips import ChipScore

_say = partial(print_line, err=True)
_OURS = ("w4a16", "w4a8")  # kernels


def measure_this_gpu(ctx: typer.Context, asked: GpuOptions) -> None:
    """Measure, write and print, or list what would be measured."""
    begin = time.monotonic()
    is_drawn = asked.draw is not None
    kernel, l2 = ("torch", L2State.COLD_ALL) if is_drawn else ("cublas", L2State.COLD)
    asked = replace(asked, kernel=asked.kernel or kernel, l2=asked.l2 or str(l2))
    _check(ctx, asked)
    protocol = (measure.TimingProtocol.quick if asked.quick else measure.TimingProtocol)(l2=asked.l2, clock=asked.clock)

    def gpu_of(runner: measure.Runner) -> str:
        return asked.gpu_name or gpu_slug(getattr(runner, "gpu_name", "gpu"))

    def run(runner: measure.Runner, kind: str, items: Sequence[measure.GemmItem], plan: str = "") -> Path:
        campaign = measure.Campaign(
            runner, protocol, asked.out, measure.file_stem(gpu_of(runner), kind, asked.dtype, protocol), _say,
            stop_at=None if asked.budget_seconds is None else begin + asked.budget_seconds,
            pool_bytes=int(asked.pool_gib * (1 << 30)), with_trace=asked.trace and asked.kernel not in _OURS,
            plan=plan,
        )  # fmt: skip
        return campaign.run(items)

    if asked.kernel in _OURS:
        is_fp8 = asked.kernel == measure.W4A8Runner.kernel
        sets, choice = asked.shape_sets or ["w4a16"], measure.Choice(asked.top, asked.num_random)
        gemms = list(dict.fromkeys(gemm for name in sets for gemm in measure.list_quant_shapes(name)))
        shapes = dict.fromkeys(measure.GemmShape(*gemm[:4]) for gemm in gemms)
        dense = list(shapes) if asked.cublas and not is_fp8 else []
        if asked.show:
            _list_kernels(gemms, dense, choice, protocol, asked.dtype, asked.gpu_name or "h200-sxm", is_fp8=is_fp8)
            return
        # first cuBLAS, which takes little of a budget; its weights are gone before ours are made
        cublas = run(measure.make_runner("cublas", asked.dtype), "w4a16-cublas", dense) if dense else None
        runner = (measure.W4A8Runner if is_fp8 else measure.W4A16Runner)(asked.dtype)
        items = measure.list_items(gemms, asked.dtype, runner.spec, choice, is_fp8=is_fp8)
        path = run(runner, runner.kernel, items, f"{', '.join(sets)}: {choice}")
        print_line(str(path))
        if not is_fp8:
            print_comparison(measure.compare_kernels(path, cublas, gpu_of(runner), asked.dtype))
        return
    is_grouped = asked.kernel == "grouped"
    names = asked.shape_sets or ["grouped" if is_grouped else "model-zoo"]
    listed: list[measure.GemmItem] = []
    for name in names if asked.draw is None else ():
        listed += measure.list_grouped_shapes(name) if is_grouped else measure.list_shapes(name, asked.dtype)
    if asked.draw is not None:
        listed += measure.draw_shapes(asked.draw, asked.seed, asked.dtype)
    ordered = measure.shuffle_shapes(listed)
    if not ordered:
        raise InvalidOptionError(f"--set {', '.join(names)} has no GEMMs of --dtype {asked.dtype}")
    if asked.show:
        for shape in ordered:
            words = (*shape[:4], *shape[5:]) if isinstance(shape, measure.GroupedShape) else shape  # not all its rows
            print_line(" ".join(map(str, words)))
        _say(f"{len(ordered)} GEMMs (G M K N), about {measure.estimate_seconds(ordered, protocol):.0f} s")
        return
    kind = f"{asked.kernel}-drawn" if is_drawn else asked.kernel
    print_line(str(run(measure.make_runner(asked.kernel, asked.dtype), kind, ordered)))


def _check(ctx: typer.Context, asked: GpuOptions) -> None:
    kernel = asked.kernel
    for name, number in (("--pool-gib", asked.pool_gib), ("--budget-seconds", asked.budget_seconds)):
        if number is not None and not 0.0 < number < math.inf:
            raise InvalidOptionError(f"{name} must be a positive number, got {number}")
    if asked.draw is not None and (kernel != "torch" or asked.shape_sets):
        raise InvalidOptionError(f"--draw needs --kernel torch and no --set, got --kernel {kernel}")
    if asked.draw is None:
        refuse(ctx, "a set of GEMMs, without --draw,", {"seed"})
        if asked.l2 == L2State.COLD_ALL:
            raise InvalidOptionError("--l2 cold-all needs --draw: of other GEMMs the weights alone rotate")
    if kernel not in _OURS:
        if asked.top is not None or asked.num_random:
            raise InvalidOptionError(f"--top and --random need --kernel {' or '.join(_OURS)}, got --kernel {kernel}")
        refuse(ctx, f"--kernel {kernel}", {"num_random", "cublas"})
        return
    if (asked.top is not None and asked.top < 1) or asked.num_random < 0:
        raise InvalidOptionError(f"--top must be >= 1 and --random >= 0, got {asked.top} and {asked.num_random}")
    if asked.top is None:
        refuse(ctx, "every legal config, without --top,", {"num_random"})
    refuse(ctx, f"--kernel {kernel}", {"trace"})


def _list_kernels(
    gemms: Sequence[measure.QuantShape], dense: Sequence[measure.GemmShape], choice: measure.Choice,
    protocol: measure.TimingProtocol, dtype: str, gpu: str, *, is_fp8: bool,
) -> None:  # fmt: skip
    """Print the GEMMs, how many kernels of each, and about how long it takes; needs no GPU."""
    spec, items = load_arch(gpu, GpuSpec), list[measure.KernelItem]()
    for gemm in gemms:
        chosen = measure.list_items([gemm], dtype, spec, choice, is_fp8=is_fp8)
        print_line(f"{' '.join(map(str, gemm[:4]))} {gemm.mode.name.lower()} {gemm.group_size} {len(chosen)}")
        items += chosen
    _say(
        f"{len(gemms)} GEMMs (G M K N mode group_size kernels), {choice}: {len(items)} kernels to time, at most about "
        f"{measure.estimate_seconds([*dense, *items], protocol):.0f} s on {gpu}"
    )


_COMPARED: list[Column] = [
    ("N", "N", ","), ("K", "K", ","), ("M", "M", ","), ("weights", "weights", ""), ("timed", "num_configs", ""),
    ("best us", "best_us", ""), ("cuBLAS us", "cublas_us", ""), ("ratio", "cublas_ratio", ""),
    ("humming us", "humming_us", ""), ("ratio", "humming_ratio", ""), ("read us", "read_us", ""),
    ("best kernel", "best", ""),
]  # fmt: skip


def print_comparison(gemms: Sequence[measure.ComparedGemm]) -> None:
    """Print a line for each GEMM: our best kernel, and others beside it."""
    others, rows = ("cublas", "humming"), []
    for gemm in gemms:
        row = gemm._asdict() | {"weights": f"{gemm.mode} {gemm.group_size}" if gemm.group_size > 0 else gemm.mode}
        for other in others:
            other_us = row[f"{other}_us"]
            row[f"{other}_ratio"] = "-" if other_us is None else f"{other_us / gemm.best_us:.2f}"
        for name in ("best_us", "cublas_us", "humming_us", "read_us"):
            row[name] = "-" if row[name] is None else format_number(row[name])
        rows.append(row)
    title = "Our best kernel; ratio: the other's time over it; read: one pass over the weights"
    print_table(rows, _COMPARED, title=title, num_keys=3)
    console = make_console()
    console.print()
    for name, least, most in (("M <= 32", 1, 32), ("M = 33..512", 33, 512), ("M > 512", 513, math.inf)):
        means = []
        for word, other in zip(("cuBLAS", "humming"), others, strict=True):
            times = ((getattr(gemm, f"{other}_us"), gemm.best_us) for gemm in gemms if least <= gemm.M <= most)
            if ratios := [other_us / best_us for other_us, best_us in times if other_us is not None]:
                many = f"{len(ratios)} GEMMs, at least {min(ratios):.2f}"
                means.append(f"{geometric_mean(ratios):.2f} times as fast as {word} ({many})")
        if means:
            console.print(f"{name}: in the geometric mean {', '.join(means)}")


_NOISY_FRAC = 0.3
_LEAST_PAIRS = 4  # (N, K) that a fit needs
_LEAST_ROWS = 16  # of the line for what is no decode


def measure_this_host(out: Path | None, num_threads: int | None, budget_s: float, dtype: str, *, as_json: bool) -> None:
    """Measure, fit, write and print; arguments as the options of the command."""
    from gemm_eval.measure.host import check_host_packages, measure_host, write_host_files

    check_host_packages()
    if out is None:
        import platformdirs

        out = platformdirs.user_data_path("gemm_eval", appauthor=False) / "host"
    make_folder(out)  # better refused before the work than after
    measured = measure_host(dtype, num_threads=num_threads, budget_s=budget_s, say=_say)
    date = datetime.now(UTC).date().isoformat()
    files = write_host_files(out, measured, date)  # better kept, should the fit fail
    if not as_json:
        for line in _describe(measured):
            print_line(line)
    score = None if files.spec is None else _score(files.spec, files.timings)
    if score is not None:
        files = write_host_files(out, measured, date, score.coefficients)
    if files.spec is None:
        _say(f"no spec is written: the model has no type {dtype}")
    written = [str(path) for path in files if path is not None]
    if as_json:
        print_json(_document(measured, score) | {"files": written})
        return
    if score is not None:
        from gemm_eval.validation.subjects.chips import chip_table

        make_console().print(chip_table(score))
    for path in written:
        print_line(f"written to {path}")


def _score(spec_path: Path, timings_path: Path) -> ChipScore | None:
    """Fit the spec on the timings, each held out once; None where they are too few."""
    from gemm_eval.validation.subjects.chip_timings import read_chip_timings
    from gemm_eval.validation.subjects.chips import score_chip

    spec = load_arch(spec_path, MulticoreSpec)
    timings = read_chip_timings(spec.name, timings_path)
    num_pairs = len({pair for rows in timings.sets for pair in rows.pairs})
    if num_pairs < _LEAST_PAIRS:
        _say(f"{num_pairs} (N, K) are too few for a fit: its rates are first guesses; give it more time")
        return None
    _say(f"fitting {len(spec.coefficients)} numbers")
    return score_chip(spec, timings, least_rows=[_LEAST_ROWS])


def _document(measured: HostMeasurement, score: ChipScore | None) -> dict[str, Any]:
    fastest = max(measured.timings, key=_tflop_per_s)
    return {
        "cpu": measured.facts.title,
        **{name: getattr(measured.facts, name).value for name in ("num_cores", "clock_ghz", "simd_bits")},
        "blas": str(measured.blas), "dtype": measured.dtype,
        "bandwidth": [point._asdict() for point in measured.bandwidth], "num_gemms": len(measured.timings),
        "num_left_out": measured.num_left_out, "num_noisy": _num_noisy(measured),
        "fastest": fastest.shape._asdict() | {"tflop_per_s": _tflop_per_s(fastest)},
        "folds": "" if score is None else score.folds,
        "coefficients": {} if score is None else score.coefficients,
        "lines": [] if score is None else [line.to_dict() for line in score.lines],
    }  # fmt: skip


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
    yield f"caches: {', '.join(caches) or 'unknown'}; memory {_size(facts.memory_bytes)}"
    yield str(measured.blas)
    for point in measured.bandwidth:
        if point.kind == "read":
            yield f"read, {point.num_threads} threads, {_size(point.working_set_bytes)}: {point.gb_per_s:.1f} GB/s"
    fastest = max(measured.timings, key=_tflop_per_s)
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
