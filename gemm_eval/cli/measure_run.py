"""The work of `gemm-eval measure`: GEMMs on this machine's GPU, and its CPU as an arch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import GpuSpec, L2State, MulticoreSpec, gpu_slug, load_arch
from gemm_eval.cli.output import Column, format_number, make_console, print_json, print_line, print_table
from gemm_eval.cli.values import refuse
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import (
    Campaign,
    CandidateRunner,
    Choice,
    ComparedGemm,
    GemmItem,
    GemmShape,
    GroupedShape,
    KernelItem,
    QuantShape,
    Runner,
    TimingProtocol,
    W4A8Runner,
    W4A16Runner,
    compare_kernels,
    draw_shapes,
    estimate_seconds,
    file_stem,
    list_grouped_shapes,
    list_items,
    list_quant_shapes,
    list_shapes,
    make_runner,
    shuffle_shapes,
)
from gemm_eval.storage import make_folder

if TYPE_CHECKING:
    import typer

    from gemm_eval.cli.arch import GpuOptions
    from gemm_eval.measure.host import HostMeasurement, HostTiming
    from gemm_eval.validation.subjects.chips import ChipScore

_say = partial(print_line, err=True)
_OURS, _CANDIDATES = ("w4a16", "w4a8"), "cublaslt-candidates"  # kernels


def measure_this_gpu(ctx: typer.Context, asked: GpuOptions) -> None:
    """Measure, write and print, or list what would be measured."""
    begin = time.monotonic()
    is_drawn = asked.draw is not None
    kernel, l2 = ("torch", L2State.COLD_ALL) if is_drawn else ("cublas", L2State.COLD)
    asked = replace(asked, kernel=asked.kernel or kernel, l2=asked.l2 or str(l2))
    _check(ctx, asked)
    protocol = (TimingProtocol.quick if asked.quick else TimingProtocol)(l2=asked.l2, clock=asked.clock)

    def gpu_of(runner: Runner) -> str:
        return asked.gpu_name or gpu_slug(getattr(runner, "gpu_name", "gpu"))

    def measure(runner: Runner, kind: str, items: Sequence[GemmItem], plan: str = "") -> Path:
        campaign = Campaign(
            runner, protocol, asked.out, file_stem(gpu_of(runner), kind, asked.dtype, protocol), _say,
            stop_at=None if asked.budget_seconds is None else begin + asked.budget_seconds,
            pool_bytes=int(asked.pool_gib * (1 << 30)), with_trace=asked.trace and asked.kernel not in _OURS,
            plan=plan,
        )  # fmt: skip
        return campaign.run(items)

    if asked.kernel in _OURS:
        is_fp8 = asked.kernel == W4A8Runner.kernel
        sets, choice = asked.shape_sets or ["w4a16"], Choice(asked.top, asked.num_random)
        gemms = list(dict.fromkeys(gemm for name in sets for gemm in list_quant_shapes(name)))
        dense = list(dict.fromkeys(GemmShape(*gemm[:4]) for gemm in gemms)) if asked.cublas and not is_fp8 else []
        if asked.show:
            _list_kernels(gemms, dense, choice, protocol, asked.dtype, asked.gpu_name or "h200-sxm", is_fp8=is_fp8)
            return
        # first cuBLAS, which takes little of a budget; its weights are gone before ours are made
        cublas = measure(make_runner("cublas", asked.dtype), "w4a16-cublas", dense) if dense else None
        runner = (W4A8Runner if is_fp8 else W4A16Runner)(asked.dtype)
        items = list_items(gemms, asked.dtype, runner.spec, choice, is_fp8=is_fp8)
        path = measure(runner, runner.kernel, items, f"{', '.join(sets)}: {choice}")
        print_line(str(path))
        if not is_fp8:
            print_comparison(compare_kernels(path, cublas, gpu_of(runner), asked.dtype))
        return
    is_grouped = asked.kernel == "grouped"
    names = asked.shape_sets or ["grouped" if is_grouped else "model-zoo"]
    listed: Iterator[Sequence[GemmItem]] = (
        list_grouped_shapes(name) if is_grouped else list_shapes(name, asked.dtype) for name in names
    )
    if asked.draw is not None:
        listed = iter([draw_shapes(asked.draw, asked.seed, asked.dtype)])
    shapes = shuffle_shapes([shape for of_set in listed for shape in of_set])
    if not shapes:
        raise InvalidOptionError(f"--set {', '.join(names)} has no GEMMs of --dtype {asked.dtype}")
    num_candidates = 8 if asked.candidates is None else asked.candidates
    if asked.show:
        _list_shapes(shapes, protocol, num_candidates if asked.kernel == _CANDIDATES else 1)
        return
    runner_of_library = make_runner(asked.kernel, asked.dtype)
    if isinstance(runner_of_library, CandidateRunner):
        dense = [shape for shape in shapes if isinstance(shape, GemmShape)]
        shapes = [*runner_of_library.candidates(dense, num_candidates)]
        if none := len(dense) - len({item[:4] for item in shapes}):
            _say(f"{none} GEMMs have no algorithm at all")
    print_line(str(measure(runner_of_library, f"{asked.kernel}-drawn" if is_drawn else asked.kernel, shapes)))


def _check(ctx: typer.Context, asked: GpuOptions) -> None:
    kernel = asked.kernel
    for name, number in (("--pool-gib", asked.pool_gib), ("--budget-seconds", asked.budget_seconds)):
        if number is not None and not 0.0 < number < math.inf:
            raise InvalidOptionError(f"{name} must be a positive number, got {number}")
    if asked.candidates is not None and kernel != _CANDIDATES:
        raise InvalidOptionError(f"--candidates needs --kernel {_CANDIDATES}, got --kernel {kernel}")
    if asked.candidates is not None and not 1 <= asked.candidates <= 64:
        raise InvalidOptionError(f"--candidates must be 1 to 64, got {asked.candidates}")
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


def _list_shapes(shapes: Sequence[GemmItem], protocol: TimingProtocol, num_candidates: int) -> None:
    for shape in shapes:
        words = (*shape[:4], *shape[5:]) if isinstance(shape, GroupedShape) else shape  # not hundreds of rows
        print_line(" ".join(map(str, words)))
    each = f", up to {num_candidates} algorithms of each" if num_candidates > 1 else ""
    seconds = num_candidates * estimate_seconds(shapes, protocol)
    _say(f"{len(shapes)} GEMMs (G M K N){each}, about {seconds:.0f} s")


def _list_kernels(
    gemms: Sequence[QuantShape], dense: Sequence[GemmShape], choice: Choice, protocol: TimingProtocol, dtype: str,
    gpu: str, *, is_fp8: bool,
) -> None:  # fmt: skip
    """Print the GEMMs, how many kernels of each, and about how long it takes; needs no GPU."""
    spec = load_arch(gpu, GpuSpec)
    items: list[KernelItem] = []
    for gemm in gemms:
        chosen = list_items([gemm], dtype, spec, choice, is_fp8=is_fp8)
        print_line(f"{' '.join(map(str, gemm[:4]))} {gemm.mode.name.lower()} {gemm.group_size} {len(chosen)}")
        items += chosen
    total_s = estimate_seconds(dense, protocol) + estimate_seconds(items, protocol)
    _say(
        f"{len(gemms)} GEMMs (G M K N mode group_size kernels), {choice}: {len(items)} kernels to time, at most about "
        f"{total_s:.0f} s on {gpu}"
    )


def print_comparison(gemms: Sequence[ComparedGemm]) -> None:
    """Print a line for each GEMM: our best kernel, and others beside it."""

    def ratio(other_us: float | None, gemm: ComparedGemm) -> str:
        return "-" if other_us is None else f"{other_us / gemm.best_us:.2f}"

    def time(us: float | None) -> str:
        return "-" if us is None else format_number(us)

    columns: list[Column] = [
        ("N", "N", ","), ("K", "K", ","), ("M", "M", ","), ("weights", "weights", ""), ("timed", "num_configs", ""),
        ("best us", "best_us", time), ("cuBLAS us", "cublas_us", time), ("ratio", "cublas_ratio", ""),
        ("humming us", "humming_us", time), ("ratio", "humming_ratio", ""), ("read us", "read_us", time),
        ("best kernel", "best", ""),
    ]  # fmt: skip
    rows = [
        gemm._asdict()
        | {"weights": f"{gemm.mode} {gemm.group_size}" if gemm.group_size > 0 else gemm.mode}
        | {"cublas_ratio": ratio(gemm.cublas_us, gemm), "humming_ratio": ratio(gemm.humming_us, gemm)}
        for gemm in gemms
    ]
    title = "Our best kernel; ratio: the other's time over it; read: one pass over the weights"
    print_table(rows, columns, title=title, num_keys=3)
    console = make_console()
    console.print()
    others: dict[str, Callable[[ComparedGemm], float | None]] = {
        "cuBLAS": lambda gemm: gemm.cublas_us, "humming": lambda gemm: gemm.humming_us
    }  # fmt: skip
    for name, least, most in (("M <= 32", 1, 32), ("M = 33..512", 33, 512), ("M > 512", 513, 1 << 40)):
        means = []
        for other, time_of in others.items():
            times = ((time_of(gemm), gemm.best_us) for gemm in gemms if least <= gemm.M <= most)
            if ratios := [other_us / best_us for other_us, best_us in times if other_us is not None]:
                many = f"{len(ratios)} GEMMs, at least {min(ratios):.2f}"
                means.append(f"{geometric_mean(ratios):.2f} times as fast as {other} ({many})")
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
        "blas": str(measured.blas),
        "dtype": measured.dtype,
        "bandwidth": [point._asdict() for point in measured.bandwidth],
        "num_gemms": len(measured.timings),
        "num_left_out": measured.num_left_out,
        "num_noisy": _num_noisy(measured),
        "fastest": fastest.shape._asdict() | {"tflop_per_s": _tflop_per_s(fastest)},
        "folds": "" if score is None else score.folds,
        "coefficients": {} if score is None else score.coefficients,
        "lines": [] if score is None else [line.to_dict() for line in score.lines],
    }


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
