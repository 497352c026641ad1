"""Layers of 4-bit checkpoints, packed one by one, without torch: AWQ, GPTQ, and four-bit floats of three writers.

Tensors of a layer may lie in different files. AutoAWQ (version "gemm") and AutoGPTQ / GPTQModel write `NAME.qweight`,
`NAME.qzeros`, `NAME.scales` [G, N], and maybe `NAME.g_idx` and `NAME.bias`, with 8 integers in an int32, lowest bits
first: W = scale * (integer - z).

* AWQ: `qweight` [K, N / 8] and `qzeros` [G, N / 8] along N, nibble i of a word being its column 0, 2, 4, 6, 1, 3, 5, 7.
* GPTQ: `qweight` [K / 8, N] along K and `qzeros` [G, N / 8] along N, in order. Version 1 (checkpoint_format "gptq")
  stores z - 1, version 2 ("gptq_v2") stores z: https://github.com/AutoGPTQ/AutoGPTQ/pull/640. With act-order
  (desc_act) `g_idx` [K] is the group of each row; rows are sorted by group when they are packed, and activations alike.
* gpt-oss (MXFP4): `NAME_blocks` U8 [E, N, K / 32, 16], `NAME_scales` U8 [E, N, K / 32] and `NAME_bias` [E, N] of E
  experts. Expert e of `...experts.up` becomes the layer `...experts.e.up`.
* ModelOpt (NVFP4): `NAME.weight` U8 [N, K / 2], `NAME.weight_scale` F8_E4M3 [N, K / 16], `NAME.weight_scale_2` F32.
* compressed-tensors: `NAME.weight_packed` U8 [N, K / 2], `NAME.weight_scale` U8 (MXFP4) or F8_E4M3, and in NVFP4
  `NAME.weight_global_scale` F32, the reciprocal.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.checkpoint_tensors import (
    PackedLayer,
    QuantizationConfig,
    TensorFolder,
    as_path,
    encoded_bias,
    float_array,
    read_quantization_config,
)
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.fp4 import pack_mxfp4, pack_nvfp4
from gemm_eval.kernels.layout import GROUP_SIZES, MIDDLE, Array, as_array, check_sizes, module_of, parse_activation
from gemm_eval.kernels.weights import PackedW4, pack_w4
from gemm_eval.progress import progress_bar
from gemm_eval.storage import StoredTensor
from gemm_eval.words import check_flag, plain_integer, shown

_PER_WORD = 8
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_IN_ORDER = tuple(range(_PER_WORD))
_WHOLE_K = -1


def from_awq(
    qweight: Any, qzeros: Any, scales: Any, group_size: int | None = 128, *, activation: DType | str = "fp16"
) -> PackedW4:
    """Pack a linear layer of an AWQ checkpoint.

    Zero points that are all 8 are dropped, as the modes without them have the same weights.

    Args:
        qweight: int32 [K, N / 8].
        qzeros: int32 [G, N / 8].
        scales: floats [G, N], rounded to the type `activation`.
        group_size: 32, 64, 128; None or -1: one group for all K.
        activation: "fp16" or "bf16", in which the layer shall run.

    Raises:
        InvalidOptionError: `group_size`.
        InvalidProblemError: tensors of other types or shapes, or of sizes that no kernel takes.
    """
    integers = _unpack(qweight, "qweight", _AWQ_COLUMNS, axis=1)
    return _pack(integers, _unpack(qzeros, "qzeros", _AWQ_COLUMNS, axis=1), scales, group_size, activation)


def from_gptq(
    qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, group_size: int | None = 128, *, version: int = 1,
    sym: bool | None = None, activation: DType | str = "fp16",
) -> PackedW4:  # fmt: skip
    """Pack a linear layer of a GPTQ checkpoint.

    Zero points that are all 8 are dropped, as the modes without them have the same weights.

    Args:
        qweight: int32 [K / 8, N].
        qzeros: int32 [G, N / 8].
        scales: floats [G, N], rounded to the type `activation`.
        g_idx: integers [K], the group of each k; None: k // group_size. In any order (act-order), but each group with
            group_size rows, the last maybe with less.
        group_size: 32, 64, 128; None or -1: one group for all K.
        version: 1 or 2, of the format. Checkpoints exist that say 1 and store what 2 does: `sym` finds those.
        sym: what the checkpoint's config says. True: all zero points have to be 8; None: not known.
        activation: "fp16" or "bf16", in which the layer shall run.

    Raises:
        InvalidOptionError: `group_size` or `version`.
        InvalidProblemError: tensors of other types or shapes, of sizes that no kernel takes, groups of other sizes, or
            zero points that are not 8 although `sym`, or not known.
    """
    if plain_integer(version) not in (1, 2):
        raise InvalidOptionError(f"version must be 1 or 2, got {shown(version)}")
    if sym is not None:
        check_flag("sym", sym)
    integers = _unpack(qweight, "qweight", _IN_ORDER, axis=0)
    zeros = _unpack(qzeros, "qzeros", _IN_ORDER, axis=1)
    if version == 1:
        if bool((zeros == 15).any()):
            # No quantizer makes z = 16. Subtracting 1 from z = 0 gives this, and in some writers spoils other nibbles.
            raise InvalidProblemError(
                "qzeros of version 1 must be 0..14 (z = 1..15), got 15: readers disagree whether that is z = 16 or a 0 "
                "that wrapped around; if the checkpoint is of version 2 say so, else save it as gptq_v2"
            )
        zeros = zeros + 1
    if sym and not bool((zeros == MIDDLE).all()):
        raise InvalidProblemError(
            f"zero points must all be 8 where sym is True, got {int(zeros.min())}..{int(zeros.max())} "
            f"by version {version}; try version {3 - version}"
        )
    permutation = None if g_idx is None else _order_by_group(g_idx, integers, _group_of(group_size))
    if permutation is None:
        return _pack(integers, zeros, scales, group_size, activation)
    return replace(_pack(integers[permutation], zeros, scales, group_size, activation), permutation=permutation)


def _unpack(words: Any, what: str, order: tuple[int, ...], axis: int) -> Array:
    """Nibble i of each word to place `order[i]` of 8 along `axis`; uint8."""
    words = as_array(words, what)
    xp = module_of(words)
    if words.ndim != 2 or words.dtype not in (xp.int32, xp.uint32):
        raise InvalidProblemError(f"{what} must be an int32 matrix, got {words.dtype} {list(words.shape)}")
    words = words.view(xp.uint32)
    num_rows, num_columns = words.shape
    result = xp.empty((num_rows, num_columns, _PER_WORD), dtype=xp.uint8)
    for i, index in enumerate(order):
        result[:, :, index] = (words >> (4 * i)) & 15
    if axis == 1:
        return result.reshape(num_rows, num_columns * _PER_WORD)
    return xp.ascontiguousarray(result.transpose(0, 2, 1)).reshape(num_rows * _PER_WORD, num_columns)


def _group_of(group_size: int | None) -> int | None:
    number = _WHOLE_K if group_size is None else plain_integer(group_size)
    if number == _WHOLE_K:
        return None
    if number not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise InvalidOptionError(f"group_size must be one of {sizes}, or None or -1 for all K, got {shown(group_size)}")
    return number


def _order_by_group(g_idx: Any, integers: Array, group_size: int | None) -> Array | None:
    """Rows of `integers` as they follow each other when sorted by group, int32; None: as they are."""
    xp, K = module_of(integers), len(integers)
    groups = as_array(g_idx, "g_idx", xp)
    if groups.shape != (K,) or groups.dtype.kind not in "iu":
        raise InvalidProblemError(f"g_idx must be integers of shape [{K}], got {groups.dtype} {list(groups.shape)}")
    in_order = xp.arange(K) // (group_size or K)
    if bool((groups == in_order).all()):
        return None
    order = xp.argsort(groups, kind="stable")
    if not bool((groups[order] == in_order).all()):
        raise InvalidProblemError(
            f"g_idx must give each group {group_size or K} rows, and the last the rest: kernels read groups of one "
            "size (a part of a layer that was cut along K has others; convert the whole layer)"
        )
    return order.astype(xp.int32)


def _pack(integers: Array, zeros: Array, scales: Any, group_size: int | None, activation: DType | str) -> PackedW4:
    K, N = integers.shape
    check_sizes(K, N)
    group = _group_of(group_size)
    shape = ceil_div(K, group or K), N
    xp = module_of(integers)
    scales = as_array(scales, "scales", xp)
    for what, result in (("qzeros", zeros.shape), ("scales", scales.shape)):
        if result != shape:
            raise InvalidProblemError(
                f"{what} must have {shape[0]} rows for {N} columns (K = {K}, group_size = {group_size}), "
                f"got shape {list(result)}"
            )
    if bool((zeros == MIDDLE).all()):
        mode = WeightMode.GROUP if group else WeightMode.COLUMN
        return pack_w4(integers, group, mode, scales=scales, activation=activation)
    if group is None:  # no mode has one zero point a column: give each group the same
        group = GROUP_SIZES[-1]
        scales, zeros = (xp.repeat(x, ceil_div(K, group), axis=0) for x in (scales, zeros))
    return pack_w4(integers, group, WeightMode.GROUP_ZERO, scales=scales, zeros=zeros, activation=activation)


_BYTE_TYPES = {"U8", "F8_E4M3", "F8_E8M0"}
_ACTIVATIONS = {"F16": DType.FP16, "BF16": DType.BF16}
_EXPERT_DIMS = 4


class StoredFp4(NamedTuple):
    """Names of the tensors of a layer; of a writer, the ends of all of its names.

    `bias` is empty where there is none, and `tensor_scale` in MXFP4; with `is_reciprocal` the latter is the reciprocal.
    `expert`: which of those that share the tensors; None: they are the layer's own.
    """

    weight: str
    scales: str
    bias: str = ".bias"
    tensor_scale: str = ""
    is_reciprocal: bool = False
    expert: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that there are."""
        return tuple(name for name in (self.weight, self.scales, self.bias, self.tensor_scale) if name)


# By method and mode: the end by which layers are found, and all ends.
_WRITERS = {
    ("mxfp4", "mxfp4"): ("_blocks", StoredFp4("_blocks", "_scales", "_bias")),
    ("modelopt", "nvfp4"): (
        ".weight_scale_2", StoredFp4(".weight", ".weight_scale", tensor_scale=".weight_scale_2")
    ),
    ("compressed-tensors", "mxfp4"): (".weight_packed", StoredFp4(".weight_packed", ".weight_scale")),
    ("compressed-tensors", "nvfp4"): (
        ".weight_packed",
        StoredFp4(".weight_packed", ".weight_scale", tensor_scale=".weight_global_scale", is_reciprocal=True),
    ),
}  # fmt: skip


def _find_fp4_layers(tensors: TensorFolder, config: QuantizationConfig) -> dict[str, StoredFp4]:
    """Return all layers of four-bit floats by name, those of experts one by one."""
    mark, ends = _WRITERS[config.method, config.fp4_mode]
    result: dict[str, StoredFp4] = {}
    for name in (marked.removesuffix(mark) for marked in tensors.names if marked.endswith(mark)):
        weight, scales, bias, tensor_scale = (name + end if end else "" for end in ends[:4])
        for needed in filter(None, (weight, scales, tensor_scale)):
            if needed not in tensors:
                raise InvalidProblemError(f"{tensors.folder}: layer {name!r}: there is no tensor {needed}")
        stored = ends._replace(
            weight=weight, scales=scales, bias=bias if bias in tensors else "", tensor_scale=tensor_scale
        )
        shape = tensors[weight].shape
        if len(shape) == _EXPERT_DIMS:
            parent, _, own = name.rpartition(".")
            prefix = f"{parent}." if parent else ""
            result |= {f"{prefix}{expert}.{own}": stored._replace(expert=expert) for expert in range(shape[0])}
        else:
            result[name] = stored
    return result


def _pack_fp4_layer(
    tensors: TensorFolder, stored: StoredFp4, config: QuantizationConfig, activation: DType | None, xp: Any
) -> PackedLayer:
    """Pack one layer; `activation` None: the type of its bias, or that of the model."""
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


def _part(stored: StoredTensor, expert: int | None) -> StoredTensor:
    """Return that of one expert, if experts share the tensor."""
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


_LAYER_TENSORS = ("qweight", "qzeros", "scales", "g_idx", "bias")
_MARK = ".qweight"


def find_layers(tensors: TensorFolder, config: QuantizationConfig) -> dict[str, tuple[str, ...]]:
    """Return the quantized layers of a folder by name, file by file, and the names of their tensors."""
    if config.fp4_mode:
        return {name: stored.names for name, stored in _find_fp4_layers(tensors, config).items()}
    names = [name.removesuffix(_MARK) for name in tensors.names if name.endswith(_MARK)]
    of_layer = {name: [f"{name}.{part}" for part in _LAYER_TENSORS] for name in names}
    return {name: tuple(tensor for tensor in parts if tensor in tensors) for name, parts in of_layer.items()}


def pack_checkpoint(
    folder: str | Path, *, activation: DType | str | None = None, version: int | None = None,
    xp: ModuleType | None = None, progress: bool | None = None,
) -> Iterator[tuple[str, PackedLayer]]:  # fmt: skip
    """Yield the name of each quantized layer of a checkpoint, and the layer packed for the kernels.

    AWQ, GPTQ, gpt-oss (MXFP4; experts one by one), ModelOpt (NVFP4) and compressed-tensors (both).

    Args:
        folder: a checkpoint of Hugging Face's form: *.safetensors, config.json.
        activation: "fp16" or "bf16", in which layers shall run; None: the type of their scales, or of four-bit floats
            that of their bias, or else of the model.
        version: 1 or 2, of GPTQ's zero points, where the checkpoint says it wrongly; None: as it says.
        xp: numpy or cupy, where to pack; None: numpy.
        progress: whether to show progress on stderr; None: if it takes over a second.

    Raises:
        InvalidInputError: files that are missing or damaged.
        ModelConfigError: a config that is missing or malformed.
        InvalidProblemError: what kernels do not read: other bits than 4, other layouts or group sizes.
    """
    if version is not None and plain_integer(version) not in (1, 2):
        raise InvalidOptionError(f"version must be 1 or 2, or None for what the checkpoint says, got {shown(version)}")
    dtype = None if activation is None else parse_activation(activation)
    xp = xp or numpy
    tensors = TensorFolder(as_path("folder", folder))
    config = read_quantization_config(tensors.folder)
    of_fp4 = _find_fp4_layers(tensors, config) if config.fp4_mode else {}
    names = of_fp4 or find_layers(tensors, config)
    if not names:
        mark = _WRITERS[config.method, config.fp4_mode][0] if config.fp4_mode else _MARK
        raise InvalidProblemError(f"{folder} has no quantized layer: no tensor is named *{mark}")
    with progress_bar(len(names), "layers", progress) as advance:
        for name in names:
            try:
                if name in of_fp4:
                    layer = _pack_fp4_layer(tensors, of_fp4[name], config, dtype, xp)
                else:
                    layer = _packed(tensors, name, config.of_layer(name), dtype, version, xp)
            except InvalidProblemError as error:
                raise InvalidProblemError(f"{tensors.folder}: layer {shown(name)}: {error}") from None
            yield name, layer
            advance(1)


def _packed(
    tensors: TensorFolder, name: str, config: QuantizationConfig, activation: DType | None, version: int | None, xp: Any
) -> PackedLayer:
    result = {part: tensors[f"{name}.{part}"] for part in _LAYER_TENSORS if f"{name}.{part}" in tensors}
    missing = [part for part in ("qzeros", "scales") if part not in result]
    if missing:
        raise InvalidProblemError(f"there is no tensor {missing[0]} beside qweight")
    activation = activation or _ACTIVATIONS.get(result["scales"].dtype)
    if activation is None:
        raise InvalidProblemError(f"scales are {result['scales'].dtype}: say in which activation, fp16 or bf16, to run")
    qweight, qzeros = (as_array(result[part].array, part, xp) for part in ("qweight", "qzeros"))
    scales = as_array(float_array(result["scales"]), "scales", xp)
    if config.method == "awq":
        packed = from_awq(qweight, qzeros, scales, config.group_size, activation=activation)
    else:
        g_idx = result["g_idx"].array if "g_idx" in result else None
        if config.desc_act and g_idx is None:
            raise InvalidProblemError(f"there is no tensor g_idx, although {config.source} says desc_act")
        packed = from_gptq(
            qweight, qzeros, scales, g_idx, config.group_size,
            version=version or config.version, sym=config.sym, activation=activation,
        )  # fmt: skip
    return PackedLayer(packed, encoded_bias(result.get("bias"), packed, xp))
