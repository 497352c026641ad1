"""Writing results: one console, one JSON document, numbers as text, tables in CSV and parquet files."""

from __future__ import annotations

import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.words import check_extra, needs_extra, shown, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from gemm_eval.evaluate import GEMMResult
    from gemm_eval.mapping import KernelConfig


_UNBOUNDED_WIDTH = 1 << 16
_PROSE_CHARS = 16  # a column of prose keeps so many before the table is cut into parts
_TERM_WORDS = {
    **{"a": "A", "b": "B", "c": "C", "dram": "DRAM", "noc": "NoC", "l2": "L2", "smem": "shared memory"},
    "hidden": "hidden by overlap",
}


class KeyTable(Table):
    """A table whose first columns stand in front of each part of it, where the terminal is too narrow for the whole."""

    num_keys = 1


class _Console(Console):
    """Shows what control characters there are in any string, whoever's it is, and breaks no word."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a table that is too wide has prose broken between words, or is cut into several by columns."""
        if not (len(objects) == 1 and isinstance(objects[0], Table)):
            text = objects[0] if len(objects) == 1 and isinstance(objects[0], str) else ""
            if any(cell_len(word) > self.width for word in text.split()):  # a link stays one, in a line of its own
                whole: Any = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
                objects = ("\n".join(textwrap.fill(line, self.width, **whole) for line in text.splitlines()),)
                options = {"overflow": "ignore", "crop": False} | options
            super().print(*objects, **options)
            return
        width = self.width
        for index, part in enumerate(_fitted(self, objects[0])):
            if index:
                super().print()
            self.width = max(width, widest(self, part))  # what has no room for its longest word is wider
            super().print(part, **options)
            self.width = width


def make_console() -> Console:
    """Return a console that prints text as it is: names and titles may hold brackets, colons and numbers."""
    return _Console(markup=False, emoji=False, highlight=False)


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line on stdout, or on stderr."""
    (sys.stderr if err else sys.stdout).write(f"{visible(line)}\n")


def make_table(
    headers: Sequence[str], *, title: str | None = None, right: Sequence[str] = (), num_keys: int = 1
) -> KeyTable:
    """Return an empty table whose cells fold when space is short: no digit is ever cut off."""
    table = KeyTable(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    table.num_keys = num_keys
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in right else "left")
    return table


WORD_COLUMNS = frozenset({
    "A", "A from", "GEMM", "GPU", "L2", "act-order", "algorithm", "arch", "bias", "bound", "clus-\nter", "config",
    "basis", "date", "details", "differs in", "engine", "field", "finding", "fits", "found by", "gpu",
    "instructions of a warp", "kernel", "kind: source", "layer", "layout", "library", "memory", "multicore",
    "operation", "order", "part", "raster", "result", "schedule", "source", "split-K", "table",
    "tensor-core instruction", "tile", "title", "type", "types", "unit", "weights", "what", "winner", "work",
})  # fmt: skip
"""Headers of columns of words, which are aligned to the left; numbers are aligned to the right."""

Column = tuple[str, Any, "str | Callable[[Any], str]"]
"""A header, the name of a value, and its format: as `format` takes it, or a function."""


def rows_table(
    rows: Sequence[Mapping[Any, Any]], columns: Sequence[str | Column] = (), *, title: str | None = None,
    num_keys: int = 1,
) -> KeyTable:  # fmt: skip
    """Return a table of rows; `columns`: headers, whose cells are texts, or formats of values; default: all texts."""
    formats = [(item, item, "") if isinstance(item, str) else item for item in columns or rows[0]]
    headers = [header for header, *_ in formats]
    right = [header for header in headers if header not in WORD_COLUMNS]
    table = make_table(headers, title=title, right=right, num_keys=num_keys)
    for row in rows:
        cells = ((row[name], form) for _, name, form in formats)
        table.add_row(*(format(value, form) if isinstance(form, str) else form(value) for value, form in cells))
    return table


def print_table(rows: Sequence[Mapping[Any, Any]], columns: Sequence[str | Column] = (), **options: Any) -> None:
    """Print `rows_table`."""
    make_console().print(rows_table(rows, columns, **options))


def print_wide(table: Table) -> None:
    """Print a table whole, whatever the width of the terminal: a row is a line, for grep."""
    console = make_console()
    console.width = max(console.width, widest(console, table))
    console.print(table)


def widest(console: Console, renderable: RenderableType) -> int:
    """Width that `renderable` takes when nothing folds, in characters."""
    return console.measure(renderable, options=console.options.update(width=_UNBOUNDED_WIDTH)).maximum


def _fitted(console: Console, table: Table) -> list[Table]:
    """Return the table, narrow enough for the console, or in parts that have its key columns in front each."""
    num_keys = getattr(table, "num_keys", 1)
    parts: list[Table] = []
    first, end = num_keys, len(table.columns)
    while first < end or not parts:
        last = end
        part = _part(table, num_keys, slice(first, last), is_first=not parts)
        while _narrow(part, widest(console, part) - console.width, _PROSE_CHARS) > 0 and last > first + 1:
            last -= 1
            part = _part(table, num_keys, slice(first, last), is_first=not parts)
        _narrow(part, widest(console, part) - console.width, 0)
        parts.append(part)
        first = last
    parts[-1].caption, parts[-1].caption_justify = table.caption, table.caption_justify
    return parts


def _part(table: Table, num_keys: int, others: slice, *, is_first: bool) -> Table:
    """Return the key columns and some others; the title stands over the first part."""
    columns = [*table.columns[:num_keys], *table.columns[others]]
    part = make_table([], title=str(table.title) if is_first and table.title else None)
    for column in columns:
        part.add_column(column.header, overflow="fold", justify=column.justify)
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def _narrow(table: Table, excess: int, least: int) -> int:
    """Narrow the widest columns (with `least`, those of words) by `excess` characters; return what is left."""
    texts = [[str(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    now = [max(cell_len(line) for text in of for line in (text.splitlines() or [""])) for of in texts]
    limits = [max(least, *(cell_len(word) for text in of for word in (text.split() or [""]))) for of in texts]
    if least:
        of_words = [column.justify == "left" for column in table.columns]
        limits = [limit if is_word else most for limit, is_word, most in zip(limits, of_words, now, strict=True)]
    while excess > 0:
        at = max(range(len(now)), key=lambda index: (now[index] > limits[index], now[index]))
        if now[at] <= limits[at]:
            break
        now[at] -= 1
        excess -= 1
        table.columns[at].width, table.columns[at].no_wrap = now[at], False  # nothing is cut
    return excess


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

    check_file("--out", path)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    heads, cells = list(map(visible, columns)), [[_text_or_value(row.get(name)) for name in columns] for row in rows]
    if path.suffix == _CSV:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([heads, *cells])
        content = text.getvalue().encode()
    else:
        with needs_extra("a table in parquet", "table"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        table = pa.table({name: _of_one_type([row[index] for row in cells]) for index, name in enumerate(heads)})
        pq.write_table(table, sink := io.BytesIO())
        content = sink.getvalue()
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return columns


def _text_or_value(value: Any) -> Any:
    value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return visible(value) if isinstance(value, str) else value


def read_records(path: Path) -> list[Record]:
    """Read the rows of a .csv or .parquet file; cells of CSV are texts."""
    check_file("--shapes", path)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}")
    records = list(_read_csv(path) if path.suffix == _CSV else _read_parquet(path))
    if not records:
        raise InvalidInputError(f"{path} has no rows")
    return records


def flat(document: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """Return the plain values of a document and of parts of it as a row; a name that comes again is dropped."""
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


def check_file(option: str, path: Path) -> None:
    """Check before any work that a file of this name can hold a table."""
    if path.suffix not in (_CSV, _PARQUET):
        raise InvalidOptionError(f"{option} must end with {_CSV} or {_PARQUET}, got {shown(str(path))}")
    if path.suffix == _PARQUET:
        check_extra("a table in parquet", "table", "pyarrow")


def _of_one_type(column: list[Any]) -> list[Any]:
    """Return a column as parquet can hold it: numbers that CSV gave as texts are numbers, what is mixed is all text."""
    cells = [cell for cell in column if cell is not None]
    kinds = {type(cell) for cell in cells}
    read: Callable[[Any], Any] = str if len(kinds) > 1 and kinds != {int, float} else lambda cell: cell
    if kinds == {str}:
        with suppress(ValueError):
            list(map(float, cells))
            read = float
            if list(map(str, map(int, cells))) == cells:  # 007 is a name
                read = int
    return [None if cell is None else read(cell) for cell in column]


def _read_csv(path: Path) -> Iterator[Record]:
    limit = csv.field_size_limit(_MAX_CELL_CHARS)
    header: list[str] = []
    num_read = 0
    try:
        lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        for line in lines:
            where, num_read = f"{path}, line {num_read + 1}", lines.line_num
            cells = [cell.strip() for cell in line]
            if not any(cells):
                continue
            if not header:
                header = cells
                if twice := [name for index, name in enumerate(header) if name in header[:index]]:
                    raise InvalidInputError(f"{where}: column {shown(twice[0])} is there twice")
            elif len(cells) > len(header):
                raise InvalidInputError(f"{where}: {len(cells)} cells under {len(header)} columns")
            else:
                yield where, {name: cell or None for name, cell in zip_longest(header, cells)}
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line {lines.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    finally:
        csv.field_size_limit(limit)


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
