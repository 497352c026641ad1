"""Adaptive sampling: optuna proposes batches of points, told how those before did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep.fields import Choices
from gemm_eval.sweep.sampling import Adaptive

if TYPE_CHECKING:
    from gemm_eval.sweep.space import Space

__all__ = ["Proposer"]


class Proposer:
    """A study of optuna over the unit cube of a space; fields of some values are categories there.

    Args:
        space: the chips.
        sampling: sampler, seed and batches.
        maximize: for each objective, whether more is better.

    Raises:
        GemmEvalError: optuna is not installed.
    """

    def __init__(self, space: Space, sampling: Adaptive, maximize: Sequence[bool]) -> None:
        try:
            import optuna
        except ImportError:
            raise GemmEvalError("adaptive sampling needs optuna: pip install 'gemm_eval[sweep]'") from None
        samplers = {
            "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=sampling.seed, population_size=sampling.batch_size),
            "tpe": lambda: optuna.samplers.TPESampler(seed=sampling.seed),
            "qmc": lambda: optuna.samplers.QMCSampler(seed=sampling.seed, warn_independent_sampling=False),
        }
        self._optuna = optuna
        self._space = space
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it announces every study and trial
        try:
            self._study = optuna.create_study(
                directions=["maximize" if more else "minimize" for more in maximize],
                sampler=samplers[sampling.sampler](),
            )
        finally:
            optuna.logging.set_verbosity(before)
        self._waiting: list[Any] = []

    def propose(self, num_points: int) -> list[tuple[Any, ...]]:
        """Return what the next points choose."""
        rows = []
        for _ in range(num_points):
            trial = self._study.ask()
            self._waiting.append(trial)
            row = []
            for name, field in self._space.drawn.items():
                if isinstance(field, Choices):
                    place = trial.suggest_categorical(name, list(range(len(field.values))))
                    row.append(field.values[place])
                else:
                    unit = trial.suggest_float(name, 0.0, 1.0)
                    row.append(field.take(np.array([unit]))[0])  # type: ignore[union-attr]  # dependent ones are not drawn
            rows.append(tuple(row))
        return rows

    def tell(self, objectives: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]) -> None:
        """Say how the points proposed last did: objectives [num_points, num_objectives], and whether they count."""
        for trial, values, counts in zip(self._waiting, objectives.tolist(), is_good.tolist(), strict=True):
            if counts and all(value == value for value in values):  # noqa: PLR0124  nan
                self._study.tell(trial, values)
            else:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._waiting.clear()
