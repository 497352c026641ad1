"""How many tokens each expert receives: distributions of routing, and what of them one rank has to do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["balanced_counts", "most_loaded_rank_first", "power_law_counts", "uniform_counts"]

_HIGHEST_FRAC = 0.8  # of the tokens: upper end of the density that loads are drawn from
_TOKENS_AT_ONCE = 1024
_FEW_TOKENS = (0.01, 2.0)  # its ends where there are no more assignments than experts

Counts = npt.NDArray[np.int64]


def balanced_counts(num_tokens: int, num_experts: int, topk: int) -> Counts:
    """Return the tokens of each expert [num_experts] where token t takes experts (t + i*ceil(E/topk)) mod E, i < topk.

    That is what load balancing wants: with fewer tokens than ceil(E/topk) no expert has two.
    """
    stride = -(-num_experts // topk)
    tokens = np.arange(min(num_tokens, num_experts), dtype=np.int64)
    rounds, rest = divmod(num_tokens, num_experts)
    counts = np.zeros(num_experts, np.int64)
    for i in range(topk):
        chosen = (tokens + i * stride) % num_experts
        if rounds:
            counts[chosen] += rounds
        np.add.at(counts, chosen[:rest] if rounds else chosen, 1)
    return counts


def power_law_counts(
    num_tokens: int, num_experts: int, topk: int, alpha: float, num_ranks: int, rng: np.random.Generator
) -> Counts:
    """Return the tokens of each expert [num_experts] where loads are drawn from a density x**-alpha.

    As the collectors of AIConfigurator draw them (github.com/ai-dynamo/aiconfigurator, collector/): by the inverse CDF
    on [1, 0.8*num_tokens], or [0.01, 2] with no more assignments than experts; scaled to num_tokens*topk in all,
    rounded, at most num_tokens each; what is missing goes one by one to the ranks that have least, what is too much is
    taken from the most loaded expert.
    """
    total = num_tokens * topk
    low, high = (1.0, _HIGHEST_FRAC * num_tokens) if total > num_experts else _FEW_TOKENS
    u = rng.random(num_experts)
    if alpha == 1.0:
        loads = low * (high / low) ** u
    else:
        power = 1.0 - alpha
        loads = (low**power + u * (high**power - low**power)) ** (1.0 / power)
    counts: Counts = np.minimum(np.rint(loads / loads.sum() * total).astype(np.int64), num_tokens)
    of_rank = counts.reshape(num_ranks, -1)
    missing = total - int(counts.sum())
    for _ in range(missing):
        open_ranks = np.where((of_rank < num_tokens).any(axis=1), of_rank.sum(axis=1), np.iinfo(np.int64).max)
        rank = of_rank[int(np.argmin(open_ranks))]
        rank[int(np.argmin(rank))] += 1
    for _ in range(-missing):
        counts[int(np.argmax(counts))] -= 1
    return counts


def most_loaded_rank_first(counts: Counts, num_ranks: int) -> Counts:
    """Return the counts [num_experts] with the experts of the rank that has most tokens in front."""
    of_rank = counts.reshape(num_ranks, -1)
    order = np.argsort(-of_rank.sum(axis=1), kind="stable")
    first: Counts = np.ascontiguousarray(of_rank[order]).reshape(-1)
    return first


def uniform_counts(num_tokens: int, num_experts: int, topk: int, rng: np.random.Generator) -> Counts:
    """Return the tokens of each expert [num_experts] where each token takes `topk` different ones, all as likely."""
    counts: Counts = np.zeros(num_experts, np.int64)
    for start in range(0, num_tokens, _TOKENS_AT_ONCE):
        keys = rng.random((min(_TOKENS_AT_ONCE, num_tokens - start), num_experts))
        chosen = np.argpartition(keys, topk - 1, axis=1)[:, :topk]
        counts += np.bincount(chosen.reshape(-1), minlength=num_experts)
    return counts
