"""GEMM shapes of attention: grouped (MHA, GQA, MQA) and latent (MLA), sharded over a tensor-parallel group."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention, LatentAttention
from gemm_eval.transformer.shapes import Operand, Shape, Step

__all__ = ["attention_shapes", "local_kv_heads"]


def attention_shapes(config: ModelConfig, step: Step) -> Iterator[Shape]:
    """Yield the attention GEMMs of one device, in the order they run."""
    if isinstance(config.attention, GroupedAttention):
        return _grouped_shapes(config, config.attention, step)
    return _latent_shapes(config, config.attention, step)


def _grouped_shapes(config: ModelConfig, attention: GroupedAttention, step: Step) -> Iterator[Shape]:
    layers, head_dim = config.num_layers, attention.head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")
    kv_heads = local_kv_heads(attention.num_kv_heads, step)
    yield Shape("qkv_proj", 1, step.tokens, config.hidden_size, (heads + 2 * kv_heads) * head_dim, layers)

    # the query heads that share a KV head are rows of one GEMM, so that K and V are read once
    groups, rows = step.num_seqs * kv_heads, step.new_tokens * (heads // kv_heads)
    window = attention.window_size or step.context
    in_window = attention.num_window_layers if window < step.context else 0
    for suffix, context, count in (("", step.context, layers - in_window), ("_window", window, in_window)):
        if count:
            yield Shape(f"attn_score{suffix}", groups, rows, head_dim, context, count, Operand.ACTIVATION)
            yield Shape(f"attn_value{suffix}", groups, rows, context, head_dim, count, Operand.ACTIVATION)

    yield Shape("o_proj", 1, step.tokens, heads * head_dim, config.hidden_size, layers)


def local_kv_heads(num_kv_heads: int, step: Step) -> int:
    """KV heads of one device; beyond one device a KV head, each is replicated."""
    if step.tensor_parallel <= num_kv_heads:
        return step.tensor_split(num_kv_heads, "num_kv_heads")
    if step.tensor_parallel % num_kv_heads:
        raise InvalidOptionError(
            f"tensor_parallel above num_kv_heads = {num_kv_heads} of {step.model} replicates them and must be a "
            f"multiple of it, got {step.tensor_parallel}"
        )
    return 1


def _latent_shapes(config: ModelConfig, attention: LatentAttention, step: Step) -> Iterator[Shape]:
    hidden, layers, tokens = config.hidden_size, config.num_layers, step.tokens
    latent, nope, rope = attention.kv_lora_rank, attention.qk_nope_head_dim, attention.qk_rope_head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")

    # the projections into the latents belong to no head: every device of the group does them whole
    if attention.q_lora_rank is None:
        yield Shape("q_proj", 1, tokens, hidden, heads * (nope + rope), layers)
    else:
        yield Shape("q_a_proj", 1, tokens, hidden, attention.q_lora_rank, layers)
        yield Shape("q_b_proj", 1, tokens, attention.q_lora_rank, heads * (nope + rope), layers)
    yield Shape("kv_a_proj", 1, tokens, hidden, latent + rope, layers)

    if step.absorb_mla:
        yield Shape("q_absorb", heads, tokens, nope, latent, layers)
        groups, rows, value = step.num_seqs, step.new_tokens * heads, latent
        key = latent + rope
    else:
        expanded = step.num_seqs * step.context if step.expands_cache else tokens
        yield Shape("kv_b_proj", 1, expanded, latent, heads * (nope + attention.v_head_dim), layers)
        groups, rows, value = step.num_seqs * heads, step.new_tokens, attention.v_head_dim
        key = nope + rope
    yield Shape("attn_score", groups, rows, key, step.context, layers, Operand.ACTIVATION)
    yield Shape("attn_value", groups, rows, step.context, value, layers, Operand.ACTIVATION)
    if step.absorb_mla:
        yield Shape("v_absorb", heads, tokens, latent, attention.v_head_dim, layers)

    yield Shape("o_proj", 1, tokens, heads * attention.v_head_dim, hidden, layers)
