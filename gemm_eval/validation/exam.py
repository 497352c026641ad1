"""The exam of a predicted subject: rows of its tables are predicted by fits that have not seen them.

A subject has an `Exam`: where its tables lie, how its rows are predicted with groups of them held out, beside simple
baselines, and for which rows errors are told. What all exams do stands here once: finding and reading tables, scoring,
and the errors that a calibration file records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import ErrorFigures
from gemm_eval.validation.fit import sha256_of
from gemm_eval.validation.metrics import Metrics, error_figures, measure_errors
from gemm_eval.validation.tables import measured_root, meta_of, read_table
from gemm_eval.validation.timings import Floats, Ints, Mask, Table
from gemm_eval.words import refusal

MODEL, NAIVE, FITTED, TABLE = "gemm_eval", "naive roofline", "fitted roofline", "table"
"""Who predicts: the model; the data sheet's rates; overhead and shares of these rates, fitted; a table interpolated."""

ALL_GPUS = "all"
"""Word in place of names: every GPU with timings."""


@dataclass(frozen=True, eq=False)
class MeasuredTable(Table):
    """A table of timings, a CSV or parquet file in ``arch/measured/<gpu>``; a subclass for each subject.

    The meta file beside it says of what GPU and library it is, and what a latency covers.
    """

    COLUMNS: ClassVar[tuple[str, ...]]
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library")

    path: Path
    gpu: str
    library: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a table and the meta file beside it; InvalidInputError: unreadable, or a column or a key is missing."""
        frame, meta = read_table(path), meta_of(path)
        missing = [name for name in cls.COLUMNS if name not in frame.columns]
        missing += [key for key in cls.KEYS if key not in meta]
        if missing:
            raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
        return cls(frame, path, **cls.read_meta(path, meta))

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003  of tables without words
        """Return the fields of a table that its meta file, or its place, says."""
        return {key: str(meta[key]) for key in cls.KEYS}

    @property
    def name(self) -> str:
        """Folder and file, as in ``memory-bound/kernels``."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def column(self, name: str) -> Ints:
        """Return a column of integers."""
        return self.frame[name].to_numpy(np.int64)

    def words(self, name: str) -> list[str]:
        """Return a column of words."""
        return [str(word) for word in self.frame[name]]


T = TypeVar("T")


class Exam(NamedTuple, Generic[T]):
    """The exam of a subject whose tables are `T`.

    Attributes:
        read: returns the tables of a GPU, by name.
        predict: returns the latencies of all rows of some tables, one table after the other, by who predicts them; 0 of
            rows for which the model has nothing to do.
        groups: yields the rows of a table whose errors are reported together, and the labels of their line.
        headline: says what is held out.
        title: of the lines of a table, with labels in braces.
        columns, baselines: header of each label that is shown, and of each other predictor.
        is_main: whether a line is printed where no single groups are asked for.
        is_joint: fits are on all tables of a GPU together.
    """

    read: Callable[[str], list[T]]
    predict: Callable[[GpuSpec, list[T]], dict[str, Floats]]
    groups: Callable[[T], Iterator[tuple[dict[str, str], Mask]]]
    headline: str
    title: str
    columns: Mapping[str, str]
    baselines: Mapping[str, str]
    is_main: Callable[[Mapping[str, str]], bool]
    is_joint: bool = False


class Line(NamedTuple):
    """Errors by predictor on some rows of a table.

    `labels` are gpu, data (name of the table), and what the subject tells its lines apart by, ``group`` last.
    """

    labels: Mapping[str, str]
    errors: Mapping[str, Metrics]

    @property
    def group(self) -> str:
        """Rows that it is of."""
        return self.labels["group"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**self.labels, "errors": {name: asdict(errors) for name, errors in self.errors.items()}}


def gpus_with(exam: Exam[T]) -> list[str]:
    """Return the GPUs that have tables of a subject."""
    return [name for name in list_archs() if measured_root(name).is_dir() and exam.read(name)]


def chosen_gpus(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the GPUs that are asked for, of the `known`; InvalidOptionError: another; no name or ``all``: each."""
    chosen = known if list(names) in ([], [ALL_GPUS]) else dict.fromkeys(names)
    for name in chosen:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, (*known, ALL_GPUS)))
    return list(chosen)


def score(exam: Exam[T], names: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the errors of rows that were held out, by table and group of rows; `names` as in `chosen_gpus`."""
    for name in chosen_gpus(names, gpus_with(exam)):
        arch, sets = load_arch(name, GpuSpec), cast("list[Any]", exam.read(name))
        for together in [sets] if exam.is_joint else [[of_set] for of_set in sets]:
            yield from _lines(exam, name, together, exam.predict(arch, together))


def _lines(exam: Exam[Any], gpu: str, sets: Sequence[Any], predicted: Mapping[str, Floats]) -> Iterator[Line]:
    for table, rows in zip(sets, parts_of(sets), strict=True):
        has_work = predicted[MODEL][rows] > 0.0
        for labels, of_group in exam.groups(table):
            if (mask := of_group & has_work).any():
                errors = {who: measure_errors(table.measured_us[mask], us[rows][mask]) for who, us in predicted.items()}
                yield Line({"gpu": gpu, "data": table.name, **labels}, errors)


def parts_of(sets: Iterable[Any]) -> Iterator[slice]:
    """Yield where the rows of each table are, one after the other."""
    start = 0
    for table in sets:
        yield slice(start, start + len(table))
        start += len(table)


def held_out(groups: Ints | Sequence[str], predict: Callable[[Mask], Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return the predictions of all rows by who makes them, each by fits on the rows of other groups.

    `groups` [rows] are held out together; `predict` takes which rows are held out, and returns predictions of these.
    """
    names = np.asarray(groups)
    predicted: dict[str, Floats] = {}
    for group in dict.fromkeys(names.tolist()):
        mask = names == group
        for who, latency_us in predict(mask).items():
            predicted.setdefault(who, np.zeros(len(names)))[mask] = latency_us
    return predicted


def errors_of(table: MeasuredTable, predicted_us: Floats) -> ErrorFigures:
    """Return the errors on a table as a calibration file has them; rows predicted as 0 do not count."""
    kept = predicted_us > 0.0
    return error_figures(table.name, sha256_of(table.path), table.measured_us[kept], predicted_us[kept])


def check_gpu(arch: GpuSpec, table: MeasuredTable) -> None:
    """Raise InvalidInputError for a table of another GPU."""
    if table.gpu != arch.name:
        raise InvalidInputError(f"{table.name} is of {table.gpu}, not of {arch.name}")
