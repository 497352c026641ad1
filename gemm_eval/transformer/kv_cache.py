"""The KV cache of a device: bytes of a token and of sequences, with windows, latents, its own type and blocks."""

from __future__ import annotations

from gemm_eval.dtypes import DType
from gemm_eval.transformer.attention_shapes import local_kv_heads
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention
from gemm_eval.transformer.shapes import Step

__all__ = ["kv_cache_bytes", "kv_token_bytes"]

_BITS_PER_BYTE = 8


def kv_token_bytes(config: ModelConfig, step: Step, dtype: DType) -> int:
    """Return the bytes of one position in one layer: keys and values of a device's heads, or one latent.

    KV heads are replicated beyond one a device, latents always.
    """
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        elems = 2 * local_kv_heads(attention.num_kv_heads, step) * attention.head_dim
    else:
        elems = attention.kv_lora_rank + attention.qk_rope_head_dim
    return elems * dtype.bits // _BITS_PER_BYTE


def kv_cache_bytes(config: ModelConfig, step: Step, dtype: DType, block_size: int = 1) -> int:
    """Return the bytes of the cache of all sequences of a step, each of `step.context` positions.

    A window layer holds the last `window_size` positions. With blocks of `block_size` positions (paged attention), each
    sequence holds whole blocks, and a window one more than it fills, as it begins anywhere in one.
    """
    context = -(-step.context // block_size) * block_size
    window = config.attention.window_size if isinstance(config.attention, GroupedAttention) else None
    in_window = context
    if window is not None:
        in_window = min(context, (-(-(window - 1) // block_size) + 1) * block_size)
    positions = context * (config.num_layers - config.num_window_layers) + in_window * config.num_window_layers
    return step.num_seqs * positions * kv_token_bytes(config, step, dtype)
