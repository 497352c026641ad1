"""How many rows the experts of a device have: in expectation, in one draw of a distribution, or all as many."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution, MoeLayer, expected_counts, parse_distribution, route
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.workload import MAX_GROUPS, RowGroups

__all__ = [
    "EXPECTED",
    "UNIFORM",
    "ExpertLoad",
    "check_expert_load",
    "expected_expert_load",
    "expert_rows",
    "moe_layer_of",
]

UNIFORM, EXPECTED = "uniform", "expected"
_NUM_DRAWS = 5  # of which the one of median load stands for all
_NUM_KEPT = 4096


class ExpertLoad(NamedTuple):
    """The batched GEMM of the experts on one device: `num_active` experts (G) of `tokens_per_expert` rows (M)."""

    num_active: int
    tokens_per_expert: int


def check_expert_load(load: Any, imbalance: float) -> str | Distribution:
    """Return what `transformer_gemms` is asked for: a word of its own, or a distribution.

    Raises:
        InvalidOptionError: it is neither, or a distribution beside an `imbalance`: two answers to one question.
    """
    word = load.strip().lower() if isinstance(load, str) else ""
    if word in (UNIFORM, EXPECTED):
        return EXPECTED if imbalance > 1.0 else word
    try:
        found = parse_distribution(load)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"expert_load is expected, or a distribution: {error}") from None
    if imbalance > 1.0:
        raise InvalidOptionError(
            f"expert_imbalance is for expert_load uniform or expected; {found} has one of its own: leave it at 1"
        )
    return found


@lru_cache(maxsize=_NUM_KEPT)
def expert_rows(
    tokens: int, num_experts: int, experts_per_token: int, num_ranks: int, load: str | Distribution, seed: int
) -> RowGroups | None:
    """Return the rows of each expert of a device, most first; None where a batch of equal experts must do.

    Args:
        tokens: that all devices see which share the experts.
        num_experts, experts_per_token: of the layer.
        num_ranks: devices that share the experts, each having num_experts/num_ranks of them.
        load: `UNIFORM`: the expected histogram (`gemm_eval.moe.expected_counts`) of a device; `EXPECTED`: None; or a
            distribution: of five draws the one in which the most loaded device has the median load, and that device.
        seed: of the draws.

    Raises:
        InvalidOptionError: weights or counts of one's own that are of other sizes.
    """
    local = num_experts // num_ranks
    if load == EXPECTED or local > MAX_GROUPS:
        return None
    if isinstance(load, str):
        counts = expected_counts(tokens, num_experts, experts_per_token, local)
        return tuple(counts.tolist())
    layer = MoeLayer(
        tokens, 1, 1, num_experts, experts_per_token, ep=num_ranks, distribution=load, num_draws=_NUM_DRAWS, seed=seed
    )
    drawn = route(layer)
    order = np.argsort(drawn.rows, kind="stable")
    return drawn.groups[order[(len(order) - 1) // 2]]


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


def moe_layer_of(config: ModelConfig, num_tokens: int, **options: Any) -> MoeLayer:
    """Return the layer of experts of a model, for `gemm_eval.moe_layers`, its shared experts included.

    Args:
        config: the model.
        num_tokens: tokens that all ranks of an expert-parallel group see together.
        options: other fields of `MoeLayer` (`tp`, `ep`, `distribution`, `dtype`, ...); they win over the model's sizes.

    Raises:
        InvalidOptionError: the model has no experts, or see `MoeLayer`.
    """
    moe = config.moe
    if moe is None:
        raise InvalidOptionError(f"{config.name} has no layers with experts: name a mixture of experts, or give sizes")
    sizes: dict[str, Any] = {
        "hidden": config.hidden_size,
        "inter": moe.intermediate_size,
        "num_experts": moe.num_experts,
        "topk": moe.experts_per_token,
        "gated": moe.is_gated,
        "num_shared_experts": moe.num_shared_experts,
        "shared_inter": moe.shared_intermediate_size,
    }
    fields = sizes | options
    if not fields["num_shared_experts"] and "shared_inter" not in options:
        fields["shared_inter"] = None
    return MoeLayer(num_tokens, **fields)
