"""The commands of `validate` whose subjects have an `Exam`: scores as tables or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation import Metrics
    from gemm_eval.validation.exam import Exam, Line

_ERRORS = ("MAPE", "median", "p90", "bias", "tau")


class HeldOutLine(Protocol):
    """Errors on some rows, by who predicts."""

    @property
    def errors(self) -> Mapping[str, Metrics]:
        """By who predicts."""

    def _asdict(self) -> dict[str, Any]: ...


def plain_lines(lines: Iterable[HeldOutLine]) -> list[dict[str, Any]]:
    """Return lines ready for JSON."""
    return [
        line._asdict() | {"errors": {name: asdict(errors) for name, errors in line.errors.items()}} for line in lines
    ]


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
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.exam import score

    lines = [line for line in score(exam, names) if groups or exam.is_main(line.labels)]
    if as_json:
        print_json({**(options or {}), "lines": [line.to_dict() for line in lines]})
        return
    console = make_console()
    console.print(exam.headline)
    tables = [(title, list(of_table)) for title, of_table in groupby(lines, lambda line: _title(exam, line))]
    if len(tables) > 1 and len(tables) == len(lines):  # a line each: one table for all
        console.print(_table(exam, lines, "all rows", is_of_many=True))
        return
    for title, of_table in tables:
        console.print(_table(exam, of_table, title, is_of_many=False))


def _title(exam: Exam[Any], line: Line) -> str:
    return exam.title.format(**line.labels)


def _table(exam: Exam[Any], lines: Sequence[Line], title: str, *, is_of_many: bool) -> Table:
    from gemm_eval.validation import report_table

    headers = ["rows of"] if is_of_many else list(exam.columns.values())
    table = report_table((*headers, "n", *exam.baselines.values(), *_ERRORS), title)
    for line in lines:
        labels = [_title(exam, line)] if is_of_many else [line.labels[name] for name in exam.columns]
        table.add_row(*labels, *_cells(exam, line))
    return table


def _cells(exam: Exam[Any], line: Line) -> Iterator[str]:
    """Yield the number of rows, the MAPE of baselines, and all errors of the model."""
    from gemm_eval.validation.exam import MODEL

    errors = line.errors[MODEL]
    yield f"{errors.num:,}"
    yield from (f"{line.errors[name].mape_frac:.1%}" for name in exam.baselines)
    yield from (f"{size:.1%}" for size in (errors.mape_frac, errors.median_frac, errors.p90_frac))
    yield f"{errors.bias_frac:+.1%}"
    yield "-" if errors.kendall_tau is None else f"{errors.kendall_tau:.3f}"
