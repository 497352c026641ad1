"""Adaptive sampling: optuna proposes batches of points, told how those before did."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.extras import needs_extra
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
        with needs_extra("adaptive sampling", "sweep"):
            import optuna
        self._optuna = optuna
        self._space = space
        with self._silent():
            self._study = optuna.create_study(
                directions=["maximize" if more else "minimize" for more in maximize],
                sampler=_make_sampler(optuna, sampling),
            )
        self._waiting: list[Any] = []

    def propose(self, num_points: int) -> list[tuple[Any, ...]]:
        """Return what the next points choose."""
        rows = []
        with self._silent():
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
                        row.append(field.take(np.array([unit]))[0])
                rows.append(tuple(row))
        return rows

    def tell(self, objectives: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]) -> None:
        """Say how the points proposed last did: objectives [num_points, num_objectives], and whether they count."""
        is_good = is_good & np.isfinite(objectives).all(axis=1)
        with self._silent():
            for trial, values, counts in zip(self._waiting, objectives.tolist(), is_good.tolist(), strict=True):
                # a broken constraint, not a failed trial: samplers learn from it, and any point that counts beats it
                trial.set_constraint("excluded", 0.0 if counts else 1.0)
                self._study.tell(trial, values if counts else [0.0] * len(values))
        self._waiting.clear()

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Optuna announces every study and trial, and warns of what is new in it."""
        before = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            self._optuna.logging.set_verbosity(before)


def _make_sampler(optuna: Any, sampling: Adaptive) -> Any:
    samplers, seed = optuna.samplers, sampling.seed
    if sampling.sampler == "nsga2":
        return samplers.NSGAIISampler(seed=seed, population_size=sampling.batch_size)
    if sampling.sampler == "tpe":
        return samplers.TPESampler(seed=seed)
    independent = samplers.RandomSampler(seed=seed)  # for the first point, and for categories
    return samplers.QMCSampler(
        seed=seed, scramble=True, independent_sampler=independent, warn_independent_sampling=False,
        warn_asynchronous_seeding=False,
    )  # fmt: skip
