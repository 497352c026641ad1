"""Model configs: presets, YAML files, and Hugging Face `config.json` files, sound, incomplete and hostile."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import ModelConfigError, list_archs
from gemm_eval.transformer import (
    Ffn,
    GroupedAttention,
    ModelConfig,
    Moe,
    list_models,
    load_model,
)
from gemm_eval.transformer.loader import MODEL_TYPES, parse_config
from tests.cases import case
from tests.transformer.hugging_face_samples import SAMPLES

MODELS = list_models()
ASKED_FOR = {
    *("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen2.5-7b", "qwen2.5-72b", "mixtral-8x7b", "mistral-7b"),
    *("deepseek-v2", "deepseek-v3", "gemma-7b", "gemma-2-9b", "gpt-3-175b", "qwen3-30b-a3b"),
}
WORDS = {"name", "title", "notes", "source", "published", "dtype"}


def sizes(config: ModelConfig) -> dict[str, Any]:
    return config.model_dump(exclude=WORDS)


def parse(name: str, *without: str, **changes: Any) -> ModelConfig:
    """A sample with keys taken away and replaced."""
    data = {key: value for key, value in (SAMPLES[name].config | changes).items() if key not in without}
    return parse_config(data, name=name, origin="some/config.json")


def written(folder: Path, text: str | bytes, name: str = "config.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Presets.


def test_presets_are_there_and_apart_from_archs() -> None:
    assert set(MODELS) >= ASKED_FOR
    assert list(MODELS) == sorted(MODELS)
    assert not set(MODELS) & set(list_archs())


def test_preset_has_its_own_name_and_sources() -> None:
    for name in MODELS:
        config = load_model(name)
        with case(name):
            assert config.name == name
            assert config.title
            assert "http" in config.source or "arXiv:" in config.source
            assert config.published is not None


def test_preset_has_the_sizes_of_its_config_json() -> None:
    for name, sample in SAMPLES.items():
        if sample.preset is not None:
            preset = load_model(sample.preset)
            if "quantization_config" not in sample.config:  # what the samples of fp8 checkpoints leave out
                preset = preset.model_copy(update={"quantization": None})
            assert sizes(parse(name)) == sizes(preset), name


def test_unknown_name_offers_near_ones() -> None:
    with pytest.raises(ModelConfigError, match=r"no model of the name 'llama3-8b', did you mean llama-3-8b\?"):
        load_model("llama3-8b")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "nowhere/config.json", "no.json", "no.yaml", 8, None, b"x"])
def test_what_cannot_be_found_is_refused(name: Any) -> None:
    with pytest.raises(ModelConfigError):
        load_model(name)


# Files.


def test_config_json_is_read_from_file_folder_and_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--meta-llama--Meta-Llama-3-8B" / "snapshots" / "0f1e2d"
    plain = tmp_path / "My Llama (8B)"
    for folder in (snapshot, plain):
        folder.mkdir(parents=True)
        written(folder, json.dumps(SAMPLES["llama-3-8b"].config))
    other = written(tmp_path, json.dumps(SAMPLES["llama-3-8b"].config), "tuned.json")

    loaded = [load_model(path) for path in (plain, str(plain / "config.json"), snapshot, str(other))]

    assert [config.name for config in loaded] == ["My-Llama-8B-", "My-Llama-8B-", "Meta-Llama-3-8B", "tuned"]
    assert all(sizes(config) == sizes(load_model("llama-3-8b")) for config in loaded)


def test_yaml_of_ones_own(tmp_path: Path) -> None:
    text = """
hidden_size: 64
num_layers: 2
vocab_size: 100
attention: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}
ffn: {intermediate_size: 128}
"""
    config = load_model(written(tmp_path, text, "tiny.yaml"))

    assert (config.name, config.num_dense_layers, config.tied_embeddings) == ("tiny", 2, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hidden_size: 64\nhidden_size: 65\n", "'hidden_size' is given twice"),
        ("hidden_sise: 64\n", "hidden_sise is not a field, did you mean hidden_size?"),
        ("- 1\n", "top level must be a mapping"),
        ("hidden_size: 64\nnum_layers: -2\n", "num_layers must be >= 1, got -2"),
        ("vocab_size: 1.5\n", "vocab_size"),
        ("attention: {kind: mqa}\n", "attention"),
        ("attention: {num_heads: 3}\n", "attention"),
        ("a: &x [1]\nb: *x\n", "aliases are not allowed"),
    ],
)
def test_bad_yaml_is_refused_with_field_and_file(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text, "bad.yaml")
    with pytest.raises(ModelConfigError) as caught:
        load_model(path)

    assert words in str(caught.value)
    assert "bad.yaml" in str(caught.value)


HARMLESS = "task_specific_params"


def with_extra(text: str) -> str:
    """A sound config with one more key, which no reader looks at."""
    return json.dumps(SAMPLES["gpt2"].config)[:-1] + f', "{HARMLESS}": {text}}}'


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "not a readable JSON config"),
    "no JSON": ("{", "not a readable JSON config"),
    "list": ("[]", "must be an object of keys, got list"),
    "null": ("null", "must be an object of keys, got NoneType"),
    "NaN": (with_extra("NaN"), "'NaN' is no number"),
    "infinity": (with_extra("[-Infinity]"), "'-Infinity' is no number"),
    "overflow": (with_extra("1e999"), "'1e999' is no number, or too large a one"),
    "long integer": (with_extra("9" * 5000), "integer string conversion"),
    "given twice": (with_extra(f'0, "{HARMLESS}": 0'), f"'{HARMLESS}' is given twice"),
    "given twice inside": (with_extra('[{"a": 1, "a": 2}]'), "'a' is given twice"),
    "very deep": (with_extra("[" * 100_000 + "]" * 100_000), "nested deeper than 32 levels"),
    "deep": (with_extra("[" * 32 + "]" * 32), "nested deeper than 32 levels"),
    "deep objects": (with_extra('{"x":' * 32 + "1" + "}" * 32), "nested deeper than 32 levels"),
    "huge": (with_extra('"' + "y" * (1 << 22) + '"'), "larger than 4,194,304 bytes"),
    "no UTF-8": (b'{"x": "\xff"}', "not a readable JSON config"),
    "byte order mark": (b"\xef\xbb\xbf{}", "not a readable JSON config"),
    "no model_type": ("{}", "model_type must be given"),
    "model_type of a wrong type": ('{"model_type": ["gpt2"]}', "model_type must be a string, got ['gpt2']"),
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_json_is_refused_with_its_file(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json") as caught:
        load_model(written(tmp_path, text))

    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_what_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"cannot read .*config\.json"):
        load_model(tmp_path)
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "model.yaml")
    for name, message in (
        ("config.json", "not a regular file"), ("model.yaml", "not a regular file"), ("", "not a regular file"),
        ("folder/config.json", "cannot read"),
    ):  # fmt: skip
        with case(name), pytest.raises(ModelConfigError, match=message):
            load_model(tmp_path / name)


# config.json: keys.


def test_model_types_that_are_not_read() -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse("llama-3-8b", model_type="mambo")
    assert "got 'mambo' (some/config.json: model_type)" in str(caught.value)
    assert all(kind in str(caught.value) for kind in MODEL_TYPES)
    with pytest.raises(ModelConfigError, match="give its text_config as a file of its own"):
        parse("llama-3-8b", model_type="llava", text_config={"model_type": "llama"})


OPTIONAL = {
    "attention_bias", "attention_dropout", "bos_token_id", "do_layer_norm_before", "eos_token_id", "mlp_bias",
    "moe_layer_freq", "rope_scaling", "tie_word_embeddings", "torch_dtype", "use_cache", "use_sliding_window",
    "max_window_layers", "word_embed_proj_dim", "decoder_sparse_step", "mlp_only_layers", "topk_method", "n_ctx",
    "activation_function", "rotary_pct", "use_parallel_residual",
}  # fmt: skip
OPTIONAL_OF = {
    "llama-3-8b": {"num_key_value_heads"}, "phi-3-mini-4k": {"num_key_value_heads", "sliding_window"},
    "mixtral-8x7b": {"sliding_window"}, "qwen2.5-7b": {"sliding_window"},
    "qwen3-30b-a3b": {"sliding_window", "head_dim", "intermediate_size"},
    "qwen1.5-moe-a2.7b": {"sliding_window", "intermediate_size"}, "qwen3-8b": {"sliding_window"},
    "deepseek-v2-lite": {"num_key_value_heads"}, "deepseek-v3": {"num_key_value_heads", "num_nextn_predict_layers"},
}  # fmt: skip
ONE_OF_EACH = (
    *(*OPTIONAL_OF, "mistral-7b-v0.1", "gemma-7b", "gemma-2-9b", "gemma-3-1b"),
    *("gpt2", "gpt-neox-20b", "opt-125m"),
)
EACH_KEY = [
    (name, key)
    for name in ONE_OF_EACH
    for key in SAMPLES[name].config
    if key not in OPTIONAL | OPTIONAL_OF.get(name, set()) | {"model_type", "n_group", "topk_group"}  # without: no limit
]


def test_missing_key_is_named_with_its_file() -> None:
    for name, key in EACH_KEY:
        message = rf"{key} must be given \(some/config\.json: {key}\)"
        with case(name, key), pytest.raises(ModelConfigError, match=message):
            parse(name, key)


def test_impossible_value_is_named_with_its_file() -> None:
    values: tuple[Any, ...] = (-1, 1.5, "64", True, [], {}, 1 << 40, 10**400)
    for (name, key), value in itertools.product(EACH_KEY, values):
        message = rf"{key} must be .*\(some/config\.json: {key}\)"
        with case(name, key, value), pytest.raises(ModelConfigError, match=message):
            parse(name, **{key: value})


def test_optional_keys_may_be_missing_or_null() -> None:
    for name in ONE_OF_EACH:
        keys = [key for key in SAMPLES[name].config if key in OPTIONAL]
        assert sizes(parse(name, *keys)) == sizes(parse(name, **dict.fromkeys(keys))) == sizes(parse(name)), name


def test_missing_key_is_derived() -> None:
    for name, key in ((name, key) for name, keys in OPTIONAL_OF.items() for key in sorted(keys)):
        without, attention = parse(name, key), parse(name, key).attention
        with case(name, key):
            assert sizes(without) == sizes(parse(name, **{key: None}))
            if key == "num_key_value_heads" and isinstance(attention, GroupedAttention):
                assert attention.num_kv_heads == attention.num_heads
            elif key == "sliding_window":
                assert windows(without) == (None, 0)
            elif key == "head_dim":
                assert isinstance(attention, GroupedAttention)
                assert attention.head_dim == 2048 // 32


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-3-8b", {"num_attention_heads": 33}, "num_key_value_heads must divide num_attention_heads = 33, got 8"),
        ("llama-3-8b", {"hidden_size": 4097}, "num_attention_heads must divide hidden_size = 4097"),
        ("llama-3-8b", {"num_key_value_heads": 64}, "num_key_value_heads must divide"),
        ("llama-3-8b", {"num_attention_heads": 1 << 17, "head_dim": 2}, "attention.gqa.num_heads must be <= 65536"),
        ("llama-3-8b", {"tie_word_embeddings": 0}, "tie_word_embeddings must be true or false, got 0"),
        ("gpt2", {"n_head": 7}, "n_head must divide n_embd = 768"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "moe.experts_per_token must be <= num_experts = 8, got 9"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias must be false"),
        ("deepseek-v3", {"n_routed_experts": 1 << 20}, "moe.num_experts must be <= 65536"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "projected embeddings are not supported, got 512"),
        ("opt-125m", {"do_layer_norm_before": False}, "do_layer_norm_before must be true"),
        ("qwen3-8b", {"layer_types": ["full_attention"]}, "layer_types must be 36 times"),
        ("qwen3-8b", {"layer_types": ["linear_attention"] * 36}, "layer_types must be 36 times"),
        ("qwen3-8b", {"layer_types": "full_attention"}, "layer_types must be a list of str"),
        ("qwen3-8b", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": None}, "max_window_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [1.5]}, "mlp_only_layers must be a list of int"),
    ],
)
def test_keys_that_contradict_are_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse(name, **changes)

    assert words in str(caught.value)
    assert "some/config.json" in str(caught.value)


# config.json: rules of architectures.


def windows(config: ModelConfig) -> tuple[int | None, int]:
    assert isinstance(config.attention, GroupedAttention)
    return config.attention.window_size, config.attention.num_window_layers


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("llama-3-8b", {"sliding_window": 4096}, (None, 0)), ("mistral-7b-v0.1", {}, (4096, 32)),
        ("mistral-7b-v0.1", {"sliding_window": None}, (None, 0)), ("mixtral-8x7b", {}, (None, 0)),
        ("phi-3-mini-4k", {}, (2047, 32)), ("qwen2.5-7b", {}, (None, 0)),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 20}, (131072, 8)),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 40}, (None, 0)),
        ("gemma-2-9b", {}, (4096, 21)), ("gemma-2-9b", {"num_hidden_layers": 3}, (4096, 2)),
        ("gemma-3-1b", {}, (512, 22)),
        ("gemma-3-1b", {"sliding_window_pattern": None, "_sliding_window_pattern": 2}, (512, 13)),
        ("gemma-3-1b", {"layer_types": ["sliding_attention"] * 20 + ["full_attention"] * 6}, (512, 20)),
        ("gemma-2-9b", {"layer_types": ["full_attention"] * 42}, (None, 0)),
    ],
)  # fmt: skip
def test_window_layers(name: str, changes: dict[str, Any], expected: tuple[int | None, int]) -> None:
    assert windows(parse(name, **changes)) == expected


@pytest.mark.parametrize(
    ("name", "changes", "moe_layers"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, 24),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 1, 47, 99]}, 45),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]}, 23),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 49}, 0),
        ("deepseek-v3", {"moe_layer_freq": 2}, 29),  # layers 4, 6, ..., 60
        ("deepseek-v3", {"first_k_dense_replace": 0}, 61),
        ("deepseek-v3", {"first_k_dense_replace": 61}, 0),
        ("deepseek-v3", {"n_routed_experts": None}, 0),
    ],
)
def test_which_layers_have_experts(name: str, changes: dict[str, Any], moe_layers: int) -> None:
    config = parse(name, **changes)

    assert config.num_moe_layers == moe_layers
    assert config.num_dense_layers == config.num_layers - moe_layers
    assert (config.ffn is None) == (moe_layers == config.num_layers)


def test_ties_router_biases_and_widths_are_as_the_architecture_has_them() -> None:
    tied = {name for name in SAMPLES if parse(name, "tie_word_embeddings").tied_embeddings}

    assert tied == {name for name in SAMPLES if name.startswith(("gemma", "gpt2", "granite", "opt", "ernie"))}
    assert parse("qwen2.5-7b", tie_word_embeddings=True).tied_embeddings
    experts = [parse("deepseek-v3", "topk_method").moe, parse("deepseek-v2").moe]
    assert [moe and moe.router_bias for moe in experts] == [True, False]
    widths = [parse("gpt2", n_inner=value).ffn for value in (None, 1000)]
    assert [ffn and ffn.intermediate_size for ffn in widths] == [3072, 1000]


# In memory.

SMALL = ModelConfig(
    name="small", hidden_size=64, num_layers=4, vocab_size=100,
    attention=GroupedAttention(num_heads=4, num_kv_heads=2, head_dim=16), ffn=Ffn(intermediate_size=128),
)  # fmt: skip
EXPERTS = Moe(num_layers=4, num_experts=8, experts_per_token=2, intermediate_size=32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ffn": None}, "ffn must be given: 4 of 4 layers are dense"),
        ({"moe": EXPERTS}, "all 4 layers have experts: leave it out"),
        ({"moe": EXPERTS, "ffn": None, "num_layers": 3}, "moe.num_layers must be <= num_layers = 3, got 4"),
        ({"hidden_size": 0}, "hidden_size must be >= 1, got 0"),
        ({"hidden_size": 1 << 25}, "hidden_size must be <= 16777216"),
        ({"hidden_size": 64.0}, "hidden_size must be a valid integer, got 64.0"),
        ({"hidden_size": True}, "hidden_size must be a valid integer, got True"),
        ({"norm": "batch"}, "norm must be 'rms' or 'layer', got 'batch'"),
        ({"name": "no spaces"}, "name"),
        ({"hidden": 64}, "hidden is not a field, did you mean hidden_size?"),
        ({"attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 3, "head_dim": 8}}, "must divide num_heads = 4"),
        ({"attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "window_size": 9}},
            "window_size and num_window_layers go together"),
        ({"attention": GroupedAttention(num_heads=4, num_kv_heads=4, head_dim=8, window_size=9, num_window_layers=5)},
            "num_window_layers must be <= num_layers = 4, got 5"),
        ({"ffn": None, "moe": {"num_layers": 4, "num_experts": 2, "experts_per_token": 3, "intermediate_size": 8}},
            "experts_per_token must be <= num_experts = 2, got 3"),
        ({"ffn": None, "moe": {**{"num_layers": 4, "num_experts": 2, "experts_per_token": 1, "intermediate_size": 8},
            "shared_gate": True}}, "num_shared_experts >= 1, got 0"),
    ],
)  # fmt: skip
def test_configs_that_do_not_hold_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        SMALL.with_(**changes)

    assert words in str(caught.value)
    assert "small.with_" in str(caught.value)


def test_with_changes_a_copy_and_drops_what_is_published() -> None:
    original = load_model("llama-3-8b")
    changed = original.with_(num_layers=np.int64(2), name="two-layers")

    assert (changed.num_layers, original.num_layers) == (2, 32)
    assert changed.published is None
    assert sizes(original.with_()) == sizes(original)
