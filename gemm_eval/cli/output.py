"""Writing to stdout: one console, one JSON document, numbers as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from gemm_eval.words import visible

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.text import Text

    from gemm_eval.mapping import KernelConfig

__all__ = [
    "format_change",
    "format_decomposition",
    "format_number",
    "format_raster",
    "format_share",
    "format_term",
    "make_console",
    "make_table",
    "print_blocks",
    "print_json",
    "print_line",
    "print_rows",
    "widest",
    "write_csv",
]

T = TypeVar("T")

_UNBOUNDED_WIDTH = 1 << 16
_TERM_WORDS = {
    **{"a": "A", "b": "B", "c": "C", "dram": "DRAM", "noc": "NoC", "l2": "L2", "smem": "shared memory"},
    "hidden": "hidden by overlap",
}


class _Console(Console):
    """Shows what control characters there are in any string, of whoever's table."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def make_console() -> Console:
    """Return a console that prints text as it is: names and titles may hold brackets, colons and numbers."""
    return _Console(markup=False, emoji=False, highlight=False)


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line on stdout, or on stderr."""
    (sys.stderr if err else sys.stdout).write(f"{visible(line)}\n")


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table of results as CSV; names in it are those of files."""
    frame.map(lambda cell: visible(cell) if isinstance(cell, str) else cell).to_csv(path, index=False)


def make_table(headers: Sequence[str], *, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """Return an empty table whose cells fold when space is short: no digit is ever cut off.

    Args:
        headers: one per column.
        title: line above the table.
        right: headers of the columns that are aligned to the right.
    """
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in right else "left")
    return table


def widest(console: Console, renderable: RenderableType) -> int:
    """Width that `renderable` takes when nothing folds, in characters."""
    return console.measure(renderable, options=console.options.update(width=_UNBOUNDED_WIDTH)).maximum


def print_blocks(items: Sequence[T], make: Callable[[Sequence[T]], Table]) -> None:
    """Print the table that `make` makes of items, or one table below the other where the terminal is too narrow.

    Each has as many items as stand side by side, at least one. Of one that is still too wide lines break between
    words, and never within one: what has no room for its longest words is wider than the terminal.
    """
    console = make_console()
    rest = list(items)
    while rest:
        count = len(rest)
        while (excess := widest(console, table := make(rest[:count])) - console.width) > 0 and count > 1:
            count -= 1
        if excess > 0:
            _narrow(table, excess)
        console.print(table, crop=False)
        rest = rest[count:]
        if rest:
            console.print()


def print_rows(
    rows: Sequence[Mapping[str, str]], keys: Sequence[str], others: Sequence[str], *, title: str, left: Sequence[str]
) -> None:
    """Print a table, or where the terminal is too narrow several, each with the key columns in front.

    Args:
        rows: cells by header.
        keys: headers of the columns that say what a row is of.
        others: headers of all other columns.
        title: line above the first table.
        left: headers of the columns that are aligned to the left.
    """

    def make(some: Sequence[str]) -> Table:
        headers = [*keys, *some]
        is_first = some[:1] == list(others[:1])
        right = [name for name in headers if name not in left]
        table = make_table(headers, title=title if is_first else None, right=right)
        for row in rows:
            table.add_row(*(row[name] for name in headers))
        return table

    print_blocks(list(others), make)


def _narrow(table: Table, excess: int) -> None:
    """Take `excess` characters from the width of columns, the first ones first, as far as their longest words allow."""
    for column in table.columns:
        cells = [str(cell) for cell in (column.header, *column.cells)]
        natural = max((len(line) for cell in cells for line in cell.splitlines()), default=0)
        least = max((len(word) for cell in cells for word in cell.split()), default=0)
        column.width = max(least, natural - max(0, excess))
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
    """How the work of a GPU kernel is cut into CTAs: "split-K 4", "stream-K" or "data parallel"."""
    from gemm_eval.mapping import Decomposition

    words = {
        Decomposition.DATA_PARALLEL: "data parallel",
        Decomposition.SPLIT_K: f"split-K {config.split_k}",
        Decomposition.STREAM_K: "stream-K",
    }
    return words[config.decomposition]


def format_raster(config: KernelConfig) -> str:
    """In which order the CTAs of a GPU kernel follow: "along M by 8"."""
    return f"{config.raster_order.name.replace('ALONG_', 'along ')} by {config.raster_swizzle}"
