"""Readers of `config.json`, one for each architecture of Hugging Face transformers with attention in all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
    """Return the fields whose keys most architectures share; `tied`: the default of `tie_word_embeddings`."""
    return {
        "hidden_size": keys.size("hidden_size"), "num_layers": num_layers(keys), "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }  # fmt: skip


def head_dim(keys: Keys, hidden_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> int:
    """Return the size of a head where the architecture derives it: hidden size over heads."""
    hidden, heads = keys.size(hidden_key), keys.size(heads_key)
    if hidden % heads:
        keys.refuse(heads_key, f"must divide {hidden_key} = {hidden}, as no head_dim is given")
    return hidden // heads


def some(layers: Iterable[int], num: int) -> str | None:
    """Return some of `num` layers as text; None: all or none, which needs no saying."""
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


def layers_of_type(keys: Keys, kind: str) -> list[int] | None:
    """Layers that `layer_types` says are of a kind, not full attention; None: it is not given."""
    types = keys.items("layer_types", str)
    if types is None:
        return None
    if len(types) != num_layers(keys) or not set(types) <= {"full_attention", kind}:
        keys.refuse("layer_types", f"must be {num_layers(keys)} times full_attention or {kind}")
    return [layer for layer, word in enumerate(types) if word == kind]


def _window_layers(keys: Keys, rule: str) -> Iterable[int]:
    """Return the layers with a window where one is given but no layer_types, by an architecture's own rule."""
    layers = num_layers(keys)
    if rule == "all":
        return range(layers)
    if rule == "even":  # every other layer, from the first on; the window must be given
        keys.size("sliding_window")
        return range(0, layers, 2)
    if rule == "qwen":  # the upper layers, from max_window_layers on, and only if use_sliding_window says so
        is_used = keys.flag("use_sliding_window", default=False)
        return range(keys.count("max_window_layers"), layers) if is_used else ()
    if rule == "gemma3":  # all but each sliding_window_pattern-th
        keys.size("sliding_window")
        keys.ignore("_sliding_window_pattern", "sliding_window_pattern")
        if "layer_types" not in keys:
            name = "_sliding_window_pattern" if "_sliding_window_pattern" in keys else "sliding_window_pattern"
            period = keys.size(name)
            return [layer for layer in range(layers) if (layer + 1) % period]
    return ()


def attention(
    keys: Keys, *, windows: str = "", biases: Sequence[str] = (), derives_kv_heads: bool = False, **options: Any
) -> Fields:
    """Return grouped attention from the usual keys.

    `windows` is a rule of `_window_layers`, `biases` are those that `attention_bias` switches on; `derives_kv_heads`:
    none given means one a head. `options` are other fields.
    """
    heads = keys.size("num_attention_heads")
    num_kv_heads = kv_heads(keys, heads if derives_kv_heads else None)
    layers, usual = num_layers(keys), tuple(_window_layers(keys, windows))
    listed = layers_of_type(keys, "sliding_attention")
    with_window = tuple(listed) if listed is not None else usual if "sliding_window" in keys else ()
    size = keys.size("head_dim") if "head_dim" in keys else head_dim(keys)
    return {
        "kind": "gqa", "num_heads": heads, "num_kv_heads": num_kv_heads, "head_dim": size,
        "window_size": keys.size("sliding_window") if with_window else None, "num_window_layers": len(with_window),
        "window_layers": some(with_window, layers), "rotary_dim": rotary_dim(keys, size), **biases_of(keys, biases),
        **options,
    }  # fmt: skip


_QKV = ("qkv_bias",)
ALL_BIASES = ("qkv_bias", "output_bias")
"""Biases that `attention_bias` switches on: of most architectures these; of GLM those of queries, keys and values."""


def biases_of(keys: Keys, names: Sequence[str]) -> Fields:
    """Return fields of biases as `attention_bias` says."""
    return dict.fromkeys(names, keys.flag("attention_bias", default=False)) if names else {}


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


def experts_of(
    keys: Keys,
    layers: Iterable[int],
    num_key: str,
    width_key: str,
    chosen_key: str = "num_experts_per_tok",
    **more: Any,
) -> Fields | None:
    """Return the experts of some layers; None: no layers."""
    result = tuple(layers)
    if not result:
        keys.ignore(num_key, chosen_key, width_key)
        return None
    return {
        "num_layers": len(result), "layers": some(result, num_layers(keys)), "num_experts": keys.size(num_key),
        "experts_per_token": keys.size(chosen_key), "intermediate_size": keys.size(width_key), **more,
    }  # fmt: skip


def _groups(keys: Keys) -> Fields:
    """Return the groups among which a token chooses before experts, and how many it takes; by default all."""
    groups = keys.size("n_group", 1)
    return {"num_groups": groups, "groups_per_token": min(groups, keys.size("topk_group", groups))}


def dense_ffn(keys: Keys, moe: Fields | None, key: str = "intermediate_size") -> Fields | None:
    """Return the gated network of the layers without experts; None: all have them."""
    if moe is not None and moe["num_layers"] == num_layers(keys):
        keys.ignore(key)
        return None
    return {"intermediate_size": keys.size(key), "has_bias": False}


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


def qwen_experts(keys: Keys, *, has_shared: bool = False) -> Fields:
    """Return experts in every `decoder_sparse_step`-th layer, with a shared one or not, and the other layers' FFN."""
    width = keys.size("shared_expert_intermediate_size") if has_shared else None
    shared: Fields = {"num_shared_experts": 1, "shared_intermediate_size": width, "shared_gate": True}
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.items("mlp_only_layers", int) or ())
    layers = [layer for layer in range(num_layers(keys)) if (layer + 1) % step == 0 and layer not in dense]
    moe = experts_of(keys, layers, "num_experts", "moe_intermediate_size", **(shared if has_shared else {}))
    return {"moe": moe, "ffn": dense_ffn(keys, moe)}


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


def latent_attention(keys: Keys) -> Fields:
    """Return latent attention."""
    keys.require("q_lora_rank")
    keys.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {
        "kind": "mla", "num_heads": keys.size("num_attention_heads"), "q_lora_rank": keys.optional_size("q_lora_rank"),
        **{key: keys.size(key) for key in dims},
    }  # fmt: skip


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
    moe = experts_of(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=method == "noaux_tc")
    if moe is not None:
        moe["num_shared_experts"] = keys.count("n_shared_experts", 0)
        if method != "greedy":
            moe |= _groups(keys)
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
    moe = experts_of(keys, layers, "moe_num_experts", "moe_intermediate_size", "moe_k", router_bias=True)
    if moe is not None:
        moe["num_shared_experts"] = keys.count("moe_num_shared_experts", 0)
    return {**sizes(keys, tied=True), "attention": attention(keys), "ffn": dense_ffn(keys, moe), "moe": moe}


def read_glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5, 4.6, 4.7: DeepSeek-V3's experts behind grouped attention, half of a head turns."""
    attended = attention(keys, biases=_QKV, qk_norm=keys.flag("use_qk_norm", default=False))
    layers = range(min(keys.count("first_k_dense_replace"), num_layers(keys)), num_layers(keys))
    moe = experts_of(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=True)
    if moe is not None:
        moe |= {"num_shared_experts": keys.count("n_shared_experts"), **_groups(keys)}
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


_qwen2 = partial(read_dense, windows="qwen", qkv_bias=True)
_qwen3 = partial(read_dense, windows="qwen", qk_norm=True, biases=ALL_BIASES, has_own_head_dim=True)
_gemma = partial(read_dense, biases=ALL_BIASES, has_own_head_dim=True, tied=True)
_glm4 = partial(read_dense, biases=_QKV, norms_per_layer=4)
DENSE_READERS: Mapping[str, Callable[[Keys], Fields]] = {
    "deepseek_v2": read_deepseek, "deepseek_v3": read_deepseek, "kimi_k2": read_deepseek, "gemma": _gemma,
    "gemma2": partial(_gemma, windows="even", norms_per_layer=4),
    "gemma3_text": partial(_gemma, windows="gemma3", norms_per_layer=4, qk_norm=True),
    "deepseek_v32": read_deepseek_sparse,
    "ernie4_5": partial(read_dense, tied=True), "ernie4_5_moe": read_ernie_moe, "glm_moe_dsa": read_deepseek_sparse,
    "minimax_m2": read_minimax_m2,
    "glm": partial(read_dense, biases=_QKV), "glm4": _glm4, "glm4v_text": _glm4, "glm4_moe": read_glm4_moe,
    "glm4v_moe_text": read_glm4_moe, "gpt2": read_gpt2, "gpt_neox": read_gpt_neox, "gpt_oss": read_gpt_oss,
    "llama": partial(read_dense, biases=ALL_BIASES, derives_kv_heads=True, has_mlp_bias=True),
    "llama4_text": read_llama4, "ministral": partial(read_dense, windows="all"),
    "ministral3": partial(read_dense, windows="all"), "mistral": read_mistral, "mixtral": read_mixtral,
    "opt": read_opt, "phi3": partial(read_dense, windows="all", derives_kv_heads=True), "phimoe": read_phimoe,
    "qwen2": _qwen2, "qwen2_5_vl": _qwen2, "qwen2_5_vl_text": _qwen2, "qwen2_vl": _qwen2, "qwen2_vl_text": _qwen2,
    "qwen2_moe": read_qwen2_moe, "qwen3": _qwen3, "qwen3_vl_text": _qwen3, "qwen3_moe": read_qwen3_moe,
    "qwen3_vl_moe_text": read_qwen3_moe,
}  # fmt: skip
"""Readers of the `model_type` values of models whose layers are all attention."""
