"""Memory of training: weights, main gradients, optimizer states and activations of the stage that holds most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gemm_eval.transformer import HEAD, MTP_HEAD, Layout, TrainingPart

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass computes again.

``none``: only scores, in fused attention; ``selective``: norms, activations and MLA's up-projections too; ``full``: the
forward pass of each layer, of which the input alone is kept.
"""

MAIN_GRADIENT_BYTES = 4


class Optimizer(NamedTuple):
    """Bytes of a parameter that an optimizer keeps: of the main parameter, and of its moments."""

    main_bytes: int
    moment_bytes: int

    @property
    def state_bytes(self) -> int:
        """All of them."""
        return self.main_bytes + self.moment_bytes


OPTIMIZERS = {"adamw": Optimizer(4, 8), "adamw-bf16": Optimizer(4, 4), "sgd": Optimizer(4, 4)}
"""Optimizers with main parameters in fp32: AdamW with moments in fp32 or bf16 (DeepSeek-V3), SGD with momentum."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of the device that holds most, in a pipeline stage counted from 0.

    Attributes:
        weight_bytes: in the type of activations; with narrow GEMMs the copies that they read, too.
        gradient_bytes: main gradients, fp32.
        main_bytes, moment_bytes: the optimizer's parameters in fp32, and its moments.
        activation_bytes: kept for backward passes, of all microbatches in flight, and what is computed again at once.
    """

    weight_bytes: int
    gradient_bytes: int
    main_bytes: int
    moment_bytes: int
    activation_bytes: int
    stage: int = 0

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weight_bytes + self.gradient_bytes + self.main_bytes + self.moment_bytes + self.activation_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"total_bytes": self.total_bytes}


def sharded(num_params: int, num_expert_params: int, layout: Layout, is_sharded: bool) -> int:
    """Return how many parameters of a stage a device has something of, divided by data parallelism if `is_sharded`."""
    if not is_sharded:
        return num_params + num_expert_params
    return -(-num_params // (layout.data * layout.context)) + -(-num_expert_params // layout.num_expert_replicas)


def stage_memory(
    parts: Sequence[tuple[TrainingPart, float]], layout: Layout, *, in_flight: float, elem_bytes: int, zero: int,
    recompute: str, optimizer: Optimizer, num_copies: int = 1, stage: int = 0,
) -> TrainingMemory:  # fmt: skip
    """Return the memory of a stage made of some parts, each with how many of it there are.

    Args:
        in_flight: microbatches whose activations it keeps.
        elem_bytes: of a weight, and of an activation.
        zero: ZeRO's stage: 1 divides optimizer states over data-parallel devices, 2 gradients, 3 weights too.
        num_copies: of the weights and gradients: 2 with DualPipe.
    """
    num_params = math.ceil(sum(count * part.num_params for part, count in parts))
    num_experts = math.ceil(sum(count * part.num_expert_params for part, count in parts))
    copies = sum(count * part.copy_bytes for part, count in parts)
    num_held = sharded(num_params, num_experts, layout, zero >= 3)
    weight_bytes = num_held * elem_bytes + round(copies * num_held / max(1, num_params + num_experts))
    if zero >= 3:  # of what is divided, weights of a layer at work and of the next one
        largest = max((part for part, _ in parts), key=lambda part: part.num_params + part.num_expert_params)
        divided = (
            (largest.num_params, num_params, layout.data * layout.context),
            (largest.num_expert_params, num_experts, layout.num_expert_replicas),
        )
        weight_bytes += elem_bytes * sum(min(2 * num, whole) for num, whole, ranks in divided if ranks > 1)
    saved, again = 0.0, 0
    for part, count in parts:
        if recompute == "full" and part.layers:
            saved += count * part.input_bytes * in_flight
            again = max(again, part.saved_bytes)
        else:
            held = 1.0 if part.name in (HEAD, MTP_HEAD) else in_flight  # whose backward pass follows at once
            saved += count * (part.selective_bytes if recompute == "selective" else part.saved_bytes) * held
    num_states = sharded(num_params, num_experts, layout, zero >= 1)
    return TrainingMemory(
        weight_bytes=num_copies * weight_bytes,
        gradient_bytes=num_copies * MAIN_GRADIENT_BYTES * sharded(num_params, num_experts, layout, zero >= 2),
        main_bytes=num_states * optimizer.main_bytes, moment_bytes=num_states * optimizer.moment_bytes,
        activation_bytes=round(saved) + again, stage=stage,
    )  # fmt: skip
