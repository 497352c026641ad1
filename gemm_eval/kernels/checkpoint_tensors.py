"""The tensors of a checkpoint folder of Hugging Face's form, and a layer that was packed from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError, ModelConfigError
from gemm_eval.kernels.checkpoint_config import read_json_file
from gemm_eval.kernels.layout import Array, as_array, decode, encode
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.storage import StoredTensor, TensorFile
from gemm_eval.words import shown

__all__ = ["INDEX_FILE", "PackedLayer", "TensorFolder", "as_path", "encoded_bias", "float_array"]

INDEX_FILE = "model.safetensors.index.json"


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


def encoded_bias(stored: StoredTensor | None, packed: PackedW4, xp: Any) -> Array | None:
    """A bias as `PackedLayer` has it.

    Raises:
        InvalidProblemError: it is of another length than the columns of the weights.
    """
    if stored is None:
        return None
    if stored.shape != (packed.N,):
        raise InvalidProblemError(f"bias must be of shape [{packed.N}], got {list(stored.shape)}")
    return encode(as_array(float_array(stored), "bias", xp), packed.activation)


def float_array(stored: StoredTensor) -> Any:
    """Floats of a file; bf16 as fp32."""
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
