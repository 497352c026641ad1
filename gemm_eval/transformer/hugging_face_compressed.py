"""compressed-tensors: groups of modules, each with the types of its weights and of what they are multiplied with."""

from __future__ import annotations

from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.transformer.hugging_face_formats import (
    Scheme,
    Schemes,
    ignored_modules,
    kv_cache_dtype_of,
    make_format,
    word_of,
)
from gemm_eval.transformer.hugging_face_rules import NameRules
from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.quantization import WeightFormat

__all__ = ["read_compressed_tensors"]

_CT_FORMATS = (
    "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision", "compressed",
)  # fmt: skip


def read_compressed_tensors(keys: Keys, method: str) -> Schemes:
    """Read compressed-tensors: groups of modules, each with the types of its weights and activations.

    Raises:
        ModelConfigError: a format that is not known here, sparse weights, or transforms.
    """
    del method
    word_of(keys, "format", _CT_FORMATS, "dense")
    rules, key = ignored_modules(keys)
    for name in ("sparsity_config", "transform_config"):
        if name in keys:
            inner = keys.part(name)
            if inner.names() and inner.text("format", "") != "dense":
                keys.refuse(name, "must be empty: sparse weights and online transforms are not modelled")
    schemes: list[Scheme] = []
    groups = keys.part("config_groups")
    for name in groups.names():
        group = groups.part(name)
        if "weights" not in group:
            continue
        targets = group.items("targets", str) or []
        form = _ct_format(group)
        if "Linear" not in targets:
            schemes.insert(0, Scheme(NameRules(targets, group, "targets").matches, form))
        else:
            schemes.append(Scheme(None, form))
    return Schemes(schemes, rules.matches, key, has_lm_head=True, kv_cache_dtype=kv_cache_dtype_of(keys))


def _ct_format(group: Keys) -> WeightFormat:
    weights = group.part("weights")
    activations = group.part("input_activations") if "input_activations" in group else None
    bits, kind = weights.size("num_bits"), word_of(weights, "type", ("int", "float"), "int")
    types = {(4, "int"): DType.INT4, (8, "int"): DType.INT8, (8, "float"): DType.FP8, (4, "float"): DType.FP4}
    if (bits, kind) not in types:
        weights.refuse("num_bits", "must be 4 or 8")
    dtype = types[bits, kind]
    inputs = None if activations is None else _ct_inputs(activations, dtype)
    is_static = activations is not None and activations.item("dynamic") is False
    strategy = word_of(weights, "strategy", ("tensor", "channel", "group", "tensor_group", "block"), "tensor")
    fields: dict[str, Any] = {"weight_dtype": dtype, "input_dtype": inputs}
    if strategy in ("group", "tensor_group"):
        fields["group_size"] = weights.size("group_size")
        fields |= _ct_group_scales(weights, dtype, strategy)
    elif strategy == "block":
        block = weights.items("block_structure", int)
        if block is None or len(block) != 2 or min(block) < 1:
            weights.refuse("block_structure", "must be two sizes, of N and of K")
        fields |= {"group_n": block[0], "group_size": block[1], "scale_dtype": DType.FP32}
    elif inputs is dtype:
        fields |= {"column_scale_dtype": DType.FP32} if strategy == "channel" else {"num_tensor_scales": 1 + is_static}
    is_ordered = weights.item("actorder") in (None, False, "weight", "static")
    if not is_ordered and strategy == "group":
        fields["has_group_index"] = True
    return make_format(**fields)


def _ct_group_scales(weights: Keys, dtype: DType, strategy: str) -> dict[str, Any]:
    if dtype is DType.FP4:
        is_nvfp4 = strategy == "tensor_group"
        return {"scale_dtype": DType.FP8, "num_tensor_scales": 2} if is_nvfp4 else {"scale_dtype": DType.E8M0}
    zeros = None if weights.flag("symmetric", default=True) else dtype
    return {"zero_dtype": zeros}


def _ct_inputs(activations: Keys, weights: DType) -> DType:
    bits, kind = activations.size("num_bits"), word_of(activations, "type", ("int", "float"), "int")
    found = {(8, "int"): DType.INT8, (8, "float"): DType.FP8, (4, "float"): DType.FP4}.get((bits, kind))
    if found is None or (
        found is not weights and (found, weights) not in ((DType.FP8, DType.INT4), (DType.INT8, DType.INT4))
    ):
        activations.refuse("num_bits", f"must go with {weights} weights")
    assert found is not None
    return found
