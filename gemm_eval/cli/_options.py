"""Options that commands share, and how the words of a command line become the library's values."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.errors import InvalidMappingError

if TYPE_CHECKING:
    from gemm_eval.mapping import MulticoreMapping

__all__ = [
    "EXIT_CODES",
    "MAPPING_FORM",
    "BatchSize",
    "Columns",
    "Distinct",
    "DtypeOption",
    "GroupSizeOption",
    "IdleCoresOption",
    "InputDtypeOption",
    "JsonOption",
    "OutputDtypeOption",
    "ReductionLength",
    "Rows",
    "WeightDtypeOption",
    "ZeroDtypeOption",
    "format_mapping",
    "parse_mapping",
]

EXIT_CODES = (
    "Exit codes: 0 ok; 1 a check failed; 2 wrong usage or bad input; 3 a valid GEMM that does not fit the arch or that "
    "the arch cannot run. Errors are one line on stderr, or with --json one JSON object on stderr."
)
"""What every --help ends with."""

_TYPES_PANEL = "Data types"
MAPPING_FORM = "P_G,P_M,P_N,P_K / tile_m,tile_n,tile_k / order, such as 1,4,2,1/256,512,144/mnk"
"""How `--mapping` is written, for help and errors."""


class Distinct(enum.StrEnum):
    """What makes two entries of a ranking different."""

    MAPPING = "mapping"
    PARTITION = "partition"


def integer(text: str) -> int:
    """Return the integer that `text` spells, or `text` itself: what is wrong with it is for the library to say.

    Words with a dash come here too, so that -4 gets the library's answer; a mistyped option does not pass.
    """
    if text.startswith("-") and not text[1:2].isdigit():
        raise typer.BadParameter(f"no such option: {text}")
    try:
        return int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def _size(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=f"{text}, in elements.", parser=integer, show_default=False)


BatchSize = Annotated[int, _size("G", "Batch: number of independent products")]
Rows = Annotated[int, _size("M", "Rows of A and C")]
ReductionLength = Annotated[int, _size("K", "Reduction length: columns of A, rows of B")]
Columns = Annotated[int, _size("N", "Columns of B and C")]

DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Shorthand for all types: fp32, tf32, fp16, bf16, fp8, int8 or int4 for both operands, or w4a16, w8a16, "
        "w4a8, w8a8. Default: the default type of the arch.",
        rich_help_panel=_TYPES_PANEL,
    ),
]
InputDtypeOption = Annotated[
    str | None, typer.Option(help="Type of A; wins over --dtype.", rich_help_panel=_TYPES_PANEL)
]
WeightDtypeOption = Annotated[
    str | None,
    typer.Option(help="Type of B as stored; narrower than A: quantized weights.", rich_help_panel=_TYPES_PANEL),
]
OutputDtypeOption = Annotated[str | None, typer.Option(help="Type of C as stored.", rich_help_panel=_TYPES_PANEL)]
GroupSizeOption = Annotated[
    int | None,
    typer.Option(
        help="Quantized weights: weights along K that share a scale, in elements; -1: one scale per column.",
        rich_help_panel=_TYPES_PANEL,
    ),
]
ZeroDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Quantized weights: type of the zero points. Default: none, symmetric.", rich_help_panel=_TYPES_PANEL
    ),
]
IdleCoresOption = Annotated[
    bool, typer.Option("--idle-cores/--no-idle-cores", help="Whether a mapping may leave some cores without work.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]


def parse_mapping(text: str) -> MulticoreMapping:
    """Read a mapping as `format_mapping` writes it. Whether it is legal is for the library to say.

    Raises:
        InvalidMappingError: `text` has another form.
    """
    from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile

    try:
        partition, tile, order = text.split("/")
        return MulticoreMapping(
            Partition(*map(int, partition.split(","))),
            Tile(*map(int, tile.split(","))),
            LoopOrder[order.strip().upper()],
        )
    except (ValueError, TypeError, KeyError):
        orders = ", ".join(LoopOrder.__members__).lower()
        raise InvalidMappingError(
            f"--mapping must be {MAPPING_FORM}; order is one of {orders}, got {text!r}", rule="form"
        ) from None


def format_mapping(mapping: MulticoreMapping) -> str:
    """Write a mapping in the form that `--mapping` takes."""
    partition = ",".join(map(str, mapping.partition))
    tile = ",".join(map(str, mapping.tile))
    return f"{partition}/{tile}/{mapping.loop_order.name.lower()}"
