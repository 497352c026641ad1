"""Distributions of tokens over experts, as values: words, exponents, weights or counts of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gemm_eval.checks import plain_integer, plain_number
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe.routing import Counts, balanced_counts, power_law_counts, uniform_counts, weighted_counts
from gemm_eval.words import did_you_mean, shown
from gemm_eval.workload import MAX_DIM

MAX_EXPERTS = 1 << 16
"""Most routed experts of a layer."""

_MAX_ALPHA = 100.0  # far beyond any that was seen: powers of larger ones leave floating point
_POWER_LAW = "power_law_"
DISTRIBUTION_FORMS = (
    "balanced, uniform, power_law_ALPHA (power_law_1.2), weights:W,W,... (one for each expert) or counts:N,N,... "
    "(tokens of each expert)"
)
"""The words for distributions."""


N = TypeVar("N", int, float)


class Routed(NamedTuple):
    """Sizes of a routing: tokens that take `topk` experts each, whose experts stand together by rank."""

    num_tokens: int
    num_experts: int
    topk: int
    num_ranks: int = 1
    num_draws: int = 1


class Distribution:
    """How tokens spread over the experts of a layer. `str` gives the word that `parse_distribution` takes.

    `is_random` says whether draws differ. Equal distributions draw alike.
    """

    __slots__ = ()
    is_random: ClassVar[bool] = True

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> Counts:
        """Return the tokens of each expert, [num_draws, num_experts]; one row where draws do not differ.

        Rows add up to num_tokens*topk; no expert has more than num_tokens.

        Raises:
            InvalidOptionError: the distribution is of other sizes.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Balanced(Distribution):
    """Tokens spread as evenly as they can, in a fixed order: what load balancing aims at."""

    is_random: ClassVar[bool] = False

    def draw(self, sizes: Routed, _rng: np.random.Generator, /) -> Counts:
        """Return the counts of `balanced_counts`."""
        return balanced_counts(*sizes[:3])[None]

    def __str__(self) -> str:
        return "balanced"


@dataclass(frozen=True, slots=True)
class Uniform(Distribution):
    """Each token picks its experts at random, all of them alike: what a good router does on mixed requests."""

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> Counts:
        """Return counts of `uniform_counts`."""
        return uniform_counts(*sizes[:3], rng, sizes.num_draws)

    def __str__(self) -> str:
        return "uniform"


@dataclass(frozen=True, slots=True)
class PowerLaw(Distribution):
    """Loads of experts drawn from a density x**-alpha, as AIConfigurator's collectors draw them.

    Their README reports about 1.01 for DeepSeek-V3 and 1.2 for Qwen3-235B, on some data sets (collector/ of
    github.com/ai-dynamo/aiconfigurator). `alpha` is 0 (loads are uniform between 1 and 0.8*num_tokens, before scaling)
    to 100; larger is more skewed.

    Raises:
        InvalidOptionError: `alpha` is no number in that range.
    """

    alpha: float

    def __post_init__(self) -> None:
        alpha = plain_number(self.alpha)
        if alpha is None or not 0.0 <= alpha <= _MAX_ALPHA:
            raise InvalidOptionError(
                f"alpha of a power law must be a number in 0..{_MAX_ALPHA:g}, got {shown(self.alpha)}"
            )
        object.__setattr__(self, "alpha", alpha)

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> Counts:
        """Return counts of `power_law_counts`."""
        return power_law_counts(*sizes[:3], self.alpha, sizes.num_ranks, rng, sizes.num_draws)

    def __str__(self) -> str:
        short = f"{self.alpha:g}"
        return f"{_POWER_LAW}{short if float(short) == self.alpha else repr(self.alpha)}"


@dataclass(frozen=True, slots=True)
class ExpertWeights(Distribution):
    """A histogram of one's own: what share of all assignments each expert has in the mean; draws vary around it.

    Weights are not negative; their scale means nothing.

    Raises:
        InvalidOptionError: they are no such numbers.
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        weights = _items("weights", self.weights, plain_number, lambda weight: weight >= 0, "finite numbers >= 0")
        if not any(weights):
            raise InvalidOptionError("weights of experts must not all be 0")
        object.__setattr__(self, "weights", weights)

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> Counts:
        """Return counts of `weighted_counts`."""
        _check_num("weights", self.weights, sizes.num_experts)
        weights = np.array(self.weights) / max(self.weights)
        if np.count_nonzero(weights) < sizes.topk:
            raise InvalidOptionError(
                f"at least topk = {sizes.topk} experts must have a weight above 0, got {np.count_nonzero(weights)}"
            )
        return weighted_counts(sizes.num_tokens, sizes.topk, weights, rng, sizes.num_draws)

    def __str__(self) -> str:
        return f"weights:{','.join(f'{weight:.17g}' for weight in self.weights)}"


@dataclass(frozen=True, slots=True)
class ExpertCounts(Distribution):
    """Counts of one's own: the tokens of each expert, as they were seen; those of a rank stand together.

    They must add up to num_tokens*topk.

    Raises:
        InvalidOptionError: they are no integers >= 0.
    """

    counts: tuple[int, ...]
    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        counts = _items("counts", self.counts, plain_integer, lambda num: 0 <= num <= MAX_DIM, "integers in 0..2**40")
        object.__setattr__(self, "counts", counts)

    def draw(self, sizes: Routed, _rng: np.random.Generator, /) -> Counts:
        """Return the counts."""
        num_tokens, num_experts, topk = sizes[:3]
        _check_num("counts", self.counts, num_experts)
        if sum(self.counts) != num_tokens * topk:
            raise InvalidOptionError(
                f"counts must add up to num_tokens * topk = {num_tokens} * {topk} = {num_tokens * topk}, got "
                f"{sum(self.counts)}; weights:... scales a histogram to any number of tokens"
            )
        if max(self.counts) > num_tokens:
            raise InvalidOptionError(
                f"no expert can have more than num_tokens = {num_tokens} tokens, got {max(self.counts)} for expert "
                f"{self.counts.index(max(self.counts))}"
            )
        return np.array([self.counts], np.int64)

    def __str__(self) -> str:
        return f"counts:{','.join(map(str, self.counts))}"


def parse_distribution(value: Any, *, what: str = "distribution") -> Distribution:
    """Return the distribution that a word names, such as ``"power_law_1.2"``, or one that is given as a value.

    Raises:
        InvalidOptionError: `value` is neither; `what` names it.
    """
    if isinstance(value, Distribution):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("balanced", "uniform"):
        return Balanced() if word == "balanced" else Uniform()
    kind, _, items = word.partition(":")
    if word.startswith(_POWER_LAW) and (alpha := _numbers(float, word.removeprefix(_POWER_LAW))):
        return PowerLaw(alpha[0])
    if kind == "weights" and (weights := _numbers(float, *items.split(","))):
        return ExpertWeights(weights)
    if kind == "counts" and (counts := _numbers(int, *items.split(","))):
        return ExpertCounts(counts)
    hint = did_you_mean(word, ("balanced", "uniform", "power_law_1.2"))
    raise InvalidOptionError(f"{what} must be one of {DISTRIBUTION_FORMS}, got {shown(value)}{hint}")


def _numbers(kind: type[N], *words: str) -> tuple[N, ...]:
    """Return the numbers that words spell; none where one spells none."""
    try:
        return tuple(map(kind, words))
    except ValueError:
        return ()


def _items(
    what: str, values: Any, plain: Callable[[Any], N | None], is_allowed: Callable[[N], bool], rule: str
) -> tuple[N, ...]:
    """Return one plain number for each expert, all of which are allowed."""
    if isinstance(values, str | bytes | dict | set | frozenset) or not isinstance(values, Iterable):
        raise InvalidOptionError(f"{what} must be a sequence with one number for each expert, got {shown(values)}")
    if not isinstance(values, Sized) or not 1 <= len(values) <= MAX_EXPERTS:
        raise InvalidOptionError(f"{what} must be a sequence of 1 to {MAX_EXPERTS:,} numbers, got {shown(values)}")
    result: list[N] = []
    for item in values:
        number = plain(item)
        if number is None or not is_allowed(number):
            raise InvalidOptionError(f"{what} of experts must be {rule}, got {shown(item)} for expert {len(result)}")
        result.append(number)
    return tuple(result)


def _check_num(what: str, values: tuple[Any, ...], num_experts: int) -> None:
    if len(values) != num_experts:
        raise InvalidOptionError(f"{what} must be one for each of num_experts = {num_experts}, got {len(values)}")
