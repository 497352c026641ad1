"""Which points of a space a sweep looks at: all of a grid, or some at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.sweep.space import Space

__all__ = ["Adaptive", "Grid", "LatinHypercube", "Random", "Sampling", "check_count"]

_MAX_DRAWN = 1 << 27  # numbers: 1 GiB, and as much again to sort them
_BLOCK = 4096  # points that one seed draws: any chunk of points is found without drawing those before it


class Sampling(Protocol):
    """Points by number: the same number is the same point, however the work is cut."""

    def num_points_of(self, space: Space) -> int:
        """Return how many points there are."""

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 choose."""


@dataclass(frozen=True)
class Grid:
    """All combinations of the values."""

    def num_points_of(self, space: Space) -> int:
        """Return how many points there are."""
        return space.grid_size

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 choose; the last field varies fastest."""
        return space.grid_rows(start, stop)


@dataclass(frozen=True)
class _Drawn:
    """So many points of a seed."""

    num_points: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_points", self.num_points)
        _check_seed(self.seed, 63)

    def num_points_of(self, space: Space) -> int:  # noqa: ARG002
        """Return how many points there are."""
        return self.num_points


class Random(_Drawn):
    """Points drawn at random, each field by itself."""

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 choose."""
        width = len(space.drawn)
        blocks = range(start // _BLOCK, -(-stop // _BLOCK))
        drawn = [np.random.default_rng([self.seed, block]).random((_BLOCK, width)) for block in blocks]
        first = blocks.start * _BLOCK
        return space.rows_of(np.concatenate(drawn)[start - first : stop - first])


class LatinHypercube(_Drawn):
    """Points at random, but evenly spread along every field: as many strata as points, one point in each."""

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 choose."""
        return space.rows_of(_latin_hypercube(self.num_points, len(space.drawn), self.seed)[start:stop])


@dataclass(frozen=True)
class Adaptive:
    """Points that optuna chooses in batches by what it has seen, for one or several objectives.

    Attributes:
        num_points: how many, as many batches as that takes.
        batch_size: points that are chosen at once, and evaluated in parallel.
        seed: of the sampler; the same seed takes the same points.
        sampler: ``"nsga2"`` (NSGA-II), ``"tpe"`` (tree-structured Parzen estimators) or ``"qmc"`` (quasi-Monte Carlo).
    """

    num_points: int
    batch_size: int = 64
    seed: int = 0
    sampler: str = "nsga2"

    def __post_init__(self) -> None:
        check_count("num_points", self.num_points)
        check_count("batch_size", self.batch_size)
        _check_seed(self.seed, 32)  # what optuna takes
        if self.sampler not in ("nsga2", "tpe", "qmc"):
            raise InvalidOptionError(f"sampler must be nsga2, tpe or qmc, got {shown(self.sampler)}")


def check_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1, such as points have in a column.

    Raises:
        InvalidOptionError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
        beyond = " and < 2^63" if isinstance(value, int) and value > 1 else ""
        raise InvalidOptionError(f"{name} must be a whole number >= 1{beyond}, got {shown(value)}")
    return value


def _check_seed(seed: Any, num_bits: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << num_bits:
        raise InvalidOptionError(f"seed must be a whole number >= 0 and < 2^{num_bits}, got {shown(seed)}")


@lru_cache(maxsize=1)
def _latin_hypercube(num_points: int, width: int, seed: int) -> npt.NDArray[np.float64]:
    with needs_extra("LatinHypercube", "sweep"):
        from scipy.stats import qmc
    if num_points * width > _MAX_DRAWN:
        raise InvalidOptionError(
            f"LatinHypercube draws all its points at once, {_MAX_DRAWN:,} numbers at most; {num_points:,} points of "
            f"{width} are more: take Random"
        )
    if width == 0:
        return np.empty((num_points, 0))
    unit: npt.NDArray[np.float64] = qmc.LatinHypercube(width, rng=np.random.default_rng(seed)).random(num_points)
    return unit
