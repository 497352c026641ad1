"""The GPU cost model with what timings show beyond its terms: learned corrections, fitted and held out with it.

Nothing of a held-out pair (N, K) comes in: a fit of this predictor fits the coefficients of the model on the pairs that
it is given, then the trees on what these coefficients leave there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import (
    FEATURES,
    KERNEL_COST_DTYPE,
    MAX_LOG_FACTOR,
    OTHER_KERNELS,
    Region,
    Trees,
    correct,
    describe,
    pack_correction,
    question_of,
)
from gemm_eval.validation.fit import MIN_ROWS
from gemm_eval.validation.predictors.dense import ModelPredictor
from gemm_eval.validation.predictors.dense_rows import best_records, pack_problems, with_families
from gemm_eval.validation.predictors.trees import fit_trees
from gemm_eval.validation.timings import LEAST_KERNEL_US, Floats, Timings
from gemm_eval.workload import GemmTypes, RunOptions

__all__ = ["Answers", "CorrectedPredictor", "Learned"]

Key = tuple[str, str]
"""Kernel family and question of a correction."""

_NEAR_OCTAVES, _FAR_OCTAVES = 1.0, 2.0  # from the nearest known (N, K); held-out pairs are rarely farther than 1
_TAIL = 0.01  # of the residuals, which bounds leave out


class Learned(NamedTuple):
    """A correction and where it holds."""

    trees: Trees
    region: Region
    bounds: tuple[float, float]


class Answers(NamedTuple):
    """What physics says of the rows of a set."""

    records: npt.NDArray[np.void]  # [rows] of GPU_COST_DTYPE
    keys: list[Key]  # [rows]
    types: list[GemmTypes]  # [rows]
    options: RunOptions

    def of_key(self, key: Key) -> npt.NDArray[np.int64]:
        """Return the rows that a correction is for."""
        return np.flatnonzero([item == key for item in self.keys])


@dataclass(frozen=True)
class CorrectedPredictor:
    """The model and its learned corrections; see `Predictor`.

    Attributes:
        physics: the model.
        fitted_on: names of the sets that its coefficients are fitted on; None: all; if none of these is given to a
            fit, they stay as they are.
        learned: by family and question.
    """

    physics: ModelPredictor
    fitted_on: frozenset[str] | None = None
    learned: Mapping[Key, Learned] = field(default_factory=dict)
    name: str = "corrected"

    @property
    def arch(self) -> GpuSpec:
        """The GPU."""
        return self.physics.arch

    def fit(self, *train: Timings) -> CorrectedPredictor:
        """Return one whose coefficients and corrections are fitted on `train`."""
        of_physics = [item for item in train if self.fitted_on is None or item.name in self.fitted_on]
        physics = self.physics.fit(*of_physics) if of_physics else self.physics
        return replace(self, physics=physics).learn(*train)

    def learn(self, *train: Timings) -> CorrectedPredictor:
        """Return one with the coefficients of this one, and corrections that are fitted on `train`.

        Questions of fewer than `MIN_ROWS` rows have none.
        """
        answers = [self.answers(item) for item in train]
        keys = dict.fromkeys(key for found in answers for key in found.keys)
        learned = {}
        for key in keys:
            parts = [(item, found, found.of_key(key)) for item, found in zip(train, answers, strict=True)]
            if sum(len(rows) for *_, rows in parts) >= MIN_ROWS:
                learned[key] = _learn([part for part in parts if len(part[2])])
        return replace(self, learned=learned)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        answers = self.answers(rows)
        for key in dict.fromkeys(answers.keys):
            if (found := self.learned.get(key)) is not None:
                places = answers.of_key(key)
                packed = pack_correction(
                    self.arch, answers.types[places[0]], answers.options, found.trees, found.region, found.bounds
                )
                correct(answers.records.view(KERNEL_COST_DTYPE), places, rows.sizes, *packed)
        latency_us: Floats = answers.records["latency_us"] + rows.timer_us
        return latency_us

    def answers(self, timings: Timings) -> Answers:
        """Return what physics says of each row at its best config."""
        library = self.physics.library
        packed = pack_problems(self.arch, library, [timings])
        records = best_records(packed, with_families(packed, self.physics.coefficients))
        options = RunOptions(library, timings.l2, timings.clock, timings.quantize_from or None)
        types = [problem.types for problem in timings.problems()]
        questions = {of_row: question_of(of_row, options) for of_row in set(types)}
        keys = [(str(family), questions[of_row]) for family, of_row in zip(packed.family_of, types, strict=True)]
        return Answers(records, keys, types, options)


def _learn(parts: Sequence[tuple[Timings, Answers, npt.NDArray[np.int64]]]) -> Learned:
    """Fit trees on the rows of sets; the rows of a small set count more, so that no set drowns the others.

    A row counts by the share of its time that the correction can change.
    """
    features, targets, weights = [], [], []
    most = max(len(rows) for *_, rows in parts)
    for timings, answers, rows in parts:
        records = answers.records[rows]
        x = np.empty((len(rows), len(FEATURES)))
        describe(records.view(KERNEL_COST_DTYPE), timings.sizes[rows], x)
        other_us = sum((records[name] for name in OTHER_KERNELS), np.zeros(len(rows)))
        kernel_us = records["physics_us"] - other_us
        features.append(x)
        targets.append(np.log(np.maximum(timings.kernel_us[rows] - other_us, LEAST_KERNEL_US) / kernel_us))
        weights.append(np.sqrt(most / len(rows)) * (kernel_us / records["physics_us"]))
    residuals = np.concatenate(targets)
    low, high = np.quantile(residuals, (_TAIL, 1.0 - _TAIL)).tolist()
    bounds = max(-MAX_LOG_FACTOR, min(low, 0.0)), min(MAX_LOG_FACTOR, max(high, 0.0))
    sizes = np.concatenate([timings.sizes[rows] for timings, _, rows in parts])
    pairs = np.unique(sizes[:, [3, 2]], axis=0)
    trees = fit_trees(np.concatenate(features), np.clip(residuals, *bounds), np.concatenate(weights), pairs)
    region = Region(
        min_m=int(sizes[:, 1].min()), max_m=int(sizes[:, 1].max()), max_g=int(sizes[:, 0].max()), near=_NEAR_OCTAVES,
        far=_FAR_OCTAVES,
    )  # fmt: skip
    return Learned(trees, region, bounds)
