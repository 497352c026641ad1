"""Readers of `config.json`, one for each architecture of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.parts import layers_text

Fields = dict[str, Any]
"""Fields of a `ModelConfig` or of a part of it, not validated yet."""

_MAX_LAYERS = 1 << 16


def num_layers(keys: Keys) -> int:
    """`num_hidden_layers`."""
    return keys.size("num_hidden_layers", at_most=_MAX_LAYERS)


def sizes(keys: Keys, *, tied: bool = False) -> Fields:
    """The fields whose keys most architectures share; `tied` is what a missing `tie_word_embeddings` stands for."""
    return {
        "hidden_size": keys.size("hidden_size"), "num_layers": num_layers(keys), "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }  # fmt: skip


def head_dim(keys: Keys, hidden_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> int:
    """The size of a head where the architecture derives it: hidden size over heads."""
    hidden, heads = keys.size(hidden_key), keys.size(heads_key)
    if hidden % heads:
        keys.refuse(heads_key, f"must divide {hidden_key} = {hidden}, as no head_dim is given")
    return hidden // heads


def some(layers: Iterable[int], num: int) -> str | None:
    """Some of `num` layers as text; None: all or none, which needs no saying."""
    result = sorted(layers)
    return layers_text(result) if 0 < len(result) < num else None


def kv_heads(keys: Keys, default: int | None = None) -> int:
    """`num_key_value_heads`, which divide the query heads."""
    heads = keys.size("num_attention_heads")
    result = keys.size("num_key_value_heads") if default is None else keys.size("num_key_value_heads", default)
    if heads % result:
        keys.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    return result


def rotary_dim(keys: Keys, size: int) -> int | None:
    """Elements of a head of `size` that turn, where the file says that not all do."""
    factor = keys.fraction("partial_rotary_factor", 1.0)
    if "rope_parameters" in keys:
        factor = keys.part("rope_parameters").fraction("partial_rotary_factor", factor)
    return None if factor == 1 else int(size * factor)


def attention(keys: Keys, *, windows: Iterable[int] = (), derives_kv_heads: bool = False, **options: Any) -> Fields:
    """Grouped attention from the usual keys.

    `windows` are the layers with a window where one is given but no layer_types; `derives_kv_heads`: none given means
    one a head.
    """
    heads = keys.size("num_attention_heads")
    num_kv_heads = kv_heads(keys, heads if derives_kv_heads else None)
    layers, types = num_layers(keys), keys.items("layer_types", str)
    if types is not None:
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            keys.refuse("layer_types", f"must be {layers} times full_attention or sliding_attention")
        windows = [layer for layer, kind in enumerate(types) if kind == "sliding_attention"]
    elif "sliding_window" not in keys:
        windows = ()
    windows = tuple(windows)
    size = keys.size("head_dim") if "head_dim" in keys else head_dim(keys)
    return {
        "kind": "gqa", "num_heads": heads, "num_kv_heads": num_kv_heads, "head_dim": size,
        "window_size": keys.size("sliding_window") if windows else None, "num_window_layers": len(windows),
        "window_layers": some(windows, layers), "rotary_dim": rotary_dim(keys, size), **options,
    }  # fmt: skip


def gated(keys: Keys, *, has_bias: bool = False) -> Fields:
    """A gated FFN of `intermediate_size`."""
    return {"intermediate_size": keys.size("intermediate_size"), "has_bias": has_bias}


def biases(keys: Keys) -> Fields:
    """`attention_bias` as Llama means it: on all four projections."""
    bias = keys.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "output_bias": bias}


def read_llama(keys: Keys) -> Fields:
    """Llama 1 to 3."""
    ffn = gated(keys, has_bias=keys.flag("mlp_bias", default=False))
    attended = attention(keys, derives_kv_heads=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": ffn}


def read_mistral(keys: Keys) -> Fields:
    """Mistral: all layers have the window, if there is one."""
    keys.require("sliding_window")  # null is no window, but a missing one would be 4096
    return {**sizes(keys), "attention": attention(keys, windows=range(num_layers(keys))), "ffn": gated(keys)}


def read_ministral(keys: Keys) -> Fields:
    """Ministral, whose file says of each layer whether it has the window; Ministral 3, which has none."""
    return {**sizes(keys), "attention": attention(keys, windows=range(num_layers(keys))), "ffn": gated(keys)}


def read_phi3(keys: Keys) -> Fields:
    """Phi-3, Phi-4, Phi-4-mini: all layers have the window, if there is one."""
    attended = attention(keys, windows=range(num_layers(keys)), derives_kv_heads=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_glm(keys: Keys) -> Fields:
    """GLM-4: biases on queries, keys and values, half of a head turns."""
    bias = keys.flag("attention_bias", default=False)
    keys.fraction("partial_rotary_factor", 1.0)
    return {**sizes(keys), "attention": attention(keys, qkv_bias=bias), "ffn": gated(keys)}


def read_glm4(keys: Keys) -> Fields:
    """GLM-4-0414: norms after attention and FFN too."""
    return read_glm(keys) | {"norms_per_layer": 4}


def qwen_windows(keys: Keys) -> Iterable[int]:
    """Qwen windows its upper layers, from max_window_layers on, and only if use_sliding_window says so."""
    if not keys.flag("use_sliding_window", default=False):
        return ()
    return range(keys.count("max_window_layers"), num_layers(keys))


def read_qwen2(keys: Keys) -> Fields:
    """Qwen2 and Qwen2.5, also the language part of Qwen2-VL and Qwen2.5-VL."""
    attended = attention(keys, windows=qwen_windows(keys), qkv_bias=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_qwen3(keys: Keys) -> Fields:
    """Qwen3, also the language part of Qwen3-VL."""
    keys.size("head_dim")  # Qwen3 does not derive it from hidden_size
    attended = attention(keys, windows=qwen_windows(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_gemma(keys: Keys) -> Fields:
    """Gemma 1."""
    return _gemma(keys)


def read_gemma2(keys: Keys) -> Fields:
    """Gemma 2: every other layer, from the first on, attends to a window."""
    keys.size("sliding_window")
    return _gemma(keys, windows=range(0, num_layers(keys), 2)) | {"norms_per_layer": 4}


def read_gemma3(keys: Keys) -> Fields:
    """Gemma 3, text: all layers but each sliding_window_pattern-th attend to a window."""
    windows: list[int] = []
    keys.size("sliding_window")
    keys.ignore("_sliding_window_pattern", "sliding_window_pattern")
    if "layer_types" not in keys:
        key = "_sliding_window_pattern" if "_sliding_window_pattern" in keys else "sliding_window_pattern"
        period = keys.size(key)
        windows = [layer for layer in range(num_layers(keys)) if (layer + 1) % period]
    return _gemma(keys, windows=windows, qk_norm=True) | {"norms_per_layer": 4}


def _gemma(keys: Keys, *, windows: Iterable[int] = (), **options: Any) -> Fields:
    keys.size("head_dim")  # Gemma does not derive it from hidden_size
    attended = attention(keys, windows=windows, **options, **biases(keys))
    return {**sizes(keys, tied=True), "attention": attended, "ffn": gated(keys)}


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


def _experts(keys: Keys, layers: Iterable[int], experts_key: str, width_key: str, **more: Any) -> Fields | None:
    """The experts of `layers`; None: there are none."""
    result = tuple(layers)
    if not result:
        keys.ignore(experts_key, "num_experts_per_tok", width_key)
        return None
    return {
        "num_layers": len(result), "layers": some(result, num_layers(keys)), "num_experts": keys.size(experts_key),
        "experts_per_token": keys.size("num_experts_per_tok"), "intermediate_size": keys.size(width_key), **more,
    }  # fmt: skip


def _dense(keys: Keys, moe: Fields | None, key: str = "intermediate_size") -> Fields | None:
    """The FFN of the layers without experts; None: all have them."""
    if moe is not None and moe["num_layers"] == num_layers(keys):
        keys.ignore(key)
        return None
    return {"intermediate_size": keys.size(key), "has_bias": False}


def read_mixtral(keys: Keys) -> Fields:
    """Mixtral."""
    layers = range(num_layers(keys))
    moe = _experts(keys, layers, "num_local_experts", "intermediate_size")
    return {**sizes(keys), "attention": attention(keys, windows=layers), "moe": moe}


def read_phimoe(keys: Keys) -> Fields:
    """Phi-3.5-MoE: Mixtral with layer norms and biases, one on the LM head too."""
    return read_mixtral(keys) | {
        "attention": attention(keys, windows=range(num_layers(keys)), **biases(keys)),
        "norm": "layer",
        "lm_head_bias": keys.flag("lm_head_bias", default=False),
    }


def _qwen_experts(keys: Keys, **shared: Any) -> Fields:
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.items("mlp_only_layers", int) or ())
    layers = [layer for layer in range(num_layers(keys)) if (layer + 1) % step == 0 and layer not in dense]
    moe = _experts(keys, layers, "num_experts", "moe_intermediate_size", **shared)
    return {"moe": moe, "ffn": _dense(keys, moe)}


def read_qwen2_moe(keys: Keys) -> Fields:
    """Qwen1.5 and Qwen2 MoE: a shared expert with a gate of its own."""
    attended = attention(keys, windows=qwen_windows(keys), qkv_bias=keys.flag("qkv_bias", default=True))
    shared = keys.size("shared_expert_intermediate_size")
    experts = _qwen_experts(keys, num_shared_experts=1, shared_intermediate_size=shared, shared_gate=True)
    return {**sizes(keys), "attention": attended, **experts}


def read_qwen3_moe(keys: Keys) -> Fields:
    """Qwen3 MoE, also the language part of Qwen3-VL-MoE."""
    if not keys.flag("use_qk_norm", default=True):
        keys.refuse("use_qk_norm", "must be true: Qwen3 has norms of queries and keys")
    attended = attention(keys, windows=qwen_windows(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, **_qwen_experts(keys)}


def read_deepseek(keys: Keys) -> Fields:
    """DeepSeek-V2 and V3, Kimi K2, Moonlight: latent attention, first layers dense, shared experts."""
    if keys.flag("attention_bias", default=False):
        keys.refuse("attention_bias", "must be false: latent attention with biases is not supported")
    keys.require("q_lora_rank", "n_routed_experts", "n_shared_experts", "first_k_dense_replace")
    keys.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "moe_layer_freq", "num_experts_per_tok")
    keys.ignore("moe_intermediate_size", "n_shared_experts", "first_k_dense_replace")
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = {
        "kind": "mla", "num_heads": keys.size("num_attention_heads"), "q_lora_rank": keys.optional_size("q_lora_rank"),
        **{key: keys.size(key) for key in dims},
    }  # fmt: skip
    layers: Iterable[int] = ()
    if "n_routed_experts" in keys:
        first, step = keys.count("first_k_dense_replace", 0), keys.size("moe_layer_freq", 1)
        layers = [layer for layer in range(num_layers(keys)) if layer >= first and layer % step == 0]
    # V3 balances its experts with a learned bias each (topk_method noaux_tc), which is part of the checkpoint
    method = keys.text("topk_method", "greedy" if keys.text("model_type") == "deepseek_v2" else "noaux_tc")
    moe = _experts(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=method == "noaux_tc")
    if moe is not None:
        moe["num_shared_experts"] = keys.count("n_shared_experts", 0)
    rest = {"ffn": _dense(keys, moe), "moe": moe, "num_mtp_layers": _num_mtp_layers(keys)}
    return {**sizes(keys), "attention": latent, **rest}


def _num_mtp_layers(keys: Keys) -> int:
    return keys.count("num_nextn_predict_layers", 0)


def read_glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5, 4.6, 4.7: DeepSeek-V3's experts behind grouped attention, half of a head turns."""
    bias = keys.flag("attention_bias", default=False)
    attended = attention(keys, qkv_bias=bias, qk_norm=keys.flag("use_qk_norm", default=False))
    layers = range(min(keys.count("first_k_dense_replace"), num_layers(keys)), num_layers(keys))
    moe = _experts(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=True)
    if moe is not None:
        moe["num_shared_experts"] = keys.count("n_shared_experts")
    rest = {"ffn": _dense(keys, moe), "moe": moe, "num_mtp_layers": _num_mtp_layers(keys)}
    return {**sizes(keys), "attention": attended, **rest}


def read_gpt_oss(keys: Keys) -> Fields:
    """gpt-oss: biases everywhere, sinks in attention; every other layer, from the first on, attends to a window."""
    layers = num_layers(keys)
    keys.size("sliding_window")
    attended = attention(keys, windows=range(0, layers, 2), sinks=True, **biases(keys))
    moe = _experts(keys, range(layers), "num_local_experts", "intermediate_size", router_bias=True, expert_bias=True)
    return {**sizes(keys), "attention": attended, "moe": moe}


def read_llama4(keys: Keys) -> Fields:
    """Llama 4, text: layers with rotary positions attend within chunks; each layer with experts has a shared one too.

    Its norms of queries and keys have no weights.
    """
    layers = num_layers(keys)
    with_rope = _rope_layers(keys, layers)
    chunk = keys.optional_size("attention_chunk_size")
    chunked = _chunked_layers(keys, with_rope) if chunk is not None else []
    size = keys.size("head_dim")
    attended = {
        "kind": "gqa", "num_heads": keys.size("num_attention_heads"), "num_kv_heads": kv_heads(keys), "head_dim": size,
        "window_size": chunk if chunked else None, "num_window_layers": len(chunked),
        "window_layers": some(chunked, layers), "window_is_chunk": bool(chunked), "rotary_dim": rotary_dim(keys, size),
        "no_rope_layers": some(set(range(layers)) - set(with_rope), layers),
        "qk_l2_norm": keys.flag("use_qk_norm", default=True), **biases(keys),
    }  # fmt: skip
    moe = _experts(keys, _llama4_moe_layers(keys, layers), "num_local_experts", "intermediate_size")
    if moe is not None:
        moe["num_shared_experts"] = 1
    keys.ignore("interleave_moe_layer_step")
    return {**sizes(keys), "attention": attended, "ffn": _dense(keys, moe, "intermediate_size_mlp"), "moe": moe}


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


def _chunked_layers(keys: Keys, with_rope: list[int]) -> list[int]:
    types = keys.items("layer_types", str)
    if types is None:
        return with_rope
    layers = num_layers(keys)
    if len(types) != layers or not set(types) <= {"full_attention", "chunked_attention"}:
        keys.refuse("layer_types", f"must be {layers} times full_attention or chunked_attention")
    return [layer for layer, kind in enumerate(types) if kind == "chunked_attention"]


def _llama4_moe_layers(keys: Keys, layers: int) -> list[int]:
    """Layers with experts: those listed, or each interleave_moe_layer_step-th."""
    listed = keys.items("moe_layers", int)
    if listed is None:
        step = keys.size("interleave_moe_layer_step")
        return list(range(step - 1, layers, step))
    if len(set(listed)) != len(listed) or not all(0 <= layer < layers for layer in listed):
        keys.refuse("moe_layers", f"must be different layers of 0..{layers - 1}")
    return sorted(listed)
