"""`gemm-eval validate stacks`: whole steps of stacks of layers that were timed, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.subjects.stacks import StackLine

__all__ = ["validate_stacks"]

_STEPS = ("step", "measured us", "predicted", "error", "roofline", "memory")
_OPERATIONS = ("operation", "measured us", "predicted", "error", "of the step")


def validate_stacks(names: Sequence[str], *, operations: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.subjects.stacks import gpus_with_stacks, score_stacks, score_switches

    console = make_console()
    scored = {name: list(score_stacks(name)) for name in names or gpus_with_stacks()}
    switches = {name: score_switches(name) for name in scored}
    if as_json:
        print_json(
            {
                "gpus": {name: [_plain(line) for line in lines] for name, lines in scored.items()},
                "switches": {name: found._asdict() for name, found in switches.items() if found is not None},
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
        if (found := switches[name]) is not None:
            console.print(
                f"{found.num_layers} layers of a decode step beside their operations alone: these add up to "
                f"{found.alone_frac:.1%} off, with what switching takes {found.held_out_frac:.1%}, sizes held out"
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
    from gemm_eval.cli.output import make_table

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
    from gemm_eval.cli.output import make_table

    table = make_table(_OPERATIONS, title=line.step.name, right=_OPERATIONS[1:])
    for name, measured_us in line.step.operations.items():
        predicted_us = line.predicted_us[name]
        table.add_row(
            name, f"{measured_us:,.1f}", f"{predicted_us:,.1f}", f"{predicted_us / measured_us - 1:+.1%}",
            f"{(predicted_us - measured_us) / line.step.latency_us:+.2%}",
        )  # fmt: skip
    return table
