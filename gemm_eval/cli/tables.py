"""Tables in files: CSV with what Python has, parquet with the extra; and what becomes a row of one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.extras import check_extra, needs_extra
from gemm_eval.words import shown, visible

if TYPE_CHECKING:
    from gemm_eval.evaluate import GEMMResult

__all__ = ["OutOption", "Record", "check_out", "flat", "read_records", "row_of", "write_records", "write_rows"]

_CSV, _PARQUET = ".csv", ".parquet"
_MAX_CELL_CHARS = 1 << 24  # row_groups may be long; csv stops at 128 KiB by itself

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the results to this .csv or .parquet file instead of printing them: a row each, all columns. Times "
        "are in us. Parquet needs the extra sweep.",
        show_default=False,
    ),
]

Record = tuple[str, dict[str, Any]]
"""Where a row stands, such as ``shapes.csv, line 3``, and its cells by column; empty ones are None."""


def check_out(out: Path | None) -> None:
    """Check before any work that a table can become this file.

    Raises:
        InvalidOptionError: it is of another kind.
        GemmEvalError: parquet, and pyarrow is not installed.
    """
    if out is not None:
        _check_kind("--out", out)


def write_records(path: Path, rows: Sequence[Mapping[str, Any]], *, json: bool) -> None:
    """Write rows, whose columns are those of all of them, and say so; lists are written with commas between.

    Raises:
        OSError: the file cannot be written.
        GemmEvalError: it is of another kind, or needs pyarrow.
    """
    from gemm_eval.cli.output import print_json, print_line

    columns = write_rows(path, rows)
    path = path.resolve()
    if json:
        print_json({"path": str(path), "num_rows": len(rows), "columns": columns})
    else:
        print_line(f"{path}: {len(rows):,} rows, {len(columns)} columns")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write rows as `write_records` does, and return the columns; a file is never half-written."""
    from gemm_eval.storage import write_whole

    check_out(path)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    make = _to_csv if path.suffix == _CSV else _to_parquet
    content = make(list(map(visible, columns)), cells)
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return columns


def read_records(path: Path) -> list[Record]:
    """Read the rows of a .csv or .parquet file; cells of CSV are texts.

    Raises:
        InvalidOptionError: it is of another kind.
        InvalidInputError: there is no such file, it is no table, or has no rows; the message names the line.
        GemmEvalError: parquet, and pyarrow is not installed.
    """
    _check_kind("--shapes", path)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}")
    found = list(_read_csv(path) if path.suffix == _CSV else _read_parquet(path))
    if not found:
        raise InvalidInputError(f"{path} has no rows")
    return found


def flat(document: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """Return the plain values of a document as a row: the name of the arch, those of some parts, and its own.

    Args:
        document: as `to_dict` of a result makes it.
        parts: names of documents in it whose values count, in this order; what they say again is said once.
    """
    plain = {name: value for name, value in document.items() if not isinstance(value, Mapping | list | tuple)}
    row = {"arch": plain.pop("arch_name")} if "arch_name" in plain else {}
    first, *others = parts or ("",)
    for part in (document.get(first), plain, *(document[name] for name in others)):
        row |= {name: cell for name, cell in _leaves(part or {}) if name not in row}
    return row


def row_of(result: GEMMResult) -> dict[str, Any]:
    """Return a result as a row, with the columns that `GEMMTable.to_dicts` has for it, and some more."""
    return flat(result.to_dict(), "problem", "options", "breakdown", "mapping")


def _leaves(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield name, value


def _check_kind(option: str, path: Path) -> None:
    if path.suffix not in (_CSV, _PARQUET):
        raise InvalidOptionError(f"{option} must end with {_CSV} or {_PARQUET}, got {shown(str(path))}")
    if path.suffix == _PARQUET:
        check_extra("a table in parquet", "sweep", "pyarrow")


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return visible(value) if isinstance(value, str) else value


def _to_csv(columns: list[str], cells: list[list[Any]]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(cells)
    return text.getvalue().encode()


def _to_parquet(columns: list[str], cells: list[list[Any]]) -> bytes:
    with needs_extra("a table in parquet", "sweep"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    table = pa.table({name: _of_one_type([row[place] for row in cells]) for place, name in enumerate(columns)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _of_one_type(column: list[Any]) -> list[Any]:
    """A column as parquet can hold it: numbers that CSV gave as texts are numbers, and what is mixed is all text."""
    there = [cell for cell in column if cell is not None]
    kinds = {type(cell) for cell in there}
    if kinds == {str}:
        there = _numbers(there)
    elif len(kinds) > 1 and kinds != {int, float}:
        there = list(map(str, there))
    cells = iter(there)
    return [None if cell is None else next(cells) for cell in column]


def _numbers(texts: list[str]) -> list[Any]:
    for kind in (int, float):
        try:
            numbers = list(map(kind, texts))
        except ValueError:
            continue
        if kind is float or list(map(str, numbers)) == texts:  # 007 is a name
            return numbers
    return texts


def _read_csv(path: Path) -> Iterator[Record]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    limit = csv.field_size_limit(_MAX_CELL_CHARS)
    try:
        yield from _rows_of_csv(path, csv.reader(io.StringIO(text, newline="")))
    finally:
        csv.field_size_limit(limit)


def _rows_of_csv(path: Path, lines: Any) -> Iterator[Record]:
    header: list[str] | None = None
    num_read = 0
    try:
        for cells in lines:
            where, num_read = f"{path}, line {num_read + 1}", lines.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                _check_header(where, header)
            elif len(cells) > len(header):
                raise InvalidInputError(f"{where}: {len(cells)} cells under {len(header)} columns")
            else:
                stripped: list[str | None] = [cell.strip() or None for cell in cells]
                yield where, dict(zip(header, stripped + [None] * (len(header) - len(cells)), strict=True))
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line {lines.line_num}: {error}") from None


def _check_header(where: str, names: Sequence[str]) -> None:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InvalidInputError(f"{where}: column {shown(twice)} is there twice")


def _read_parquet(path: Path) -> Iterable[Record]:
    with needs_extra("a table in parquet", "sweep"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{path} cannot be read as parquet: {error}") from None
    for place, row in enumerate(rows, 1):
        yield f"{path}, row {place}", {name: None if cell != cell else cell for name, cell in row.items()}  # noqa: PLR0124  nan
