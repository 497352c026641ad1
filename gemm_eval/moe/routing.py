"""Numbers of tokens that each expert receives: the laws of routing, seeded.

Counts of all experts add up to num_tokens*topk, and no expert has more than num_tokens, because a token picks topk
different ones.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

_HIGHEST_FRAC = 0.8  # of the tokens: upper end of the density that loads are drawn from
_FEW_TOKENS = (0.01, 2.0)  # its ends where there are no more assignments than experts
_PER_PICK_NS = 20  # of a pick drawn by itself, and
_PER_EXPERT_NS = 13_000  # of an expert whose tokens are drawn at once: they say which way is the quicker one


def balanced_counts(num_tokens: int, num_experts: int, topk: int) -> Counts:
    """Return the tokens of each expert [num_experts] where token t takes experts (t + i*ceil(E/topk)) mod E.

    i goes from 0 to topk - 1. Fewer tokens than that stride start at even distances in it. Where topk strides are more
    than E, so that a token would have an expert twice, its experts are floor(i*E/topk) further instead.
    """
    if num_tokens >= -(-num_experts // topk):
        rounds, rest = divmod(num_tokens, num_experts)
        starts = np.full(num_experts, rounds, np.int64)
        starts[:rest] += 1
    else:
        starts = np.bincount(_balanced_starts(num_tokens, num_experts, topk), minlength=num_experts)
    return starts[_balanced_sources(num_experts, topk)].sum(axis=0)


@lru_cache(maxsize=64)
def _balanced_sources(num_experts: int, topk: int) -> Counts:
    """Return the experts [topk, num_experts] whose tokens have an expert as their first, second, ... one."""
    return (np.arange(num_experts) - _balanced_offsets(num_experts, topk)[:, None]) % num_experts


def _balanced_starts(num_tokens: int, num_experts: int, topk: int) -> Counts:
    tokens, stride = np.arange(num_tokens), -(-num_experts // topk)
    return tokens % num_experts if num_tokens >= stride else tokens * stride // num_tokens


def _balanced_offsets(num_experts: int, topk: int) -> Counts:
    stride = -(-num_experts // topk)
    step = num_experts / topk if (topk - 1) * stride >= num_experts else stride
    return (np.arange(topk) * step).astype(np.int64)


def power_law_counts(
    num_tokens: int, num_experts: int, topk: int, alpha: float, num_ranks: int, rng: np.random.Generator,
    num_draws: int = 1,
) -> Counts:  # fmt: skip
    """Return the tokens of each expert, [num_draws, num_experts], where loads are drawn from a density x**-alpha.

    As the collectors of AIConfigurator draw them (github.com/ai-dynamo/aiconfigurator, collector/helper.py): by the
    inverse CDF on [1, 0.8*num_tokens], or [0.01, 2] with no more assignments than experts; scaled to num_tokens*topk in
    all and rounded, at most num_tokens each. What that cuts off, and what rounding lacks, goes one by one to the ranks
    in turn, there to the expert that has least; what rounding has too much is taken from the one that has most.
    """
    total = num_tokens * topk
    low, high = (1.0, _HIGHEST_FRAC * num_tokens) if total > num_experts else _FEW_TOKENS
    u = rng.random((num_draws, num_experts))
    if alpha == 1.0:
        loads = low * (high / low) ** u
    else:
        power = 1.0 - alpha
        loads = (low**power + u * (high**power - low**power)) ** (1.0 / power)
    counts = np.rint(loads / loads.sum(axis=1, keepdims=True) * total).astype(np.int64)
    cut = np.maximum(counts - num_tokens, 0).sum(axis=1)
    counts = np.minimum(counts, num_tokens)
    counts = _add_in_turn(counts, cut, num_ranks, num_tokens)
    missing = total - counts.sum(axis=1)
    counts = _add_in_turn(counts, np.maximum(missing, 0), num_ranks, num_tokens)
    return -_add_in_turn(-counts, np.maximum(-missing, 0), num_ranks, 0)


def uniform_counts(
    num_tokens: int, num_experts: int, topk: int, rng: np.random.Generator, num_draws: int = 1
) -> Counts:
    """Return the tokens of each expert, [num_draws, num_experts], where each token picks topk of them at random.

    Exact: few tokens pick one by one (Floyd's algorithm, Communications of the ACM 30(9), 1987); of many, each expert
    in turn takes binomially many of those that have r picks left among the m experts left, with probability r/m.
    """
    num = num_draws * num_tokens
    if num * topk * _PER_PICK_NS > num_experts * _PER_EXPERT_NS:
        return _uniform_by_expert(num_tokens, num_experts, topk, rng, num_draws)
    chosen = np.empty((num, topk), np.int64)
    for i in range(topk):
        last = num_experts - topk + i
        pick = rng.integers(0, last + 1, size=num)
        chosen[:, i] = np.where((chosen[:, :i] == pick[:, None]).any(axis=1), last, pick)
    chosen += np.repeat(np.arange(num_draws) * num_experts, num_tokens)[:, None]
    return np.bincount(chosen.ravel(), minlength=num_draws * num_experts).reshape(num_draws, num_experts)


def weighted_counts(
    num_tokens: int, topk: int, weights: npt.NDArray[np.float64], rng: np.random.Generator, num_draws: int = 1
) -> Counts:
    """Return the tokens of each expert, [num_draws, num_experts], in the mean in proportion to `weights` [num_experts].

    Assignments are drawn independently of each other; those that an expert has beyond num_tokens are drawn again among
    the others. At least topk weights must be positive.
    """
    draws = np.zeros((num_draws, len(weights)), np.int64)
    for draw in range(num_draws):
        counts = draws[draw]
        missing = num_tokens * topk
        while missing:
            open_weights = np.where(counts < num_tokens, weights, 0.0)
            counts += rng.multinomial(missing, open_weights / open_weights.sum())
            missing = int(np.maximum(counts - num_tokens, 0).sum())
            np.minimum(counts, num_tokens, out=counts)
    return draws


def expected_counts(num_tokens: int, num_experts: int, topk: int, num_local_experts: int) -> Counts:
    """Return what uniform routing gives some experts in expectation: [num_local_experts], the most loaded first.

    The tokens of an expert are binomial, of num_tokens with probability topk/num_experts; these counts are the
    quantiles of that law at (i + 1/2)/num_local_experts. They add up to the expected number of assignments, rounded
    (at least 1): what quantiles lack or have too much is spread one by one over experts in the middle.
    """
    share = topk / num_experts
    levels = (np.arange(num_local_experts, 0, -1) - 0.5) / num_local_experts
    counts = np.minimum(_binomial_quantiles(num_tokens, share, levels), num_tokens)
    total = max(1, (2 * num_tokens * topk * num_local_experts + num_experts) // (2 * num_experts))
    middle_first = np.argsort(np.abs(levels - 0.5), kind="stable")
    while lack := total - int(counts.sum()):
        step = 1 if lack > 0 else -1
        is_open = counts < num_tokens if step > 0 else counts > 0
        counts[middle_first[is_open[middle_first]][: abs(lack)]] += step
    return -np.sort(-counts)


def most_loaded_rank_first(counts: Counts, num_ranks: int) -> Counts:
    """Return counts [..., num_experts] with the experts of the rank that has most tokens in front.

    The rank that was in front takes its place; of ranks that have equally many the first counts.
    """
    of_rank = counts.reshape(-1, num_ranks, counts.shape[-1] // num_ranks).copy()
    draws = np.arange(len(of_rank))
    most = of_rank.sum(axis=2).argmax(axis=1)
    of_rank[draws, 0], of_rank[draws, most] = of_rank[draws, most], of_rank[draws, 0].copy()
    return of_rank.reshape(counts.shape)


def group_limited_counts(counts: Counts | None, num_tokens: int, topk: int, router: tuple[int, int, int]) -> Counts:
    """Return the tokens of each expert where scores of 0 and 1 go through a router that chooses groups first.

    So do those who time layers of DeepSeek-V3: they give the topk experts that a token is to have a score of 1, all
    others 0. But its router keeps the groups whose two best scores add up to most, and in them the best experts; what
    ties goes to the lowest number. Of a token's experts only those in kept groups are left, and others fill up.

    Args:
        counts: tokens that each expert is to have [num_experts]: assignment t + i*num_tokens of the experts by falling
            load is the i-th of token t; None: as of `balanced_counts`.
        num_tokens, topk: of the layer.
        router: experts, groups, and groups that are kept.
    """
    num_experts, num_groups, num_kept = router
    if counts is None:
        starts = _balanced_starts(num_tokens, num_experts, topk)
        experts = (starts[:, None] + _balanced_offsets(num_experts, topk)) % num_experts
    else:
        order = np.argsort(-counts, kind="stable")
        experts = np.repeat(order, counts[order]).reshape(topk, num_tokens).T
    size = num_experts // num_groups
    tokens = np.arange(num_tokens)[:, None]
    chosen = np.zeros((num_tokens, num_groups), np.int64)
    np.add.at(chosen, (tokens, experts // size), 1)
    best_first = np.argsort(-np.minimum(chosen, 2), axis=1, kind="stable")[:, :num_kept]
    is_kept = np.zeros((num_tokens, num_groups), np.bool_)
    is_kept[tokens, best_first] = True
    has = is_kept[tokens, experts // size]
    result = np.bincount(experts[has], minlength=num_experts)
    # the others: the lowest numbers of kept groups, 2*topk of which have enough that the token does not have already
    kept = np.sort(best_first, axis=1)[:, :, None] * size + np.arange(size)
    lowest = kept.reshape(num_tokens, -1)[:, : 2 * topk]
    is_open = ~(lowest[:, :, None] == experts[:, None, :]).any(axis=2)
    is_filled = is_open & (np.cumsum(is_open, axis=1) <= (topk - has.sum(axis=1))[:, None])
    result += np.bincount(lowest[is_filled], minlength=num_experts)
    return result


def _uniform_by_expert(
    num_tokens: int, num_experts: int, topk: int, rng: np.random.Generator, num_draws: int
) -> Counts:
    counts = np.empty((num_draws, num_experts), np.int64)
    picks = np.arange(1, topk + 1)
    left = np.zeros((num_draws, topk + 1), np.int64)  # tokens by picks left
    left[:, topk] = num_tokens
    for expert in range(num_experts):
        # more picks than experts left: no token is in that class
        taken = rng.binomial(left[:, 1:], np.minimum(picks / (num_experts - expert), 1.0))
        counts[:, expert] = taken.sum(axis=1)
        left[:, 1:] -= taken
        left[:, :-1] += taken
    return counts


def _binomial_quantiles(num: int, share: float, levels: npt.NDArray[np.float64]) -> Counts:
    """Return the least k with P(X <= k) >= level, for X binomial: `num` times with probability `share`."""
    if share >= 1.0:
        return np.full(len(levels), num, np.int64)
    mean, deviation = num * share, np.sqrt(num * share * (1.0 - share))
    # terms below 1e-16 of the largest, which lie beyond 9 deviations (and 40 of few events), add nothing
    low = max(0, int(mean - 9.0 * deviation - 40.0))
    high = min(num, int(mean + 9.0 * deviation + 40.0))
    k = np.arange(low, high, dtype=np.float64)
    log_ratio = np.log((num - k) / (k + 1.0) * (share / (1.0 - share)))  # of k + 1 over k
    log_term = np.concatenate(([0.0], np.cumsum(log_ratio)))
    terms = np.exp(log_term - log_term.max())
    cdf = np.cumsum(terms) / terms.sum()
    counts: Counts = low + np.minimum(np.searchsorted(cdf, levels - 1e-12), high - low)  # ties, as 1/2, to the lower
    return counts


def _add_in_turn(counts: Counts, num: npt.NDArray[np.int64], num_ranks: int, most: int) -> Counts:
    """Return counts with `num` [num_draws] more, each to the next rank's least expert that has below `most`."""
    if not num.any():
        return counts
    of_rank = counts.reshape(len(counts), num_ranks, -1)
    of_each = _share_in_turn((most - of_rank).sum(axis=2), num)
    flat = of_rank.reshape(len(counts) * num_ranks, -1)
    return _raise_least(flat, of_each.ravel()).reshape(counts.shape)


def _share_in_turn(room: Counts, num: npt.NDArray[np.int64]) -> Counts:
    """Deal `num` [n] things in turn to the columns of `room` [n, m], none more than it has room for."""
    ordered = np.sort(room, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    open_after = room.shape[1] - np.arange(room.shape[1])
    num_full = (before + open_after * ordered <= num[:, None]).sum(axis=1)  # columns that are filled up
    last = np.minimum(num_full, room.shape[1] - 1)  # with all columns full: as many rounds as the largest takes
    rounds, rest = np.divmod(num - before[np.arange(len(room)), last], room.shape[1] - last)
    is_open = room > rounds[:, None]
    return np.minimum(room, rounds[:, None]) + (is_open & (np.cumsum(is_open, axis=1) <= rest[:, None]))


def _raise_least(counts: Counts, num: npt.NDArray[np.int64]) -> Counts:
    """Raise the least of each row of counts [n, m] by one, `num` [n] times; of equal ones the first is raised."""
    ordered = np.sort(counts, axis=1)
    places = np.arange(counts.shape[1])
    before = np.cumsum(ordered, axis=1) - ordered
    num_raised = (places * ordered - before <= num[:, None]).sum(axis=1)  # those that come up to a common level
    sums = before[np.arange(len(counts)), num_raised - 1] + ordered[np.arange(len(counts)), num_raised - 1]
    level, rest = np.divmod(sums + num, num_raised)
    raised: Counts = np.maximum(counts, level[:, None])
    at_level = raised == level[:, None]
    raised += at_level & (np.cumsum(at_level, axis=1) <= rest[:, None])
    return raised
