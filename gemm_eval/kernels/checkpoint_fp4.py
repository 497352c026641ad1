"""Layers of four-bit floats in checkpoints, as three writers store them, rows of bytes being columns of W:

* gpt-oss ("mxfp4"): `NAME_blocks` U8 [E, N, K / 32, 16] and `NAME_scales` U8 [E, N, K / 32] of E experts, `NAME_bias`
  [E, N]. Expert e of `...experts.up` becomes the layer `...experts.e.up`.
* ModelOpt ("modelopt", NVFP4): `NAME.weight` U8 [N, K / 2], `NAME.weight_scale` F8_E4M3 [N, K / 16] and
  `NAME.weight_scale_2` F32 of all.
* compressed-tensors: `NAME.weight_packed` U8 [N, K / 2], `NAME.weight_scale` U8 (MXFP4) or F8_E4M3, and in NVFP4
  `NAME.weight_global_scale` F32, the reciprocal.

Scales of activations that lie beside them are for kernels that quantize these too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels.checkpoint_config import QuantizationConfig
from gemm_eval.kernels.checkpoint_tensors import PackedLayer, TensorFolder, encoded_bias
from gemm_eval.kernels.fp4 import pack_mxfp4, pack_nvfp4
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.storage import StoredTensor

__all__ = ["StoredFp4", "find_fp4_layers", "fp4_mark", "pack_fp4_layer"]

_BYTE_TYPES = {"U8", "F8_E4M3", "F8_E8M0"}
_ACTIVATIONS = {"F16": DType.FP16, "BF16": DType.BF16}
_EXPERT_DIMS = 4


class StoredFp4(NamedTuple):
    """Names of the tensors of a layer; what there is not is an empty text.

    Attributes:
        weight, scales, bias: of the layer.
        tensor_scale: NVFP4's, or with `is_reciprocal` what it is the reciprocal of.
        expert: which of those that share the tensors; None: they are the layer's own.
    """

    weight: str
    scales: str
    bias: str
    tensor_scale: str = ""
    is_reciprocal: bool = False
    expert: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors that there are."""
        return tuple(name for name in (self.weight, self.scales, self.bias, self.tensor_scale) if name)


class _Writer(NamedTuple):
    """Ends of the names of the tensors of a layer; `mark` is the one by which layers are found."""

    mark: str
    weight: str
    scales: str
    bias: str = ".bias"
    tensor_scale: str = ""
    is_reciprocal: bool = False


_WRITERS = {
    ("mxfp4", "mxfp4"): _Writer("_blocks", "_blocks", "_scales", "_bias"),
    ("modelopt", "nvfp4"): _Writer(".weight_scale_2", ".weight", ".weight_scale", tensor_scale=".weight_scale_2"),
    ("compressed-tensors", "mxfp4"): _Writer(".weight_packed", ".weight_packed", ".weight_scale"),
    ("compressed-tensors", "nvfp4"): _Writer(
        ".weight_packed", ".weight_packed", ".weight_scale", tensor_scale=".weight_global_scale", is_reciprocal=True
    ),
}


def fp4_mark(config: QuantizationConfig) -> str:
    """How the names of those tensors end by which layers are found."""
    return _WRITERS[config.method, config.fp4_mode].mark


def find_fp4_layers(tensors: TensorFolder, config: QuantizationConfig) -> dict[str, StoredFp4]:
    """Return all layers of four-bit floats by name, those of experts one by one.

    Raises:
        InvalidProblemError: a layer lacks a tensor; the message names both.
    """
    writer = _WRITERS[config.method, config.fp4_mode]
    found: dict[str, StoredFp4] = {}
    for marked in tensors.names:
        if not marked.endswith(writer.mark):
            continue
        name = marked.removesuffix(writer.mark)
        stored = StoredFp4(
            _needed(tensors, name, writer.weight),
            _needed(tensors, name, writer.scales),
            name + writer.bias if name + writer.bias in tensors else "",
            _needed(tensors, name, writer.tensor_scale) if writer.tensor_scale else "",
            writer.is_reciprocal,
        )
        shape = tensors[stored.weight].shape
        if len(shape) != _EXPERT_DIMS:
            found[name] = stored
            continue
        parent, _, own = name.rpartition(".")
        prefix = f"{parent}." if parent else ""
        found |= {f"{prefix}{expert}.{own}": stored._replace(expert=expert) for expert in range(shape[0])}
    return found


def pack_fp4_layer(
    tensors: TensorFolder, stored: StoredFp4, config: QuantizationConfig, activation: DType | None, xp: Any
) -> PackedLayer:
    """Pack one layer; `activation` None: the type of its bias, or that of the model.

    Raises:
        InvalidProblemError: tensors of other types or shapes than above, or no type is known.
    """
    bias = _part(tensors[stored.bias], stored.expert) if stored.bias else None
    activation = activation or _ACTIVATIONS.get(bias.dtype if bias else "") or config.activation
    if activation is None:
        raise InvalidProblemError(f"{config.source} tells no type of activations: say in which, fp16 or bf16, to run")
    weight, scales = (_bytes(tensors, name, stored.expert) for name in (stored.weight, stored.scales))
    if not stored.tensor_scale:
        packed = pack_mxfp4(weight, scales, activation=activation, xp=xp)
    else:
        unit = tensors[stored.tensor_scale].array
        of_tensor, of_reciprocal = (None, unit) if stored.is_reciprocal else (unit, None)
        packed = pack_nvfp4(weight, scales, of_tensor, global_scale=of_reciprocal, activation=activation, xp=xp)
    if not isinstance(packed, PackedW4):
        raise InvalidProblemError(f"{stored.weight} must be the weights of one layer, got {list(weight.shape)}")
    return PackedLayer(packed, encoded_bias(bias, packed, xp))


def _needed(tensors: TensorFolder, layer: str, end: str) -> str:
    if layer + end not in tensors:
        raise InvalidProblemError(f"{tensors.folder}: layer {layer!r}: there is no tensor {layer + end}")
    return layer + end


def _part(stored: StoredTensor, expert: int | None) -> StoredTensor:
    """That of one expert, if experts share the tensor."""
    if expert is None:
        return stored
    if not stored.shape or expert >= stored.shape[0]:
        raise InvalidProblemError(f"there is no expert {expert} in a tensor of shape {list(stored.shape)}")
    num_bytes = len(stored.data) // stored.shape[0]
    return StoredTensor(stored.dtype, stored.shape[1:], stored.data[expert * num_bytes : (expert + 1) * num_bytes])


def _bytes(tensors: TensorFolder, name: str, expert: int | None) -> Any:
    stored = _part(tensors[name], expert)
    if stored.dtype not in _BYTE_TYPES:
        raise InvalidProblemError(f"{name} must be of type {' or '.join(sorted(_BYTE_TYPES))}, got {stored.dtype}")
    return stored.data.reshape(stored.shape)
