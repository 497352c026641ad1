"""Tables as plots read them: columns of a DataFrame, a mapping or a `GEMMTable`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.words import shown

__all__ = ["feasible_rows", "is_number", "read_all", "read_column"]


def read_column(table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column [num_rows]: of a DataFrame, of a mapping from names to arrays, or of a `GEMMTable`.

    Raises:
        InvalidInputError: `table` is nothing of the kind, or the column is not one-dimensional.
        InvalidOptionError: there is no such column.
    """
    names = _names(table)
    if name not in names:
        raise InvalidOptionError(f"the table has no column {shown(name)}; it has {', '.join(names) or 'none'}")
    column = np.asarray(table[name])
    if column.ndim != 1:
        raise InvalidInputError(f"column {name!r} must be one-dimensional, got shape {column.shape}")
    return column


def read_all(table: Any) -> dict[str, npt.NDArray[Any]]:
    """Return all columns, by name.

    Raises:
        InvalidInputError: `table` is no table, or its columns differ in length.
    """
    columns = {name: read_column(table, name) for name in _names(table)}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"the columns of a table must be of one length, got {lengths}")
    return columns


def feasible_rows(table: Any, *numbers: str) -> npt.NDArray[np.bool_]:
    """Return which rows have a finite number in each of these columns, and are neither infeasible nor excluded.

    A False in `is_feasible` says the one, a word in `excluded` (the column of a sweep) the other.

    Raises:
        InvalidInputError: a column holds words.
        InvalidOptionError: there is no such column, or no row is left.
    """
    flags = getattr(table, "is_feasible", None)  # an attribute of a `GEMMTable` and, if it is a column, a DataFrame
    if flags is None and "is_feasible" in _names(table):
        flags = table["is_feasible"]
    if flags is None and "excluded" in _names(table):
        flags = read_column(table, "excluded") == ""
    columns = [read_column(table, name) for name in numbers]
    for name, column in zip(numbers, columns, strict=True):
        if not is_number(column):
            raise InvalidInputError(f"column {name!r} must hold numbers, got {column[:3].tolist()}")
    if len({len(column) for column in columns}) > 1:
        raise InvalidInputError(f"columns {', '.join(numbers)} differ in length: {[len(c) for c in columns]}")
    kept = np.ones(len(columns[0]), bool) if flags is None else np.asarray(flags, bool).copy()
    for column in columns:
        kept &= np.isfinite(column.astype(float))
    if not kept.any():
        raise InvalidOptionError(f"the table has no feasible row with finite {' and '.join(numbers)}: nothing to plot")
    return kept


def is_number(column: npt.NDArray[Any]) -> bool:
    """Whether a column holds numbers; None among objects is a number that is not known."""
    if column.dtype.kind == "O":
        return all(value is None or isinstance(value, int | float | np.number) for value in column) and not all(
            value is None for value in column
        )
    return column.dtype.kind in "iuf"


def _names(table: Any) -> list[str]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(table, "keys", lambda: None)()
    if names is None:
        raise InvalidInputError(f"a table must be a DataFrame or a mapping from names to arrays, got {shown(table)}")
    return [str(name) for name in names]
