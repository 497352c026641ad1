"""Files of tensors in the format safetensors, read without copying and written in one pass, with numpy alone.

https://github.com/huggingface/safetensors#format says how they look. numpy has no bf16, and the package safetensors
gives none without torch: here a tensor is its bytes, and bf16 the bits in uint16.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from gemm_eval.errors import InvalidInputError
from gemm_eval.storage.files import staged
from gemm_eval.words import one_line, shown

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_HEADER_MULTIPLE = 8
_METADATA = "__metadata__"
_ENTRY = ("dtype", "shape", "data_offsets")
_NUMPY_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "uint16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
}  # fmt: skip
_NAMES = {numpy.dtype(found): name for name, found in _NUMPY_TYPES.items() if name != "BF16"}


class StoredTensor(NamedTuple):
    """A tensor as a file has it.

    Attributes:
        dtype: name of its type in the format, such as "F16", "BF16" or "I32"; one that numpy lacks is taken, too.
        shape: sizes, in elements.
        data: uint8 [bytes], its content in C order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

    @classmethod
    def of(cls, array: numpy.ndarray[Any, Any], dtype: str | None = None) -> StoredTensor:
        """Return an array as a stored tensor; `dtype` names a type that numpy lacks: the array holds its bits."""
        name = _NAMES.get(array.dtype) if dtype is None else dtype
        if name is None:
            raise InvalidInputError(f"files of tensors have no type for {array.dtype}")
        return cls(name, array.shape, numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))

    @property
    def array(self) -> numpy.ndarray[Any, Any]:
        """The same memory as an array; bf16 as its bits, in uint16."""
        if self.dtype not in _NUMPY_TYPES:
            raise InvalidInputError(f"a tensor is of type {shown(self.dtype)}, which numpy has not")
        return self.data.view(_NUMPY_TYPES[self.dtype]).reshape(self.shape)


class TensorFile:
    """A file of tensors, open for reading: `file[name]` is a `StoredTensor` whose bytes are read when they are used.

    Attributes:
        path: of the file.
        metadata: texts that whoever wrote the file put there.
        names: of the tensors, in the order of the header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                num_bytes = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                if num_bytes < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, num_bytes - _LENGTH_BYTES):
                    raise self._refusal(f"a header of {length:,} bytes in a file of {num_bytes:,}")
                header = self._parsed(file.read(length))
            self._bytes = numpy.memmap(path, numpy.uint8, "r")
        except OSError as error:
            raise InvalidInputError(f"cannot read {path}: {error.strerror or error}") from error
        self.metadata: dict[str, str] = header.pop(_METADATA, {})
        if not isinstance(self.metadata, dict) or not all(isinstance(text, str) for text in self.metadata.values()):
            raise self._refusal("metadata that are no texts")
        self._begin = _LENGTH_BYTES + length
        self._places = {name: self._place(name, entry) for name, entry in header.items()}
        self.names = tuple(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> StoredTensor:
        dtype, shape, begin, end = self._places[name]
        return StoredTensor(dtype, shape, self._bytes[self._begin + begin : self._begin + end])

    def _place(self, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
        fields: dict[str, Any] = dict.fromkeys(_ENTRY) | entry if isinstance(entry, dict) else dict.fromkeys(_ENTRY)
        dtype, shape, offsets = (fields[key] for key in _ENTRY)
        is_whole = isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2
        if not is_whole or not offsets[0] <= offsets[1] <= len(self._bytes) - self._begin:
            raise self._refusal(f"tensor {shown(name)} with {shown(entry)}")
        if dtype in _NUMPY_TYPES and math.prod(shape) * _itemsize(dtype) != offsets[1] - offsets[0]:
            raise self._refusal(f"tensor {shown(name)} with {offsets[1] - offsets[0]:,} bytes for {dtype} {shape}")
        return dtype, tuple(shape), offsets[0], offsets[1]

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            header = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._refusal(f"a header that is no JSON: {one_line(str(error))}") from None
        if not isinstance(header, dict):
            raise self._refusal("a header that is no object")
        return header

    def _refusal(self, found: str) -> InvalidInputError:
        return InvalidInputError(f"{self.path} is no whole file of safetensors: {found}")


def write_tensors(path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file of tensors, whole or not at all; widest types first, so that all are aligned."""
    names = sorted(tensors, key=lambda name: -_itemsize(tensors[name].dtype))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_MULTIPLE)
    begin = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    with staged(path, begin, *(tensors[name].data.data for name in names)) as temporary:
        temporary.replace(path)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _itemsize(dtype: str) -> int:
    return numpy.dtype(_NUMPY_TYPES.get(dtype, "uint8")).itemsize
