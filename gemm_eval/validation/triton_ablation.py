"""What each coefficient of the Triton model buys: held-out errors without it, the others fitted again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_eval.models.gpu.triton import TRITON_COEFFICIENTS
from gemm_eval.validation.timings import Floats
from gemm_eval.validation.triton import TritonTimings
from gemm_eval.validation.triton_choice import choice_speeds
from gemm_eval.validation.triton_fit import cross_fit_triton, predict_folds

__all__ = ["BUYS_NOTHING_POINTS", "TritonAblated", "ablate_triton"]

BUYS_NOTHING_POINTS = 0.03
"""A coefficient whose neutral value raises the held-out MAPE by fewer percentage points buys nothing."""


@dataclass(frozen=True, slots=True)
class TritonAblated:
    """What the held-out error becomes without one coefficient; changes in percentage points, positive: worse.

    Attributes:
        coefficient: which.
        value: what it was held at, in its unit.
        held_out_points: change of the MAPE of all rows.
        worst_set, worst_set_points: the data set that loses most, and its change.
        speed_points: change of the speed of the model's choice, in percentage points of the best; negative: worse.
        base_points: the held-out MAPE with all coefficients.
    """

    coefficient: str
    value: float
    held_out_points: float
    worst_set: str
    worst_set_points: float
    speed_points: float
    base_points: float


def ablate_triton(timings: TritonTimings, num_folds: int = 5, seed: int = 0) -> Iterator[TritonAblated]:
    """Hold each coefficient at its neutral value in turn and fit the others again, in cross-validation by (N, K).

    Raises:
        InvalidInputError: as `fit_triton`.
        InvalidOptionError: fewer pairs than folds.
    """
    full = cross_fit_triton(timings, num_folds, seed)

    def held_out(fits: Sequence[Mapping[str, float]]) -> tuple[Floats, float]:
        predicted_us = predict_folds(timings, num_folds, seed, lambda fold, rows: rows.predict(fits[fold]))
        speeds = choice_speeds(timings, predicted_us)[:, 0]
        return np.abs(predicted_us / timings.measured_us - 1.0), float(np.exp(np.log(speeds).mean()))

    base, base_speed = held_out(full)
    for item in TRITON_COEFFICIENTS:
        fixed = {item.name: item.neutral.value}
        errors, speed = held_out(cross_fit_triton(timings, num_folds, seed, fixed=fixed, starts=full))
        change = 100.0 * (errors - base)
        by_set = {name: float(change[timings.of_set(name)].mean()) for name in timings.data_sets}
        worst = max(by_set, key=lambda name: by_set[name])
        yield TritonAblated(
            item.name, item.neutral.value, float(change.mean()), worst, by_set[worst], 100.0 * (speed - base_speed),
            100.0 * float(base.mean()),
        )  # fmt: skip
