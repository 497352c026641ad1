"""How good the choice of a Triton config is: time of the best timed config of a GEMM over that of what is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemm_eval.validation.kernel_scores import rows_by_gemm
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.timings import Floats, Mask
from gemm_eval.validation.triton import TritonTimings

__all__ = ["ALL", "TOP", "TritonChoice", "choice_speeds", "measure_choices", "random_choices", "row_groups"]

ALL = "all"

TOP = ("first", "first 3", "first 20%")
"""How many of a GEMM's configs, in the order of a method, are timed and the best of them taken."""

_TOP_3, _TOP_FRAC = 3, 0.2
_LEAST_SPEED_PERCENTILE = 5.0


def row_groups(timings: TritonTimings) -> Iterator[tuple[str, str, Mask]]:
    """Yield (data set, regime, rows) of all groups that have rows, those of all data sets first."""
    rows = timings.as_set()
    regimes = [(regime.name, regime.mask(rows)) for regime in REGIMES]
    of_sets = [(ALL, np.ones(len(timings), bool)), *((name, timings.of_set(name)) for name in timings.data_sets)]
    for name, of_set in of_sets:
        for regime, of_regime in regimes:
            mask = of_set & of_regime
            if mask.any():
                yield name, regime, mask


@dataclass(frozen=True, slots=True)
class TritonChoice:
    """Speed of what a method chooses for each GEMM: time of the best timed config over that of the choice, 0..1.

    Attributes:
        method: its name.
        data_set: name, or "all".
        regime: of `metrics.REGIMES`.
        num_gemms: GEMMs.
        top: which of `TOP` is timed, the best of it being the choice.
        speed_frac: geometric mean over GEMMs.
        p5_frac, worst_frac: 5th percentile and least.
    """

    method: str
    data_set: str
    regime: str
    num_gemms: int
    top: str
    speed_frac: float
    p5_frac: float
    worst_frac: float


def choice_speeds(timings: TritonTimings, predicted_us: Floats) -> Floats:
    """Return best measured time over that of the choice, [gemms, `TOP`], GEMMs in the order of `timings.gemm`."""
    speeds = []
    for rows in rows_by_gemm(timings.gemm):
        measured_us = timings.measured_us[rows[np.argsort(predicted_us[rows], kind="stable")]]
        counts = (1, _TOP_3, max(1, int(_TOP_FRAC * len(rows))))
        speeds.append([measured_us.min() / measured_us[:count].min() for count in counts])
    return np.array(speeds)


def _gemm_groups(timings: TritonTimings) -> Iterator[tuple[str, str, Mask]]:
    """As `row_groups`, of GEMMs instead of rows."""
    first = np.unique(timings.gemm, return_index=True)[1]
    yield from ((name, regime, mask[first]) for name, regime, mask in row_groups(timings))


def measure_choices(timings: TritonTimings, method: str, predicted_us: Floats) -> Iterator[TritonChoice]:
    """Yield the choices by predicted times of all groups that have GEMMs, for each of `TOP`."""
    speeds = choice_speeds(timings, predicted_us)
    for name, regime, gemms in _gemm_groups(timings):
        for place, top in enumerate(TOP):
            yield _choice(method, name, regime, top, speeds[gemms, place])


def random_choices(timings: TritonTimings) -> Iterator[TritonChoice]:
    """Yield the same of a config at random: for each GEMM, the geometric mean over its configs."""
    logs = np.log(timings.measured_us)
    speeds = np.array([np.exp(logs[rows].min() - logs[rows].mean()) for rows in rows_by_gemm(timings.gemm)])
    for name, regime, gemms in _gemm_groups(timings):
        yield _choice("at random", name, regime, TOP[0], speeds[gemms])


def _choice(method: str, name: str, regime: str, top: str, speeds: Floats) -> TritonChoice:
    return TritonChoice(
        method, name, regime, len(speeds), top, float(np.exp(np.log(speeds).mean())),
        float(np.percentile(speeds, _LEAST_SPEED_PERCENTILE)), float(speeds.min()),
    )  # fmt: skip
