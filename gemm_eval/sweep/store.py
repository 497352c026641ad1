"""Where the chunks of a sweep are kept: in memory, or in a folder of parquet files that a later run goes on with."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep.columns import Schema, import_pyarrow

__all__ = ["FolderStore", "MemoryStore", "Store", "read_description"]

_DESCRIPTION = "_sweep.json"  # readers of parquet folders pass over names that begin with _
_PART = re.compile(r"points-(\d{10,})\.parquet")
_STALE_S = 3600.0  # no write takes so long: what is left of one is older


class Store(ABC):
    """Tables (parts) by the number of their first point."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @abstractmethod
    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order."""

    @abstractmethod
    def put(self, first: int, table: Any) -> None:
        """Keep a part."""

    @abstractmethod
    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        """Return a part, or some columns of it."""

    @abstractmethod
    def num_rows(self, first: int) -> int:
        """Return the number of points of a part."""

    def __len__(self) -> int:
        return sum(map(self.num_rows, self.firsts()))

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield all parts, one in memory at a time, in the order of their points."""
        return (self.part(first, columns) for first in self.firsts())

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all parts as one table."""
        return self._joined(list(self.parts(columns)), columns)

    def take(self, places: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> Any:
        """Return some rows, in the order asked for, by their places among the rows there are; reads their parts only.

        Raises:
            InvalidOptionError: there are not so many rows.
        """
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
        row: dict[str, Any] = self.part(firsts[at]).slice(number - firsts[at], 1).to_pylist()[0]
        return row

    def _joined(self, tables: list[Any], columns: Sequence[str] | None) -> Any:
        if tables:
            return import_pyarrow().concat_tables(tables)
        table = self._schema.arrow().empty_table()
        return table if columns is None else table.select(list(columns))


class MemoryStore(Store):
    """Parts in memory."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._tables: dict[int, Any] = {}

    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order."""
        return sorted(self._tables)

    def put(self, first: int, table: Any) -> None:
        """Keep a part."""
        self._tables[first] = table

    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        """Return a part, or some columns of it."""
        return self._tables[first] if columns is None else self._tables[first].select(list(columns))

    def num_rows(self, first: int) -> int:
        """Return the number of points of a part."""
        return int(self._tables[first].num_rows)


class FolderStore(Store):
    """Parts as parquet files in a folder, each written whole or not at all, beside a description of the sweep.

    Args:
        path: the folder.
        schema: the columns.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        super().__init__(schema)
        self.path = Path(path)

    def open(self, description: Mapping[str, Any], ignore: Sequence[str] = ()) -> dict[str, Any]:
        """Take the folder for a sweep, a new one or the one that it holds; returns the description that it has then.

        Parts that cannot be read are removed, and so is what writers left that were killed long ago.

        Args:
            description: what the sweep is, ready for JSON.
            ignore: keys in which the sweep of the folder may differ.

        Raises:
            InvalidOptionError: the folder holds another sweep, or files that are none.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        described: dict[str, Any] = json.loads(json.dumps(description))
        if not (self.path / _DESCRIPTION).is_file():
            there = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            if there:
                raise InvalidOptionError(f"{self.path} must be a new folder or one of a sweep, and holds {there[0]}")
            self._write(_DESCRIPTION, lambda to: to.write_text(json.dumps(described, indent=1), encoding="utf-8"))
            return described
        known = read_description(self.path)
        differs = [key for key in described if key not in ignore and known.get(key) != described[key]]
        if differs:
            raise InvalidOptionError(
                f"{self.path} holds another sweep (it differs in {', '.join(differs)}): choose another folder"
            )
        for left in self.path.glob(".*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    left.unlink()
        for first in self.firsts():
            try:
                self.part(first)
            except GemmEvalError:
                self._file(first).unlink()
        return known

    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order."""
        names = (_PART.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def put(self, first: int, table: Any) -> None:
        """Keep a part."""
        pa = import_pyarrow()
        self._write(
            self._file(first).name, lambda to: pa.parquet.write_table(table, to, write_page_checksum=True)
        )  # fmt: skip

    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        """Return a part, or some columns of it.

        Raises:
            GemmEvalError: the file is damaged.
        """
        with self._reading(first) as read:
            names = None if columns is None else list(dict.fromkeys(columns))
            table = read.read_table(
                self._file(first), columns=names, partitioning=None, page_checksum_verification=True, use_threads=False
            )
            return table if columns is None else table.select(list(columns))

    def num_rows(self, first: int) -> int:
        """Return the number of points of a part, which reads no column.

        Raises:
            GemmEvalError: the file is damaged.
        """
        with self._reading(first) as read:
            return int(read.read_metadata(self._file(first)).num_rows)

    def _file(self, first: int) -> Path:
        return self.path / f"points-{first:010d}.parquet"

    @contextlib.contextmanager
    def _reading(self, first: int) -> Iterator[Any]:
        pa = import_pyarrow()
        try:
            yield pa.parquet
        except (OSError, pa.ArrowException) as error:
            raise GemmEvalError(
                f"{self._file(first)} cannot be read ({error}): the same call of sweep evaluates its points anew"
            ) from error

    def _write(self, name: str, write: Callable[[Path], Any]) -> None:
        temporary = self.path / f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # the name must not be there before the bytes are, whatever fails then
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the sweep in a folder is.

    Raises:
        GemmEvalError: there is none, or it cannot be read.
    """
    file = Path(path) / _DESCRIPTION
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GemmEvalError(f"{path} is no folder of a sweep: {error}") from None
    if not isinstance(document, dict):
        raise GemmEvalError(f"{path} is no folder of a sweep: {file.name} holds no table")
    return document
