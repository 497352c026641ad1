"""Readers of `config.json` of models with linear attention and state-space layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gemm_eval.transformer import hugging_face_models as common
from gemm_eval.transformer.hugging_face_models import Fields, num_layers, sizes, some
from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.parts import layers_text


def _attention(keys: Keys, size: int, rotary_dim: int | None = 0) -> Fields:
    """Return grouped attention with heads of `size`, of which `rotary_dim` elements turn; None: all."""
    return {
        "kind": "gqa", "num_heads": keys.size("num_attention_heads"), "num_kv_heads": common.kv_heads(keys),
        "head_dim": size, "rotary_dim": rotary_dim, **common.biases_of(keys, common.ALL_BIASES),
    }  # fmt: skip


def _mixer(
    kind: str, layers: Sequence[int], num: int, heads: int, value_dim: int, key_heads: int, key_dim: int, width: int
) -> Fields:
    """Return linear attention in some of `num` layers."""
    return {
        "kind": kind, "num_layers": len(layers), "layers": some(layers, num), "num_heads": heads,
        "key_heads": key_heads, "key_dim": key_dim, "value_dim": value_dim, "conv_width": width,
    }  # fmt: skip


def read_qwen3_next(keys: Keys, *, has_experts: bool = True) -> Fields:
    """Qwen3-Next and Qwen3.5: gated delta net in three layers of four, attention with gates in the fourth.

    `has_experts`: all layers have experts, or none. Layers that predict further tokens are left out.
    """
    keys.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    layers = num_layers(keys)
    linear = common.layers_of_type(keys, "linear_attention")
    interval = keys.size("full_attention_interval", 4)
    if linear is None:
        linear = [layer for layer in range(layers) if (layer + 1) % interval]
    size = keys.size("head_dim")
    has_gate = keys.flag("attn_output_gate", default=True)
    attended = _attention(keys, size, common.rotary_dim(keys, size)) | {"qk_norm": True, "has_gate": has_gate}
    names = ("num_value_heads", "value_head_dim", "num_key_heads", "key_head_dim")
    of_mixer = [*(keys.size(f"linear_{name}") for name in names), keys.size("linear_conv_kernel_dim", 4)]
    mixer = _mixer("gdn", linear, layers, *of_mixer)
    keys.ignore("intermediate_size" if has_experts else "mlp_only_layers")
    networks = common.qwen_experts(keys, has_shared=True) if has_experts else {"ffn": common.dense_ffn(keys, None)}
    return {**sizes(keys), "attention": attended, "linear": mixer, **networks}


def read_kimi_linear(keys: Keys) -> Fields:
    """Kimi Linear: Kimi Delta Attention, and latent attention without positions in the layers that the file names."""
    layers, own = num_layers(keys), keys.part("linear_attn_config")
    linear = [layer - 1 for layer in own.items("kda_layers", int) or ()]  # the file counts from 1
    full = {layer - 1 for layer in own.items("full_attn_layers", int) or ()}
    if sorted({*linear, *full}) != list(range(layers)) or len(linear) + len(full) != layers or not full:
        keys.refuse(
            "linear_attn_config", f"kda_layers and full_attn_layers must be the layers 1..{layers}, some of each"
        )
    heads, size = own.size("num_heads"), own.size("head_dim")
    mixer = _mixer("kda", linear, layers, heads, size, heads, size, own.size("short_conv_kernel_size", 4))
    first, step = keys.count("first_k_dense_replace", 0), keys.size("moe_layer_freq", 1)
    of_experts = [layer for layer in range(layers) if layer >= first and layer % step == 0]
    latent = common.latent_attention(keys) | {"has_rope": not keys.flag("mla_use_nope", default=False)}
    keys.ignore("num_expert_group", "use_grouped_topk", "moe_router_activation_func", "moe_renormalize")
    moe = common.experts_of(
        keys, of_experts, "num_experts", "moe_intermediate_size", chosen_key="num_experts_per_token", router_bias=True
    )
    if moe is not None:
        moe["num_shared_experts"] = keys.count("num_shared_experts", 0)
    keys.count("num_nextn_predict_layers", 0)
    return {**sizes(keys), "attention": latent, "linear": mixer, "ffn": common.dense_ffn(keys, moe), "moe": moe}


_MAMBA2_KEYS = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")  # of Bamba, Granite
_NOT_OF_MAMBA2 = (
    "expand", "mamba_expand", "chunk_size", "mamba_chunk_size", "time_step_rank", "time_step_min", "time_step_max",
    "time_step_floor", "time_step_limit", "residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep",
    "use_mamba_kernels", "mamba_hidden_act", "mlp_hidden_act", "mamba_ssm_cache_dtype", "rms_norm", "mamba_dt_min",
    "mamba_dt_max", "mamba_dt_init_floor",
)  # fmt: skip
"""Keys of values, kernels and training, and those that follow from others."""


def _mamba2(keys: Keys, layers: Sequence[int], num: int, names: Iterable[str] = _MAMBA2_KEYS) -> Fields | None:
    """Return `layers` of `num` with Mamba2; `names` of heads, their size, groups, state and convolution; None: none."""
    keys.ignore(*_NOT_OF_MAMBA2)
    for key in ("use_conv_bias", "mamba_conv_bias", "use_bias", "mamba_proj_bias"):
        has_bias = "conv" in key
        if keys.flag(key, default=has_bias) != has_bias:
            keys.refuse(key, f"must be {str(has_bias).lower()}: other biases of Mamba2 are not modelled")
    values = [keys.size(name) for name in names]
    return _mixer("mamba2", layers, num, *values) if layers else None


_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # of hybrid_override_pattern


def read_nemotron_h(keys: Keys) -> Fields:
    """Nemotron-H and Nemotron 3: blocks of Mamba2, attention, networks or experts, each with a norm of its own.

    A network belongs to the layer of the block before it; layers are counted without those of networks.
    """
    pattern = keys.text("hybrid_override_pattern", "")
    words = keys.items("layers_block_type", str) or [_BLOCKS.get(letter, letter) for letter in pattern]
    if len(words) != keys.size("num_hidden_layers", len(words)) or not set(words) <= {*_BLOCKS.values()}:
        keys.refuse("hybrid_override_pattern", f"must be num_hidden_layers blocks of {', '.join(_BLOCKS)}")
    if keys.optional_size("moe_latent_size") is not None:
        keys.refuse("moe_latent_size", "must be null: experts on latents of tokens are not modelled")
    keys.ignore("mtp_hybrid_override_pattern", "mtp_layers_block_type", "moe_shared_expert_overlap")
    keys.ignore("num_nextn_predict_layers", "partial_rotary_factor", "sliding_window")
    mixers: list[str] = []
    networks: dict[int, str] = {}
    for word in words:
        if word in ("mamba", "attention"):
            mixers.append(word)
        elif not mixers or len(mixers) - 1 in networks:
            keys.refuse("hybrid_override_pattern", "must have Mamba2 or attention before each network")
        else:
            networks[len(mixers) - 1] = word
    num = len(mixers)
    of_experts = [layer for layer, word in networks.items() if word == "moe"]
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    moe = common.experts_of(keys, of_experts, "n_routed_experts", "moe_intermediate_size", router_bias=True)
    if moe is not None:
        width = keys.size("moe_shared_expert_intermediate_size")
        moe |= {"num_shared_experts": keys.count("n_shared_experts", 0), "shared_intermediate_size": width}
        moe |= {"layers": some(of_experts, num), "is_gated": False}
    keys.ignore("intermediate_size", "moe_shared_expert_intermediate_size", "n_shared_experts", "mlp_bias")
    ffn = {"intermediate_size": keys.size("intermediate_size"), "has_bias": keys.flag("mlp_bias", default=False)}
    return {
        **sizes(keys), "num_layers": num, "moe": moe,
        "ffn": ffn | {"is_gated": False} if "mlp" in networks.values() else None,
        "linear": _mamba2(keys, [layer for layer in range(num) if mixers[layer] == "mamba"], num, names),
        "no_ffn_layers": some({*range(num)} - {*networks}, num),
        "attention": _attention(keys, keys.size("attention_head_dim" if "attention_head_dim" in keys else "head_dim")),
    }  # fmt: skip


def read_mamba_hybrid(keys: Keys, *, is_granite: bool = True) -> Fields:
    """Granite 4 hybrid and Bamba: Mamba2 or attention, and a network in each layer.

    Granite's attention has no positions; its networks are experts beside a shared one, or that one alone.
    """
    layers = num_layers(keys)
    full = keys.items("attn_layer_indices", int) or ()
    types = keys.items("layer_types", str) or ["attention" if at in full else "mamba" for at in range(layers)]
    if len(types) != layers or not set(types) <= {"mamba", "attention"}:
        keys.refuse("layer_types", f"must be {layers} times mamba or attention")
    turns = keys.text("position_embedding_type", "nope" if is_granite else "rope") == "rope"
    size = keys.size("head_dim") if "head_dim" in keys else common.head_dim(keys)
    attended = _attention(keys, size, (keys.optional_size("attn_rotary_emb") or size) if turns else 0)
    keys.ignore(*(f"{name}_multiplier" for name in ("embedding", "residual", "attention")))
    keys.ignore("logits_scaling", "normalization_function", "z_loss_coefficient")
    linear = _mamba2(keys, [layer for layer, word in enumerate(types) if word == "mamba"], layers)
    width = keys.size("shared_intermediate_size" if is_granite else "intermediate_size")
    of_experts = range(layers) if keys.count("num_local_experts", 0) else ()
    moe = common.experts_of(keys, of_experts, "num_local_experts", "intermediate_size")
    if moe is not None:
        moe |= {"num_shared_experts": 1, "shared_intermediate_size": width}
    ffn = {"intermediate_size": width, "has_bias": keys.flag("mlp_bias", default=False)} if moe is None else None
    return {**sizes(keys, tied=is_granite), "attention": attended, "linear": linear, "ffn": ffn, "moe": moe}


def read_mamba2(keys: Keys) -> Fields:
    """Mamba2 alone: no layer has attention, whose sizes are those of the states, nor a network."""
    layers = num_layers(keys)
    names = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    linear = _mamba2(keys, range(layers), layers, names)
    keys.ignore("hidden_act", "norm_before_gate")
    heads = {"num_heads": keys.size("num_heads"), "num_kv_heads": keys.size("num_heads")}
    attended = {"kind": "gqa", "head_dim": keys.size("head_dim"), **heads}
    return {**sizes(keys), "attention": attended, "linear": linear, "no_ffn_layers": layers_text(range(layers))}


HYBRID_READERS: Mapping[str, Callable[[Keys], Fields]] = {
    "bamba": partial(read_mamba_hybrid, is_granite=False), "granitemoehybrid": read_mamba_hybrid,
    "kimi_linear": read_kimi_linear, "mamba2": read_mamba2, "nemotron_h": read_nemotron_h,
    "qwen3_5_moe_text": read_qwen3_next, "qwen3_5_text": partial(read_qwen3_next, has_experts=False),
    "qwen3_next": read_qwen3_next,
}  # fmt: skip
"""Readers of the `model_type` values of models whose layers are not all attention."""
