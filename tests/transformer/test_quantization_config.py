"""`quantization_config` of checkpoints: which GEMMs are quantized, in which layers, and how many bytes that takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import ModelConfigError, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer import (
    ModelConfig,
    list_models,
    load_model,
    model_memory,
    model_on,
    transformer_gemms,
    types_on,
)
from gemm_eval.transformer.loader import parse_config
from tests.cases import case
from tests.transformer.hugging_face_samples import SAMPLES, json_values

ONE: dict[str, Any] = {"batch_size": 1, "seq_len": 16}


def quantized(name: str, **quantization: Any) -> ModelConfig:
    config = SAMPLES[name].config | {"quantization_config": quantization}
    return parse_config(config, name=name, origin="some/config.json")


def words(config: ModelConfig, **options: Any) -> dict[str, str]:
    """GEMM -> A, B and C, in which all GEMMs of the name are."""
    gemms = transformer_gemms(config, phase="decode", **ONE, **options)
    return {g.name: f"{g.problem.types.a} x {g.problem.types.b} -> {g.problem.types.c}" for g in gemms if g.is_weight}


def group(weights: dict[str, Any], inputs: dict[str, Any] | None = None, *targets: str) -> dict[str, Any]:
    return {
        "weights": weights, "input_activations": inputs, "output_activations": None,
        "targets": list(targets) or ["Linear"],
    }  # fmt: skip


def compressed(form: str, *groups: dict[str, Any], ignore: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors", "format": form,
        "config_groups": {f"group_{i}": one for i, one in enumerate(groups)},
        "ignore": ["lm_head"] if ignore is None else ignore, "kv_cache_scheme": None,
        "quantization_status": "compressed", "global_compression_ratio": 1.5, **more,
    }  # fmt: skip


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": False}
FP8_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
FP8_TENSOR = FP8_CHANNEL | {"strategy": "tensor"}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
FP8_BLOCK = FP8_CHANNEL | {"strategy": "block", "block_structure": [128, 128]}
NVFP4 = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": False,
}  # fmt: skip
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.1}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}

# Types of a projection, and bits that a weight of the Llama-3-8B's (N, K) = (6144, 4096) takes.
FORMATS: dict[str, tuple[dict[str, Any], str, float]] = {
    "awq": (AWQ, "bf16 x int4 (group 128, int4 zeros) -> bf16", 4 + 20 / 128),
    "awq without zeros": (AWQ | {"zero_point": False, "group_size": 64}, "bf16 x int4 (group 64) -> bf16", 4 + 16 / 64),
    "AutoAWQ's own file": ({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"},
        "bf16 x int4 (group 128, int4 zeros) -> bf16", 4 + 20 / 128),
    "gptq": (GPTQ, "bf16 x int4 (group 128) -> bf16", 4 + 16 / 128),
    "gptq with zeros": (GPTQ | {"sym": False}, "bf16 x int4 (group 128, int4 zeros) -> bf16", 4 + 20 / 128),
    "gptq of 8 bits": (GPTQ | {"bits": 8, "group_size": 32}, "bf16 x int8 (group 32) -> bf16", 8 + 16 / 32),
    "gptq in act-order": (GPTQ | {"desc_act": True}, "bf16 x int4 (group 128) -> bf16", 4 + 16 / 128 + 32 / 6144),
    "gptq by column": (GPTQ | {"group_size": -1}, "bf16 x int4 (per column) -> bf16", 4 + 16 / 4096),
    "fp8 in blocks": (FP8, "fp8 (group 128) x fp8 (group 128x128) -> bf16", 8 + 32 / 128**2),
    "fp8 static": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        "fp8 x fp8 -> bf16", 8 + 64 / (6144 * 4096)),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        "fp8 x fp8 -> bf16", 8 + 32 / 4096),
    "pack-quantized": (compressed("pack-quantized", group(INT4)), "bf16 x int4 (group 128) -> bf16", 4 + 16 / 128),
    "pack-quantized in act-order": (compressed("pack-quantized",
        group(INT4 | {"actorder": "group", "symmetric": False})), "bf16 x int4 (group 128, int4 zeros) -> bf16",
        4 + 20 / 128 + 32 / 6144),
    "float-quantized, dynamic": (compressed("float-quantized", group(FP8_CHANNEL, FP8_TOKEN)), "fp8 x fp8 -> bf16",
        8 + 32 / 4096),
    "float-quantized, static": (compressed("float-quantized", group(FP8_TENSOR, FP8_TENSOR)), "fp8 x fp8 -> bf16",
        8 + 64 / (6144 * 4096)),
    "float-quantized, blocks": (compressed("float-quantized",
        group(FP8_BLOCK, FP8_TOKEN | {"strategy": "group", "group_size": 128})),
        "fp8 (group 128) x fp8 (group 128x128) -> bf16", 8 + 32 / 128**2),
    "fp8 weights alone": (compressed("naive-quantized", group(FP8_CHANNEL)), "bf16 x fp8 (per column) -> bf16",
        8 + 16 / 4096),
    "int-quantized": (compressed("int-quantized", group(INT8, INT8 | {"strategy": "token", "dynamic": True})),
        "int8 x int8 -> bf16", 8 + 32 / 4096),
    "nvfp4": (compressed("nvfp4-pack-quantized", group(NVFP4, NVFP4 | {"dynamic": "local"})),
        "fp4 (group 16) x fp4 (group 16) -> bf16", 4 + 8 / 16 + 64 / (6144 * 4096)),
    "nvfp4 weights alone": (compressed("nvfp4-pack-quantized", group(NVFP4)), "bf16 x fp4 (group 16) -> bf16",
        4 + 8 / 16 + 64 / (6144 * 4096)),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
        "producer": {"name": "modelopt"}}, "fp4 (group 16) x fp4 (group 16) -> bf16", 4 + 8 / 16 + 64 / (6144 * 4096)),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        "fp8 x fp8 -> bf16", 8 + 64 / (6144 * 4096)),
    "nf4": (BNB, "bf16 x int4 (group 64) -> bf16", 4 + 32 / 64),
    "nf4, twice": (BNB | {"bnb_4bit_use_double_quant": True}, "bf16 x int4 (group 64) -> bf16", 4 + 8 / 64),
}  # fmt: skip


@pytest.mark.parametrize(("quantization", "types", "bits"), FORMATS.values(), ids=list(FORMATS))
def test_formats(quantization: dict[str, Any], types: str, bits: float) -> None:
    config = quantized("llama-3-8b", **quantization)
    found = words(config)
    stored = {part.name: part for part in model_memory(config, **ONE).weights}

    assert config.dtype is DType.BF16
    assert {found[name] for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")} == {types}
    assert found["lm_head"] == "bf16 x bf16 -> bf16"
    assert stored["qkv_proj"].num_bytes == pytest.approx(32 * 6144 * 4096 * bits / 8, rel=1e-9)
    assert stored["lm_head"].num_bytes == stored["embedding"].num_bytes == 2 * 128256 * 4096
    assert all("bf16" in word for word in words(config, dtype="bf16").values())  # what is asked for wins


KIMI_INT4 = compressed(
    "pack-quantized",
    group(INT4 | {"group_size": 32}),
    ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
)
LISTS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "experts alone, by regular expressions": ("kimi-k2", KIMI_INT4, {"expert_gate_up", "expert_down"}),
    "mxfp4": ("gpt-oss-20b",
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        {"expert_gate_up", "expert_down"}),
    "router by name": ("qwen3-30b-a3b",
        {"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}.mlp.gate" for i in range(48)]},
        {"qkv_proj", "o_proj", "expert_gate_up", "expert_down"}),
    "router not named": ("qwen3-30b-a3b", {"quant_method": "fp8"},
        {"qkv_proj", "o_proj", "router", "expert_gate_up", "expert_down"}),
    "routers that no tool quantizes": ("mixtral-8x7b", GPTQ, {"qkv_proj", "o_proj", "expert_gate_up", "expert_down"}),
    "part of a name": ("mixtral-8x7b", {"quant_method": "fp8", "modules_to_not_convert": ["gate", "self_attn"]},
        {"expert_gate_up", "expert_down"}),
    "LM head too": ("llama-3-8b", compressed("float-quantized", group(FP8_CHANNEL, FP8_TOKEN), ignore=[]),
        {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"}),
    "attention in bf16, of a model that sees": ("llama-4-scout", compressed("float-quantized",
        group(FP8_CHANNEL, FP8_TOKEN),
        ignore=["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*vision_model.*", "vision_model.0.fc1"]),
        {"expert_gate_up", "expert_down", "shared_gate_up", "shared_down"}),
    "a list of blocks": ("llama-3-8b",
        GPTQ | {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
        {"gate_up_proj", "down_proj"}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "quantization", "meant"), LISTS.values(), ids=list(LISTS))
def test_which_gemms_are_quantized(name: str, quantization: dict[str, Any], meant: set[str]) -> None:
    found = words(quantized(name, **quantization))

    assert {gemm for gemm, word in found.items() if not word.startswith("bf16 x bf16")} == meant


def test_layers_that_differ_are_gemms_of_their_own() -> None:
    ignored = ["lm_head", "model.layers.0", *(f"model.layers.{i}.mlp" for i in (1, 30, 31)), "vision_tower.layers.3"]
    config = quantized("llama-3-8b", quant_method="fp8", modules_to_not_convert=ignored)
    found = {gemm.name: gemm for gemm in transformer_gemms(config, phase="prefill", **ONE)}

    assert {name: gemm.num_layers for name, gemm in found.items() if gemm.is_weight} == {
        "qkv_proj": 31, "qkv_proj_bf16": 1, "o_proj": 31, "o_proj_bf16": 1, "gate_up_proj": 28, "gate_up_proj_bf16": 4,
        "down_proj": 28, "down_proj_bf16": 4, "lm_head": 1,
    }  # fmt: skip
    assert found["gate_up_proj"].problem.weight_dtype is DType.FP8
    assert found["gate_up_proj_bf16"].problem.weight_dtype is DType.BF16
    assert config.quantization is not None
    assert config.quantization.format_of("down_proj", 30) is None
    assert config.quantization.format_of("down_proj", 2) is not None


def test_formats_that_differ_by_module() -> None:
    fp8 = group(FP8_CHANNEL, FP8_TOKEN, r"re:.*mlp\.down_proj.*")
    config = quantized("llama-3-8b", **compressed("mixed-precision", group(NVFP4, NVFP4), fp8))
    dynamic = {r"+:.*\.down_proj": {"bits": 8, "group_size": 32}, r"-:.*\.self_attn\..*": {}}
    gptq = quantized("llama-3-8b", **GPTQ, dynamic=dynamic)

    assert words(config)["down_proj"] == "fp8 x fp8 -> bf16"
    assert words(config)["o_proj"].startswith("fp4 (group 16)")
    assert words(gptq)["down_proj"] == "bf16 x int8 (group 32) -> bf16"
    assert words(gptq)["qkv_proj"] == "bf16 x bf16 -> bf16"
    assert words(gptq)["gate_up_proj"] == "bf16 x int4 (group 128) -> bf16"


def test_kv_caches_have_the_type_that_the_checkpoint_has_scales_of() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    tensors = group(FP8_TENSOR, FP8_TENSOR)
    config = quantized("llama-3-8b", **compressed("float-quantized", tensors, kv_cache_scheme=scheme))
    token = 2 * 32 * 8 * 128

    assert config.quantization is not None
    assert config.quantization.kv_cache_dtype is DType.FP8
    assert model_memory(config, **ONE).kv_cache_bytes == 16 * token
    assert model_memory(config, **ONE, dtype="bf16").kv_cache_bytes == 2 * 16 * token
    assert model_memory(config, **ONE, kv_dtype="bf16").kv_cache_bytes == 2 * 16 * token
    modelopt = quantized("llama-3-8b", quant_method="modelopt", quant_algo="NVFP4", kv_cache_quant_algo="FP8")
    assert model_memory(modelopt, **ONE).kv_cache_bytes == 16 * token


PACKED = compressed("pack-quantized", group(INT4))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "aqlm"}, "quant_method must be one of awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8"),
    ({"load_in_4bit": True}, "quant_method must be one of"),
    (AWQ | {"bits": 3}, "bits must be 4, got 3"),
    (GPTQ | {"bits": 2}, "bits must be one of 4, 8, got 2"),
    (GPTQ | {"group_size": 0}, "group_size must be a size, or -1 for all K"),
    (GPTQ | {"rotation": "hadamard"}, "rotation is not a key that is known here"),
    (GPTQ | {"dynamic": {"-:(a+)+": {}}}, "dynamic has a pattern with more than"),
    (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic has a pattern that is no regular expression"),
    (FP8 | {"weight_block_size": [128]}, "weight_block_size must be two sizes"),
    (FP8 | {"activation_scheme": "guess"}, "activation_scheme must be static or dynamic"),
    (BNB | {"load_in_4bit": False, "load_in_8bit": True}, "LLM.int8 splits off outliers"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo must be NVFP4 or FP8"),
    (compressed("marlin-24", group(INT4)), "format must be dense or pack-quantized"),
    (compressed("pack-quantized", group(INT4 | {"num_bits": 3})), "num_bits must be 4 or 8"),
    (PACKED | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config must be empty"),
    (PACKED | {"transform_config": {"config_groups": {"a": {}}}}, "transform_config must be"),
    (compressed("float-quantized", group(FP8_CHANNEL, INT8)), "num_bits must go with fp8 weights"),
    (FP8 | {"modules_to_not_convert": ["model.layers.3.self_attn.k_proj"]}, "qkv_proj of layer 3, but does not"),
    (FP8 | {"modules_to_not_convert": ["re:.*(.+)+x"]}, "modules_to_not_convert has a pattern with more than 4"),
    (FP8 | {"modules_to_not_convert": 3}, "modules_to_not_convert must be a list of str"),
]  # fmt: skip


@pytest.mark.parametrize(("quantization", "message"), REFUSED)
def test_what_is_not_known_is_refused_by_name(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        quantized("llama-3-8b", **quantization)

    assert message in str(caught.value)
    assert "some/config.json: quantization_config" in str(caught.value)


def test_experts_of_a_layer_are_alike() -> None:
    some = [f"model.layers.3.mlp.experts.{i}.down_proj" for i in range(128)]

    assert quantized("qwen3-30b-a3b", **FP8, modules_to_not_convert=some).quantization is not None
    with pytest.raises(ModelConfigError, match="must treat the experts of a layer alike, but names"):
        quantized("qwen3-30b-a3b", **FP8, modules_to_not_convert=some[5:])


def test_architectures_and_keys_that_are_not_modelled_are_refused_by_name() -> None:
    llama = SAMPLES["llama-3-8b"].config
    for changes, message in (
        ({"model_type": "falcon_h1"}, "Mamba2 and attention side by side"),
        ({"model_type": "zamba2"}, "attention blocks that layers share"),
        ({"model_type": "deepseek_v4"}, "compressed and sparse caches"),
        ({"model_type": "hunyuan_v1_moe"}, "lists by layer"),
        ({**SAMPLES["glm-5"].config, "indexer_types": ["full", "shared"] * 39}, "indexer_types must be full"),
        ({**SAMPLES["nemotron-3-nano-30b-a3b"].config, "moe_latent_size": 1024}, "experts on latents"),
        ({**SAMPLES["nemotron-nano-9b-v2"].config, "hybrid_override_pattern": "-M" * 28}, "before each network"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is not a key that is known here"),
        ({"attn_output_gate": True}, "attn_output_gate is not a key"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype must be one of bfloat16, float16, float32"),
        ({"model_type": "llama4", "text_config": {"model_type": "gemma4"}}, "heads of other sizes"),
        ({"model_type": "llama4", "text_config": SAMPLES["llama-3-8b"].config}, "hidden_size is not a key"),
    ):
        with case(changes), pytest.raises(ModelConfigError) as caught:
            parse_config(llama | changes, name="x", origin="some/config.json")
        assert message in str(caught.value)
    inert: dict[str, Any]
    inert = {"attn_output_gate": False, "num_kv_shared_layers": 0, "layer_scales": None, "adapters": [], "peft": {}}
    assert parse_config(llama | inert, name="x", origin="here").num_layers == 32


def test_types_of_a_checkpoint_on_an_arch() -> None:
    config = quantized("llama-3-8b", **GPTQ)
    for arch_name, dtype, dense, types in (
        ("h200-sxm", None, None, ("fp16", "fp16")), ("h200-sxm", "fp8", None, ("fp8", "bf16")),
        ("h200-sxm", "w4a16", "bf16", ("w4a16", "bf16")), ("tpu-v5e", "int8", None, ("int8", "bf16")),
        ("ascend-910", "int8", None, ("int8", "fp16")), ("rk3588-npu", None, None, ("int8", "bf16")),
    ):  # fmt: skip
        assert tuple(types_on(load_arch(arch_name), dtype, dense).values()) == types, arch_name
    plain = parse_config(SAMPLES["llama-3-8b"].config, name="x", origin="here")
    for arch, of, dtype, found in (
        ("h200-sxm", config, None, (None, "bf16")),
        ("h200-sxm", config, "fp8", ("fp8", "bf16")),
        ("ascend-910", config, None, (None, "fp16")),  # has no bf16
        ("h200-sxm", plain, None, ("bf16", "bf16")),
        ("ascend-910", plain, None, ("fp16", "fp16")),
        ("h200-sxm", load_model("gpt-3-175b"), None, ("fp16", "fp16")),
    ):
        assert tuple(types_on(load_arch(arch), dtype, None, of).values()) == found, (arch, dtype)
    with pytest.raises(InvalidOptionError, match="quantize_router is for a dtype of your own"):
        transformer_gemms(config, phase="decode", **ONE, quantize_router=True)
    assert words(config, dense_dtype="fp16")["qkv_proj"] == "fp16 x int4 (group 128) -> fp16"
    assert words(quantized("gpt-oss-20b", **FP8), expert_dtype="w4a16_mxfp4")["expert_down"].startswith("fp16 x fp4")


def test_an_arch_runs_a_checkpoint_whose_types_it_lacks() -> None:
    published = load_model("deepseek-v3")
    assert words(published)["gate_up_proj"] == "fp8 (group 128) x fp8 (group 128x128) -> bf16"
    assert model_on(load_arch("h200-sxm"), published) is published
    a100 = words(model_on(load_arch("a100-sxm-80gb"), published))
    assert a100["gate_up_proj"] == "bf16 x fp8 (group 128x128) -> bf16"
    tpu = model_on(load_arch("tpu-v5e"), published)
    assert words(tpu)["gate_up_proj"] == "bf16 x fp8 (group 128) -> bf16"
    npu = model_on(load_arch("rk3588-npu"), published)
    assert words(npu)["gate_up_proj"] == "bf16 x bf16 -> bf16"
    nvfp4 = quantized("llama-3-8b", **FORMATS["nvfp4"][0])
    assert words(model_on(load_arch("h200-sxm"), nvfp4))["down_proj"].startswith("bf16 x fp4 (group 16)")


def test_presets_have_the_types_that_are_published() -> None:
    dtypes = {name: load_model(name).dtype for name in list_models()}
    assert {name for name, dtype in dtypes.items() if dtype != "bf16"} == {"gpt-3-175b", "llama-2-7b"}
    methods = {name: load_model(name).quantization for name in list_models()}
    assert {name: one.method for name, one in methods.items() if one is not None} == {
        "deepseek-v3": "fp8", "deepseek-v3.2": "fp8", "gpt-oss-20b": "mxfp4", "gpt-oss-120b": "mxfp4", "kimi-k2": "fp8",
    }  # fmt: skip
    blocks = quantized("deepseek-v3", quant_method="fp8", weight_block_size=[128, 128]).quantization
    assert blocks == methods["deepseek-v3"] == methods["kimi-k2"]
    assert 670e9 < model_memory(load_model("deepseek-v3"), **ONE).weight_bytes < 680e9  # as the hub shows


@given(st.data(), st.sampled_from(sorted(FORMATS)), st.sampled_from(["llama-3-8b", "deepseek-v3", "qwen3-30b-a3b"]))
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject, form: str, name: str) -> None:
    quantization = FORMATS[form][0]
    key = data.draw(st.sampled_from(sorted(quantization)))
    try:
        config = quantized(name, **quantization | {key: data.draw(json_values)})
    except ModelConfigError as error:
        told = str(error)
    else:
        told = "some/config.json"
        assert transformer_gemms(config, phase="decode", batch_size=1, seq_len=1)
    assert "some/config.json" in told
