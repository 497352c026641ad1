"""A checkpoint folder of Hugging Face's form, with AWQ or GPTQ layers: packed layer by layer, without torch.

A layer is what has a tensor `NAME.qweight`; its other tensors are `NAME.qzeros`, `NAME.scales`, and maybe `NAME.g_idx`
and `NAME.bias`. They may lie in different files: `model.safetensors.index.json` says where, or else the files do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError, ModelConfigError
from gemm_eval.evaluate import progress_bar
from gemm_eval.kernels.checkpoint_config import QuantizationConfig, read_json_file, read_quantization_config
from gemm_eval.kernels.checkpoints import from_awq, from_gptq
from gemm_eval.kernels.layout import Array, as_array, decode, encode, parse_activation
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.storage import StoredTensor, TensorFile
from gemm_eval.words import shown

__all__ = ["LAYER_TENSORS", "PackedLayer", "TensorFolder", "as_path", "pack_checkpoint", "pack_layer"]

INDEX_FILE = "model.safetensors.index.json"
LAYER_TENSORS = ("qweight", "qzeros", "scales", "g_idx", "bias")
_MARK = ".qweight"
_ACTIVATIONS = {"F16": DType.FP16, "BF16": DType.BF16}


class PackedLayer(NamedTuple):
    """A linear layer: packed weights, and a bias of the type of the activations (bf16: its bits in uint16), or None."""

    packed: PackedW4
    bias: Array | None


class TensorFolder:
    """The tensors of all files of a folder, by name.

    Attributes:
        folder: where they lie.
        files: by their names, in order.

    Raises:
        InvalidInputError: there are none, a file is missing or damaged, or two have a tensor of one name.
        ModelConfigError: the index is malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / INDEX_FILE
        listed: dict[str, str] = _weight_map(index) if index.is_file() else {}
        paths = sorted({folder / name for name in listed.values()} if listed else folder.glob("*.safetensors"))
        if not paths:
            raise InvalidInputError(f"{folder} has no files *.safetensors")
        self.files = {path.name: TensorFile(path) for path in paths}
        self._file_of: dict[str, TensorFile] = {}
        for file in self.files.values():
            for name in file.names:
                if name in self._file_of:
                    raise InvalidInputError(f"tensor {shown(name)} is in {self._file_of[name].path} and in {file.path}")
                self._file_of[name] = file
        missing = sorted(set(listed) - self._file_of.keys())
        if missing:
            raise InvalidInputError(f"{index} lists tensor {shown(missing[0])}, which {listed[missing[0]]} has not")

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __getitem__(self, name: str) -> StoredTensor:
        return self._file_of[name][name]

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, file by file."""
        return tuple(self._file_of)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers with quantized weights, file by file."""
        return tuple(name.removesuffix(_MARK) for name in self._file_of if name.endswith(_MARK))


def pack_checkpoint(
    folder: str | Path,
    *,
    activation: DType | str | None = None,
    version: int | None = None,
    xp: ModuleType | None = None,
    progress: bool | None = None,
) -> Iterator[tuple[str, PackedLayer]]:
    """Yield the name of each quantized layer of an AWQ or GPTQ checkpoint, and the layer packed for the kernels.

    Args:
        folder: a checkpoint of Hugging Face's form: *.safetensors, config.json.
        activation: "fp16" or "bf16", in which layers shall run; None: the type of their scales.
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
    layers = tensors.layers
    if not layers:
        raise InvalidProblemError(f"{folder} has no quantized layer: no tensor is named *{_MARK}")
    with progress_bar(len(layers), "layers", progress) as advance:
        for name in layers:
            yield name, pack_layer(tensors, name, config, activation=activation, version=version, xp=xp)
            advance(1)


def pack_layer(
    tensors: TensorFolder,
    name: str,
    config: QuantizationConfig,
    *,
    activation: DType | str | None = None,
    version: int | None = None,
    xp: ModuleType | None = None,
) -> PackedLayer:
    """Pack one layer; arguments and errors as of `pack_checkpoint`. The message of an error names the layer."""
    if version is not None and plain_integer(version) not in (1, 2):
        raise InvalidOptionError(f"version must be 1 or 2, or None for what the checkpoint says, got {shown(version)}")
    dtype = None if activation is None else parse_activation(activation)
    try:
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
    found = {part: tensors[f"{name}.{part}"] for part in LAYER_TENSORS if f"{name}.{part}" in tensors}
    missing = [part for part in ("qzeros", "scales") if part not in found]
    if missing:
        raise InvalidProblemError(f"there is no tensor {missing[0]} beside qweight")
    activation = activation or _ACTIVATIONS.get(found["scales"].dtype)
    if activation is None:
        raise InvalidProblemError(f"scales are {found['scales'].dtype}: say in which activation, fp16 or bf16, to run")
    qweight, qzeros = (as_array(found[part].array, part, xp) for part in ("qweight", "qzeros"))
    scales = as_array(_floats(found["scales"]), "scales", xp)
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
    return PackedLayer(packed, _bias(found.get("bias"), packed, xp))


def _bias(stored: StoredTensor | None, packed: PackedW4, xp: Any) -> Array | None:
    if stored is None:
        return None
    if stored.shape != (packed.N,):
        raise InvalidProblemError(f"bias must be of shape [{packed.N}], got {list(stored.shape)}")
    return encode(as_array(_floats(stored), "bias", xp), packed.activation)


def _floats(stored: StoredTensor) -> Any:
    return decode(stored.array, DType.BF16) if stored.dtype == "BF16" else stored.array


def as_path(what: str, value: Any) -> Path:
    """Return an argument as a path.

    Raises:
        InvalidOptionError: it is none, or one that no file can have; `what` names it.
    """
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
        raise InvalidOptionError(f"{what} must be a path, got {shown(value)}")
    return Path(value)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, of an index that names files of its own folder, and no others."""
    found = read_json_file(index).get("weight_map")
    names = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors") for name in names):
        raise ModelConfigError(f"{index}: weight_map must be an object of tensor -> name of a file beside it")
    return dict(found or {})
