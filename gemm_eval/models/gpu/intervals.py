"""Intervals around a predicted latency in which 80% of measured ones lie, by regime of M.

They are quantiles of log(measured / predicted) of rows whose (N, K) pair was held out; MODEL.md, "Intervals".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

COVERAGE_FRAC = 0.8
"""Share of measured latencies that intervals are made to hold."""

REGIMES_OF_M = (("decode", 1, 16), ("mid", 17, 256), ("prefill", 257, None))
"""Name, least and most rows of A; None: no upper end."""

MIN_INTERVAL_ROWS = 20
"""Rows of a regime for quantiles of its own; with fewer it has those of all regimes."""

_ALL = "all"
ALIKE, OTHER_SMS = 0.02, 0.15
"""Logarithm by which coefficients err on a GPU that they were not fitted on, of the same generation of SMs and of
another: besides the errors on their own GPU, so added in squares. MODEL.md, "Intervals", says what that holds where
timings are known."""

_OF_DEFAULTS = math.log(2.0)
_ENDS = np.array([most for _, _, most in REGIMES_OF_M if most is not None])


class RegimeInterval(BaseModel):
    """Quantiles of log(measured / predicted) of held-out rows of a regime."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    regime: str = Field(description="decode, mid or prefill, by rows M; or all")
    num_rows: int = Field(description="timings of the regime")
    low_log: float = Field(le=0.0, description="10th percentile, at most 0")
    high_log: float = Field(ge=0.0, description="90th percentile, at least 0")

    @model_validator(mode="after")
    def _check(self) -> RegimeInterval:
        names = [*(name for name, _, _ in REGIMES_OF_M), _ALL]
        if self.regime not in names:
            raise ValueError(f"regime must be one of {', '.join(names)}, got {self.regime}")
        return self


class Interval(NamedTuple):
    """What a predicted latency is multiplied by, for each of `REGIMES_OF_M`."""

    low_frac: tuple[float, ...]
    high_frac: tuple[float, ...]

    def of_rows(self, M: int) -> tuple[float, float]:
        """Return both factors for a GEMM of M rows."""
        place = regime_place(M)
        return self.low_frac[place], self.high_frac[place]


def regime_place(M: int) -> int:
    """Return the place of a number of rows in `REGIMES_OF_M`."""
    return sum(most is not None and most < M for _, _, most in REGIMES_OF_M)


def regime_places(M: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return `regime_place` of each."""
    return np.searchsorted(_ENDS, M)


def fit_intervals(M: npt.NDArray[np.int64], log_errors: npt.NDArray[np.float64]) -> tuple[RegimeInterval, ...]:
    """Return the intervals of each regime that has rows enough, and of all rows.

    Args:
        M: [rows].
        log_errors: [rows], log(measured / predicted) by fits that had not seen the row's pair.
    """
    places = regime_places(M)
    found = []
    for place, name in enumerate([*(name for name, _, _ in REGIMES_OF_M), _ALL]):
        mask = np.ones(len(M), bool) if name == _ALL else places == place
        if np.count_nonzero(mask) >= MIN_INTERVAL_ROWS or name == _ALL:
            tail = (1.0 - COVERAGE_FRAC) / 2.0
            low, high = np.quantile(log_errors[mask], (tail, 1.0 - tail)).tolist()
            # a model that is biased is told by its bias; the prediction itself always lies inside
            found.append(
                RegimeInterval(
                    regime=name, num_rows=int(np.count_nonzero(mask)), low_log=round(min(low, 0.0), 5),
                    high_log=round(max(high, 0.0), 5),
                )
            )  # fmt: skip
    return tuple(found)


def interval_of(found: Sequence[RegimeInterval], carried_log: float = 0.0) -> Interval:
    """Return the factors of fitted intervals; `carried_log`: 0, `ALIKE` or `OTHER_SMS`, what carrying over adds."""
    by_name = {item.regime: item for item in found}
    items = [by_name.get(name, by_name[_ALL]) for name, _, _ in REGIMES_OF_M]
    return _interval(
        (-math.hypot(item.low_log, carried_log) for item in items),
        (math.hypot(item.high_log, carried_log) for item in items),
    )


def interval_of_error(p90_frac: float, carried_log: float = 0.0) -> Interval:
    """Return the factors where only the 90th percentile of the size of errors is known."""
    log = math.hypot(math.log1p(p90_frac), carried_log)
    return _interval([-log] * len(REGIMES_OF_M), [log] * len(REGIMES_OF_M))


def interval_of_defaults() -> Interval:
    """Return the factors where nothing at all was fitted: half to twice the time."""
    return _interval([-_OF_DEFAULTS] * len(REGIMES_OF_M), [_OF_DEFAULTS] * len(REGIMES_OF_M))


def _interval(low: Iterable[float], high: Iterable[float]) -> Interval:
    exp: Callable[[float], float] = math.exp
    return Interval(tuple(map(exp, low)), tuple(map(exp, high)))
