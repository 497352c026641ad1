"""A part of a sweep as a file: parquet that proves what it is before anything is read out of it.

Its metadata tell the sweep, the points and what these choose, and hold a seal: a digest of all bytes of the file, with
zeros where the digest stands. Parquet itself has checksums for pages only, so damage elsewhere could pass for other
values, or reach parts of its reader that were not made for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep.columns import import_pyarrow

__all__ = ["MAX_PART_BYTES", "Part", "digest_of_rows", "part_bytes"]

MAX_PART_BYTES = 1 << 28
"""The largest part that is written or read; a chunk that the library cuts has less than a thousandth."""

_LABEL, _ROWS, _SEAL = b"gemm_eval.part", b"gemm_eval.rows", b"gemm_eval.seal"
_MARK = b"gemm_eval.sha256="
_NUM_DIGITS = 64


class Part:
    """A part that has been found whole, and to be the one that was asked for.

    Args:
        raw: the bytes of its file.
        sweep: digest of the sweep's description.
        first: number of the first point.
        num_points: how many there are.
        schema: of the columns, as pyarrow has it.

    Raises:
        GemmEvalError: it is damaged, of another sweep, or of other points.
    """

    def __init__(self, raw: bytes, *, sweep: str, first: int, num_points: int, schema: Any) -> None:
        pa = import_pyarrow()
        if not _is_sealed(raw):
            raise GemmEvalError("its bytes are not those that were written")
        try:
            self._file = pa.parquet.ParquetFile(pa.BufferReader(raw))
            known = self._file.schema_arrow.remove_metadata()
        except (OSError, pa.ArrowException) as error:  # sealed by somebody else
            raise GemmEvalError(f"it is no parquet file: {error}") from error
        metadata = self._file.metadata.metadata or {}
        if metadata.get(_LABEL) != _label(sweep, first, num_points):
            raise GemmEvalError("it is of another sweep, or of other points of this one")
        if self._file.metadata.num_rows != num_points or known != schema:
            raise GemmEvalError(f"it has not {num_points} rows of the sweep's columns")
        self.rows_digest = metadata.get(_ROWS, b"").decode("ascii", "replace")
        """See `digest_of_rows`."""

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return it as a pyarrow Table, or some columns of it.

        Raises:
            GemmEvalError: its content is no parquet.
        """
        pa = import_pyarrow()
        names = None if columns is None else list(dict.fromkeys(columns))
        try:
            table = self._file.read(columns=names, use_threads=False).replace_schema_metadata(None)
        except (OSError, pa.ArrowException) as error:
            raise GemmEvalError(f"it is no parquet file: {error}") from error
        return table if columns is None else table.select(list(columns))


def part_bytes(table: Any, *, sweep: str, first: int, rows_digest: str) -> bytes:
    """Return the file of a part.

    Raises:
        InvalidOptionError: it is too large.
    """
    pa = import_pyarrow()
    metadata = {
        _LABEL: _label(sweep, first, table.num_rows), _ROWS: rows_digest, _SEAL: _MARK + b"0" * _NUM_DIGITS
    }  # fmt: skip
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    raw: bytes = sink.getvalue().to_pybytes()
    if len(raw) > MAX_PART_BYTES:
        raise InvalidOptionError(
            f"{table.num_rows:,} points take {len(raw):,} bytes, and a file of a sweep {MAX_PART_BYTES:,} at most: "
            "give a smaller chunk_size, in another folder"
        )
    place = raw.rindex(_MARK) + len(_MARK)  # the metadata come after whatever texts the columns hold
    return raw[:place] + hashlib.sha256(raw).hexdigest().encode() + raw[place + _NUM_DIGITS :]


def digest_of_rows(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return a digest of what some points choose."""
    text = json.dumps(rows, default=dict, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_sealed(raw: bytes) -> bool:
    place = raw.rfind(_MARK) + len(_MARK)
    stop = place + _NUM_DIGITS
    blank = raw[:place] + b"0" * _NUM_DIGITS + raw[stop:]
    return raw[place:stop] == hashlib.sha256(blank).hexdigest().encode()


def _label(sweep: str, first: int, num_points: int) -> bytes:
    return f"sweep {sweep}, points {first} to {first + num_points - 1}".encode()
