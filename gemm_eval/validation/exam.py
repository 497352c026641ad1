"""The exam of a predicted subject: rows of its tables are predicted by fits that have not seen them.

A subject is an `Exam`: its tables, a function that fits on some of their rows and predicts others, which rows are held
out together, and for which rows errors are reported. Scores, lines and errors of calibrations follow from these.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
from rich.table import Table as RichTable

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidInputError
from gemm_eval.measure import read_frame
from gemm_eval.models.gpu import ErrorFigures
from gemm_eval.validation import learned
from gemm_eval.validation.fit import held_out, sha256_of
from gemm_eval.validation.learned import FittedCorrection, Subject, calibrate_learned, corrected
from gemm_eval.validation.metrics import COVERAGE, FIGURES, Metrics, error_figures, measure_errors, rows_table
from gemm_eval.validation.tables import Floats, Ints, Mask, Table, measured_root, meta_of
from gemm_eval.words import check_word

MODEL, NAIVE, FITTED, TABLE = "gemm_eval", "naive roofline", "fitted roofline", "table"
"""Who predicts: the model; the data sheet's rates; overhead and shares of these rates, fitted; a table interpolated."""

ALL_GPUS = "all"
"""Word in place of names: every GPU with timings."""

Predict = learned.Predict

Groups = Iterable[tuple[Mapping[str, Any], Mask]]
"""Labels of a line, and the rows that it is of."""


@dataclass(frozen=True, eq=False)
class MeasuredTable(Table):
    """A table of timings, CSV or parquet, in ``arch/measured/<gpu>`` with its meta file; a subclass for each kind."""

    COLUMNS: ClassVar[tuple[str, ...]]
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library")

    path: Path
    gpu: str
    library: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a table and the meta file beside it; InvalidInputError: unreadable, or a column or a key is missing."""
        frame, meta = read_frame(path), meta_of(path)
        missing = [name for name in cls.COLUMNS if name not in frame.columns]
        missing += [key for key in cls.KEYS if key not in meta]
        if missing:
            raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
        return cls(frame, path, **cls.read_meta(path, meta))

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003  of tables without words
        return {key: str(meta[key]) for key in cls.KEYS}

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    def column(self, name: str) -> Ints:
        """Return a column of integers."""
        return self.frame[name].to_numpy(np.int64)

    def words(self, name: str) -> list[str]:
        return [str(word) for word in self.frame[name]]


class Line(NamedTuple):
    """Errors by predictor on some rows; `labels` tell which, the group last, and `more` is what else JSON has."""

    labels: Mapping[str, Any]
    errors: Mapping[str, Metrics]
    more: Mapping[str, Any] = MappingProxyType({})

    @property
    def group(self) -> str:
        return str([*self.labels.values()][-1])

    def to_dict(self) -> dict[str, Any]:
        return {**self.labels, "errors": {who: of._asdict() for who, of in self.errors.items()}, **self.more}


def lines_of(
    labels: Mapping[str, Any], measured_us: Floats, predicted: Mapping[str, Floats], groups: Groups
) -> Iterator[Line]:
    """Yield the errors of each group that has rows; rows that the model predicts as 0 do not count."""
    has_work = predicted[MODEL] != 0.0 if MODEL in predicted else np.ones(len(measured_us), bool)
    for of_group, mask in groups:
        rows = mask & has_work
        if rows.any():
            errors = {who: measure_errors(measured_us[rows], us[rows]) for who, us in predicted.items()}
            yield Line({**labels, **of_group}, errors)


T = TypeVar("T", bound=MeasuredTable)


class Exam(NamedTuple, Generic[T]):
    """The exam of a subject whose tables are `T`.

    Attributes:
        read: returns the tables of a GPU, by name.
        predict: returns the predictions of some tables of a GPU, ready to be fitted.
        folds: returns a label of each row of some tables; rows with the same label are held out together.
        groups: returns the rows of a table whose errors are reported together, and the labels of their line.
        headline: says what is held out.
        title: of the lines of a table, with labels in braces.
        columns, baselines: header of each label that is shown, and of each other predictor.
        is_main: whether a line is printed where no single groups are asked for.
        is_joint: fits are on all tables of a GPU together.
        learns: how its learned correction sees the tables; None: it has none.
    """

    read: Callable[[str], list[T]]
    predict: Callable[[GpuSpec, Sequence[T]], Predict]
    folds: Callable[[Sequence[T]], Sequence[Hashable] | Ints]
    groups: Callable[[T], Groups]
    headline: str
    title: str
    columns: Mapping[str, str]
    baselines: Mapping[str, str]
    is_main: Callable[[Mapping[str, str]], bool]
    is_joint: bool = False
    learns: Subject | None = None

    def held_out(self, arch: GpuSpec, sets: Sequence[T]) -> dict[str, Floats]:
        """Return latencies by who predicts them, [rows] of tables that are fitted together, in microseconds.

        Each row is predicted by fits on rows of other folds. InvalidInputError: a table of another GPU.
        """
        for table in sets:
            if table.gpu != arch.name:
                raise InvalidInputError(f"{table.name} is of {table.gpu}, not of {arch.name}")
        predict = self.predict(arch, sets)
        if self.learns is not None:
            predict = corrected(self.learns, arch, sets, predict, MODEL)
        return held_out(self.folds(sets), predict, f"{arch.name}, {', '.join(table.name for table in sets)}")

    def by_table(self, arch: GpuSpec, sets: Sequence[T]) -> Iterator[tuple[T, dict[str, Floats]]]:
        """Yield each table with its rows' held-out predictions."""
        for together in [sets] if self.is_joint else [[table] for table in sets]:
            predicted = self.held_out(arch, together)
            for table, rows in zip(together, parts_of(together), strict=True):
                yield table, {who: us[rows] for who, us in predicted.items()}

    def errors(self, arch: GpuSpec, sets: Sequence[T]) -> tuple[ErrorFigures, ...]:
        """Return the held-out errors of the model's terms on each table as a calibration file has them."""
        physics = self._replace(learns=None)
        return tuple(errors_of(table, predicted[MODEL]) for table, predicted in physics.by_table(arch, sets))

    def corrections(self, arch: GpuSpec, sets: Sequence[T]) -> Iterator[FittedCorrection]:
        """Yield a learned correction for each group of kernels with rows enough."""
        assert self.learns is not None
        for together in [sets] if self.is_joint else [[table] for table in sets]:
            predict, folds = self.predict(arch, together), self.folds(together)
            lines = list(self._main_lines(together))
            yield from calibrate_learned(self.learns, arch, together, predict, folds, MODEL, lines)

    def _main_lines(self, sets: Sequence[T]) -> Iterator[Mask]:
        """Yield the rows [rows of all tables] of each line that is printed where no single groups are asked for."""
        for table, rows in zip(sets, parts_of(sets), strict=True):
            for labels, mask in self.groups(table):
                if self.is_main({"gpu": table.gpu, "data": table.name, **labels}):
                    line = np.zeros(sum(map(len, sets)), bool)
                    line[rows] = mask
                    yield line


def gpus_with(exam: Exam[Any]) -> list[str]:
    """Return the GPUs that have tables of a subject."""
    return [name for name in list_archs() if measured_root(name).is_dir() and exam.read(name)]


def chosen_gpus(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the GPUs that are asked for, of the `known`; InvalidOptionError: another; no name or ``all``: each."""
    if list(names) in ([], [ALL_GPUS]):
        return list(known)
    for name in names:
        check_word("gpu", name, (*known, ALL_GPUS))
    return list(dict.fromkeys(names))


def score(exam: Exam[Any], names: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the errors of rows that were held out, by table and group of rows; `names` as in `chosen_gpus`."""
    for name in chosen_gpus(names, gpus_with(exam)):
        for table, predicted in exam.by_table(load_arch(name, GpuSpec), exam.read(name)):
            labels = {"gpu": name, "data": table.name}
            yield from lines_of(labels, table.measured_us, predicted, exam.groups(table))


def parts_of(sets: Iterable[Table]) -> Iterator[slice]:
    """Yield where the rows of each table are, one after the other."""
    start = 0
    for table in sets:
        yield slice(start, start + len(table))
        start += len(table)


def errors_of(table: MeasuredTable, predicted_us: Floats) -> ErrorFigures:
    """Return the errors on a table as a calibration file has them; rows predicted as 0 do not count."""
    kept = predicted_us > 0.0
    return error_figures(table.name, sha256_of(table.path), table.measured_us[kept], predicted_us[kept])


def lines_table(
    lines: Sequence[Line], title: str, columns: Mapping[str, str], shares: Mapping[str, str], *, title_of: str = ""
) -> RichTable:
    """Return lines of an exam as a table: `columns` (else `title_of`) tell the lines, `shares` whose MAPE is shown."""
    coverage = COVERAGE if any("coverage_frac" in line.more for line in lines) else {}
    headers = list(columns.values()) or ["rows of"]
    others = {name: form for name, form in FIGURES.items() if name not in ("n", "MAPE")}

    def row(line: Line) -> tuple[Any, ...]:
        num, _, *figures = list(line.errors.values())[-1]
        labels = [str(line.labels[name]) for name in columns] or [title_of.format(**line.labels)]
        mapes = (line.errors[who].mape_frac if who in line.errors else None for who in shares)
        return (*labels, num, *mapes, *figures, *(line.more["coverage_frac"] for _ in coverage))

    formats = dict.fromkeys(headers, "") | {"n": ","} | dict.fromkeys(shares.values(), ".1%") | others | coverage
    return rows_table(formats, map(row, lines), title, len(headers))
