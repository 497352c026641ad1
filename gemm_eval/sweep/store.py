"""Where the chunks of a sweep are kept: in memory, or in a folder of parquet files that a later run goes on with."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep.columns import Schema, import_pyarrow

__all__ = ["FolderStore", "MemoryStore", "Store", "read_description"]

_DESCRIPTION = "_sweep.json"  # readers of parquet folders pass over names that begin with _
_PART = "points-{:010d}.parquet"


class Store(Protocol):
    """Tables by the number of their first point."""

    def done(self) -> set[int]:
        """Return the first points of the chunks that are there."""

    def put(self, first: int, table: Any) -> None:
        """Keep a chunk."""

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all chunks as one pyarrow Table, in the order of their points."""


class MemoryStore:
    """Chunks in memory."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tables: dict[int, Any] = {}

    def done(self) -> set[int]:
        """Return the first points of the chunks that are there."""
        return set(self._tables)

    def put(self, first: int, table: Any) -> None:
        """Keep a chunk."""
        self._tables[first] = table

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all chunks as one pyarrow Table, in the order of their points."""
        pa = import_pyarrow()
        tables = [self._tables[first] for first in sorted(self._tables)]
        table = pa.concat_tables(tables) if tables else self._schema.arrow().empty_table()
        return table if columns is None else table.select(list(columns))


class FolderStore:
    """Chunks as parquet files in a folder, each written whole or not at all, beside a description of the sweep.

    Args:
        path: the folder; made if it is not there.
        schema: the columns.
        description: what the sweep is, ready for JSON; a folder takes the chunks of one sweep only.

    Raises:
        InvalidOptionError: the folder holds another sweep, or files that are none.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, description: Mapping[str, Any] | None) -> None:
        self.path = Path(path)
        self._schema = schema
        if description is None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        there = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if (self.path / _DESCRIPTION).is_file():
            known = read_description(self.path)
            differs = [key for key in description if known.get(key) != json.loads(json.dumps(description[key]))]
            if differs:
                raise InvalidOptionError(
                    f"{self.path} holds another sweep (it differs in {', '.join(differs)}): choose another folder"
                )
        elif there:
            raise InvalidOptionError(f"{self.path} must be a new folder or one of a sweep, and holds {there[0].name}")
        else:
            self._write(_DESCRIPTION, lambda to: to.write_text(json.dumps(description, indent=1), encoding="utf-8"))

    def done(self) -> set[int]:
        """Return the first points of the chunks that are there."""
        return {int(path.stem.removeprefix("points-")) for path in self.path.glob("points-*.parquet")}

    def put(self, first: int, table: Any) -> None:
        """Keep a chunk."""
        pa = import_pyarrow()
        self._write(_PART.format(first), lambda to: pa.parquet.write_table(table, to))

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all chunks as one pyarrow Table, in the order of their points."""
        pa = import_pyarrow()
        paths = [self.path / _PART.format(first) for first in sorted(self.done())]
        if not paths:
            table = self._schema.arrow().empty_table()
            return table if columns is None else table.select(list(columns))
        names = None if columns is None else list(columns)
        return pa.concat_tables(pa.parquet.read_table(path, columns=names, partitioning=None) for path in paths)

    def _write(self, name: str, write: Any) -> None:
        temporary = self.path / f".{name}.{uuid.uuid4().hex}"
        try:
            write(temporary)
            temporary.replace(self.path / name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


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
