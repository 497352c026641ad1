"""`quantization_config` of Hugging Face files: which GEMMs are quantized, in which layers, and in which format."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from gemm_eval.dtypes import DType
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.gemms import gemm_layers, module_names
from gemm_eval.transformer.hugging_face_keys import Fields, Keys, some
from gemm_eval.transformer.parts import GEMM_NAMES, WeightFormat
from gemm_eval.words import shown

_REGEX = "re:"
_MAX_RULES = 1 << 14
_MAX_REGEXES = 64
_MAX_CHARS = 300
_MAX_QUANTIFIERS = 4  # a name has up to 70 letters: more could take minutes to match
_OTHER_EXPERT = re.compile(r"experts\.(?!0(?:\.|$))\d+(?=\.|$)")
_OTHER_MODELS = ("vision", "visual", "multi_modal_projector", "mm_projector", "audio")


_Says = Callable[[str], bool]


def name_rules(patterns: Iterable[str], keys: Keys, key: str) -> _Says:
    """Return what says whether patterns mean a module; `keys` and `key` say where they stand.

    They are whole names, parts of names between dots (with ``*``), and regular expressions (``re:``). A pattern that is
    no regular expression means a module if its parts, as dots cut it, are parts of the module's name one after the
    other: ``"lm_head"``, ``"self_attn"``, ``"model.layers.0"``, ``"model.layers.*.mlp.gate"``.
    """
    # encoders of images or sound, of which some lists have hundreds, are elsewhere
    names = [name for name in dict.fromkeys(patterns) if not name.removeprefix("model.").startswith(_OTHER_MODELS)]
    if len(names) > _MAX_RULES or any(len(name) > _MAX_CHARS for name in names):
        keys.refuse(key, f"must have at most {_MAX_RULES} patterns, of {_MAX_CHARS} letters each")
    every, whole, within, regexes = set(names), set[str](), list[str](), list[re.Pattern[str]]()
    for pattern in names:
        first = _OTHER_EXPERT.sub("experts.0", pattern)
        if first not in every:
            keys.refuse(key, f"must treat the experts of a layer alike, but names {shown(pattern)} alone")
        if first != pattern:
            continue
        if pattern.startswith(_REGEX):
            regexes.append(_compiled(pattern.removeprefix(_REGEX), keys, key))
        elif any(letter in pattern for letter in "*?["):
            if pattern.count("*") > _MAX_QUANTIFIERS:
                _refuse_slow(keys, key)
            regexes.append(re.compile(rf"(?:.*\.)?{fnmatch.translate(pattern.strip('.'))[:-2]}(?:\..*)?\Z"))
        elif pattern.startswith(("model.", "language_model.")):
            whole.add(pattern.strip("."))
        else:
            within.append(f".{pattern.strip('.')}.")
    if len(regexes) > _MAX_REGEXES:
        keys.refuse(key, f"must have at most {_MAX_REGEXES} patterns that are no plain names")

    def matches(name: str) -> bool:
        ends = (at for at, letter in enumerate(f"{name}.") if letter == ".")
        return (
            any(name[:end] in whole for end in ends)
            or any(part in f".{name}." for part in within)
            or any(regex.match(name) for regex in regexes)
        )

    return matches


def _compiled(pattern: str, keys: Keys, key: str) -> re.Pattern[str]:
    if len(re.findall(r"[*+{]", pattern)) > _MAX_QUANTIFIERS or re.search(r"\)\s*[*+{]", pattern):
        _refuse_slow(keys, key)
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        keys.refuse(key, "has a pattern that is no regular expression")


def _refuse_slow(keys: Keys, key: str) -> NoReturn:
    keys.refuse(key, f"has a pattern with more than {_MAX_QUANTIFIERS} repetitions, or with repeated groups")


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

_Scheme = tuple[_Says | None, WeightFormat]  # which modules have a format; None: all linear layers


class Schemes(NamedTuple):
    """The content of a `quantization_config`: the first scheme that means a module holds, unless it is ignored."""

    schemes: Sequence[_Scheme]
    ignored: _Says
    list_key: str
    has_lm_head: bool = False
    experts_only: bool = False
    kv_cache_dtype: DType | None = None


def make_format(**fields: Any) -> WeightFormat:
    """Return a format of the fields that are not None."""
    return WeightFormat(**{name: value for name, value in fields.items() if value is not None})


def ignored_modules(keys: Keys) -> tuple[_Says, str]:
    """Return the modules that are kept, whatever their list is called."""
    key = next((key for key in _LISTS if key in keys), _LISTS[0])
    return name_rules(keys.items(key, str) or (), keys, key), key


def read_simple_format(keys: Keys, method: str) -> Schemes:
    """Read the methods that have one format for all: AWQ, GPTQ, fp8, MXFP4, bitsandbytes, ModelOpt."""
    if method not in _SIMPLE:
        keys.refuse("quant_method", f"must be one of {', '.join(sorted((*_SIMPLE, 'compressed-tensors')))}")
    ignored, key = ignored_modules(keys)
    form = _SIMPLE[method](keys)
    if method == "gptq":
        return _gptq_schemes(keys, form, ignored, key)
    if method == "mxfp4":
        return Schemes([(None, form)], ignored, key, experts_only=True)
    return Schemes([(None, form)], ignored, key, kv_cache_dtype=kv_cache_dtype_of(keys))


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
    """Tensors as engines hold them: zeros only if they differ (sym), groups of rows only if not in order."""
    bits = keys.size("bits")
    if bits not in _GPTQ_TYPES:
        keys.refuse("bits", f"must be one of {', '.join(map(str, _GPTQ_TYPES))}")
    dtype = _GPTQ_TYPES[bits]
    group = _group(keys, "group_size")
    return make_format(
        weight_dtype=dtype, group_size=group, scale_dtype=DType.FP16,
        zero_dtype=None if keys.flag("sym", default=True) else dtype,
        has_group_index=keys.flag("desc_act", default=False) and group is not None,
    )  # fmt: skip


def _gptq_schemes(keys: Keys, form: WeightFormat, ignored: _Says, key: str) -> Schemes:
    """GPTQModel's `dynamic`: ``-:`` patterns are kept, others have bits and groups of their own."""
    schemes: list[_Scheme] = []
    kept = [ignored]
    if "dynamic" in keys:
        dynamic = keys.part("dynamic")
        for pattern in dynamic.names():
            meant = name_rules([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"], keys, "dynamic")
            if pattern.startswith("-:"):
                kept.append(meant)
            else:
                inner = dynamic.part(pattern)
                own = inner.over(keys, ("bits", "group_size", "sym", "desc_act"), {})
                schemes.append((meant, _gptq(own)))
                own.refuse_rest(_KNOWN)
    blocks, targets = keys.items("modules_in_block_to_quantize", list), None
    if blocks is not None:
        names = [name for block in blocks for name in block]
        if not all(type(name) is str for name in names):
            keys.refuse("modules_in_block_to_quantize", "must be a list of lists of str")
        targets = name_rules(names, keys, "modules_in_block_to_quantize")
    schemes.append((targets, form))
    return Schemes(
        schemes, lambda name: any(meant(name) for meant in kept), key, has_lm_head=keys.flag("lm_head", default=False)
    )


def _fp8(keys: Keys) -> WeightFormat:
    """fp8 of transformers and DeepSeek: one scale for a block (fp32), or for a matrix."""
    keys.ignore("activation_scheme")
    is_static = word_of(keys, "activation_scheme", ("static", "dynamic"), "dynamic") == "static"
    fp8 = {"weight_dtype": DType.FP8, "input_dtype": DType.FP8}
    if "weight_block_size" in keys:
        return make_format(**fp8, **_block(keys, "weight_block_size"))
    return make_format(**fp8, num_tensor_scales=1 + is_static)


def _block(keys: Keys, key: str) -> Fields:
    block = keys.items(key, int)
    if block is None or len(block) != 2 or min(block) < 1:
        keys.refuse(key, "must be two sizes, of N and of K")
    return {"group_n": block[0], "group_size": block[1], "scale_dtype": DType.FP32}


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
    "awq": _awq, "bitsandbytes": _bitsandbytes, "fp8": _fp8, "gptq": _gptq, "modelopt": _modelopt,
    # one scale for each column, and one for each token as it comes
    "fbgemm_fp8": lambda _: make_format(weight_dtype=DType.FP8, input_dtype=DType.FP8, column_scale_dtype=DType.FP32),
    # gpt-oss: experts in MXFP4, activations in the model's type
    "mxfp4": lambda _: make_format(weight_dtype=DType.FP4, group_size=32, scale_dtype=DType.E8M0),
}  # fmt: skip


def word_of(keys: Keys, key: str, known: Sequence[str], default: str | None) -> str:
    """Return one of the `known` words; `default` is what a missing key stands for, None: it must be there."""
    result = keys.text(key) if default is None else keys.text(key, default)
    if result not in known:
        keys.refuse(key, f"must be {' or '.join(known)}")
    return result


def _group(keys: Keys, key: str) -> int | None:
    """Return a group size; None: one group for all K, which is written as -1."""
    value = keys.size(key, at_least=_PER_COLUMN)
    if value == 0:
        keys.refuse(key, "must be a size, or -1 for all K")
    return None if value == _PER_COLUMN else value


def kv_cache_dtype_of(keys: Keys) -> DType | None:
    """Return the type that a checkpoint has scales of keys and values for."""
    if "kv_cache_quant_algo" in keys:
        word_of(keys, "kv_cache_quant_algo", ("FP8", "fp8"), None)
        return DType.FP8
    if "kv_cache_scheme" not in keys:
        return None
    scheme = keys.part("kv_cache_scheme")
    if scheme.size("num_bits") != DType.FP8.bits:
        scheme.refuse("num_bits", "must be 8")
    return {"float": DType.FP8, "int": DType.INT8}[word_of(scheme, "type", ("float", "int"), "float")]


_CT_FORMATS = (
    "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision", "compressed",
)  # fmt: skip


def read_compressed_tensors(keys: Keys) -> Schemes:
    """Read compressed-tensors: groups of modules, each with the types of its weights and activations."""
    word_of(keys, "format", _CT_FORMATS, "dense")
    ignored, key = ignored_modules(keys)
    for name in ("sparsity_config", "transform_config"):
        if name in keys:
            inner = keys.part(name)
            if inner.names() and inner.text("format", "") != "dense":
                keys.refuse(name, "must be empty: sparse weights and online transforms are not modelled")
    schemes: list[_Scheme] = []
    groups = keys.part("config_groups")
    for name in groups.names():
        group = groups.part(name)
        if "weights" not in group:
            continue
        targets, form = group.items("targets", str) or [], _ct_format(group)
        if "Linear" in targets:
            schemes.append((None, form))
        else:
            schemes.insert(0, (name_rules(targets, group, "targets"), form))
    return Schemes(schemes, ignored, key, has_lm_head=True, kv_cache_dtype=kv_cache_dtype_of(keys))


_CT_TYPES = {(4, "int"): DType.INT4, (8, "int"): DType.INT8, (8, "float"): DType.FP8, (4, "float"): DType.FP4}


def _ct_format(group: Keys) -> WeightFormat:
    weights = group.part("weights")
    activations = group.part("input_activations") if "input_activations" in group else None
    bits, kind = weights.size("num_bits"), word_of(weights, "type", ("int", "float"), "int")
    if (bits, kind) not in _CT_TYPES:
        weights.refuse("num_bits", "must be 4 or 8")
    dtype = _CT_TYPES[bits, kind]
    inputs = None if activations is None else _ct_inputs(activations, dtype)
    is_static = activations is not None and activations.item("dynamic") is False
    strategy = word_of(weights, "strategy", ("tensor", "channel", "group", "tensor_group", "block"), "tensor")
    fields: dict[str, Any] = {"weight_dtype": dtype, "input_dtype": inputs}
    if strategy in ("group", "tensor_group"):
        fields["group_size"] = weights.size("group_size")
        if dtype is not DType.FP4:
            fields["zero_dtype"] = None if weights.flag("symmetric", default=True) else dtype
        elif strategy == "tensor_group":  # NVFP4
            fields |= {"scale_dtype": DType.FP8, "num_tensor_scales": 2}
        else:
            fields["scale_dtype"] = DType.E8M0
    elif strategy == "block":
        fields |= _block(weights, "block_structure")
    elif inputs is dtype:
        fields |= {"column_scale_dtype": DType.FP32} if strategy == "channel" else {"num_tensor_scales": 1 + is_static}
    is_ordered = weights.item("actorder") in (None, False, "weight", "static")
    if not is_ordered and strategy == "group":
        fields["has_group_index"] = True
    return make_format(**fields)


def _ct_inputs(activations: Keys, weights: DType) -> DType:
    bits, kind = activations.size("num_bits"), word_of(activations, "type", ("int", "float"), "int")
    result = _CT_TYPES.get((bits, kind))
    is_wider = (result, weights) in ((DType.FP8, DType.INT4), (DType.INT8, DType.INT4))
    if result is None or result is DType.INT4 or not (result is weights or is_wider):
        activations.refuse("num_bits", f"must go with {weights} weights")
    return result


_NOT_LINEAR = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "glm4_moe", "glm4v_moe_text", "gpt_oss",
}  # fmt: skip
# Those whose routers are parameters of their own, which nobody quantizes; of others they are linear layers.
_INTEGERS = ("awq", "gptq")  # their tools know the modules of each architecture, and leave out routers and LM heads


def read_quantization(keys: Keys, config: ModelConfig, model_type: str) -> Fields:
    """Return the fields of a `Quantization` that a `quantization_config` describes.

    `config` is the model without its quantization, of the architecture `model_type`.
    """
    method = keys.text("quant_method", "awq" if "w_bit" in keys else "gptq" if "bits" in keys else "")
    is_ct = method == "compressed-tensors"
    schemes = read_compressed_tensors(keys) if is_ct else read_simple_format(keys, method)
    result: dict[tuple[str | None, WeightFormat], list[str]] = {}
    for gemm in GEMM_NAMES:
        if not _can_be_quantized(gemm, method, model_type, schemes):
            continue
        layers: Sequence[int | None] = gemm_layers(config, gemm) or ((None,) if gemm == "lm_head" else ())
        if gemm == "lm_head" and config.tied_embeddings:
            continue
        by_format: dict[WeightFormat, list[int | None]] = {}
        for layer in layers:
            form = _format_of(gemm, layer, schemes, keys)
            if form is not None:
                by_format.setdefault(form, []).append(layer)
        for form, of_form in by_format.items():
            text = None if len(of_form) == len(layers) else some((i for i in of_form if i is not None), 1 << 16)
            result.setdefault((text, form), []).append(gemm)
    keys.refuse_rest(_KNOWN)
    parts = [
        {"gemms": tuple(gemms), "layers": text, "format": form.model_dump(exclude_unset=True)}
        for (text, form), gemms in result.items()
    ]
    return {"method": method, "parts": tuple(parts), "kv_cache_dtype": schemes.kv_cache_dtype}


def _can_be_quantized(gemm: str, method: str, model_type: str, schemes: Schemes) -> bool:
    if schemes.experts_only:
        return gemm in ("expert_gate_up", "expert_up", "expert_down")
    if gemm in ("router", "shared_gate"):
        return method not in _INTEGERS and model_type not in _NOT_LINEAR
    return gemm != "lm_head" or schemes.has_lm_head


def _format_of(gemm: str, layer: int | None, schemes: Schemes, keys: Keys) -> WeightFormat | None:
    formats = set()
    for names in module_names(gemm, layer):
        is_kept = any(map(schemes.ignored, names))
        meant = (form for targets, form in schemes.schemes if targets is None or any(map(targets, names)))
        formats.add(None if is_kept else next(meant, None))
    if len(formats) > 1:
        where = "" if layer is None else f" of layer {layer}"
        keys.refuse(schemes.list_key, f"must treat alike what runs as one GEMM, {gemm}{where}, but does not")
    return formats.pop()
