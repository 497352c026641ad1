"""Small AWQ and GPTQ checkpoints, made word by word: layers with random weights, and what these mean in float64."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.dtypes import DType
from gemm_eval.kernels.layout import encode
from gemm_eval.storage import StoredTensor, write_tensors

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
IN_ORDER = list(range(8))


def along_columns(values: Any, order: list[int]) -> Any:
    """[R, N] to int32 [R, N / 8]."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for i, place in enumerate(order):
        words |= values[:, place::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def along_rows(values: Any) -> Any:
    return np.ascontiguousarray(along_columns(values.T, IN_ORDER).T)


class SampleLayer(NamedTuple):
    """Tensors as a checkpoint has them, the weights [K, N] that they mean, and the bias."""

    tensors: dict[str, StoredTensor]
    meant: Any
    bias: Any


def make_layer(
    method: str, K: int, N: int, group: int | None, seed: int, *, has_bias: bool = False, is_sorted: bool = True,
    version: int = 1, is_bf16: bool = False, is_symmetric: bool = False,
) -> SampleLayer:  # fmt: skip
    """A random layer; `group` None: one for all K. Not `is_sorted`: act-order."""
    random = np.random.default_rng(seed)
    size = group or K
    num_groups = -(-K // size)
    values = random.integers(0, 16, (K, N))
    zeros = np.full((num_groups, N), 8) if is_symmetric else random.integers(1, 16, (num_groups, N))
    dtype = DType.BF16 if is_bf16 else DType.FP16
    bits = encode(random.uniform(0.01, 0.1, (num_groups, N)).astype(np.float32), dtype)
    scales = (bits.astype(np.uint32) << 16).view(np.float32) if is_bf16 else bits
    g_idx = np.arange(K, dtype=np.int32) // size
    if not is_sorted:
        g_idx = random.permutation(g_idx)
    bias = random.integers(-8, 8, N).astype(np.float32) if has_bias else None
    name = "BF16" if is_bf16 else None
    tensors = {"scales": StoredTensor.of(bits, name)}
    if method == "awq":
        tensors["qweight"] = StoredTensor.of(along_columns(values, AWQ_ORDER))
        tensors["qzeros"] = StoredTensor.of(along_columns(zeros, AWQ_ORDER))
    else:
        tensors["qweight"] = StoredTensor.of(along_rows(values))
        tensors["qzeros"] = StoredTensor.of(along_columns(zeros - (version == 1), IN_ORDER))
        tensors["g_idx"] = StoredTensor.of(g_idx)
    if bias is not None:
        tensors["bias"] = StoredTensor.of(encode(bias, dtype), name)
    return SampleLayer(tensors, scales.astype(float)[g_idx] * (values - zeros[g_idx]).astype(float), bias)


OTHERS = {
    "model.embed.weight": StoredTensor.of(np.arange(24, dtype=np.uint16).reshape(4, 6), "BF16"),
    "model.norm.weight": StoredTensor.of(np.ones(6, np.float16)),
}


def write_checkpoint(
    folder: Path, layers: dict[str, SampleLayer], quantization: dict[str, Any], files: int = 1
) -> None:
    """A folder of so many shards, over which the tensors of a layer are strewn; one has no index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{name}.{part}": x for name, layer in layers.items() for part, x in layer.tensors.items()} | OTHERS
    names = [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
    file_of = {name: names[i % files] for i, name in enumerate(tensors)}
    for file in names:
        write_tensors(folder / file, {name: x for name, x in tensors.items() if file_of[name] == file})
    if files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    config = {"model_type": "sample", "hidden_size": 6, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")


GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False, "checkpoint_format": "gptq",
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
