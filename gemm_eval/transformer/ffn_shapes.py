"""GEMM shapes of feed-forward networks, mixtures of experts and the LM head, sharded over devices."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.experts import expected_expert_load, expert_rows
from gemm_eval.transformer.parts import Moe
from gemm_eval.transformer.shapes import Operand, Shape, Step, split

__all__ = ["ffn_shapes", "lm_head_shape"]


def ffn_shapes(config: ModelConfig, step: Step) -> Iterator[Shape]:
    """Yield the GEMMs of one device's dense layers, then those of its layers with experts."""
    if config.ffn is not None:
        width = step.tensor_split(config.ffn.intermediate_size, "ffn.intermediate_size")
        yield from _network(config, "", width, config.ffn.is_gated, 1, step.tokens, config.num_dense_layers)
    if config.moe is not None:
        yield from _moe_shapes(config, config.moe, step)
    elif step.expert_parallel > 1:
        raise InvalidOptionError(
            f"expert_parallel is for models with experts, which {step.model} has not: leave it at 1, got "
            f"{step.expert_parallel}"
        )


def _moe_shapes(config: ModelConfig, moe: Moe, step: Step) -> Iterator[Shape]:
    router = Shape("router", 1, step.tokens, config.hidden_size, moe.num_experts, moe.num_layers, Operand.ROUTER)
    yield router

    small, large = sorted((step.tensor_parallel, step.expert_parallel))
    if large % small:
        raise InvalidOptionError(
            f"one of tensor_parallel and expert_parallel must divide the other, got {step.tensor_parallel} and "
            f"{step.expert_parallel}"
        )
    where = f"of {step.model}"
    local = split(moe.num_experts, step.expert_parallel, "expert_parallel", f"moe.num_experts {where}")
    per_expert = max(1, step.tensor_parallel // step.expert_parallel)  # devices that share one expert
    num_groups = max(1, step.expert_parallel // step.tensor_parallel)  # tensor-parallel groups that feed the experts
    option = "tensor_parallel / expert_parallel" if step.expert_parallel > 1 else "tensor_parallel"
    width = split(moe.intermediate_size, per_expert, option, f"moe.intermediate_size {where}")
    tokens = step.tokens * num_groups
    groups = expert_rows(
        tokens, moe.num_experts, moe.experts_per_token, step.expert_parallel, step.expert_load, step.expert_seed
    )
    if groups is None:
        G, M = expected_expert_load(
            tokens,
            num_experts=moe.num_experts,
            experts_per_token=moe.experts_per_token,
            num_local_experts=local,
            imbalance=step.expert_imbalance,
        )
    else:
        G, M = len(groups), groups[0]
    for shape in _network(config, "expert_", width, moe.is_gated, G, M, moe.num_layers):
        yield shape._replace(operand=Operand.EXPERT, num_held=local, row_groups=groups)

    if moe.num_shared_experts:
        shared = step.tensor_split(moe.shared_width, "the intermediate size of the shared experts")
        yield from _network(config, "shared_", shared, moe.is_gated, 1, step.tokens, moe.num_layers)
        if moe.shared_gate:
            yield router._replace(name="shared_gate", N=1)


def _network(
    config: ModelConfig, prefix: str, width: int, is_gated: bool, G: int, M: int, num_layers: int
) -> Iterator[Shape]:
    """Gate and up projection as one GEMM (or up alone), and down; only dense networks are called ``*_proj``."""
    suffix = "" if prefix else "_proj"
    up = "gate_up" if is_gated else "up"
    yield Shape(f"{prefix}{up}{suffix}", G, M, config.hidden_size, (1 + is_gated) * width, num_layers)
    yield Shape(f"{prefix}down{suffix}", G, M, width, config.hidden_size, num_layers)


def lm_head_shape(config: ModelConfig, step: Step) -> Shape:
    """The LM head on the last token of each sequence, or on all; its columns are padded to split evenly."""
    rows = step.tokens if step.lm_head_all_tokens else step.num_seqs
    columns = -(-config.vocab_size // step.tensor_parallel)
    return Shape("lm_head", 1, rows, config.hidden_size, columns, 1, Operand.LM_HEAD)
