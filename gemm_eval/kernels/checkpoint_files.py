"""A checkpoint folder of Hugging Face's form with layers of 4 bits, packed layer by layer, without torch.

Of AWQ and GPTQ a layer is what has a tensor `NAME.qweight`; its other tensors are `NAME.qzeros`, `NAME.scales`, and
maybe `NAME.g_idx` and `NAME.bias`. They may lie in different files: `model.safetensors.index.json` says where, or else
the files do. Layers of four-bit floats are in `checkpoint_fp4`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.evaluate import progress_bar
from gemm_eval.kernels.checkpoint_config import QuantizationConfig, read_quantization_config
from gemm_eval.kernels.checkpoint_fp4 import StoredFp4, find_fp4_layers, fp4_mark, pack_fp4_layer
from gemm_eval.kernels.checkpoint_tensors import PackedLayer, TensorFolder, as_path, encoded_bias, float_array
from gemm_eval.kernels.checkpoints import from_awq, from_gptq
from gemm_eval.kernels.layout import as_array, parse_activation
from gemm_eval.words import shown

__all__ = ["find_layers", "pack_checkpoint", "pack_layer"]

_LAYER_TENSORS = ("qweight", "qzeros", "scales", "g_idx", "bias")
_MARK = ".qweight"
_ACTIVATIONS = {"F16": DType.FP16, "BF16": DType.BF16}


def find_layers(tensors: TensorFolder, config: QuantizationConfig) -> dict[str, tuple[str, ...]]:
    """The quantized layers of a folder by name, file by file, and the names of their tensors.

    Raises:
        InvalidProblemError: a layer of four-bit floats lacks a tensor.
    """
    if config.fp4_mode:
        return {name: stored.names for name, stored in find_fp4_layers(tensors, config).items()}
    names = [name.removesuffix(_MARK) for name in tensors.names if name.endswith(_MARK)]
    of_layer = {name: [f"{name}.{part}" for part in _LAYER_TENSORS] for name in names}
    return {name: tuple(tensor for tensor in parts if tensor in tensors) for name, parts in of_layer.items()}


def pack_checkpoint(
    folder: str | Path,
    *,
    activation: DType | str | None = None,
    version: int | None = None,
    xp: ModuleType | None = None,
    progress: bool | None = None,
) -> Iterator[tuple[str, PackedLayer]]:
    """Yield the name of each quantized layer of a checkpoint, and the layer packed for the kernels.

    AWQ, GPTQ, gpt-oss (MXFP4; experts one by one), ModelOpt (NVFP4) and compressed-tensors (both).

    Args:
        folder: a checkpoint of Hugging Face's form: *.safetensors, config.json.
        activation: "fp16" or "bf16", in which layers shall run; None: the type of their scales, or of four-bit floats
            that of their bias, or else of the model.
        version: 1 or 2, of GPTQ's zero points, where the checkpoint says it wrongly; None: as it says.
        xp: numpy or cupy, where to pack; None: numpy.
        progress: whether to show a bar on stderr; None: on a terminal, if it takes over a second.

    Raises:
        InvalidInputError: files that are missing or damaged.
        ModelConfigError: a config that is missing or malformed.
        InvalidProblemError: what kernels do not read: other bits than 4, other layouts or group sizes.
    """
    tensors = TensorFolder(as_path("folder", folder))
    config = read_quantization_config(tensors.folder)
    stored = find_fp4_layers(tensors, config) if config.fp4_mode else dict.fromkeys(find_layers(tensors, config))
    if not stored:
        mark = fp4_mark(config) if config.fp4_mode else _MARK
        raise InvalidProblemError(f"{folder} has no quantized layer: no tensor is named *{mark}")
    with progress_bar(len(stored), "layers", progress) as advance:
        for name, where in stored.items():
            yield name, pack_layer(tensors, name, config, where, activation=activation, version=version, xp=xp)
            advance(1)


def pack_layer(
    tensors: TensorFolder,
    name: str,
    config: QuantizationConfig,
    stored: StoredFp4 | None = None,
    *,
    activation: DType | str | None = None,
    version: int | None = None,
    xp: ModuleType | None = None,
) -> PackedLayer:
    """Pack one layer; arguments and errors as of `pack_checkpoint`. The message of an error names the layer.

    `stored` says where it is, if it is of four-bit floats.
    """
    if version is not None and plain_integer(version) not in (1, 2):
        raise InvalidOptionError(f"version must be 1 or 2, or None for what the checkpoint says, got {shown(version)}")
    dtype = None if activation is None else parse_activation(activation)
    try:
        if stored is not None:
            return pack_fp4_layer(tensors, stored, config, dtype, xp or numpy)
        return _packed(tensors, name, config.of_layer(name), dtype, version, xp or numpy)
    except InvalidProblemError as error:
        raise InvalidProblemError(f"{tensors.folder}: layer {shown(name)}: {error}") from None


def _packed(
    tensors: TensorFolder,
    name: str,
    config: QuantizationConfig,
    activation: DType | None,
    version: int | None,
    xp: Any,
) -> PackedLayer:
    found = {part: tensors[f"{name}.{part}"] for part in _LAYER_TENSORS if f"{name}.{part}" in tensors}
    missing = [part for part in ("qzeros", "scales") if part not in found]
    if missing:
        raise InvalidProblemError(f"there is no tensor {missing[0]} beside qweight")
    activation = activation or _ACTIVATIONS.get(found["scales"].dtype)
    if activation is None:
        raise InvalidProblemError(f"scales are {found['scales'].dtype}: say in which activation, fp16 or bf16, to run")
    qweight, qzeros = (as_array(found[part].array, part, xp) for part in ("qweight", "qzeros"))
    scales = as_array(float_array(found["scales"]), "scales", xp)
    if config.method == "awq":
        packed = from_awq(qweight, qzeros, scales, config.group_size, activation=activation)
    else:
        g_idx = found["g_idx"].array if "g_idx" in found else None
        if config.desc_act and g_idx is None:
            raise InvalidProblemError(f"there is no tensor g_idx, although {config.source} says desc_act")
        packed = from_gptq(
            qweight, qzeros, scales, g_idx, config.group_size,
            version=version or config.version, sym=config.sym, activation=activation,
        )  # fmt: skip
    return PackedLayer(packed, encoded_bias(found.get("bias"), packed, xp))
