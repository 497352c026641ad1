"""The formats of `quantization_config`, method by method: how weights are stored, and which modules are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.transformer.hugging_face_rules import NameRules
from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.quantization import WeightFormat

__all__ = [
    "Scheme",
    "Schemes",
    "ignored_modules",
    "kv_cache_dtype_of",
    "make_format",
    "read_simple_format",
    "word_of",
]

_PER_COLUMN = -1
_LISTS = ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules", "ignored_layers")
_KNOWN = frozenset(
    (
        "quant_method", "version", "checkpoint_format", "damp_percent", "static_groups", "true_sequential", "meta",
        "is_marlin_format", "model_name_or_path", "model_file_base_name", "dataset", "tokenizer", "batch_size",
        "cache_block_outputs", "use_cuda_fp16", "use_exllama", "exllama_config", "max_input_length", "model_seqlen",
        "module_name_preceding_first_block", "block_name_to_quantize", "pad_token_id", "backend", "do_fuse",
        "fuse_max_seq_len", "modules_to_fuse", "lm_head", "pack_dtype", "format", "global_compression_ratio",
        "quantization_status", "fmt", "scale_fmt", "activation_scale_ub", "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant", "llm_int8_threshold", "llm_int8_has_fp16_weight",
        "llm_int8_enable_fp32_cpu_offload", "_load_in_4bit", "_load_in_8bit", "producer", "provider", "kv_cache_scheme",
        "kv_cache_quant_algo", "quantizer", "autoround_version", "iters", "nsamples", "seqlen", "low_gpu_mem_usage",
        "enable_quanted_input", "calib_data", "actorder", "use_triton", "dequantize", "mode",
    )
)  # fmt: skip
"""Keys that are read where they matter, or say how weights were found and not how they are stored."""

_Targets = Callable[[str], bool] | None


class Scheme(NamedTuple):
    """A format, and the modules that have it; None: all linear layers."""

    targets: _Targets
    format: WeightFormat


class Schemes(NamedTuple):
    """What a `quantization_config` says: the first scheme that means a module holds, unless it is ignored."""

    schemes: Sequence[Scheme]
    ignored: Callable[[str], bool]
    list_key: str
    has_lm_head: bool = False
    experts_only: bool = False
    kv_cache_dtype: DType | None = None
    known_keys: frozenset[str] = _KNOWN


def make_format(**fields: Any) -> WeightFormat:
    """Return a format of the fields that are not None."""
    return WeightFormat(**{name: value for name, value in fields.items() if value is not None})


def ignored_modules(keys: Keys) -> tuple[NameRules, str]:
    """The modules that are kept, whatever their list is called."""
    for key in _LISTS:
        patterns = keys.items(key, str)
        if patterns is not None:
            return NameRules(patterns, keys, key), key
    return NameRules((), keys, _LISTS[0]), _LISTS[0]


def read_simple_format(keys: Keys, method: str) -> Schemes:
    """Read the methods that have one format for all: AWQ, GPTQ, fp8, MXFP4, bitsandbytes, ModelOpt.

    Raises:
        ModelConfigError: another method or format.
    """
    if method not in _SIMPLE:
        keys.refuse("quant_method", f"must be one of {', '.join(sorted((*_SIMPLE, 'compressed-tensors')))}")
    rules, key = ignored_modules(keys)
    form = _SIMPLE[method](keys)
    if method == "mxfp4":
        return Schemes([Scheme(None, form)], rules.matches, key, experts_only=True)
    if method == "gptq":
        return _gptq_schemes(keys, form, rules, key)
    return Schemes([Scheme(None, form)], rules.matches, key, kv_cache_dtype=kv_cache_dtype_of(keys))


def _awq(keys: Keys) -> WeightFormat:
    """W = scale * (integer - zero), scales in fp16, zeros in 4 bits."""
    bits_key = "w_bit" if "w_bit" in keys else "bits"
    if keys.size(bits_key) != DType.INT4.bits:
        keys.refuse(bits_key, "must be 4")
    group_key = "q_group_size" if "q_group_size" in keys else "group_size"
    zeros = DType.INT4 if keys.flag("zero_point", default=True) else None
    return make_format(
        weight_dtype=DType.INT4, group_size=_group(keys, group_key), scale_dtype=DType.FP16, zero_dtype=zeros
    )


_GPTQ_TYPES = {4: DType.INT4, 8: DType.INT8}


def _gptq(keys: Keys) -> WeightFormat:
    """As engines hold it: zeros only if they differ (sym), and the group of each row only if it is not in order."""
    bits = keys.size("bits")
    if bits not in _GPTQ_TYPES:
        keys.refuse("bits", f"must be one of {', '.join(map(str, _GPTQ_TYPES))}")
    dtype = _GPTQ_TYPES[bits]
    group = _group(keys, "group_size")
    return make_format(
        weight_dtype=dtype,
        group_size=group,
        scale_dtype=DType.FP16,
        zero_dtype=None if keys.flag("sym", default=True) else dtype,
        has_group_index=keys.flag("desc_act", default=False) and group is not None,
    )


def _gptq_schemes(keys: Keys, form: WeightFormat, rules: NameRules, key: str) -> Schemes:
    """GPTQModel's `dynamic`: ``-:`` patterns are kept, others have bits and groups of their own."""
    schemes, kept = [], [rules.matches]
    if "dynamic" in keys:
        dynamic = keys.part("dynamic")
        for pattern in dynamic.names():
            meant = NameRules([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"], keys, "dynamic").matches
            if pattern.startswith("-:"):
                kept.append(meant)
            else:
                inner = dynamic.part(pattern)
                own = inner.over(keys, ("bits", "group_size", "sym", "desc_act"), {})
                schemes.append(Scheme(meant, _gptq(own)))
                own.refuse_rest(_KNOWN)
    within = keys.nested_texts("modules_in_block_to_quantize")
    targets = None if within is None else NameRules(within, keys, "modules_in_block_to_quantize").matches
    schemes.append(Scheme(targets, form))
    return Schemes(
        schemes,
        lambda name: any(meant(name) for meant in kept),
        key,
        has_lm_head=keys.flag("lm_head", default=False),
    )


def _fp8(keys: Keys) -> WeightFormat:
    """fp8 of transformers and DeepSeek: one scale for a block (fp32), or for a matrix."""
    keys.ignore("activation_scheme")
    is_static = word_of(keys, "activation_scheme", ("static", "dynamic"), "dynamic") == "static"
    block = keys.items("weight_block_size", int)
    if block is None:
        return make_format(weight_dtype=DType.FP8, input_dtype=DType.FP8, num_tensor_scales=1 + is_static)
    if len(block) != 2 or min(block) < 1:
        keys.refuse("weight_block_size", "must be two sizes, of N and of K")
    return make_format(
        weight_dtype=DType.FP8, input_dtype=DType.FP8, group_n=block[0], group_size=block[1], scale_dtype=DType.FP32
    )


def _fbgemm_fp8(_: Keys) -> WeightFormat:
    """fp8 with one scale for each column, and one for each token as it comes."""
    return make_format(weight_dtype=DType.FP8, input_dtype=DType.FP8, column_scale_dtype=DType.FP32)


def _mxfp4(_: Keys) -> WeightFormat:
    """gpt-oss: experts in MXFP4, activations in the model's type."""
    return make_format(weight_dtype=DType.FP4, group_size=32, scale_dtype=DType.E8M0)


def _bitsandbytes(keys: Keys) -> WeightFormat:
    """NF4 and FP4: 4 bits, an fp32 scale for 64 weights, or 8 bits of one (double quantization)."""
    if not keys.flag("load_in_4bit", default=False):
        keys.refuse("load_in_4bit", "must be true: LLM.int8 splits off outliers as they come, which has no fixed cost")
    keys.ignore("load_in_8bit")
    word_of(keys, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    scale = DType.FP8 if keys.flag("bnb_4bit_use_double_quant", default=False) else DType.FP32
    return make_format(weight_dtype=DType.INT4, group_size=64, scale_dtype=scale)


def _modelopt(keys: Keys) -> WeightFormat:
    """ModelOpt: NVFP4, or fp8 with one scale for a matrix and one for its inputs."""
    keys.ignore("group_size", "config_groups")
    if word_of(keys, "quant_algo", ("NVFP4", "FP8"), None) == "FP8":
        return make_format(weight_dtype=DType.FP8, input_dtype=DType.FP8, num_tensor_scales=2)
    return make_format(
        weight_dtype=DType.FP4, input_dtype=DType.FP4, group_size=16, scale_dtype=DType.FP8, num_tensor_scales=2
    )


_SIMPLE: Mapping[str, Callable[[Keys], WeightFormat]] = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}


def word_of(keys: Keys, key: str, known: Sequence[str], default: str | None) -> str:
    """Return one of the `known` words; `default` is what a missing key stands for, None: it must be there."""
    found = keys.text(key) if default is None else keys.text(key, default)
    if found not in known:
        keys.refuse(key, f"must be {' or '.join(known)}")
    return found


def _group(keys: Keys, key: str) -> int | None:
    """A group size; None: one group for all K, which is written as -1."""
    value = keys.integer(key, _PER_COLUMN)
    if value == 0:
        keys.refuse(key, "must be a size, or -1 for all K")
    return None if value == _PER_COLUMN else value


def kv_cache_dtype_of(keys: Keys) -> DType | None:
    """The type that a checkpoint has scales of keys and values for."""
    if "kv_cache_quant_algo" in keys:
        word_of(keys, "kv_cache_quant_algo", ("FP8", "fp8"), None)
        return DType.FP8
    if "kv_cache_scheme" not in keys:
        return None
    scheme = keys.part("kv_cache_scheme")
    if scheme.size("num_bits") != DType.FP8.bits:
        scheme.refuse("num_bits", "must be 8")
    return {"float": DType.FP8, "int": DType.INT8}[word_of(scheme, "type", ("float", "int"), "float")]
