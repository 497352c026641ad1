"""How tokens spread over experts: small cases by hand, the laws that all distributions keep, seeds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import InvalidOptionError, moe
from gemm_eval.moe.routing import (
    balanced_counts,
    most_loaded_rank_first,
    power_law_counts,
    uniform_counts,
    weighted_counts,
)

layouts = st.integers(1, 40).flatmap(
    lambda experts: st.tuples(
        st.just(experts),
        st.integers(1, experts),
        st.sampled_from([ranks for ranks in range(1, experts + 1) if experts % ranks == 0]),
    )
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Balanced.


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "topk", "counts"),
    [
        (1, 4, 2, [1, 0, 1, 0]),  # experts 0 and 2
        (3, 4, 2, [2, 1, 2, 1]),  # 0 2, 1 3, 2 0
        (5, 4, 1, [2, 1, 1, 1]),
        (2, 8, 2, [1, 0, 1, 0, 1, 0, 1, 0]),  # stride 4: two tokens start at 0 and 2
        (3, 3, 3, [3, 3, 3]),
        (1, 5, 4, [1, 1, 1, 1, 0]),  # stride 2 would come to expert 6 mod 5 = 1 after 0, 2 and 4: floor(i * 5/4)
    ],
)
def test_balanced_by_hand(num_tokens: int, num_experts: int, topk: int, counts: list[int]) -> None:
    assert balanced_counts(num_tokens, num_experts, topk).tolist() == counts


@given(st.integers(1, 200), layouts)
def test_balanced_is_what_the_tokens_choose_one_by_one(num_tokens: int, layout: tuple[int, int, int]) -> None:
    num_experts, topk, _ = layout
    stride = -(-num_experts // topk)
    if (topk - 1) * stride >= num_experts:
        return  # a token would have an expert twice; by hand above
    chosen: Counter[int] = Counter()
    for token in range(num_tokens):
        start = token if num_tokens >= stride else token * stride // num_tokens
        chosen.update((start + i * stride) % num_experts for i in range(topk))

    assert balanced_counts(num_tokens, num_experts, topk).tolist() == [chosen[e] for e in range(num_experts)]


def test_balanced_loads_of_huge_numbers_of_tokens() -> None:
    assert balanced_counts(1 << 40, 16, 4).tolist() == [1 << 38] * 16
    assert balanced_counts((1 << 40) + 1, 4, 2).tolist() == [(1 << 39) + 1, 1 << 39] * 2


# Power law: the remainder one by one, as the collectors deal it.


def deal(counts: list[int], num: int, num_ranks: int, most: int) -> list[int]:
    size = len(counts) // num_ranks
    rank = 0
    while num:
        local = [e for e in range(rank * size, (rank + 1) * size) if counts[e] < most]
        if local:
            counts[min(local, key=lambda e: counts[e])] += 1
            num -= 1
        rank = (rank + 1) % num_ranks
    return counts


@given(layouts, st.data())
def test_the_remainder_is_dealt_to_ranks_in_turn(layout: tuple[int, int, int], data: st.DataObject) -> None:
    num_experts, _, num_ranks = layout
    most = data.draw(st.integers(1, 9))
    counts = data.draw(st.lists(st.integers(0, most), min_size=num_experts, max_size=num_experts))
    num = data.draw(st.integers(0, num_experts * most - sum(counts)))
    found = moe.routing._add_in_turn(np.array([counts]), np.array([num]), num_ranks, most)

    assert found[0].tolist() == deal(list(counts), num, num_ranks, most)


class Fixed:
    """A generator that draws what it is told."""

    def __init__(self, *u: float) -> None:
        self.u = u

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.array(self.u).reshape(shape)


@pytest.mark.parametrize(
    ("drawn", "num_tokens", "alpha", "num_ranks", "counts"),
    [
        # alpha 0: loads 1 + u * (0.8 * 10 - 1), 1, 2.75, 4.5, 8 of 16.25 in all, are 1.23, 3.38, 5.54, 9.85 of 20
        ((0.0, 0.25, 0.5, 1.0), 10, 0.0, 1, [1, 3, 6, 10]),
        # alpha 1: loads 8**u, 8, 1, 2.83, 1 of 12.83, are 12, 2, 4, 2; no expert has more than 10 tokens, and the two
        # that are cut off go to the least expert of each rank
        ((1.0, 0.0, 0.5, 0.0), 10, 1.0, 2, [10, 3, 4, 3]),
        ((0.0, 0.0, 0.0, 0.0), 3, 1.0, 2, [1, 2, 1, 2]),  # 1.5 each rounds to 2; one is taken from each rank's first
        ((*[1.0] * 4, *[0.0] * 12), 4, 0.0, 1, [2] * 4 + [0] * 12),  # 8 assignments to 16 experts: loads 0.01 to 2
    ],
)
def test_power_law_by_hand(
    drawn: tuple[float, ...], num_tokens: int, alpha: float, num_ranks: int, counts: list[int]
) -> None:
    generator: Any = Fixed(*drawn)
    assert power_law_counts(num_tokens, len(drawn), 2, alpha, num_ranks, generator).tolist() == [counts]


def test_skew_grows_with_alpha() -> None:
    mean_of_most = [power_law_counts(512, 64, 4, alpha, 1, rng(), 200).max(axis=1).mean() for alpha in (0, 1, 1.2, 2)]

    assert mean_of_most == sorted(mean_of_most)
    assert mean_of_most[-1] > 2 * mean_of_most[0]


# Uniform: exact.


def law_of_counts(num_tokens: int, num_experts: int, topk: int) -> dict[tuple[int, ...], float]:
    """Probability of every vector of counts, by going through all routings."""
    every = Counter(
        tuple(Counter(e for token in chosen for e in token)[e] for e in range(num_experts))
        for chosen in product(combinations(range(num_experts), topk), repeat=num_tokens)
    )
    return {counts: num / comb(num_experts, topk) ** num_tokens for counts, num in every.items()}


@pytest.mark.parametrize("is_by_expert", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_experts", "topk"), [(2, 4, 2), (3, 3, 1), (2, 5, 4), (1, 3, 3)])
def test_uniform_has_the_law_of_all_routings(is_by_expert: bool, num_tokens: int, num_experts: int, topk: int) -> None:
    sizes = num_tokens, num_experts, topk
    law = law_of_counts(*sizes)
    if is_by_expert:
        counts = moe.routing._uniform_by_expert(*sizes, rng(3), 20_000)
    else:
        counts = np.concatenate([uniform_counts(*sizes, rng(seed)) for seed in range(2000)])
    seen = Counter(map(tuple, counts.tolist()))

    assert set(seen) <= set(law)
    for key, share in law.items():
        deviation = (share * (1 - share) / len(counts)) ** 0.5
        assert abs(seen[key] / len(counts) - share) <= 5 * deviation + 1e-12, key


def test_few_tokens_are_picked_one_by_one_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    by_expert = moe.routing._uniform_by_expert
    monkeypatch.setattr(moe.routing, "_uniform_by_expert", lambda *args: asked.append(args[0]) or by_expert(*args))
    for num_tokens in (1, 16, 1 << 20):
        assert uniform_counts(num_tokens, 64, 4, rng(), 3).sum(axis=1).tolist() == [4 * num_tokens] * 3
    assert asked == [1 << 20]


# Weights, counts.


def test_weights_are_shares_in_the_mean() -> None:
    weights = np.array([3.0, 3.0, 2.0, 2.0, 0.0])
    counts = weighted_counts(1000, 2, weights / weights.max(), rng(), 400)

    assert counts.mean(axis=0) / 2000 == pytest.approx(weights / weights.sum(), abs=2e-3)
    assert counts.std(axis=0)[0] > 10


def test_heavy_weights_are_capped_and_the_rest_goes_to_the_others() -> None:
    (counts,) = weighted_counts(10, 2, np.array([1.0, 1e-9, 1e-9]), rng())

    assert counts[0] == 10
    assert counts.sum() == 20


# Laws.

DISTRIBUTIONS = (moe.Balanced(), moe.Uniform(), moe.PowerLaw(0), moe.PowerLaw(1), moe.PowerLaw(1.2), moe.PowerLaw(3))


@given(st.sampled_from(DISTRIBUTIONS), st.integers(1, 3000), layouts, st.integers(0, 1 << 40))
def test_every_draw_adds_up_and_no_expert_has_a_token_twice(
    distribution: moe.Distribution, num_tokens: int, layout: tuple[int, int, int], seed: int
) -> None:
    num_experts, topk, num_ranks = layout
    sizes = moe.Routed(num_tokens, num_experts, topk, num_ranks, 3)
    counts = distribution.draw(sizes, rng(seed))

    assert counts.shape == (3 if distribution.is_random else 1, num_experts)
    assert counts.dtype == np.int64
    assert (counts.sum(axis=1) == num_tokens * topk).all()
    assert counts.min() >= 0
    assert counts.max() <= num_tokens
    assert (counts == distribution.draw(sizes, rng(seed))).all()


@given(st.integers(1, 500), layouts, st.integers(0, 99))
def test_weights_keep_the_laws_too(num_tokens: int, layout: tuple[int, int, int], seed: int) -> None:
    num_experts, topk, _ = layout
    weights = moe.ExpertWeights(tuple(rng(seed).random(num_experts) + 1e-3))
    counts = weights.draw(moe.Routed(num_tokens, num_experts, topk, num_draws=2), rng(seed))

    assert (counts.sum(axis=1) == num_tokens * topk).all()
    assert 0 <= counts.min() <= counts.max() <= num_tokens


def test_other_seeds_are_other_draws_and_the_same_seed_the_same() -> None:
    for distribution in (moe.Uniform(), moe.PowerLaw(1.2), moe.ExpertWeights(tuple(range(1, 65)))):
        draws = [distribution.draw(moe.Routed(64, 64, 4, num_draws=2), rng(seed)).tolist() for seed in (0, 0, 1)]
        assert draws[0] == draws[1] != draws[2]
        assert draws[0][0] != draws[0][1]


def test_seeded_draws_are_pinned() -> None:
    """The same on every machine: changed draws change answers, so that is said in the changelog."""
    assert uniform_counts(6, 8, 2, rng(0)).tolist() == [[3, 2, 1, 1, 1, 2, 1, 1]]
    assert power_law_counts(64, 8, 2, 1.2, 2, rng(0)).tolist() == [[13, 3, 2, 2, 29, 48, 12, 19]]
    assert weighted_counts(6, 2, np.array([1.0, 0.5, 0.25, 0.25]), rng(0)).tolist() == [[6, 2, 1, 3]]


# Expected counts.


@given(st.integers(1, 5000), layouts)
def test_expected_counts_keep_the_expected_rows(num_tokens: int, layout: tuple[int, int, int]) -> None:
    num_experts, topk, num_ranks = layout
    local = num_experts // num_ranks
    counts = moe.expected_counts(num_tokens, num_experts, topk, local)

    assert counts.shape == (local,)
    assert (np.diff(counts) <= 0).all()
    assert 0 <= counts[-1] <= counts[0] <= num_tokens
    assert abs(counts.sum() - num_tokens * topk * local / num_experts) <= (
        0.5 if num_tokens * topk * local >= num_experts else 1
    )


def test_expected_counts_by_hand() -> None:
    assert moe.expected_counts(1, 8, 2, 8).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    # of 4 tokens with probability 1/2: P(X <= k) = 1/16, 5/16, 11/16, 15/16 at 0..3; levels 1/8, 3/8, 5/8, 7/8
    assert moe.expected_counts(4, 4, 2, 4).tolist() == [3, 2, 2, 1]
    assert moe.expected_counts(10, 4, 4, 2).tolist() == [10, 10]


def test_expected_counts_are_the_mean_of_ordered_draws() -> None:
    drawn = -np.sort(-uniform_counts(256, 128, 8, rng(), 2000), axis=1)

    # the ends of ordered draws lie a little further out than quantiles
    assert np.abs(drawn.mean(axis=0) - moe.expected_counts(256, 128, 8, 128)).max() < 1.5


# Ranks.


def test_the_most_loaded_rank_comes_first_and_changes_places() -> None:
    counts = np.array([[1, 2, 0, 0, 5, 5, 9, 0], [4, 4, 1, 1, 4, 4, 0, 0]])

    assert most_loaded_rank_first(counts, 4).tolist() == [[5, 5, 0, 0, 1, 2, 9, 0], [4, 4, 1, 1, 4, 4, 0, 0]]
    assert (most_loaded_rank_first(counts, 1) == counts).all()


def routed(**changes: Any) -> Any:
    own = moe.ExpertCounts((0, 3, 1, 1, 5, 2, 0, 0))
    fields: dict[str, Any] = {"num_tokens": 6, "hidden": 64, "inter": 32, "num_experts": 8, "topk": 2}
    return moe.route(moe.MoeLayer(**fields | {"ep": 4, "distribution": own} | changes))


def test_route_picks_the_ranks_that_are_asked_for() -> None:
    most, mean, last = routed(), routed(rank="mean"), routed(rank=3)

    assert (most.groups, most.rows.tolist()) == (((5, 2),), [7])
    assert mean.groups == ((3, 0), (1, 1), (5, 2), (0, 0))
    assert mean.num_active.tolist() == [1, 2, 2, 0]
    assert (last.groups, last.num_active.tolist()) == (((0, 0),), [0])
    assert most.imbalance.tolist() == mean.imbalance.tolist() == [7 / 3]


def test_a_rank_of_each_draw_is_the_most_loaded_there() -> None:
    drawn = routed(num_tokens=40, distribution="power_law_1.2", num_draws=20)
    every = routed(num_tokens=40, distribution="power_law_1.2", num_draws=20, rank="mean")
    of_draws = every.rows.reshape(20, 4)

    assert drawn.rows.tolist() == of_draws.max(axis=1).tolist()
    assert len(set(of_draws.argmax(axis=1).tolist())) > 1


# A router that keeps groups of experts.

routers = st.tuples(st.integers(1, 8), st.integers(1, 6)).flatmap(  # groups, experts of each
    lambda sizes: st.tuples(st.just(sizes[0] * sizes[1]), st.just(sizes[0]), st.integers(1, sizes[0])).flatmap(
        lambda router: st.tuples(st.just(router), st.integers(1, router[2] * router[0] // router[1]))
    )
)


def meant_for(token: int, num_tokens: int, num_experts: int, topk: int) -> list[int]:
    """The experts that balanced routing gives a token."""
    stride = -(-num_experts // topk)
    start = token if num_tokens >= stride else token * stride // num_tokens
    fits = (topk - 1) * stride < num_experts
    return [(start + (i * stride if fits else i * num_experts // topk)) % num_experts for i in range(topk)]


def take_best(scores: list[int], num: int) -> list[int]:
    """The places of the best; of equal ones the first."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:num]


def choose(experts: list[int], topk: int, router: tuple[int, int, int]) -> list[int]:
    """What the router gives a token whose experts have a score of 1, all others 0."""
    num_experts, num_groups, num_kept = router
    size = num_experts // num_groups
    scores = [int(expert in experts) for expert in range(num_experts)]
    of_group = [sorted(scores[group * size : (group + 1) * size])[-2:] for group in range(num_groups)]
    kept = take_best([sum(two) for two in of_group], num_kept)
    masked = [score if expert // size in kept else -1 for expert, score in enumerate(scores)]
    return take_best(masked, topk)


def limited_one_by_one(experts_of: list[list[int]], topk: int, router: tuple[int, int, int]) -> list[int]:
    chosen: Counter[int] = Counter()
    for experts in experts_of:
        assert len(set(experts)) == topk
        chosen.update(choose(experts, topk, router))
    return [chosen[expert] for expert in range(router[0])]


@given(routers, st.integers(1, 60))
def test_a_router_of_groups_on_balanced_loads(routed_by: tuple[tuple[int, int, int], int], num_tokens: int) -> None:
    router, topk = routed_by
    experts_of = [meant_for(token, num_tokens, router[0], topk) for token in range(num_tokens)]
    counts = moe.group_limited_counts(None, num_tokens, topk, router)

    assert counts.tolist() == limited_one_by_one(experts_of, topk, router)
    if router[1] == router[2]:  # all groups are kept, so what was meant comes through
        assert counts.tolist() == balanced_counts(num_tokens, router[0], topk).tolist()


@given(routers, st.integers(1, 60), st.sampled_from([0.0, 1.0, 1.2, 3.0]), st.integers(0, 1 << 40))
def test_a_router_of_groups_on_drawn_loads(
    routed_by: tuple[tuple[int, int, int], int], num_tokens: int, alpha: float, seed: int
) -> None:
    router, topk = routed_by
    (meant,) = power_law_counts(num_tokens, router[0], topk, alpha, 1, rng(seed))
    flat = [expert for expert in take_best(meant.tolist(), router[0]) for _ in range(meant[expert])]
    counts = moe.group_limited_counts(meant, num_tokens, topk, router)

    assert counts.tolist() == limited_one_by_one([flat[token::num_tokens] for token in range(num_tokens)], topk, router)
    assert counts.dtype == np.int64
    assert counts.sum() == num_tokens * topk
    assert 0 <= counts.min() <= counts.max() <= num_tokens
    if router[1] == router[2]:
        assert counts.tolist() == meant.tolist()


# Words.


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("balanced", moe.Balanced()),
        (" Uniform ", moe.Uniform()),
        ("power_law_1.2", moe.PowerLaw(1.2)),
        ("power_law_0", moe.PowerLaw(0)),
        ("weights:1,2.5,0", moe.ExpertWeights((1.0, 2.5, 0.0))),
        ("counts:3,0,1", moe.ExpertCounts((3, 0, 1))),
        (moe.PowerLaw(2), moe.PowerLaw(2.0)),
    ],
)
def test_words_of_distributions(word: Any, value: moe.Distribution) -> None:
    assert moe.parse_distribution(word) == value
    assert moe.parse_distribution(str(value)) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("balance", "did you mean balanced?"),
        ("power_law_", "distribution must be one of balanced"),
        ("power_law_-1", "alpha of a power law must be a number in 0..100, got -1.0"),
        ("power_law_nan", "alpha of a power law must be"),
        ("counts:1,x", "distribution must be one of"),
        ("counts:1,-2", "counts of experts must be integers in 0..2**40, got -2 for expert 1"),
        ("weights:1,-2", "weights of experts must be finite numbers >= 0, got -2.0 for expert 1"),
        ("weights:0,0", "must not all be 0"),
        (3, "distribution must be one of"),
        (None, "distribution must be one of"),
        ("x" * 10_000, "distribution must be one of"),
    ],
)
def test_what_is_no_distribution_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        moe.parse_distribution(value)

    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (moe.ExpertCounts((1, 1)), "counts must be one for each of num_experts = 4, got 2"),
        (moe.ExpertCounts((1, 1, 1, 1)), "must add up to num_tokens * topk = 3 * 2 = 6, got 4; weights:... scales"),
        (moe.ExpertCounts((4, 2, 0, 0)), "more than num_tokens = 3 tokens, got 4 for expert 0"),
        (moe.ExpertWeights((1.0, 1.0, 1.0)), "weights must be one for each of num_experts = 4, got 3"),
        (moe.ExpertWeights((1.0, 0.0, 0.0, 0.0)), "at least topk = 2 experts must have a weight above 0, got 1"),
    ],
)
def test_lists_of_other_sizes_are_refused(distribution: moe.Distribution, words: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        distribution.draw(moe.Routed(3, 4, 2), rng())

    assert words in str(caught.value)


@pytest.mark.parametrize("items", ["12", 3, {1: 2}, (), iter([1]), [True], [1.5], [None]])
def test_what_is_no_list_of_counts_is_refused(items: Any) -> None:
    with pytest.raises(InvalidOptionError):
        moe.ExpertCounts(items)
