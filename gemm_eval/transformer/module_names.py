"""What the weights of a GEMM are called in checkpoints: the modules of Hugging Face that one GEMM is made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention

__all__ = ["gemm_layers", "module_names"]

# Engines run some projections as one GEMM; checkpoints have them apart, or under several names.
_ATTENTION = "self_attn"
_FFNS = ("mlp", "feed_forward", "block_sparse_moe")
_SHARED = ("shared_experts", "shared_expert")
_ATTENTION_PARTS = {
    "qkv_proj": (("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj")),
    "q_proj": (("q_proj",),),
    "q_a_proj": (("q_a_proj",),),
    "q_b_proj": (("q_b_proj",),),
    "kv_a_proj": (("kv_a_proj_with_mqa",),),
    "kv_b_proj": (("kv_b_proj",),),
    "o_proj": (("o_proj",),),
}
_GATE, _UP, _DOWN = ("gate_proj", "gate_up_proj", "w1"), ("up_proj", "gate_up_proj", "w3"), ("down_proj", "w2")
_FFN_PARTS = {"gate_up": (_GATE, _UP), "up": (_UP,), "down": (_DOWN,)}
_EXPERT = "experts.0"
_ROUTERS, _SHARED_GATE = ("gate", "router"), ("shared_expert_gate",)
_PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers")
_HEADS = ("lm_head", "language_model.lm_head")


@lru_cache(maxsize=256)
def _parts_of(gemm: str) -> tuple[tuple[str, ...], ...]:
    """The modules of a GEMM within a layer, each under all of its names."""
    if gemm in _ATTENTION_PARTS:
        return tuple(tuple(f"{_ATTENTION}.{name}" for name in names) for names in _ATTENTION_PARTS[gemm])
    if gemm == "router":
        return (tuple(f"{ffn}.{name}" for ffn in _FFNS for name in _ROUTERS),)
    if gemm == "shared_gate":
        return (tuple(f"{ffn}.{name}" for ffn in _FFNS for name in _SHARED_GATE),)
    kind, _, part = gemm.removesuffix("_proj").partition("_") if gemm.startswith(("expert_", "shared_")) else (
        "", "", gemm.removesuffix("_proj")
    )  # fmt: skip
    inner = {"expert": (f"{_EXPERT}.",), "shared": tuple(f"{name}." for name in _SHARED), "": ("",)}[kind]
    return tuple(
        tuple(f"{ffn}.{within}{name}" for ffn in _FFNS for within in inner for name in names)
        for names in _FFN_PARTS[part]
    )


def module_names(gemm: str, layer: int | None) -> Iterator[tuple[str, ...]]:
    """Yield the modules of a GEMM in a layer (None: outside of layers), each under all names it may have.

    Experts are alike: the first stands for all.
    """
    if layer is None:
        yield _HEADS
        return
    for names in _parts_of(gemm):
        yield tuple(f"{prefix}.{layer}.{name}" for prefix in _PREFIXES for name in names)


def gemm_layers(config: ModelConfig, gemm: str) -> tuple[int, ...]:
    """Return the layers that have a GEMM of this name; none for the LM head, and for what the model has not."""
    if gemm not in _gemms_of(config):
        return ()
    if gemm in _ATTENTION_PARTS:
        return tuple(range(config.num_layers))
    return config.dense_layers if gemm.endswith("_proj") else config.moe_layers


@lru_cache(maxsize=256)
def _gemms_of(config: ModelConfig) -> frozenset[str]:
    attention, moe = config.attention, config.moe
    found = ["o_proj"]
    if isinstance(attention, GroupedAttention):
        found.append("qkv_proj")
    else:
        found += [
            "kv_a_proj",
            "kv_b_proj",
            *(["q_proj"] if attention.q_lora_rank is None else ["q_a_proj", "q_b_proj"]),
        ]
    if config.ffn is not None:
        found += ["gate_up_proj" if config.ffn.is_gated else "up_proj", "down_proj"]
    if moe is not None:
        up = "gate_up" if moe.is_gated else "up"
        found += ["router", f"expert_{up}", "expert_down"]
        found += [f"shared_{up}", "shared_down"] if moe.num_shared_experts else []
        found += ["shared_gate"] if moe.shared_gate else []
    return frozenset(found)
