"""Tables as plots read them: columns of a DataFrame, a mapping or a `GEMMTable`, and labels from their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.words import shown

__all__ = ["axis_label", "feasible_rows", "is_number", "label_of", "read_all", "read_column", "spans_decade"]

_UNITS = {
    "us": "us", "ms": "ms", "s": "s", "cycles": "cycles", "bytes": "bytes", "kib": "KiB", "mib": "MiB", "bits": "bits",
    "elems": "elements", "flop": "FLOP", "tflop": "TFLOP", "gb": "GB", "hz": "Hz", "ghz": "GHz", "pj": "pJ",
    "mj": "mJ", "j": "J", "w": "W", "mm2": "mm$^2$", "frac": "fraction", "percent": "%", "usd": "USD",
    "tokens": "tokens", "token": "token", "mac": "MAC", "byte": "byte", "cycle": "cycle",
}  # fmt: skip
_SPELLED = {
    "dram": "DRAM", "sram": "SRAM", "noc": "NoC", "l2": "L2", "sm": "SM", "sms": "SMs", "cta": "CTA", "ctas": "CTAs",
    "smem": "shared memory", "tdp": "TDP", "mac": "MAC", "ttft": "TTFT", "tpot": "TPOT", "num": "number of",
}  # fmt: skip
_DECADE = 10.0
_SHOWN_WHOLE, _SHOWN_WITH_EXPONENT = 1e3, 1e9


def axis_label(name: str) -> str:
    """Return the axis label that a column's name says: ``"latency_us"`` becomes ``"latency (us)"``.

    The unit is the name's end, with ``per`` as a fraction: ``"dram_gb_per_s"`` is ``"DRAM (GB/s)"``. A rate that names
    no quantity is a throughput: ``"tokens_per_s"`` is ``"throughput (tokens/s)"``. Names without a unit stay as they
    are, but for underscores.
    """
    words = name.split("_")
    unit = ""
    if "per" in words[1:-1]:
        place = words.index("per", 1)
        unit = "/".join(
            [_UNITS.get(words[place - 1], words[place - 1]), " ".join(_UNITS.get(w, w) for w in words[place + 1 :])]
        )
        words = words[: place - 1] or ["throughput" if words[-1] == "s" else "ratio"]
    elif len(words) > 1 and words[-1] in _UNITS:
        unit = _UNITS[words.pop()]
    quantity = " ".join(_SPELLED.get(word, word) for word in words)
    return f"{quantity} ({unit})" if unit else quantity


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


def spans_decade(values: npt.NDArray[Any]) -> bool:
    """Whether all values are positive and the largest is more than ten times the smallest: a case for a log axis."""
    return bool(len(values) and values.min() > 0 and values.max() > _DECADE * values.min())


def label_of(value: Any) -> str:
    """Return a value as a label: integers with separators from 10,000 on, other numbers in four digits."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}" if abs(int(value)) >= 10_000 else str(value)
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if _SHOWN_WHOLE <= abs(float(value)) < _SHOWN_WITH_EXPONENT else f"{value:.4g}"
    return str(value)


def _names(table: Any) -> list[str]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(table, "keys", lambda: None)()
    if names is None:
        raise InvalidInputError(f"a table must be a DataFrame or a mapping from names to arrays, got {shown(table)}")
    return [str(name) for name in names]
