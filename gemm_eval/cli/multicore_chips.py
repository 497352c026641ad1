"""`gemm-eval calibrate multicore` and `validate multicore`: multi-core chips against timings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gemm_eval.cli.exam import plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.subjects.chips import ChipLine, ChipScore

__all__ = ["ALL_CHIPS", "calibrate_multicore", "chip_table", "validate_multicore"]

ALL_CHIPS = "all"
"""Instead of names: every chip whose timings come with the library."""

_HEADERS = ("set", "rows", "n", "naive", "roof", "table", "MAPE", "median", "p90", "bias", "tau")


def calibrate_multicore(
    arch: str, data: Path | None, fit: Sequence[str], folds: int, seed: int, out: Path | None
) -> None:
    """Fit, write and print; arguments as the options of the command."""
    from gemm_eval.arch import MulticoreSpec, calibration_file, load_arch
    from gemm_eval.cli.output import make_console
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.subjects.chip_fit import read_chip_timings
    from gemm_eval.validation.subjects.chips import calibrate_chip, calibration_text

    spec = load_arch(arch, MulticoreSpec, calibrated=False)
    if out is None and Path(arch).suffix in (".yaml", ".yml"):
        raise InvalidOptionError("--arch FILE needs --out FILE: only presets have a place in arch/calibration")
    timings = read_chip_timings(spec.name, data)
    fitted, score = calibrate_chip(spec, timings, num_folds=folds, seed=seed, paths=fit)
    path = calibration_file(spec.name) if out is None else out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration_text(fitted, spec), encoding="utf-8")
    console = make_console()
    console.print(chip_table(spec.name, score))
    for name, value in score.coefficients.items():
        console.print(f"{name}: {value:.6g}", highlight=False)
    console.print(f"written to {path}", soft_wrap=True)


def validate_multicore(
    names: Sequence[str], data: Path | None, folds: int, seed: int, *, refit: bool, as_json: bool
) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.arch import MulticoreSpec, load_arch
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.subjects.chip_fit import chips_with_timings, read_chip_timings
    from gemm_eval.validation.subjects.chips import score_chip

    wanted = chips_with_timings() if list(names) == [ALL_CHIPS] else list(dict.fromkeys(names))
    if data is not None and len(wanted) > 1:
        raise InvalidOptionError(f"--data FILE is of one chip, got {len(wanted)} names")
    scores: dict[str, ChipScore] = {}
    for name in wanted:
        spec = load_arch(name, MulticoreSpec, calibrated=not refit)
        timings = read_chip_timings(spec.name, data)
        scores[spec.name] = score_chip(spec, timings, num_folds=folds, seed=seed, is_fitted=refit)
        if not as_json:
            console = make_console()
            console.print(chip_table(spec.name, scores[spec.name]))
            for of_set, found in scores[spec.name].repeats.items():
                console.print(
                    f"{of_set}: {found.num:,} timings are of GEMMs that were timed more than once; one is off the "
                    f"others by {found.mape_frac:.1%} in the mean, {found.median_frac:.1%} in the median, "
                    f"{found.p90_frac:.1%} at p90",
                    highlight=False,
                )
    if as_json:
        lines = [line for score in scores.values() for line in score.lines]
        print_json(
            {
                "folds": {name: score.folds for name, score in scores.items()},
                "coefficients": {name: score.coefficients for name, score in scores.items()},
                "repeats": {
                    name: {of_set: asdict(found) for of_set, found in score.repeats.items()}
                    for name, score in scores.items()
                },
                "lines": plain_lines(lines),
            }
        )


def chip_table(chip: str, score: ChipScore) -> Table:
    """Return a table of the errors of rooflines, of an interpolated table and of the model."""
    from gemm_eval.cli.output import make_table

    how = f"fitted {score.folds}" if score.folds else "as it is"
    table = make_table(
        _HEADERS,
        title=f"{chip}, {how}: MAPE of rooflines and a table, then errors of gemm_eval, in %",
        right=_HEADERS[2:],
    )
    for _, of_set in groupby(score.lines, lambda line: line.set):
        for place, line in enumerate(of_set):
            table.add_row(line.set if place == 0 else "", *_cells(line))
    return table


def _cells(line: ChipLine) -> Iterator[str]:
    from gemm_eval.validation.subjects.chips import FITTED_ROOFLINE, MODEL, NAIVE_ROOFLINE, TABLE

    found = line.errors[MODEL]
    yield line.rows
    yield f"{found.num:,}"
    for name in (NAIVE_ROOFLINE, FITTED_ROOFLINE, TABLE):
        yield f"{100.0 * line.errors[name].mape_frac:.1f}"
    yield from (f"{100.0 * value:.1f}" for value in (found.mape_frac, found.median_frac, found.p90_frac))
    yield f"{100.0 * found.bias_frac:+.1f}"
    yield "-" if found.kendall_tau is None else f"{found.kendall_tau:.3f}"
