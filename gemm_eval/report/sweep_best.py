"""The designs of a sweep that a reader wants to see first: the best by each objective, and one that balances them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.sweep import SweepResult

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BALANCE", "BestDesign", "find_best"]

BALANCE = "balance"
_MOST_OBJECTIVES = 4


@dataclass(frozen=True, slots=True)
class BestDesign:
    """A point of the front, and what it is best in.

    Attributes:
        point: its number.
        best_in: ``"least latency_us"``, ``"most tokens_per_s"``, `BALANCE`, or several of them.
        row: its columns.
    """

    point: int
    best_in: str
    row: Mapping[Any, Any]


def find_best(result: SweepResult, front: pd.DataFrame) -> list[BestDesign]:
    """Return the best point by each objective and, of several objectives, the one that balances them; each point once.

    Args:
        result: the sweep.
        front: its Pareto front, ``result.pareto()``.
    """
    if not len(front):
        return []
    values = {name: front[name].to_numpy(np.float64) for name in result.objectives[:_MOST_OBJECTIVES]}
    found: dict[int, list[str]] = {}
    for name, column in values.items():
        if not np.isfinite(column).any():
            continue
        is_most = result.is_maximized(name)
        at = int(np.nanargmax(column) if is_most else np.nanargmin(column))
        found.setdefault(at, []).append(f"{'most' if is_most else 'least'} {name}")
    balanced = _balanced(result, values) if len(values) > 1 else None
    if balanced is not None:
        found.setdefault(balanced, []).append(BALANCE)
    rows = front.iloc[list(found)].to_dict("records")
    return [BestDesign(int(row["point"]), ", ".join(said), row) for said, row in zip(found.values(), rows, strict=True)]


def _balanced(result: SweepResult, values: Mapping[str, npt.NDArray[np.float64]]) -> int | None:
    """Where the product of the objectives' ratios to their best is least: it does not ask for their scales."""
    total = np.zeros(len(next(iter(values.values()))))
    for name, column in values.items():
        if not (np.isfinite(column) & (column > 0.0)).all():
            return None
        total += -np.log(column) if result.is_maximized(name) else np.log(column)
    return int(np.argmin(total))
