"""Files of arrays: tensors in the format safetensors, and `ResultFile`, whose sections later processes find again.

https://github.com/huggingface/safetensors#format says how files of tensors look. They are read without copying and
written in one pass, with numpy alone. numpy has no bf16, and the package safetensors gives none without torch: here a
tensor is its bytes, and bf16 the bits in uint16. A file of results is an ``.npz``, replaced whole at every write.
"""

from __future__ import annotations

import contextlib
import encodings.cp437  # noqa: F401  names in zip files: imported at the first read, a fork meanwhile would hang
import errno
import io
import json
import math
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError, StorageError
from gemm_eval.storage.files import FileLock, make_folder, read_bounded, set_aside, staged, why_unsafe, write_whole
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
_NAMES = {np.dtype(found): name for name, found in _NUMPY_TYPES.items() if name != "BF16"}


class StoredTensor(NamedTuple):
    """A tensor as a file has it.

    Attributes:
        dtype: name of its type in the format, such as "F16", "BF16" or "I32"; one that numpy lacks is taken, too.
        shape: sizes, in elements.
        data: uint8 [bytes], its content in C order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], dtype: str | None = None) -> StoredTensor:
        """Return an array as a stored tensor; `dtype` names a type that numpy lacks: the array holds its bits."""
        name = _NAMES.get(array.dtype) if dtype is None else dtype
        if name is None:
            raise InvalidInputError(f"files of tensors have no type for {array.dtype}")
        return cls(name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    @property
    def array(self) -> np.ndarray[Any, Any]:
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
            self._bytes = np.memmap(path, np.uint8, "r")
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
    return np.dtype(_NUMPY_TYPES.get(dtype, "uint8")).itemsize


Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

MAX_BYTES = 64 << 20
"""Size that a file is kept below, in bytes: 190,000 costs of 0.35 KB."""
TIMEOUT_S = 10.0
"""Longest wait for other writers, in seconds. A write takes milliseconds, and one of `MAX_BYTES` about 0.1 s."""

_HEADER = "gemm_eval results"  # name of the first member, which lists the others
_MAX_READ_BYTES = 4 * MAX_BYTES
# A zip file begins with the header of its first member: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
_MAGIC, _NAME_OFFSET = b"PK\3\4", 30
_DAMAGES = (
    ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_NO_ACCESS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL,
}  # fmt: skip

_warned: set[tuple[str, str]] = set()


class _NoCacheError(Exception):
    """The file cannot be used, and stays as it is."""

    def __init__(self, reason: str, *, is_foreign: bool = False) -> None:
        super().__init__(reason)
        self.is_foreign = is_foreign


class _DamagedError(Exception):
    """The file begins as ours do, and cannot be read."""


class ResultFile:
    """Sections of arrays in one ``.npz`` file that any number of processes and threads share.

    A cache never fails its user: of a file that cannot be used nothing is read, and nothing is written to it. A
    RuntimeWarning tells of trouble that the user can mend; a place without access only means that nothing is kept.

    - **Writers wait for each other** on ``<name>.lock`` and merge what they add with what they read, so that the
      results of both stay. Readers do not wait.
    - **Damaged files** are renamed to ``<name>.damaged-<n>``; the last three are kept. A file that does
      not begin as ours do is never changed.
    - **Bounded.** Above `max_bytes` the sections that were written longest ago go.

    Args:
        path: the file, made with its folder at the first write.
        is_chosen: the user named the file: a `StorageError` says that it is no such cache. False: a RuntimeWarning.
        max_bytes: bound of the file, in bytes; the section that is written is always kept.
        timeout_s: how long to wait for other writers, in seconds, before a write is skipped.
    """

    def __init__(
        self, path: Path, *, is_chosen: bool = False, max_bytes: int = MAX_BYTES, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.path = path
        self._is_chosen = is_chosen
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    def read(self, section: str) -> Arrays:
        """Return the arrays of a section by name; none where it is missing or the file cannot be used."""
        with self._reported():
            path = Path(os.path.realpath(self.path))
            try:
                return _arrays_of(_members(path), section)
            except _DamagedError as damage:
                try:
                    with self._locked(path) as is_held:  # another process may have replaced it
                        return self._load_or_set_aside(path, section)[1] if is_held else {}
                except OSError as error:
                    raise _NoCacheError(f"{damage}, and cannot be set aside ({error.strerror or error})") from None
        return {}

    def merge(self, section: str, change: Callable[[Arrays], Arrays]) -> bool:
        """Replace a section by what `change` makes of its arrays of now; return whether it was written."""
        with self._reported():
            path = Path(os.path.realpath(self.path))
            make_folder(path.parent)
            with self._locked(path) as is_held:
                if not is_held:
                    return False
                left_by_killed = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.tmp")
                for left in path.parent.iterdir():
                    if left_by_killed.fullmatch(left.name):
                        left.unlink(missing_ok=True)
                members, old = self._load_or_set_aside(path, section)
                own = {}
                for name, array in change(old).items():
                    np.save(file := io.BytesIO(), array, allow_pickle=False)
                    own[f"{section}/{name}.npy"] = file.getvalue()
                others = {name: raw for name, raw in members.items() if not name.startswith(f"{section}/")}
                write_whole(path, _packed(others, own, self._max_bytes), is_private=True)
                return True
        return False

    def _load_or_set_aside(self, path: Path, section: str) -> tuple[dict[str, bytes], Arrays]:
        """Return all members, and the arrays of a section; none of a damaged file, which is set aside."""
        try:
            members = _members(path)
            return members, _arrays_of(members, section)
        except _DamagedError as damage:
            aside = set_aside(path)
            self._warn(f"cannot use the cache file {path}: {damage}; it was set aside as {aside.name}", is_once=False)
            return {}, {}

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[bool]:
        lock = FileLock(path.with_name(f"{path.name}.lock"))
        is_held = lock.acquire(timeout_s=self._timeout_s)
        try:
            yield is_held
        finally:
            lock.release()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn trouble into a warning, or an error where the user named a file of somebody's."""
        try:
            yield
        except _NoCacheError as trouble:
            words = f"{self.path} is no cache of gemm_eval" if trouble.is_foreign else f"no cache in {self.path}"
            text = f"{words}: {trouble}"
            if trouble.is_foreign and self._is_chosen:
                raise StorageError(f"disk_cache: {text}; give the path of a new file, or delete this one") from None
            self._warn(text)
        except OSError as error:
            if error.errno not in _NO_ACCESS:
                self._warn(f"cache file {self.path}: {error.strerror or error}")

    def _warn(self, text: str, *, is_once: bool = True) -> None:
        if is_once and (str(self.path), text) in _warned:
            return
        _warned.add((str(self.path), text))
        warnings.warn(text, RuntimeWarning, stacklevel=6)


def _members(path: Path) -> dict[str, bytes]:
    """Return all members but the first, each checked by its CRC-32; none where there is no file."""
    if (unsafe := why_unsafe(path.parent, path)) is not None:
        raise _NoCacheError(f"it is not yours alone: {unsafe}")
    try:
        raw = read_bounded(path, _MAX_READ_BYTES, "cache of results")
    except InvalidInputError as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError):
            return {}
        if isinstance(cause, OSError) and not isinstance(cause, IsADirectoryError):
            raise cause from None
        raise _NoCacheError(str(error), is_foreign=True) from None
    end = _NAME_OFFSET + len(_HEADER)
    if raw[: len(_MAGIC)] != _MAGIC or raw[_NAME_OFFSET:end] != _HEADER.encode():
        raise _NoCacheError("it does not begin as one", is_foreign=True)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as file:
            if any(info.compress_type != zipfile.ZIP_STORED for info in file.infolist()):
                raise _DamagedError("a member is compressed")
            members = {name: file.read(name) for name in file.namelist()}
    except _DAMAGES as error:
        raise _DamagedError(f"it is damaged ({error})") from None
    names = members.pop(_HEADER, None)
    if names != "\n".join(members).encode():  # zipfile takes a list of members that lost its end
        raise _DamagedError("it is damaged (its list of members)")
    return members


def _arrays_of(members: Mapping[str, bytes], section: str) -> Arrays:
    prefix = f"{section}/"
    try:
        return {
            name.removeprefix(prefix).removesuffix(".npy"): np.load(io.BytesIO(raw), allow_pickle=False)
            for name, raw in members.items()
            if name.startswith(prefix)
        }
    except _DAMAGES as error:
        raise _DamagedError(f"it is damaged ({error})") from None


def _packed(others: dict[str, bytes], own: dict[str, bytes], max_bytes: int) -> bytes:
    """Return a file of members, the section just written last; the first sections go where it would be too large."""
    while others and sum(map(len, (*others.values(), *own.values()))) > max_bytes:
        oldest = next(iter(others)).partition("/")[0]
        others = {name: raw for name, raw in others.items() if name.partition("/")[0] != oldest}
    members, file = others | own, io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in ({_HEADER: "\n".join(members).encode()} | members).items():
            archive.writestr(zipfile.ZipInfo(name), raw)
    return file.getvalue()
