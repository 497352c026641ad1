"""`ResultFile`: arrays that later processes find again, in an ``.npz`` file that is replaced whole at every write."""

from __future__ import annotations

import contextlib
import encodings.cp437  # noqa: F401  names in zip files: imported at the first read, a fork meanwhile would hang
import errno
import io
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError, StorageError
from gemm_eval.storage.files import FileLock, make_folder, read_bounded, set_aside, why_unsafe, write_whole

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
