"""The output of `gemm-eval validate` on layers, operations, whole steps and chips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import MulticoreSpec, calibration_file, load_arch
from gemm_eval.cli.output import make_console, make_table, plain_lines, print_json
from gemm_eval.cli.score import error_cells
from gemm_eval.errors import InvalidOptionError

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.exam import Exam, Line
    from gemm_eval.validation.subjects.chips import ChipLine, ChipScore
    from gemm_eval.validation.subjects.stacks import StackLine


_ERROR_HEADERS = ("MAPE", "median", "p90", "bias", "tau")


def validate_subject(
    exam: Exam[Any], names: Sequence[str], *, groups: bool, as_json: bool, options: Mapping[str, Any] | None = None
) -> None:
    """Score a subject and print.

    Args:
        exam: of the subject.
        names: GPUs; empty or ``all``: every one with tables.
        groups: also print lines of single groups of rows.
        as_json: print JSON.
        options: of the command, which JSON repeats.
    """
    from gemm_eval.validation.exam import score

    lines = [line for line in score(exam, names) if groups or exam.is_main(line.labels)]
    if as_json:
        print_json({**(options or {}), "lines": [line.to_dict() for line in lines]})
        return
    console = make_console()
    console.print(exam.headline)
    tables = [(title, list(of_table)) for title, of_table in groupby(lines, lambda line: _title_of(exam, line))]
    if len(tables) > 1 and len(tables) == len(lines):  # a line each: one table for all
        console.print(_exam_table(exam, lines, "all rows", is_of_many=True))
        return
    for title, of_table in tables:
        console.print(_exam_table(exam, of_table, title, is_of_many=False))


def _title_of(exam: Exam[Any], line: Line) -> str:
    return exam.title.format(**line.labels)


def _exam_table(exam: Exam[Any], lines: Sequence[Line], title: str, *, is_of_many: bool) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.exam import MODEL

    headers = ["rows of"] if is_of_many else list(exam.columns.values())
    table = report_table((*headers, "n", *exam.baselines.values(), *_ERROR_HEADERS), title)
    for line in lines:
        labels = [_title_of(exam, line)] if is_of_many else [line.labels[name] for name in exam.columns]
        table.add_row(*labels, *error_cells(line.errors, MODEL, tuple(exam.baselines)))
    return table


_STEPS = ("step", "measured us", "predicted", "error", "roofline", "memory")
_OPERATIONS = ("operation", "measured us", "predicted", "error", "of the step")


def validate_stacks(names: Sequence[str], *, operations: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.subjects.stacks import gpus_with_stacks, score_stacks, score_switches

    console = make_console()
    scored = {name: list(score_stacks(name)) for name in names or gpus_with_stacks()}
    switches = {name: score_switches(name) for name in scored}
    if as_json:
        print_json(
            {
                "gpus": {name: [_plain(line) for line in lines] for name, lines in scored.items()},
                "switches": {name: switch._asdict() for name, switch in switches.items() if switch is not None},
            }
        )
        return
    console.print(
        "whole steps in CUDA graphs; nothing is fitted on them. Errors of gemm_eval, of the roofline of the data "
        "sheet, and of bytes that weights, cache and activations take"
    )
    for name, lines in scored.items():
        console.print(_steps(lines, f"{name}, stacks of {lines[0].step.num_layers} layers"))
        console.print(_summary(lines))
        if (switch := switches[name]) is not None:
            console.print(
                f"{switch.num_layers} layers of a decode step beside their operations alone: these add up to "
                f"{switch.alone_frac:.1%} off, with what switching takes {switch.held_out_frac:.1%}, sizes held out"
            )
        for line in lines if operations else ():
            console.print()
            console.print(_of_step(line))


def _plain(line: StackLine) -> dict[str, Any]:
    return line._asdict() | {
        "step": line.step._asdict(), "latency_us": line.latency_us, "error_frac": line.error_frac,
        "roofline_error_frac": line.roofline_error_frac, "memory_error_frac": line.memory_error_frac,
    }  # fmt: skip


def _steps(lines: Sequence[StackLine], title: str) -> Table:

    table = make_table(_STEPS, title=title, right=_STEPS[1:])
    for line in lines:
        table.add_row(
            line.step.name, f"{line.step.latency_us:,.0f}", f"{line.latency_us:,.0f}", f"{line.error_frac:+.1%}",
            f"{line.roofline_error_frac:+.0%}", f"{line.memory_error_frac:+.1%}",
        )  # fmt: skip
    return table


def _summary(lines: Sequence[StackLine]) -> str:
    def of(errors: Sequence[float]) -> str:
        sizes = [abs(error) for error in errors]
        return f"{sum(sizes) / len(sizes):.1%} in the mean, {max(sizes):.1%} at most"

    return (
        f"{len(lines)} steps: gemm_eval {of([line.error_frac for line in lines])}; roofline "
        f"{of([line.roofline_error_frac for line in lines])}; memory {of([line.memory_error_frac for line in lines])}"
    )


def _of_step(line: StackLine) -> Table:

    table = make_table(_OPERATIONS, title=line.step.name, right=_OPERATIONS[1:])
    for name, measured_us in line.step.operations.items():
        predicted_us = line.predicted_us[name]
        table.add_row(
            name, f"{measured_us:,.1f}", f"{predicted_us:,.1f}", f"{predicted_us / measured_us - 1:+.1%}",
            f"{(predicted_us - measured_us) / line.step.latency_us:+.2%}",
        )  # fmt: skip
    return table


ALL_CHIPS = "all"
"""Instead of names: every chip whose timings come with the library."""

_CHIP_HEADERS = ("set", "rows", "n", "naive", "roof", "table", "MAPE", "median", "p90", "bias", "tau")


def calibrate_multicore(
    arch: str, data: Path | None, fit: Sequence[str], folds: int, seed: int, out: Path | None
) -> None:
    """Fit, write and print; arguments as the options of the command."""
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
            for of_set, repeat in scores[spec.name].repeats.items():
                console.print(
                    f"{of_set}: {repeat.num:,} timings are of GEMMs that were timed more than once; one is off the "
                    f"others by {repeat.mape_frac:.1%} in the mean, {repeat.median_frac:.1%} in the median, "
                    f"{repeat.p90_frac:.1%} at p90",
                    highlight=False,
                )
    if as_json:
        lines = [line for score in scores.values() for line in score.lines]
        print_json(
            {
                "folds": {name: score.folds for name, score in scores.items()},
                "coefficients": {name: score.coefficients for name, score in scores.items()},
                "repeats": {
                    name: {of_set: asdict(repeat) for of_set, repeat in score.repeats.items()}
                    for name, score in scores.items()
                },
                "lines": plain_lines(lines),
            }
        )


def chip_table(chip: str, score: ChipScore) -> Table:
    """Return a table of the errors of rooflines, of an interpolated table and of the model."""

    how = f"fitted {score.folds}" if score.folds else "as it is"
    table = make_table(
        _CHIP_HEADERS,
        title=f"{chip}, {how}: MAPE of rooflines and a table, then errors of gemm_eval, in %",
        right=_CHIP_HEADERS[2:],
    )
    for _, of_set in groupby(score.lines, lambda line: line.set):
        for place, line in enumerate(of_set):
            table.add_row(line.set if place == 0 else "", *_cells(line))
    return table


def _cells(line: ChipLine) -> Iterator[str]:
    from gemm_eval.validation.exam import FITTED, MODEL, NAIVE
    from gemm_eval.validation.subjects.chips import TABLE

    errors = line.errors[MODEL]
    yield line.rows
    yield f"{errors.num:,}"
    for name in (NAIVE, FITTED, TABLE):
        yield f"{100.0 * line.errors[name].mape_frac:.1f}"
    yield from (f"{100.0 * value:.1f}" for value in (errors.mape_frac, errors.median_frac, errors.p90_frac))
    yield f"{100.0 * errors.bias_frac:+.1f}"
    yield "-" if errors.kendall_tau is None else f"{errors.kendall_tau:.3f}"
