"""Readers of `config.json`, one for each architecture of Hugging Face transformers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gemm_eval.transformer.hugging_face_keys import (
    ALL_BIASES,
    QKV_BIAS,
    Fields,
    Keys,
    attention,
    biases_of,
    dense_ffn,
    experts_of,
    groups_of,
    head_dim,
    kv_heads,
    latent_attention,
    layers_of_type,
    num_layers,
    qwen_experts,
    rotary_dim,
    sizes,
    some,
)
from gemm_eval.transformer.parts import layers_text


def read_dense(
    keys: Keys, *, has_own_head_dim: bool = False, has_mlp_bias: bool = False, tied: bool = False,
    norms_per_layer: int = 2, **options: Any,
) -> Fields:  # fmt: skip
    """Read grouped attention (`options` are those of `attention`) and a gated FFN in every layer.

    `has_own_head_dim`: head_dim is not derived from hidden_size.
    """
    if has_own_head_dim:
        keys.size("head_dim")
    ffn = {
        "intermediate_size": keys.size("intermediate_size"),
        "has_bias": has_mlp_bias and keys.flag("mlp_bias", default=False),
    }
    attended = attention(keys, **options)
    return {**sizes(keys, tied=tied), "attention": attended, "ffn": ffn, "norms_per_layer": norms_per_layer}


def read_mistral(keys: Keys) -> Fields:
    """Mistral: a window of null is none, but a missing one would be 4096."""
    keys.require("sliding_window")
    return read_dense(keys, windows="all")


_OPT_POSITION_OFFSET = 2  # OPT's position table has two rows more than positions (OPTLearnedPositionalEmbedding)


def _plain_attention(keys: Keys, heads_key: str, size: int, *, bias: bool, turning_frac: float = 0.0) -> Fields:
    heads = keys.size(heads_key)
    return {
        "kind": "gqa", "num_heads": heads, "num_kv_heads": heads, "head_dim": size, "qkv_bias": bias,
        "output_bias": bias, "rotary_dim": None if turning_frac == 1 else int(size * turning_frac),
    }  # fmt: skip


def _plain_ffn(size: int, *, bias: bool) -> Fields:
    return {"intermediate_size": size, "is_gated": False, "has_bias": bias}


def read_gpt2(keys: Keys) -> Fields:
    """GPT-2, and GPT-3 in its form."""
    hidden = keys.size("n_embd")
    return {
        "hidden_size": hidden, "num_layers": keys.size("n_layer"), "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "attention": _plain_attention(keys, "n_head", head_dim(keys, "n_embd", "n_head"), bias=True),
        "ffn": _plain_ffn(keys.size("n_inner", 4 * hidden), bias=True), "norm": "layer",
        "num_positions": keys.size("n_positions"),
    }  # fmt: skip


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
        **sizes(keys, tied=True), "attention": _plain_attention(keys, "num_attention_heads", head_dim(keys), bias=bias),
        "ffn": _plain_ffn(keys.size("ffn_dim"), bias=bias), "norm": "layer",
        "num_positions": keys.size("max_position_embeddings") + _OPT_POSITION_OFFSET,
    }  # fmt: skip


_ROPE_INTERVAL = 4  # of Llama 4: every fourth layer has no rotary positions, where the file does not say it


def read_mixtral(keys: Keys) -> Fields:
    """Mixtral."""
    moe = experts_of(keys, range(num_layers(keys)), "num_local_experts", "intermediate_size")
    return {**sizes(keys), "attention": attention(keys, windows="all"), "moe": moe}


def read_phimoe(keys: Keys) -> Fields:
    """Phi-3.5-MoE: Mixtral with layer norms and biases, one on the LM head too."""
    return read_mixtral(keys) | {
        "attention": attention(keys, windows="all", biases=ALL_BIASES),
        "norm": "layer",
        "lm_head_bias": keys.flag("lm_head_bias", default=False),
    }


def read_qwen2_moe(keys: Keys) -> Fields:
    """Qwen1.5 and Qwen2 MoE: a shared expert with a gate of its own."""
    attended = attention(keys, windows="qwen", qkv_bias=keys.flag("qkv_bias", default=True))
    return {**sizes(keys), "attention": attended, **qwen_experts(keys, has_shared=True)}


def read_qwen3_moe(keys: Keys) -> Fields:
    """Qwen3 MoE, also the language part of Qwen3-VL-MoE."""
    if not keys.flag("use_qk_norm", default=True):
        keys.refuse("use_qk_norm", "must be true: Qwen3 has norms of queries and keys")
    attended = attention(keys, windows="qwen", qk_norm=True, biases=ALL_BIASES)
    return {**sizes(keys), "attention": attended, **qwen_experts(keys)}


def read_deepseek_sparse(keys: Keys) -> Fields:
    """DeepSeek-V3.2 and GLM-5: V3 with an indexer before each layer of attention."""
    keys.ignore("indexer_rope_interleave", "mlp_layer_types", "index_share_for_mtp_iteration", "moe_router_dtype")
    if "shared" in (keys.items("indexer_types", str) or ()) or keys.size("index_topk_freq", 1) > 1:
        keys.refuse("indexer_types", "must be full in all layers: layers that take another's choice are not modelled")
    fields = read_deepseek(keys)
    indexer = {
        "num_heads": keys.size("index_n_heads"), "head_dim": keys.size("index_head_dim"),
        "top_k": keys.size("index_topk"),
    }  # fmt: skip
    return fields | {"attention": fields["attention"] | {"indexer": indexer}}


def read_deepseek(keys: Keys) -> Fields:
    """DeepSeek-V2 and V3, Kimi K2, Moonlight: latent attention, first layers dense, shared experts."""
    if keys.flag("attention_bias", default=False):
        keys.refuse("attention_bias", "must be false: latent attention with biases is not supported")
    keys.require("n_routed_experts", "n_shared_experts", "first_k_dense_replace")
    keys.ignore("moe_layer_freq", "num_experts_per_tok")
    keys.ignore("moe_intermediate_size", "n_shared_experts", "first_k_dense_replace")
    latent = latent_attention(keys)
    layers: Iterable[int] = ()
    if "n_routed_experts" in keys:
        first, step = keys.count("first_k_dense_replace", 0), keys.size("moe_layer_freq", 1)
        layers = [layer for layer in range(num_layers(keys)) if layer >= first and layer % step == 0]
    # V3 balances its experts with a learned bias each (topk_method noaux_tc), which is part of the checkpoint
    method = keys.text("topk_method", "greedy" if keys.text("model_type") == "deepseek_v2" else "noaux_tc")
    moe = experts_of(
        keys, layers, "n_routed_experts", "moe_intermediate_size", shared_key="n_shared_experts",
        router_bias=method == "noaux_tc", **(groups_of(keys) if method != "greedy" and layers else {}),
    )  # fmt: skip
    keys.count("num_nextn_predict_layers", 0)  # layers that predict further tokens are no part of the model's own
    return {**sizes(keys), "attention": latent, "ffn": dense_ffn(keys, moe), "moe": moe}


def read_minimax_m2(keys: Keys) -> Fields:
    """MiniMax-M2: experts in all layers; norms of all queries together and of all keys, half of a head turns."""
    keys.ignore("use_mtp", "mtp_transformer_layers", "num_mtp_modules", "attn_type_list")
    attended = attention(keys, qk_norm=keys.flag("use_qk_norm", default=True)) | {
        "rotary_dim": keys.optional_size("rotary_dim"),
        "qk_norm_is_whole": keys.text("qk_norm_type", "per_layer") == "per_layer",
    }  # fmt: skip
    has_bias = keys.flag("use_routing_bias", default=True)
    layers = range(num_layers(keys))
    moe = experts_of(keys, layers, "num_local_experts", "intermediate_size", router_bias=has_bias)
    return {**sizes(keys), "attention": attended, "moe": moe}


def read_ernie_moe(keys: Keys) -> Fields:
    """ERNIE 4.5 with experts: some layers of a range have them, with shared ones and a bias for each in the router."""
    first, end = keys.count("moe_layer_start_index", 1), keys.optional_size("moe_layer_end_index")
    last = num_layers(keys) - 1 if end is None else min(end, num_layers(keys) - 1)
    keys.ignore("moe_capacity", "moe_gate", "moe_gate_act", "moe_use_aux_free", "moe_norm_min", "moe_layer_interval")
    layers = [at for at in range(first, last + 1) if (at + 1) % keys.size("moe_layer_interval", 1) == 0]
    moe = experts_of(
        keys, layers, "moe_num_experts", "moe_intermediate_size", "moe_k", shared_key="moe_num_shared_experts",
        router_bias=True,
    )  # fmt: skip
    return {**sizes(keys, tied=True), "attention": attention(keys), "ffn": dense_ffn(keys, moe), "moe": moe}


def read_glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5, 4.6, 4.7: DeepSeek-V3's experts behind grouped attention, half of a head turns."""
    attended = attention(keys, biases=QKV_BIAS, qk_norm=keys.flag("use_qk_norm", default=False))
    layers = range(min(keys.count("first_k_dense_replace"), num_layers(keys)), num_layers(keys))
    moe = experts_of(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=True)
    if moe is not None:
        moe |= {"num_shared_experts": keys.count("n_shared_experts"), **groups_of(keys)}
    keys.count("num_nextn_predict_layers", 0)
    return {**sizes(keys), "attention": attended, "ffn": dense_ffn(keys, moe), "moe": moe}


def read_gpt_oss(keys: Keys) -> Fields:
    """gpt-oss: biases everywhere, sinks in attention; every other layer, from the first on, attends to a window."""
    attended = attention(keys, windows="even", sinks=True, biases=ALL_BIASES)
    moe = experts_of(
        keys, range(num_layers(keys)), "num_local_experts", "intermediate_size", router_bias=True, expert_bias=True
    )
    return {**sizes(keys), "attention": attended, "moe": moe}


def read_llama4(keys: Keys) -> Fields:
    """Llama 4, text: layers with rotary positions attend within chunks; each layer with experts has a shared one too.

    Its norms of queries and keys have no weights.
    """
    layers = num_layers(keys)
    with_rope = _rope_layers(keys, layers)
    chunk = keys.optional_size("attention_chunk_size")
    listed = None if chunk is None else layers_of_type(keys, "chunked_attention")
    chunked = [] if chunk is None else with_rope if listed is None else listed
    size = keys.size("head_dim")
    attended = {
        "kind": "gqa", "num_heads": keys.size("num_attention_heads"), "num_kv_heads": kv_heads(keys), "head_dim": size,
        "window_size": chunk if chunked else None, "num_window_layers": len(chunked),
        "window_layers": some(chunked, layers), "window_is_chunk": bool(chunked), "rotary_dim": rotary_dim(keys, size),
        "no_rope_layers": some(set(range(layers)) - set(with_rope), layers),
        "qk_l2_norm": keys.flag("use_qk_norm", default=True), **biases_of(keys, ALL_BIASES),
    }  # fmt: skip
    moe = experts_of(keys, _llama4_moe_layers(keys, layers), "num_local_experts", "intermediate_size")
    if moe is not None:
        moe["num_shared_experts"] = 1
    keys.ignore("interleave_moe_layer_step")
    return {**sizes(keys), "attention": attended, "ffn": dense_ffn(keys, moe, "intermediate_size_mlp"), "moe": moe}


def _rope_layers(keys: Keys, layers: int) -> list[int]:
    """Layers with rotary positions: `no_rope_layers` says 1 of them, its name notwithstanding."""
    keys.ignore("no_rope_layer_interval")
    with_rope = keys.items("no_rope_layers", int)
    if not with_rope:
        interval = keys.size("no_rope_layer_interval", _ROPE_INTERVAL)
        return [layer for layer in range(layers) if (layer + 1) % interval]
    if len(with_rope) != layers or not set(with_rope) <= {0, 1}:
        keys.refuse("no_rope_layers", f"must be {layers} times 0 or 1")
    return [layer for layer in range(layers) if with_rope[layer]]


def _llama4_moe_layers(keys: Keys, layers: int) -> list[int]:
    """Layers with experts: those listed, or each interleave_moe_layer_step-th."""
    listed = keys.items("moe_layers", int)
    if listed is None:
        step = keys.size("interleave_moe_layer_step")
        return list(range(step - 1, layers, step))
    if len(set(listed)) != len(listed) or not all(0 <= layer < layers for layer in listed):
        keys.refuse("moe_layers", f"must be different layers of 0..{layers - 1}")
    return sorted(listed)


def _grouped(keys: Keys, size: int, rotary_dim: int | None = 0) -> Fields:
    """Return grouped attention with heads of `size`, of which `rotary_dim` elements turn; None: all."""
    return {
        "kind": "gqa", "num_heads": keys.size("num_attention_heads"), "num_kv_heads": kv_heads(keys),
        "head_dim": size, "rotary_dim": rotary_dim, **biases_of(keys, ALL_BIASES),
    }  # fmt: skip


def _mixer(
    kind: str, layers: Sequence[int], num: int, heads: int, value_dim: int, key_heads: int, key_dim: int, width: int
) -> Fields:
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
    linear = layers_of_type(keys, "linear_attention")
    interval = keys.size("full_attention_interval", 4)
    if linear is None:
        linear = [layer for layer in range(layers) if (layer + 1) % interval]
    size = keys.size("head_dim")
    has_gate = keys.flag("attn_output_gate", default=True)
    attended = _grouped(keys, size, rotary_dim(keys, size)) | {"qk_norm": True, "has_gate": has_gate}
    names = ("num_value_heads", "value_head_dim", "num_key_heads", "key_head_dim")
    of_mixer = [*(keys.size(f"linear_{name}") for name in names), keys.size("linear_conv_kernel_dim", 4)]
    mixer = _mixer("gdn", linear, layers, *of_mixer)
    keys.ignore("intermediate_size" if has_experts else "mlp_only_layers")
    networks = qwen_experts(keys, has_shared=True) if has_experts else {"ffn": dense_ffn(keys, None)}
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
    latent = latent_attention(keys) | {"has_rope": not keys.flag("mla_use_nope", default=False)}
    keys.ignore("num_expert_group", "use_grouped_topk", "moe_router_activation_func", "moe_renormalize")
    moe = experts_of(
        keys, of_experts, "num_experts", "moe_intermediate_size", "num_experts_per_token",
        shared_key="num_shared_experts", router_bias=True,
    )  # fmt: skip
    keys.count("num_nextn_predict_layers", 0)
    return {**sizes(keys), "attention": latent, "linear": mixer, "ffn": dense_ffn(keys, moe), "moe": moe}


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
    moe = experts_of(keys, of_experts, "n_routed_experts", "moe_intermediate_size", router_bias=True)
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
        "attention": _grouped(keys, keys.size("attention_head_dim" if "attention_head_dim" in keys else "head_dim")),
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
    size = keys.size("head_dim") if "head_dim" in keys else head_dim(keys)
    attended = _grouped(keys, size, (keys.optional_size("attn_rotary_emb") or size) if turns else 0)
    keys.ignore(*(f"{name}_multiplier" for name in ("embedding", "residual", "attention")))
    keys.ignore("logits_scaling", "normalization_function", "z_loss_coefficient")
    linear = _mamba2(keys, [layer for layer, word in enumerate(types) if word == "mamba"], layers)
    width = keys.size("shared_intermediate_size" if is_granite else "intermediate_size")
    of_experts = range(layers) if keys.count("num_local_experts", 0) else ()
    moe = experts_of(keys, of_experts, "num_local_experts", "intermediate_size")
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


_qwen2 = partial(read_dense, windows="qwen", qkv_bias=True)
_qwen3 = partial(read_dense, windows="qwen", qk_norm=True, biases=ALL_BIASES, has_own_head_dim=True)
_gemma = partial(read_dense, biases=ALL_BIASES, has_own_head_dim=True, tied=True)
_glm4 = partial(read_dense, biases=QKV_BIAS, norms_per_layer=4)
READERS: Mapping[str, Callable[[Keys], Fields]] = {
    "deepseek_v2": read_deepseek, "deepseek_v3": read_deepseek, "kimi_k2": read_deepseek, "gemma": _gemma,
    "gemma2": partial(_gemma, windows="even", norms_per_layer=4),
    "gemma3_text": partial(_gemma, windows="gemma3", norms_per_layer=4, qk_norm=True),
    "deepseek_v32": read_deepseek_sparse,
    "ernie4_5": partial(read_dense, tied=True), "ernie4_5_moe": read_ernie_moe, "glm_moe_dsa": read_deepseek_sparse,
    "minimax_m2": read_minimax_m2,
    "glm": partial(read_dense, biases=QKV_BIAS), "glm4": _glm4, "glm4v_text": _glm4, "glm4_moe": read_glm4_moe,
    "glm4v_moe_text": read_glm4_moe, "gpt2": read_gpt2, "gpt_neox": read_gpt_neox, "gpt_oss": read_gpt_oss,
    "llama": partial(read_dense, biases=ALL_BIASES, derives_kv_heads=True, has_mlp_bias=True),
    "llama4_text": read_llama4, "ministral": partial(read_dense, windows="all"),
    "ministral3": partial(read_dense, windows="all"), "mistral": read_mistral, "mixtral": read_mixtral,
    "opt": read_opt, "phi3": partial(read_dense, windows="all", derives_kv_heads=True), "phimoe": read_phimoe,
    "qwen2": _qwen2, "qwen2_5_vl": _qwen2, "qwen2_5_vl_text": _qwen2, "qwen2_vl": _qwen2, "qwen2_vl_text": _qwen2,
    "qwen2_moe": read_qwen2_moe, "qwen3": _qwen3, "qwen3_vl_text": _qwen3, "qwen3_moe": read_qwen3_moe,
    "qwen3_vl_moe_text": read_qwen3_moe,
    "bamba": partial(read_mamba_hybrid, is_granite=False), "granitemoehybrid": read_mamba_hybrid,
    "kimi_linear": read_kimi_linear, "mamba2": read_mamba2, "nemotron_h": read_nemotron_h,
    "qwen3_5_moe_text": read_qwen3_next, "qwen3_5_text": partial(read_qwen3_next, has_experts=False),
    "qwen3_next": read_qwen3_next,
}  # fmt: skip
"""Readers of the `model_type` values of language models."""
