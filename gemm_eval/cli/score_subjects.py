"""The output of `gemm-eval validate` on layers, operations, whole steps, chips and simulators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import MulticoreSpec, calibration_file, load_arch
from gemm_eval.cli.output import make_console, make_table, print_json, widest, write_csv
from gemm_eval.cli.score import error_cells, plain_lines
from gemm_eval.errors import InvalidOptionError

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.attention import AttentionLine
    from gemm_eval.validation.collective import CollectiveLine
    from gemm_eval.validation.memory_bound import MemoryBoundLine
    from gemm_eval.validation.moe import LayerLine
    from gemm_eval.validation.multicore import ChipLine, ChipScore
    from gemm_eval.validation.simulators import Difference, SideBySide
    from gemm_eval.validation.stacks import StackLine


_HEADERS = ("tokens, or model", "n", "roofline", "MAPE", "median", "p90", "bias", "tau")


def validate_moe(names: Sequence[str], data: Sequence[str], seed: int, *, models: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.moe import score_layers

    lines = [line for line in score_layers(names, data, seed) if models or line.is_regime]
    if as_json:
        print_json({"seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(
        "whole models held out: MAPE of a fitted roofline and of gemm_eval, then more of the last one's errors"
    )
    for _, of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set)))


def _table(lines: Sequence[LayerLine]) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.moe import MODEL, ROOFLINE

    first = lines[0]
    table = report_table(_HEADERS, f"{first.gpu}, {first.data}: {first.dtype} by {first.library}")
    for line in lines:
        table.add_row(line.group, *error_cells(line.errors, MODEL, (ROOFLINE,)))
    return table


_ATTENTION_HEADERS = ("rows of", "n", "naive", "roofline", "MAPE", "median", "p90", "bias", "tau")


def validate_attention(names: Sequence[str], phases: Sequence[str], seed: int, *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.attention import score_attention

    gpus = [] if list(names) == ["all"] else names
    lines = [line for line in score_attention(gpus, phases, seed) if groups or line.group == "all"]
    if as_json:
        print_json({"seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print("heads held out: MAPE of a naive and of a fitted roofline, then the errors of gemm_eval")
    if not groups:
        console.print(_attention_table(lines, "all rows", has_sets=True))
        return
    for name, of_set in groupby(lines, _name):
        console.print(_attention_table(list(of_set), name, has_sets=False))


def _name(line: AttentionLine) -> str:
    return f"{line.gpu}, {line.library}, {line.phase}"


def _attention_table(lines: Sequence[AttentionLine], title: str, *, has_sets: bool) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.attention import FITTED, MODEL, NAIVE

    table = report_table(_ATTENTION_HEADERS, title)
    for line in lines:
        table.add_row(_name(line) if has_sets else line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED)))
    return table


_COLLECTIVE_HEADERS = (
    "operation", "rows of", "n", "link rate", "alpha-beta", "table", "MAPE", "median", "p90", "bias", "tau",
)  # fmt: skip
_ALL = "all"
_WHY = {
    "blocks": "held out: each block of as many ranks and a decade of bytes, all operations together",
    "ranks": "held out: all rows of as many ranks",
}


def validate_collective(names: Sequence[str], hold_out: str, *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.collective import score_collectives

    lines = [line for line in score_collectives(names, hold_out) if groups or line.group == _ALL]
    if as_json:
        print_json({"hold_out": hold_out, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(f"{_WHY[hold_out]}; MAPE of the link's rate, of alpha-beta, of a table, then errors of gemm_eval")
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_collective_table(list(of_set), f"{gpu}, {data}"))


def _collective_table(lines: Sequence[CollectiveLine], title: str) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.collective import FITTED, MODEL, NAIVE, TABLE

    table = report_table(_COLLECTIVE_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED, TABLE)))
    return table


_MEMORY_BOUND_HEADERS = ("kernel", "rows of", "n", "naive", "roofline", "table", "MAPE", "median", "p90", "bias", "tau")


def validate_memory_bound(names: Sequence[str], *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.memory_bound import score_memory_bound

    lines = [line for line in score_memory_bound(names) if groups or _ALL in (line.group, line.what)]
    if as_json:
        print_json({"lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(
        "held out: all rows of a width, or of an octave of elements of PyTorch's kernels; MAPE of the data sheet's "
        "rate, of overhead and rate fitted for each kernel, of a table, then errors of gemm_eval"
    )
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_memory_bound_table(list(of_set), f"{gpu}, {data}"))


def _memory_bound_table(lines: Sequence[MemoryBoundLine], title: str) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.memory_bound import FITTED, MODEL, NAIVE, TABLE

    table = report_table(_MEMORY_BOUND_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED, TABLE)))
    return table


_STEPS = ("step", "measured us", "predicted", "error", "roofline", "memory")
_OPERATIONS = ("operation", "measured us", "predicted", "error", "of the step")


def validate_stacks(names: Sequence[str], *, operations: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.validation.stacks import gpus_with_stacks, score_stacks, score_switches

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
    from gemm_eval.validation.multicore import calibrate_chip, calibration_text, read_chip_timings

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
    from gemm_eval.validation.multicore import chips_with_timings, read_chip_timings, score_chip

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
    from gemm_eval.validation.multicore import FITTED_ROOFLINE, MODEL, NAIVE_ROOFLINE, TABLE

    errors = line.errors[MODEL]
    yield line.rows
    yield f"{errors.num:,}"
    for name in (NAIVE_ROOFLINE, FITTED_ROOFLINE, TABLE):
        yield f"{100.0 * line.errors[name].mape_frac:.1f}"
    yield from (f"{100.0 * value:.1f}" for value in (errors.mape_frac, errors.median_frac, errors.p90_frac))
    yield f"{100.0 * errors.bias_frac:+.1f}"
    yield "-" if errors.kendall_tau is None else f"{errors.kendall_tau:.3f}"


_SIMULATORS_HEADERS = ("M x K x N", "kB", "theirs", "ratio", "array cycles", "theirs", "us", "theirs", "ratio", "why")
_WORDS = {"bytes": "bytes", "compute_cycles": "array", "cycles": "time"}


def validate_simulators(chips: list[str], names: list[str], *, csv: Path | None, as_json: bool) -> None:
    """Count and print; arguments as the options of the command."""
    from gemm_eval.extras import check_extra

    check_extra("comparing with simulators", "simulators", "zigzag", "scalesim")
    from gemm_eval.evaluate import progress_bar
    from gemm_eval.validation.simulators import (
        GEMMS,
        SIMULATORS,
        compare_simulators,
        find_chips,
        simulators_frame,
    )

    known_chips, simulators = find_chips(chips), names or list(SIMULATORS)
    lines = []
    with progress_bar(len(known_chips) * len(GEMMS) * len(simulators), "GEMMs", None) as advance:
        for line in compare_simulators(known_chips, GEMMS, simulators):
            lines.append(line)
            advance(1)
    if csv is not None:
        write_csv(simulators_frame(lines), csv)
    if as_json:
        print_json({"lines": [_plain_side_by_side(line) for line in lines]})
        return
    console = make_console()
    for simulator in simulators:
        of_it = [line for line in lines if line.simulator == simulator]
        marks = _marks(of_it)
        for chip in known_chips:
            table = _simulator_table([line for line in of_it if line.chip == chip], marks)
            console.width = max(console.width, widest(console, table))  # half a number says nothing
            console.print(table)
        console.print("why bytes/array cycles/us are more than 5% apart, ? being unexplained:")
        console.print(*(f"  {mark} {name}" for name, mark in marks.items()), *_simulator_summary(of_it), sep="\n")


def _plain_side_by_side(line: SideBySide) -> dict[str, Any]:
    return {
        "chip": line.chip._asdict(),
        "gemm": line.gemm._asdict(),
        "simulator": line.simulator,
        "ours": line.ours._asdict() | {"least": line.ours.least._asdict(), "moved": line.ours.moved._asdict()},
        "theirs": line.theirs._asdict() | {"least": line.theirs.least._asdict(), "moved": line.theirs.moved._asdict()},
        "differences": {
            quantity: {
                "ours": difference.ours, "theirs": difference.theirs,
                "causes": [cause._asdict() for cause in difference.reason.causes],
                "unexplained": difference.reason.unexplained,
            }
            for quantity, difference in line.differences.items()
        },
    }  # fmt: skip


def _marks(lines: Sequence[SideBySide]) -> dict[str, str]:
    """A letter for each cause that is named, in the order in which they are met."""
    causes = (
        cause.name for line in lines for difference in line.differences.values() for cause in difference.reason.causes
    )
    return dict(zip(dict.fromkeys(causes), ascii_lowercase, strict=False))


def _simulator_table(lines: Sequence[SideBySide], marks: dict[str, str]) -> Table:
    from gemm_eval.validation import report_table

    chip = lines[0].chip
    table = report_table(
        _SIMULATORS_HEADERS,
        f"{lines[0].simulator}, {chip.name}: {chip.rows} x {chip.columns}, {chip.sram_bytes // 1024} KiB, "
        f"{chip.dram_bytes_per_cycle} B a cycle, {chip.frequency_ghz:g} GHz",
    )
    for line in lines:
        table.add_row(*_simulator_cells(line, marks))
    return table


def _simulator_cells(line: SideBySide, marks: dict[str, str]) -> Iterator[str]:
    moved, array, time = (line.differences.get(name) for name in _WORDS)
    yield " x ".join(map(str, line.gemm))
    yield from _pair(moved, 1e-3, "{:,.0f}")
    yield "-" if moved is None else f"{moved.ratio:.2f}"
    yield from _pair(array, 1.0, "{:,.0f}")
    yield from _pair(time, line.chip.us(1.0), "{:,.1f}")
    yield "-" if time is None else f"{time.ratio:.2f}"
    why = [_why(difference, marks) for difference in (moved, array, time)]
    yield "/".join(mark or "-" for mark in why) if any(why) else ""


def _why(difference: Difference | None, marks: dict[str, str]) -> str:
    if difference is None:
        return ""
    return "".join(marks[cause.name] for cause in difference.reason.causes) + "?" * bool(difference.reason.unexplained)


def _pair(difference: Difference | None, unit: float, form: str) -> Iterator[str]:
    if difference is None:
        yield from ("-", "-")
    else:
        yield from (form.format(side * unit) for side in (difference.ours, difference.theirs))


def _simulator_summary(lines: Sequence[SideBySide]) -> Iterator[str]:
    """Two lines for each quantity: how often who says less, and which causes."""
    for quantity, word in _WORDS.items():
        differences = [line.differences[quantity] for line in lines if quantity in line.differences]
        less = sum(each.ours < each.theirs for each in differences)
        same = sum(each.ours == each.theirs for each in differences)
        large = [each.reason for each in differences if str(each.reason)]
        names = Counter(cause.name for reason in large for cause in reason.causes)
        unexplained = sum(bool(reason.unexplained) for reason in large)
        said = ", ".join([*(f"{name} {num}" for name, num in names.most_common()), f"unexplained {unexplained}"])
        num, more = len(differences), len(differences) - less - same
        yield f"{word}: ours less in {less} of {num}, equal in {same}, more in {more}"
        yield f"  more than 5% apart: {len(large)}; {said}"
