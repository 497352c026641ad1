"""`config.json` of the older architectures with plain FFNs, layer norms and biases: GPT-2, GPT-NeoX, OPT."""

from __future__ import annotations

from gemm_eval.transformer.hugging_face_common import Fields, head_dim, sizes
from gemm_eval.transformer.json import Keys

__all__ = ["read_gpt2", "read_gpt_neox", "read_opt"]

_OPT_POSITION_OFFSET = 2  # OPT's position table has two rows more than positions (OPTLearnedPositionalEmbedding)


def _plain_attention(keys: Keys, heads_key: str, size: int, *, bias: bool, turning_frac: float = 0.0) -> Fields:
    heads = keys.size(heads_key)
    return {
        "kind": "gqa",
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": size,
        "qkv_bias": bias,
        "output_bias": bias,
        "rotary_dim": None if turning_frac == 1 else int(size * turning_frac),
    }


def _plain_ffn(size: int, *, bias: bool) -> Fields:
    return {"intermediate_size": size, "is_gated": False, "has_bias": bias}


def read_gpt2(keys: Keys) -> Fields:
    """GPT-2, and GPT-3 in its form."""
    hidden = keys.size("n_embd")
    return {
        "hidden_size": hidden,
        "num_layers": keys.size("n_layer"),
        "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "attention": _plain_attention(keys, "n_head", head_dim(keys, "n_embd", "n_head"), bias=True),
        "ffn": _plain_ffn(keys.size("n_inner", 4 * hidden), bias=True),
        "norm": "layer",
        "num_positions": keys.size("n_positions"),
    }


def read_gpt_neox(keys: Keys) -> Fields:
    """GPT-NeoX and Pythia."""
    bias = keys.flag("attention_bias", default=True)
    turning = keys.fraction("rotary_pct", 0.25)
    attention = _plain_attention(keys, "num_attention_heads", head_dim(keys), bias=bias, turning_frac=turning)
    ffn = _plain_ffn(keys.size("intermediate_size"), bias=True)
    return {**sizes(keys), "attention": attention, "ffn": ffn, "norm": "layer"}


def read_opt(keys: Keys) -> Fields:
    """OPT, but for the variant that projects its embeddings (350m)."""
    hidden = keys.size("hidden_size")
    if keys.size("word_embed_proj_dim", hidden) != hidden:
        keys.refuse("word_embed_proj_dim", f"must be hidden_size = {hidden}: projected embeddings are not supported")
    for key in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if not keys.flag(key, default=True):
            keys.refuse(key, "must be true: other norms are not supported")
    bias = keys.flag("enable_bias", default=True)
    return {
        **sizes(keys, tied=True),
        "attention": _plain_attention(keys, "num_attention_heads", head_dim(keys), bias=bias),
        "ffn": _plain_ffn(keys.size("ffn_dim"), bias=bias),
        "norm": "layer",
        "num_positions": keys.size("max_position_embeddings") + _OPT_POSITION_OFFSET,
    }
