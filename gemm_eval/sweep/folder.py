"""The store of a sweep's parts: in memory, or in a folder of parquet files that a later run goes on with.

A folder is taken by one sweep at a time. The metadata of a part tell the sweep, the points and what these choose, and
hold a seal, a digest of all bytes of the file with zeros where the digest stands: parquet has checksums of pages only.
"""

import bisect
import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval import storage
from gemm_eval.errors import GemmEvalError, InvalidOptionError, StorageError
from gemm_eval.storage import FileLock, is_temporary, read_bounded, write_whole
from gemm_eval.sweep.metrics import Schema, import_pyarrow
from gemm_eval.sweep.sweep_file import DESCRIPTION, chunks_of, description_bytes, read_description
from gemm_eval.words import shown

MAX_PART_BYTES = 1 << 28
"""The largest part that is written or read; a chunk that the library cuts has less than a thousandth."""

_LABEL, _ROWS, _SEAL = b"gemm_eval.part", b"gemm_eval.rows", b"gemm_eval.seal"
_MARK = b"gemm_eval.sha256="
_NUM_DIGITS = 64
_LOCK = ".lock"
_PART = re.compile(r"points-([0-9]{10,19})\.parquet")
_ASIDE = "_damaged-"  # readers of parquet folders pass over names that begin with _

Rows = Sequence[tuple[Any, ...]]
"""The choices of some points, by field."""


class Store:
    """Tables (parts) of a sweep, each by the number of its first point: here in memory."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tables: dict[int, Any] = {}

    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order."""
        return sorted(self._tables)

    def holds(self, first: int, rows: Rows) -> bool:  # noqa: ARG002  its own rows, since it began
        """Say whether the part of these points, given what they choose, is there."""
        return first in self._tables

    def put(self, first: int, rows: Rows, table: Any) -> None:  # noqa: ARG002
        """Keep the part of these points."""
        self._tables[first] = table

    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        """Return a part, or some columns of it."""
        return self._tables[first] if columns is None else self._tables[first].select(list(columns))

    def num_rows(self, first: int) -> int:
        """Return the number of points of a part."""
        return int(self._tables[first].num_rows)

    def __len__(self) -> int:
        return sum(map(self.num_rows, self.firsts()))

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield all parts, one in memory at a time, in the order of their points."""
        return (self.part(first, columns) for first in self.firsts())

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all parts as one table."""
        return self._joined(list(self.parts(columns)), columns)

    def take(self, places: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> Any:
        """Return some rows, in the order asked for, by their places among all rows; reads their parts only."""
        firsts = self.firsts()
        ends = list(accumulate(map(self.num_rows, firsts)))
        num = ends[-1] if ends else 0
        if len(places) and not 0 <= places.min() <= places.max() < num:
            raise InvalidOptionError(f"rows must be in 0..{num - 1}, got {places.min()}..{places.max()}")
        order = np.argsort(places, kind="stable")
        part_of = np.searchsorted(ends, places[order], side="right")
        tables = []
        for at in np.unique(part_of).tolist():
            inside = places[order][part_of == at] - (ends[at - 1] if at else 0)
            tables.append(self.part(firsts[at], columns).take(inside))
        return self._joined(tables, columns).take(np.argsort(order))

    def point(self, number: int) -> dict[str, Any] | None:
        """Return the columns of a point, if it is there."""
        firsts = self.firsts()
        at = bisect.bisect_right(firsts, number) - 1
        if at < 0 or number - firsts[at] >= self.num_rows(firsts[at]):
            return None
        return self.part(firsts[at]).slice(number - firsts[at], 1).to_pylist()[0]

    def _joined(self, tables: list[Any], columns: Sequence[str] | None) -> Any:
        if tables:
            return import_pyarrow().concat_tables(tables)
        table = self._schema.arrow().empty_table()
        return table if columns is None else table.select(list(columns))


class FolderStore(Store):
    """Parquet files in a folder, each written whole or not at all, and read if it is whole and belongs there."""

    def __init__(self, path: Path, schema: Schema, description: Mapping[str, Any]) -> None:
        super().__init__(schema)
        self._path = path
        self._columns = schema.arrow()
        self._sweep: str = description["digest"]
        self._chunks = chunks_of(description)

    def firsts(self) -> list[int]:
        try:
            names = [entry.name for entry in self._path.iterdir()]
        except OSError as error:
            raise GemmEvalError(f"cannot read {self._path}: {error.strerror or error}") from error
        numbers = {int(match[1]) for match in map(_PART.fullmatch, names) if match}
        return sorted(first for first in numbers if self._chunks.num_at(first) and _part_name(first) in names)

    def holds(self, first: int, rows: Rows) -> bool:
        """Say whether the part of these points is there; a file in its place that is another is set aside."""
        path = self._path / _part_name(first)
        if not os.path.lexists(path):
            return False
        try:
            metadata = self._open(first).metadata.metadata
            if metadata.get(_ROWS) == _digest_of(rows):
                return True
            why = "its points choose something else"
        except GemmEvalError as error:
            why = str(error)
        with _storing(path.parent):
            aside = storage.set_aside(path, f"{_ASIDE}{path.name}")
        text = f"{path} is set aside as {aside.name}: {why}; points that it should hold are evaluated again"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return False

    def put(self, first: int, rows: Rows, table: Any) -> None:
        pa = import_pyarrow()
        seal = _MARK + b"0" * _NUM_DIGITS
        metadata = {_LABEL: self._label(first, table.num_rows), _ROWS: _digest_of(rows), _SEAL: seal}
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
        raw: bytes = sink.getvalue().to_pybytes()
        if len(raw) > MAX_PART_BYTES:
            raise InvalidOptionError(
                f"{table.num_rows:,} points take {len(raw):,} bytes, and a file of a sweep {MAX_PART_BYTES:,} at most: "
                "give a smaller chunk_size, in another folder"
            )
        with _storing(self._path):
            write_whole(self._path / _part_name(first), _sealed(raw))

    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        try:
            file = self._open(first)
            names = None if columns is None else list(dict.fromkeys(columns))
            with _parquet_errors():
                table = file.read(columns=names, use_threads=False).replace_schema_metadata(None)
        except GemmEvalError as error:
            raise GemmEvalError(
                f"{self._path / _part_name(first)} cannot be used: {error}; the same call of sweep evaluates its "
                "points again"
            ) from error
        return table if columns is None else table.select(list(columns))

    def num_rows(self, first: int) -> int:
        """Return the number of points of a part, without a look at it: with fewer or more it is none."""
        return self._chunks.num_at(first)

    def _label(self, first: int, num_points: int) -> bytes:
        return f"sweep {self._sweep}, points {first} to {first + num_points - 1}".encode()

    def _open(self, first: int) -> Any:
        """Return the parquet file of a part that is whole, and the one of these points of this sweep."""
        pa, num_points = import_pyarrow(), self._chunks.num_at(first)
        raw = read_bounded(self._path / _part_name(first), MAX_PART_BYTES, "part of a sweep")
        if raw != _sealed(raw):
            raise GemmEvalError("its bytes are not those that were written")
        with _parquet_errors():  # sealed by somebody else
            file = pa.parquet.ParquetFile(pa.BufferReader(raw))
            columns = file.schema_arrow.remove_metadata()
        if (file.metadata.metadata or {}).get(_LABEL) != self._label(first, num_points):
            raise GemmEvalError("it is of another sweep, or of other points of this one")
        if file.metadata.num_rows != num_points or columns != self._columns:
            raise GemmEvalError(f"it does not have {num_points} rows of the sweep's columns")
        return file


@contextlib.contextmanager
def _parquet_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, import_pyarrow().ArrowException) as error:
        raise GemmEvalError(f"it is no parquet file: {error}") from error


def _sealed(raw: bytes) -> bytes:
    """Return the bytes of a file with its seal, which is in the metadata, behind whatever texts the columns hold."""
    place = raw.rfind(_MARK) + len(_MARK)
    before, after = raw[:place], raw[place + _NUM_DIGITS :]
    return before + hashlib.sha256(before + b"0" * _NUM_DIGITS + after).hexdigest().encode() + after


def _digest_of(rows: Rows) -> bytes:
    """Return a digest of what some points choose."""
    return hashlib.sha256(json.dumps(rows, default=dict, sort_keys=True).encode()).hexdigest().encode()


def as_folder(path: Any) -> Path:
    """Read what a user gives for a folder."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidOptionError(f"a folder is given by its path, got {shown(path)}")
    return Path(path)


@contextlib.contextmanager
def claim(folder: Path, description: Mapping[str, Any], ignore: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Take a folder, which is made if there is none, for a sweep; yields the description that it has then.

    No other process takes it until the end. What killed writers left half is removed. The sweep of the folder may
    differ in the keys of `ignore`.
    """
    with _storing(folder):
        if folder.exists() and not folder.is_dir():
            raise InvalidOptionError(f"{folder} must be a folder, and is a file")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        is_ours = lock.acquire()
    if not is_ours:
        raise StorageError(f"another sweep is at work in {folder}: wait for its end, or choose another folder")
    try:
        with _storing(folder):
            begun = _begin(folder, description, ignore)
            for left in folder.iterdir():
                if is_temporary(left.name) and (left.is_symlink() or left.is_file()):
                    left.unlink()
        yield begun
    finally:
        lock.release()


def _begin(folder: Path, description: Mapping[str, Any], ignore: Sequence[str]) -> dict[str, Any]:
    """Write the description into a new folder, or compare it with the one that is there."""
    file = folder / DESCRIPTION
    if not os.path.lexists(file):
        others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
        if others:
            raise InvalidOptionError(f"{folder} must be a new folder or one of a sweep, and holds {others[0]}")
        write_whole(file, description_bytes(description))
    begun = read_description(folder)
    differs = [key for key in description if key not in (*ignore, "digest") and begun[key] != description[key]]
    if differs:
        raise InvalidOptionError(
            f"{folder} holds another sweep (it differs in {', '.join(differs)}): choose another folder"
        )
    return begun


def _part_name(first: int) -> str:
    return f"points-{first:010d}.parquet"


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror or error}; what is done is kept: the same call goes on there once "
            "that is mended"
        ) from error
    except ValueError as error:
        if isinstance(error, GemmEvalError):
            raise
        raise InvalidOptionError(f"no folder has the name {shown(str(folder))}: {error}") from None
