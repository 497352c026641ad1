"""`MoeLayer`: sizes of a layer of experts, how it is spread over ranks, and distributions of tokens over experts."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec
from gemm_eval.dtypes import DtypeScheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import routing
from gemm_eval.words import as_integer, check_flag, did_you_mean, plain_integer, plain_number, shown
from gemm_eval.workload import MAX_DIM, MAX_GROUPS, GemmTypes, RowGroups, make_types, resolve_types

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
    """Spread of tokens over the experts of a layer. `str` gives the word that `parse_distribution` takes.

    `is_random` says whether draws differ. Equal distributions draw alike.
    """

    __slots__ = ()
    is_random: ClassVar[bool] = True

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> routing.Counts:
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

    def draw(self, sizes: Routed, _rng: np.random.Generator, /) -> routing.Counts:
        """Return the counts of `balanced_counts`."""
        return routing.balanced_counts(*sizes[:3])[None]

    def __str__(self) -> str:
        return "balanced"


@dataclass(frozen=True, slots=True)
class Uniform(Distribution):
    """Each token picks its experts at random, all of them alike: what a good router does on mixed requests."""

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> routing.Counts:
        """Return counts of `uniform_counts`."""
        return routing.uniform_counts(*sizes[:3], rng, sizes.num_draws)

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

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> routing.Counts:
        """Return counts of `power_law_counts`."""
        return routing.power_law_counts(*sizes[:3], self.alpha, sizes.num_ranks, rng, sizes.num_draws)

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

    def draw(self, sizes: Routed, rng: np.random.Generator, /) -> routing.Counts:
        """Return counts of `weighted_counts`."""
        _check_num("weights", self.weights, sizes.num_experts)
        weights = np.array(self.weights) / max(self.weights)
        if np.count_nonzero(weights) < sizes.topk:
            raise InvalidOptionError(
                f"at least topk = {sizes.topk} experts must have a weight above 0, got {np.count_nonzero(weights)}"
            )
        return routing.weighted_counts(sizes.num_tokens, sizes.topk, weights, rng, sizes.num_draws)

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

    def draw(self, sizes: Routed, _rng: np.random.Generator, /) -> routing.Counts:
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
    try:
        return tuple(map(kind, words))
    except ValueError:
        return ()


def _items(
    what: str, values: Any, plain: Callable[[Any], N | None], is_allowed: Callable[[N], bool], rule: str
) -> tuple[N, ...]:
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


_MAX_DRAWS = 10_000
_MAX_SEED = (1 << 63) - 1
_RANK_WORDS = ("most_loaded", "mean")
_NUM_ROUTED = 1024  # layers whose draws are kept: of a sweep many differ in sizes that routing does not see


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """A layer of experts in place of one feed-forward network: each token takes `topk` of them.

    Attributes:
        num_tokens: tokens that all ranks of an expert-parallel group see together.
        hidden, inter: widths of the model and of one expert, all of it: `tp` divides it.
        tp: ranks that share an expert, each with its share of `inter`.
        ep: ranks that share the experts, each with num_experts/ep of them whole, in order.
        distribution: how tokens spread over experts: a word (`gemm_eval.moe.DISTRIBUTION_FORMS`) or a value.
        rank: whose time it is: ``"most_loaded"``, the rank with most tokens in each draw, for which the others wait;
            ``"mean"``: the mean over all of them; or the number of one.
        gated: gate and up projection before the activation, as in SwiGLU; else up alone.
        num_shared_experts: experts that every token takes besides; each rank runs them on its own num_tokens/ep tokens.
        shared_inter: intermediate width of one shared expert; None: as `inter`.
        dtype: of the experts' GEMMs: a shorthand, a `DtypeScheme` or `GemmTypes`; None: the default of the arch.
        num_draws: how often a random distribution is drawn.
        seed: of the draws, 0 or more.
        num_expert_groups: groups of experts among which the router chooses before experts (DeepSeek-V3: 8); 1: none.
            It takes time; which experts are chosen is what `distribution` says.

    Raises:
        InvalidOptionError: a size out of range, a degree that does not divide what it splits, no such distribution.
    """

    num_tokens: int
    hidden: int
    inter: int
    num_experts: int
    topk: int
    tp: int = 1
    ep: int = 1
    distribution: Distribution | str = "balanced"
    rank: str | int = "most_loaded"
    gated: bool = True
    num_shared_experts: int = 0
    shared_inter: int | None = None
    dtype: str | DtypeScheme | GemmTypes | None = None
    num_draws: int = 5
    seed: int = 0
    num_expert_groups: int = 1

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            object.__setattr__(self, name, as_integer(name, getattr(self, name), low, high))
        check_flag("gated", self.gated)
        if self.topk > self.num_experts:
            raise InvalidOptionError(f"topk must be <= num_experts = {self.num_experts}, got {self.topk}")
        for name, size, what in (("tp", self.inter, "inter"), ("ep", self.num_experts, "num_experts")):
            if size % getattr(self, name):
                raise InvalidOptionError(f"{name} must divide {what} = {size}, got {getattr(self, name)}")
        if self.num_local_experts > MAX_GROUPS:
            raise InvalidOptionError(
                f"a rank can have at most {MAX_GROUPS:,} experts, got {self.num_experts} / ep {self.ep}: raise ep"
            )
        object.__setattr__(self, "distribution", parse_distribution(self.distribution))
        object.__setattr__(self, "rank", _check_rank(self.rank, self.ep))
        if self.shared_inter is not None:
            if self.num_shared_experts == 0:
                raise InvalidOptionError("shared_inter is for num_shared_experts >= 1, got 0")
            object.__setattr__(self, "shared_inter", as_integer("shared_inter", self.shared_inter, 1, MAX_DIM))
        shared = self.shared_inter or self.inter
        if self.num_shared_experts * shared % self.tp:
            raise InvalidOptionError(
                f"tp must divide the width of the shared experts, {self.num_shared_experts} * {shared}, got {self.tp}"
            )

    @property
    def num_local_experts(self) -> int:
        """Routed experts of a rank."""
        return self.num_experts // self.ep

    @property
    def local_inter(self) -> int:
        """Intermediate width of an expert on one rank."""
        return self.inter // self.tp

    @property
    def shared_width(self) -> int:
        """Intermediate width of all shared experts together on one rank: they run as one network; 0: there are none."""
        return self.num_shared_experts * (self.shared_inter or self.inter) // self.tp

    @property
    def shared_tokens(self) -> int:
        """Tokens of one rank of the expert-parallel group, on which it runs the shared experts."""
        return -(-self.num_tokens // self.ep)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with fields replaced, checked anew."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, data types as words."""
        values = {name: getattr(self, name) for name in LAYER_FIELDS}
        values["distribution"] = str(self.distribution)
        if isinstance(self.dtype, DtypeScheme):
            values["dtype"] = make_types(**self.dtype._asdict()).inputs
        elif self.dtype is not None:
            values["dtype"] = self.dtype.inputs if isinstance(self.dtype, GemmTypes) else str(self.dtype)
        return values

    def __str__(self) -> str:
        spread = "".join(f", {name}={getattr(self, name)}" for name in ("tp", "ep") if getattr(self, name) > 1)
        shared = f" + {self.num_shared_experts} shared" if self.num_shared_experts else ""
        kind, _, items = str(self.distribution).partition(":")  # lists of one's own are long
        return (
            f"{self.num_tokens:,} tokens, hidden {self.hidden}, {self.topk} of {self.num_experts}{shared} experts of "
            f"{self.inter}{spread}, {'own ' if items else ''}{kind}"
        )


LAYER_FIELDS = tuple(item.name for item in fields(MoeLayer))
"""The names of a layer's fields, which rows of a DataFrame of layers have as columns."""

_RANGES = (
    *((name, 1, MAX_DIM) for name in ("num_tokens", "hidden", "inter", "tp")),
    *((name, 1, MAX_EXPERTS) for name in ("num_experts", "topk", "ep", "num_expert_groups")),
    ("num_shared_experts", 0, MAX_EXPERTS), ("num_draws", 1, _MAX_DRAWS), ("seed", 0, _MAX_SEED),
)  # fmt: skip


class RoutedDraws(NamedTuple):
    """The ranks whose time is asked for after routing: a run is one rank in one draw.

    `groups` [num_runs] are rows of each local expert, the most first: nothing hangs on the order of experts; `rows`,
    `num_active` and `most_rows` [num_runs] are the rank's assignments, experts that have tokens, and rows of the one
    that has most; `imbalance` [num_draws] is tokens of the most loaded rank over the mean of all ranks.
    """

    groups: tuple[RowGroups, ...]
    rows: routing.Counts
    num_active: routing.Counts
    most_rows: routing.Counts
    imbalance: npt.NDArray[np.float64]


def route(layer: MoeLayer) -> RoutedDraws:
    """Draw the routing of a layer, and pick the ranks that it asks for."""
    distribution = parse_distribution(layer.distribution)
    num_draws = layer.num_draws if distribution.is_random else 1
    sizes = Routed(layer.num_tokens, layer.num_experts, layer.topk, layer.ep, num_draws)
    return _route(sizes, distribution, layer.rank, layer.seed)


@lru_cache(maxsize=_NUM_ROUTED)
def _route(sizes: Routed, distribution: Distribution, rank: str | int, seed: int) -> RoutedDraws:
    ep = sizes.num_ranks
    counts = distribution.draw(sizes, np.random.default_rng(seed))
    of_rank = counts.reshape(len(counts), ep, -1)
    loads = of_rank.sum(axis=2)
    if rank == "most_loaded":
        of_rank = routing.most_loaded_rank_first(counts, ep).reshape(of_rank.shape)[:, :1]
    elif isinstance(rank, int):
        of_rank = of_rank[:, rank : rank + 1]
    local = -np.sort(-of_rank.reshape(-1, of_rank.shape[2]), axis=1)
    return RoutedDraws(
        groups=tuple(map(tuple, local.tolist())),
        rows=local.sum(axis=1),
        num_active=(local > 0).sum(axis=1),
        most_rows=local[:, 0],
        imbalance=loads.max(axis=1) * ep / loads.sum(axis=1),
    )


def types_of(layer: MoeLayer, arch: ArchSpec) -> GemmTypes:
    """Return the data types of a layer's GEMMs on an arch."""
    if isinstance(layer.dtype, GemmTypes):
        return layer.dtype
    if isinstance(layer.dtype, DtypeScheme):
        return make_types(**layer.dtype._asdict())
    return resolve_types(arch.default_dtype, layer.dtype)


def _check_rank(rank: Any, ep: int) -> str | int:
    if isinstance(rank, str) and rank in _RANK_WORDS:
        return rank
    number = plain_integer(rank)
    if number is None or not 0 <= number < ep:
        raise InvalidOptionError(
            f"rank must be most_loaded, mean, or a number in 0..{ep - 1} (ep = {ep}), got {shown(rank)}"
        )
    return number
