"""The sizes of a GEMM on a command line: in a row, always in the order G M K N, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any

import typer

from gemm_eval.cli.options import integer
from gemm_eval.cli.ranges import SEVERAL, check_count, is_several, parse_values
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import one_line

__all__ = [
    "ColumnsOption", "GroupsOption", "ReductionOption", "RowsOption", "SeveralColumnsOption", "SeveralGroupsOption",
    "SeveralReductionsOption", "SeveralRowsOption", "all_sizes", "no_sizes", "one_of_each", "read_sizes",
    "sizes_argument",
]  # fmt: skip

_MEANINGS = {
    "G": "batch: number of independent products",
    "M": "rows of A and C",
    "K": "reduction length: columns of A, rows of B",
    "N": "columns of B and C",
}
_OPTIONAL = "G"  # of the sizes by name: 1 where it is not given
_PANEL = "Sizes by name"


def sizes_argument(order: str, more: str = "") -> Any:
    """Return the argument for sizes in a row; `order` names them, such as ``M K N``, and `more` ends the help."""
    what = "; ".join(_MEANINGS[letter] for letter in order.split())
    text = f"{what[0].upper()}{what[1:]}; in elements. Or by name: {_names(order)}."
    return typer.Argument(metavar=order, help=f"{text} {more}".rstrip(), show_default=False)


def _by_name(letter: str, more: str = "") -> Any:
    meaning = _MEANINGS[letter]
    text = f"{meaning[0].upper()}{meaning[1:]}{'. Default: 1' * (letter == _OPTIONAL)}. {more}".rstrip()
    name = letter.lower()
    return typer.Option(f"--{name}", f"-{name}", metavar="SIZE", help=text, show_default=False, rich_help_panel=_PANEL)


GroupsOption = Annotated[str | None, _by_name("G")]
RowsOption = Annotated[str | None, _by_name("M")]
ReductionOption = Annotated[str | None, _by_name("K")]
ColumnsOption = Annotated[str | None, _by_name("N")]
SeveralGroupsOption = Annotated[str | None, _by_name("G", SEVERAL)]
SeveralRowsOption = Annotated[str | None, _by_name("M", SEVERAL)]
SeveralReductionsOption = Annotated[str | None, _by_name("K", SEVERAL)]
SeveralColumnsOption = Annotated[str | None, _by_name("N", SEVERAL)]


def read_sizes(order: str, in_a_row: Sequence[str] | None, by_name: Mapping[str, str | None]) -> dict[str, str]:
    """Return the words that the sizes are given in, by letter; nothing where none is given.

    Args:
        order: letters of the sizes that the command takes, such as ``G M K N``.
        in_a_row: what stands on the command line without a name.
        by_name: what options say, by letter.

    Raises:
        InvalidOptionError: both are given, or not all sizes.
    """
    letters, words = order.split(), list(in_a_row or ())
    named = {letter: text for letter, text in by_name.items() if text is not None}
    if words and named:
        given = " ".join(f"-{letter.lower()}" for letter in named)
        raise InvalidOptionError(f"sizes are {order} or have names, never both: got {_listed(words)} and {given}")
    if words and len(words) != len(letters):
        raise InvalidOptionError(f"sizes are {order}, or by name {_names(order)}; got {len(words)}: {_listed(words)}")
    if words:
        return dict(zip(letters, words, strict=True))
    missing = [letter for letter in letters if letter not in named and letter != _OPTIONAL]
    if named and missing:
        names = " and ".join(f"-{letter.lower()}" for letter in missing)
        raise InvalidOptionError(f"{names} must be given, too: sizes by name are {_names(order)}")
    return {letter: named.get(letter, "1") for letter in letters} if named else {}


def one_of_each(
    order: str, in_a_row: Sequence[str] | None, by_name: Mapping[str, str | None], instead: str = ""
) -> list[Any]:
    """Return one size for each letter; whether it is a size is for the library to say.

    Args:
        order, in_a_row, by_name: as for `read_sizes`.
        instead: what else the command takes, for the error where no size is given.

    Raises:
        InvalidOptionError: as `read_sizes`, or no size is given.
    """
    found = read_sizes(order, in_a_row, by_name)
    if not found:
        raise no_sizes(order, instead)
    return [integer(found[letter]) for letter in order.split()]


def all_sizes(order: str, in_a_row: Sequence[str] | None, by_name: Mapping[str, str | None]) -> list[tuple[Any, ...]]:
    """Return every combination of what lists and ranges spell, the last size changing fastest; none: none is given.

    Raises:
        InvalidOptionError: as `read_sizes`; a word spells no list or range, or there are too many combinations.
    """
    found = read_sizes(order, in_a_row, by_name)
    values = [parse_values(letter, text) if is_several(text) else [integer(text)] for letter, text in found.items()]
    num = 1
    for some in values:
        num *= len(some)
    check_count(num, order)
    return list(product(*values)) if values else []


def no_sizes(order: str, instead: str = "") -> InvalidOptionError:
    """Return the error of a command that needs sizes and has none; `instead`: what else it takes."""
    return InvalidOptionError(f"sizes are missing: {order}, or by name {_names(order)}{instead}")


def _names(order: str) -> str:
    """``-m M -k K -n N, and -g G where it is not 1``."""
    needed = " ".join(f"-{letter.lower()} {letter}" for letter in order.split() if letter != _OPTIONAL)
    return f"{needed}, and -g G where it is not 1" if _OPTIONAL in order else needed


def _listed(words: Sequence[str]) -> str:
    return one_line(" ".join(words))
