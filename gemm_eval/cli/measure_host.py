"""`gemm-eval measure host`: this machine's CPU as an arch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.cli.exam import plain_lines

if TYPE_CHECKING:
    from gemm_eval.measure.host import HostMeasurement, HostTiming
    from gemm_eval.validation.subjects.chips import ChipScore

__all__ = ["measure_this_host"]

_NOISY_FRAC = 0.3
_LEAST_PAIRS = 4  # (N, K) that a fit needs
_LEAST_ROWS = 16  # of the line for what is no decode


def measure_this_host(out: Path | None, num_threads: int | None, budget_s: float, dtype: str, *, as_json: bool) -> None:
    """Measure, fit, write and print; arguments as the options of the command."""
    from datetime import UTC, datetime

    from gemm_eval.cli.output import print_json, print_line
    from gemm_eval.measure.host import check_host_packages, measure_host, write_host_files
    from gemm_eval.storage import make_folder

    check_host_packages()
    out = _default_folder() if out is None else out
    make_folder(out)  # better refused before the work than after
    found = measure_host(dtype, num_threads=num_threads, budget_s=budget_s, say=partial(print_line, err=True))
    date = datetime.now(UTC).date().isoformat()
    files = write_host_files(out, found, date)  # better kept, should the fit fail
    if not as_json:
        for line in _describe(found):
            print_line(line)
    score = None if files.spec is None else _score(files.spec, files.timings)
    if score is not None:
        files = write_host_files(out, found, date, score.coefficients)
    if files.spec is None:
        print_line(f"no spec is written: the model has no type {dtype}", err=True)
    written = [str(path) for path in files if path is not None]
    if as_json:
        print_json(_document(found, score) | {"files": written})
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
    from gemm_eval.arch import MulticoreSpec, load_arch
    from gemm_eval.cli.output import print_line
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
    from gemm_eval.cli.multicore_chips import chip_table
    from gemm_eval.cli.output import make_console

    make_console().print(chip_table(score.lines[0].chip, score))


def _document(found: HostMeasurement, score: ChipScore | None) -> dict[str, Any]:
    fastest = _fastest(found)
    return {
        "cpu": found.facts.title,
        "num_cores": found.facts.num_cores.value,
        "clock_ghz": found.facts.clock_ghz.value,
        "simd_bits": found.facts.simd_bits.value,
        "blas": str(found.blas),
        "dtype": found.dtype,
        "bandwidth": [point._asdict() for point in found.bandwidth],
        "num_gemms": len(found.timings),
        "num_left_out": found.num_left_out,
        "num_noisy": _num_noisy(found),
        "fastest": fastest.shape._asdict() | {"tflop_per_s": _tflop_per_s(fastest)},
        "folds": "" if score is None else score.folds,
        "coefficients": {} if score is None else score.coefficients,
        "lines": [] if score is None else plain_lines(score.lines),
    }


def _fastest(found: HostMeasurement) -> HostTiming:
    return max(found.timings, key=_tflop_per_s)


def _tflop_per_s(timing: HostTiming) -> float:
    return 2e-6 * timing.shape.num_macs / timing.latency_us


def _num_noisy(found: HostMeasurement) -> int:
    return sum(timing.spread_frac > _NOISY_FRAC for timing in found.timings)


def _describe(found: HostMeasurement) -> Iterator[str]:
    facts = found.facts
    nominal = f", nominal {facts.nominal_ghz.value:.2f}" if facts.nominal_ghz else ""
    clock = f"{facts.clock_ghz.value:.2f} GHz{nominal}"
    yield f"{facts.title}: {facts.num_cores.value} cores, {clock}, {facts.simd_bits.value}-bit vectors"
    caches = (f"L{level} {_size(size)} for {cores} core{'s' * (cores > 1)}" for level, size, cores in facts.caches)
    yield f"caches: {', '.join(caches) or 'none that it tells of'}; memory {_size(facts.memory_bytes)}"
    yield str(found.blas)
    for point in found.bandwidth:
        if point.kind == "read":
            yield f"read, {point.num_threads} threads, {_size(point.working_set_bytes)}: {point.gb_per_s:.1f} GB/s"
    fastest = _fastest(found)
    sizes = " ".join(map(str, fastest.shape))
    yield f"{len(found.timings)} GEMMs, the fastest {_tflop_per_s(fastest):.3f} TFLOP/s (M K N {sizes})"
    if found.num_left_out:
        yield f"{found.num_left_out} more never ran undisturbed, and are left out: was the machine busy?"
    if noisy := _num_noisy(found):
        yield f"{noisy} of them spread by more than {_NOISY_FRAC:.0%}: was the machine busy?"


def _size(num_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if num_bytes >= 1 << shift:
            return f"{num_bytes / (1 << shift):.4g} {unit}"
    return f"{num_bytes / 1024:.4g} KiB"
