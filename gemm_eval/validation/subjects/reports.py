"""Tables, files and plain values that several subjects print or write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from gemm_eval.models.gpu import CalibrationFile
from gemm_eval.validation.exam import MODEL, Exam, Line, score
from gemm_eval.validation.metrics import Metrics
from gemm_eval.validation.report import FIGURES, error_cells, report_table
from gemm_eval.validation.subjects import Fitted, Report
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import visible


class HeldOutLine(Protocol):
    """A named tuple with errors by predictor."""

    @property
    def errors(self) -> dict[str, Metrics]:
        """Errors by predictor."""

    def _asdict(self) -> dict[str, Any]: ...


def plain_lines(lines: Iterable[HeldOutLine]) -> list[dict[str, Any]]:
    """Return lines ready for JSON."""
    return [line._asdict() | {"errors": {name: asdict(of) for name, of in line.errors.items()}} for line in lines]


def tau_cell(metrics: Metrics) -> str:
    """Return how alike the orders are, in three digits."""
    return "-" if metrics.kendall_tau is None else f"{metrics.kendall_tau:.3f}"


def text_table(headers: Sequence[str], title: str, num_left: int = 1) -> Table:
    """Return an empty table whose cells fold when space is short; all columns but the first ones are numbers."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for index, header in enumerate(headers):
        table.add_column(header, overflow="fold", justify="left" if index < num_left else "right")
    return table


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table of results as CSV; names in it are those of files."""
    frame.map(lambda cell: visible(cell) if isinstance(cell, str) else cell).to_csv(path, index=False)


def fitted(
    calibration: CalibrationFile, path: Path, title: str, num_rows: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
) -> Fitted:  # fmt: skip
    """Return what `calibrate` writes and prints of a calibration.

    Args:
        calibration: the file.
        path: where it goes by default.
        title: of the table of held-out errors.
        num_rows: of each data set; None: as many as counted.
        notes: lines below the table.
    """
    headers = ("data", "rows", "used", "MAPE", "median", "p90", "bias", "tau")
    table = text_table(headers, title)
    of_set = {errors.data: errors for errors in calibration.errors}
    for name, num in (num_rows or {data: errors.num_rows for data, errors in of_set.items()}).items():
        if (errors := of_set.get(name)) is None:
            table.add_row(name, f"{num:,}", "0", *("-" for _ in headers[3:]))
            continue
        percents = (errors.mape_percent, errors.median_percent, errors.p90_percent, errors.bias_percent)
        mape, median, p90, bias = (percent / 100.0 for percent in percents)
        metrics = Metrics(errors.num_rows, mape, median, p90, bias, errors.kendall_tau)
        table.add_row(name, f"{num:,}", *error_cells(metrics, metrics.kendall_tau))
    return Fitted(path, lambda out: out.write_text(calibration.to_yaml(), encoding="utf-8"), (table, *notes))


def rows_between(values: Floats | Ints, regimes: Iterable[tuple[str, float, float]]) -> dict[str, Mask]:
    """Return by name which values lie above the first and up to the second number of a regime."""
    return {name: np.asarray((values > low) & (values <= high)) for name, low, high in regimes}


def exam_report(exam: Exam[Any], names: Sequence[str] | None, *, groups: bool, **options: Any) -> Report:
    """Return the scores of a subject with an exam.

    Args:
        exam: of the subject.
        names: GPUs; none or ``all``: every one with tables.
        groups: also lines of single groups of rows.
        options: of the command; JSON repeats those that are one value.
    """

    def title_of(line: Line) -> str:
        return exam.title.format(**line.labels)

    def lines() -> list[Line]:
        return [line for line in score(exam, names or ()) if groups or exam.is_main(line.labels)]

    def document() -> Mapping[str, Any]:
        single = {name: value for name, value in options.items() if isinstance(value, int | str)}
        return {**single, "lines": [line.to_dict() for line in lines()]}

    def parts() -> Iterator[Any]:
        printed = lines()
        yield exam.headline
        tables = [(title, list(of_table)) for title, of_table in groupby(printed, title_of)]
        if len(tables) > 1 and len(tables) == len(printed):  # a line each: one table for all
            yield _exam_table(exam, printed, "all rows", is_of_many=True)
        else:
            yield from (_exam_table(exam, of_table, title, is_of_many=False) for title, of_table in tables)

    return Report(document, parts)


def _exam_table(exam: Exam[Any], lines: Sequence[Line], title: str, *, is_of_many: bool) -> Table:
    num, *others = FIGURES
    headers = ["rows of"] if is_of_many else list(exam.columns.values())
    table = report_table((*headers, num, *exam.baselines.values(), *others), title)
    for line in lines:
        labels = [exam.title.format(**line.labels)] if is_of_many else [line.labels[name] for name in exam.columns]
        errors = line.errors[MODEL]
        count, *cells = error_cells(errors, errors.kendall_tau)
        baselines = (f"{line.errors[name].mape_frac:.1%}" for name in exam.baselines)
        table.add_row(*labels, count, *baselines, *cells)
    return table
