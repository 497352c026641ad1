"""Where the chunks of a sweep are kept: in memory, or in a folder of parquet files that a later run goes on with."""

from __future__ import annotations

import bisect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.storage import read_bounded
from gemm_eval.sweep.columns import Schema, import_pyarrow
from gemm_eval.sweep.description import chunks_of
from gemm_eval.sweep.folder import part_name, part_names, set_aside, write_whole
from gemm_eval.sweep.parts import MAX_PART_BYTES, Part, digest_of_rows, part_bytes

__all__ = ["FolderStore", "MemoryStore", "Store"]

Rows = Sequence[tuple[Any, ...]]


class Store(ABC):
    """Tables (parts) by the number of their first point."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @abstractmethod
    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order."""

    @abstractmethod
    def holds(self, first: int, rows: Rows) -> bool:
        """Say whether the part of these points, given what they choose, is there."""

    @abstractmethod
    def put(self, first: int, rows: Rows, table: Any) -> None:
        """Keep the part of these points."""

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

    def holds(self, first: int, rows: Rows) -> bool:  # noqa: ARG002  its own rows, since it began
        """Say whether the part of these points is there."""
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


class FolderStore(Store):
    """Parts as parquet files in a folder, each written whole or not at all, and read if it is whole and belongs there.

    Args:
        path: the folder, in which there is the description.
        schema: the columns.
        description: what the sweep is.
    """

    def __init__(self, path: Path, schema: Schema, description: Mapping[str, Any]) -> None:
        super().__init__(schema)
        self._path = path
        self._columns = schema.arrow()
        self._sweep: str = description["digest"]
        self._chunks = chunks_of(description)

    def firsts(self) -> list[int]:
        """Return the first points of the parts that are there, in order.

        Raises:
            GemmEvalError: the folder cannot be read, or has files that look like parts and are none.
        """
        firsts, foreign = part_names(self._path, self._chunks)
        if foreign:
            raise GemmEvalError(
                f"{self._path / foreign[0]} is no part of the sweep of this folder: remove it, or repeat the call of "
                "sweep, which sets it aside"
            )
        return firsts

    def holds(self, first: int, rows: Rows) -> bool:
        """Say whether the part of these points is there; a file in its place that is another is set aside.

        Raises:
            StorageError: it cannot be set aside.
        """
        file = self._file(first)
        if not os.path.lexists(file):
            return False
        try:
            if self._part(first).rows_digest == digest_of_rows(rows):
                return True
            why = "its points choose something else"
        except GemmEvalError as error:
            why = str(error)
        set_aside(file, why)
        return False

    def put(self, first: int, rows: Rows, table: Any) -> None:
        """Keep the part of these points.

        Raises:
            StorageError: it cannot be written.
            InvalidOptionError: it is too large.
        """
        raw = part_bytes(table, sweep=self._sweep, first=first, rows_digest=digest_of_rows(rows))
        write_whole(self._file(first), raw)

    def part(self, first: int, columns: Sequence[str] | None = None) -> Any:
        """Return a part, or some columns of it.

        Raises:
            GemmEvalError: the file is damaged, or another.
        """
        try:
            return self._part(first).read(columns)
        except GemmEvalError as error:
            raise GemmEvalError(
                f"{self._file(first)} cannot be used: {error}; the same call of sweep evaluates its points anew"
            ) from error

    def num_rows(self, first: int) -> int:
        """Return the number of points of a part, without a look at it: with fewer or more it is none."""
        return self._chunks.num_at(first)

    def _file(self, first: int) -> Path:
        return self._path / part_name(first)

    def _part(self, first: int) -> Part:
        return Part(
            read_bounded(self._file(first), MAX_PART_BYTES, "part of a sweep"),
            sweep=self._sweep, first=first, num_points=self._chunks.num_at(first), schema=self._columns,
        )  # fmt: skip
