"""Writing results: one console, one JSON document, numbers as text, tables in CSV and parquet files."""

from __future__ import annotations

import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column as TableColumn
from rich.table import Table

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.extras import check_extra, needs_extra
from gemm_eval.words import shown, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from gemm_eval.evaluate import GEMMResult
    from gemm_eval.mapping import KernelConfig


T = TypeVar("T")

_UNBOUNDED_WIDTH = 1 << 16
_TERM_WORDS = {
    **{"a": "A", "b": "B", "c": "C", "dram": "DRAM", "noc": "NoC", "l2": "L2", "smem": "shared memory"},
    "hidden": "hidden by overlap",
}


class _Console(Console):
    """Shows what control characters there are in any string, whoever's it is, and breaks no word."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a table that is too wide has lines broken between words, or is cut into several by columns."""
        if not (len(objects) == 1 and isinstance(objects[0], Table)):
            text = objects[0] if len(objects) == 1 and isinstance(objects[0], str) else ""
            if any(cell_len(word) > self.width for word in text.split()):  # a link stays one
                objects, options = (_wrapped(text, self.width),), {"overflow": "ignore", "crop": False} | options
            super().print(*objects, **options)
            return
        width = self.width
        for index, part in enumerate(_fitted(self, objects[0])):
            if index:
                super().print()
            self.width = max(width, widest(self, part))  # what has no room for its longest word is wider
            super().print(part, **options)
            self.width = width


def _wrapped(text: str, width: int) -> str:
    """Break lines between words alone: one that is longer than a line stands in a line of its own."""
    lines = (
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.splitlines()
    )
    return "\n".join(lines)


def make_console() -> Console:
    """Return a console that prints text as it is: names and titles may hold brackets, colons and numbers."""
    return _Console(markup=False, emoji=False, highlight=False)


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line on stdout, or on stderr."""
    (sys.stderr if err else sys.stdout).write(f"{visible(line)}\n")


def make_table(headers: Sequence[str], *, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """Return an empty table whose cells fold when space is short: no digit is ever cut off."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in right else "left")
    return table


WORD_COLUMNS = frozenset({
    "A", "A from", "GEMM", "GPU", "L2", "act-order", "algorithm", "arch", "bias", "bound", "clus-\nter", "config",
    "date", "field", "finding", "fits", "found by", "gpu", "instructions of a warp", "kernel", "kind: source", "layer",
    "memory", "multicore", "operation", "part", "raster", "result", "schedule", "source", "split-K", "table",
    "tensor-core instruction", "tile", "title", "type", "types", "unit", "weights", "what", "winner", "work",
})  # fmt: skip
"""Headers of columns of words, which are aligned to the left; numbers are aligned to the right."""


def rows_table(rows: Sequence[Mapping[str, str]], headers: Sequence[str] = (), *, title: str | None = None) -> Table:
    """Return a table of rows, cells by header; `headers`: the columns, by default all of the first row."""
    headers = headers or list(rows[0])
    table = make_table(headers, title=title, right=[header for header in headers if header not in WORD_COLUMNS])
    for row in rows:
        table.add_row(*(row[name] for name in headers))
    return table


Column = tuple[str, str, "str | Callable[[Any], str]"]
"""A header, the name of a value, and its format: as `format` takes it, or a function."""


def columns_table(rows: Iterable[Mapping[Any, Any]], columns: Sequence[Column], *, title: str | None = None) -> Table:
    """Return a table of rows of values by name."""
    headers = [header for header, _, _ in columns]
    table = make_table(headers, title=title, right=[header for header in headers if header not in WORD_COLUMNS])
    for row in rows:
        cells = ((row[name], form) for _, name, form in columns)
        table.add_row(*(format(value, form) if isinstance(form, str) else form(value) for value, form in cells))
    return table


def print_whole_or(whole: Table, *parts: Table) -> None:
    """Print a table, or the parts that it can be read in where the terminal is too narrow."""
    console = make_console()
    for index, table in enumerate((whole,) if widest(console, whole) <= console.width else parts):
        if index:
            console.print()
        console.print(table)


def widest(console: Console, renderable: RenderableType) -> int:
    """Width that `renderable` takes when nothing folds, in characters."""
    return console.measure(renderable, options=console.options.update(width=_UNBOUNDED_WIDTH)).maximum


def print_blocks(items: Sequence[T], make: Callable[[Sequence[T]], Table]) -> None:
    """Print the table that `make` makes of items, or one table below the other where the terminal is too narrow.

    Each has as many items as stand side by side, at least one; lines break between words alone.
    """
    console = make_console()
    rest = items
    while rest:
        count = len(rest)
        while (excess := widest(console, table := make(rest[:count])) - console.width) > 0 and count > 1:
            count -= 1
        if excess > 0:
            _narrow_first(table, excess)
        console.print(table)
        rest = rest[count:]
        if rest:
            console.print()


def print_rows(rows: Sequence[Mapping[str, str]], keys: Sequence[str], others: Sequence[str], *, title: str) -> None:
    """Print a table of rows by header, or where the terminal is too narrow several, each with the keys in front."""

    def make(some: Sequence[str]) -> Table:
        return rows_table(rows, [*keys, *some], title=(title or None) if some[:1] == others[:1] else None)

    print_blocks(others, make)


def _fitted(console: Console, table: Table) -> list[Table]:
    """Return the table, narrow enough for the console, or in parts that have its first column in front each."""
    excess = widest(console, table) - console.width
    if excess <= 0 or _narrow_widest(table, excess) <= 0 or len(table.columns) <= 2:
        return [table]
    parts: list[Table] = []
    first = 1
    while first < len(table.columns):
        last = len(table.columns)
        while last > first + 1 and widest(console, _part(table, first, last, is_first=not parts)) > console.width:
            last -= 1
        parts.append(_part(table, first, last, is_first=not parts))
        first = last
    return parts


def _part(table: Table, first: int, last: int, *, is_first: bool) -> Table:
    """Return the first column and some others, as they are; the title stands over the first part."""
    columns = [table.columns[0], *table.columns[first:last]]
    part = make_table([], title=str(table.title) if is_first and table.title else None)
    part.show_lines = table.show_lines
    for column in columns:
        part.add_column(column.header, overflow="fold", justify=column.justify, width=column.width)
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def _narrow_widest(table: Table, excess: int) -> int:
    """Take `excess` characters from the widest columns, as far as their longest words allow; returns what is left."""
    widths = [_widths(column) for column in table.columns]
    now = [natural for natural, _ in widths]
    while excess > 0:
        column_index = max(range(len(now)), key=lambda at: (now[at] > widths[at][1], now[at]))
        if now[column_index] <= widths[column_index][1]:
            break
        now[column_index] -= 1
        excess -= 1
    for column, width, (natural, _) in zip(table.columns, now, widths, strict=True):
        if width < natural:
            column.width, column.no_wrap = width, False  # nothing is cut
    return excess


def _widths(column: TableColumn) -> tuple[int, int]:
    """Width of a column when nothing folds, and of its longest word."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    natural = max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)
    least = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    return column.width or natural, least


def _narrow_first(table: Table, excess: int) -> None:
    """Take `excess` characters from the width of columns, the first ones first, as far as their longest words allow."""
    for column in table.columns:
        natural, least = _widths(column)
        column.width, column.no_wrap = max(least, natural - max(0, excess)), False
        excess -= natural - column.width


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; a NaN in it is a bug and raises."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def format_number(value: float) -> str:
    """Two decimals from 10 up, four significant digits below."""
    return f"{value:,.2f}" if abs(value) >= 10 or value == 0 else f"{value:#.4g}"


def format_share(part: float, whole: float) -> str:
    """Percentage with one decimal."""
    return f"{part / whole:.1%}" if whole else "-"


def format_change(value: float, base: float) -> str:
    """Relative change with sign, in percent; "=" when nothing changes."""
    if value == base:
        return "="
    return f"{value / base - 1.0:+.2%}" if base else "new"


def format_term(name: str) -> str:
    """Words for a term of a breakdown: ``dram_a_us`` is "DRAM A", the unit being said elsewhere."""
    words = name.rsplit("_", 1)[0].split("_")
    return " ".join(_TERM_WORDS.get(word, word) for word in words)


def format_decomposition(config: KernelConfig) -> str:
    """Return how the work of a GPU kernel is cut into CTAs: "split-K 4", "stream-K" or "data parallel"."""
    words = {"SPLIT_K": f"split-K {config.split_k}", "STREAM_K": "stream-K"}
    return words.get(config.decomposition.name, "data parallel")


def format_raster(config: KernelConfig) -> str:
    """Return in which order the CTAs of a GPU kernel follow: "along M by 8"."""
    return f"{config.raster_order.name.replace('ALONG_', 'along ')} by {config.raster_swizzle}"


_CSV, _PARQUET = ".csv", ".parquet"
_MAX_CELL_CHARS = 1 << 24  # row_groups may be long; csv stops at 128 KiB by itself

Record = tuple[str, dict[str, Any]]
"""The place of a row, such as ``shapes.csv, line 3``, and its cells by column; empty ones are None."""


def check_out(out: Path | None) -> None:
    """Check before any work that a table can become this file."""
    if out is not None:
        _check_kind("--out", out)


def write_records(path: Path, rows: Sequence[Mapping[str, Any]], *, json: bool) -> None:
    """Write rows, whose columns are those of all of them, and say so; lists are written with commas between."""

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
    """Read the rows of a .csv or .parquet file; cells of CSV are texts."""
    _check_kind("--shapes", path)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}")
    records = list(_read_csv(path) if path.suffix == _CSV else _read_parquet(path))
    if not records:
        raise InvalidInputError(f"{path} has no rows")
    return records


def flat(document: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """Return the plain values of a document as a row: the name of the arch, its own, and those of parts of it.

    Those of the first part come before its own; a name that comes again is dropped.
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
        check_extra("a table in parquet", "table", "pyarrow")


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
    with needs_extra("a table in parquet", "table"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    table = pa.table({name: _of_one_type([row[index] for row in cells]) for index, name in enumerate(columns)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _of_one_type(column: list[Any]) -> list[Any]:
    """Return a column as parquet can hold it: numbers that CSV gave as texts are numbers, what is mixed is all text."""
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
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise InvalidInputError(f"{where}: column {shown(twice)} is there twice")


def _read_parquet(path: Path) -> Iterable[Record]:
    with needs_extra("a table in parquet", "table"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{path} cannot be read as parquet: {error}") from None
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", {name: None if cell != cell else cell for name, cell in row.items()}  # noqa: PLR0124  nan
