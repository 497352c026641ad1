"""The predicted subjects, a module each: its exam, its fits, and what `validate` and `calibrate` print and write."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import CalibrationFile, Correction
from gemm_eval.validation.exam import MODEL, Exam, Line, MeasuredTable, lines_table, score
from gemm_eval.validation.learned import FittedCorrection
from gemm_eval.validation.metrics import FIGURES, rows_table
from gemm_eval.validation.tables import Floats, Ints, Mask


class Report(NamedTuple):
    """Output of `validate`: plain values for JSON, and lines and tables for people."""

    document: Callable[[], Mapping[str, Any]]
    parts: Callable[[], Iterable[Any]]


class Fitted(NamedTuple):
    """Output of `calibrate`.

    Attributes:
        path: where the file goes if the user does not say; None: there is none.
        write: writes it to a path.
        parts: lines and tables for people.
    """

    path: Path | None
    write: Callable[[Path], object]
    parts: tuple[Any, ...]


def fitted(
    calibration: CalibrationFile, path: Path, title: str, num_rows: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
) -> Fitted:  # fmt: skip
    """Return what `calibrate` writes (to `path`) and prints: held-out errors, of `num_rows` rows each, and `notes`."""
    columns = {"data": "", "rows": ",", "used": ","} | {name: form for name, form in FIGURES.items() if name != "n"}
    of_set = {errors.data: errors for errors in calibration.errors}

    def row(name: str, num: int) -> tuple[Any, ...]:
        if (errors := of_set.get(name)) is None:
            return name, num, 0, *(None for _ in FIGURES)
        percents = (errors.mape_percent, errors.median_percent, errors.p90_percent, errors.bias_percent)
        return name, num, errors.num_rows, *(percent / 100.0 for percent in percents), errors.kendall_tau

    counts = num_rows or {data: errors.num_rows for data, errors in of_set.items()}
    table = rows_table(columns, (row(*item) for item in counts.items()), title, 1)
    return Fitted(path, lambda out: out.write_text(calibration.to_yaml(), encoding="utf-8"), (table, *notes))


def written(corrections: Iterable[FittedCorrection]) -> Iterator[Fitted]:
    """Yield what `calibrate` writes and prints of learned corrections."""
    for result in corrections:
        of = result.correction
        title = f"{of.path.stem} on {of.gpu}: MAPE {of.folds}; {'on' if of.is_on else 'off: no better than the terms'}"
        regimes = of.errors if isinstance(of, Correction) else ()
        named = [*((item.regime, item) for item in regimes), *((item.data, item) for item in of.data)]
        rows = [(name, item.num_rows, item.physics_mape_percent, item.corrected_mape_percent) for name, item in named]
        table = rows_table({"rows of": "", "rows": ",", "model %": ".2f", "corrected %": ".2f"}, rows, title, 1)
        yield Fitted(of.path, result.write, (table,))


T = TypeVar("T", bound=MeasuredTable)


def of_library(tables: Iterable[T], library: str, kernels: str, gpu: str) -> list[T]:
    """Return the tables of a library; InvalidInputError: there are none of `kernels` on a GPU."""
    sets = [table for table in tables if table.library == library]
    if not sets:
        raise InvalidInputError(f"no timings of {kernels} by {library} on {gpu} are committed")
    return sets


def rows_between(values: Floats | Ints, regimes: Iterable[tuple[str, float, float]]) -> dict[str, Mask]:
    """Return by name which values lie above the first and up to the second number of a regime."""
    return {name: np.asarray((values > low) & (values <= high)) for name, low, high in regimes}


def exam_report(exam: Exam[Any], names: Sequence[str] | None, *, groups: bool, **options: Any) -> Report:
    """Return the scores of an exam on GPUs `names` (none: all), single `groups` too; JSON repeats plain options."""
    shares = {**exam.baselines, MODEL: "MAPE"}

    def lines() -> list[Line]:
        return [line for line in score(exam, names or ()) if groups or exam.is_main(line.labels)]

    def document() -> Mapping[str, Any]:
        single = {name: value for name, value in options.items() if isinstance(value, int | str)}
        return {**single, "lines": [line.to_dict() for line in lines()]}

    def parts() -> Iterator[Any]:
        printed = lines()
        yield exam.headline
        by_title = groupby(printed, lambda line: exam.title.format(**line.labels))
        tables = [(title, list(of_table)) for title, of_table in by_title]
        if len(tables) > 1 and len(tables) == len(printed):  # a line each: one table for all
            yield lines_table(printed, "all rows", {}, shares, title_of=exam.title)
        else:
            yield from (lines_table(of_table, title, exam.columns, shares) for title, of_table in tables)

    return Report(document, parts)
