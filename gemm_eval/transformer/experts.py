"""How many experts are at work, and on how many tokens each: the expected load of a mixture of experts."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["ExpertLoad", "expected_expert_load"]


class ExpertLoad(NamedTuple):
    """The batched GEMM of the experts on one device: `num_active` experts (G) of `tokens_per_expert` rows (M)."""

    num_active: int
    tokens_per_expert: int


def expected_expert_load(
    tokens: int, *, num_experts: int, experts_per_token: int, num_local_experts: int, imbalance: float = 1.0
) -> ExpertLoad:
    """Return the expected load of `num_local_experts` out of `num_experts` experts that `tokens` tokens are routed to.

    Routing is taken as uniform: each of T tokens picks k of E experts at random. An expert is idle if every token
    passes it by, with probability (1 - k/E)^T, so the expected number of active local experts is

        G = E_local * (1 - (1 - k/E)^T),    and their mean load    M = T * (k/E) * E_local / G.

    Both are rounded to the nearest integer, halves up, and are at least 1; M follows from the rounded G, so that G*M
    keeps the expected T*k*E_local/E rows as well as integers can. All experts get the same M, because a batched GEMM
    has one. `imbalance` is the load of the busiest expert over the mean: it multiplies M (at most T, an expert sees a
    token once), so every expert is charged as the busiest, an upper bound that is sharp where the slowest decides.

    Needs tokens >= 1, 1 <= experts_per_token <= num_experts, 1 <= num_local_experts <= num_experts, imbalance >= 1.
    """
    share = experts_per_token / num_experts
    hit = 1.0 if share >= 1 else -math.expm1(tokens * math.log1p(-share))
    active = min(max(1, _round(num_local_experts * hit)), num_local_experts)
    mean = tokens * experts_per_token * num_local_experts / (num_experts * active)
    return ExpertLoad(active, max(1, _round(min(imbalance * mean, tokens))))


def _round(value: float) -> int:
    return math.floor(value + 0.5)
