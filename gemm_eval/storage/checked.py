"""Reading files that may hold anything: regular ones only, and no more of them than a written maximum.

`read_bounded` is for files that somebody else wrote, `write_checked` and `read_checked` for our own caches,
whose content carries a checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.storage.atomic import write_whole
from gemm_eval.storage.folders import make_folder, why_unsafe
from gemm_eval.words import one_line

__all__ = ["read_bounded", "read_checked", "write_checked"]

_MAX_PATH_CHARS = 1024
_MAX_CHECKED_BYTES = 1 << 26  # a cubin takes a few megabytes at most, and what is larger is made anew
# Without O_NONBLOCK, opening a FIFO waits for a writer, for ever maybe; without O_NOCTTY, a terminal may become ours.
_EXTRA_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # Windows has neither


def read_bounded(
    path: str | os.PathLike[str],
    max_bytes: int,
    what: str,
    *,
    unreadable: type[GemmEvalError] = InvalidInputError,
    too_large: type[GemmEvalError] = InvalidInputError,
) -> bytes:
    """Return the content of a file; pipes, devices, sockets and folders are refused before anything is read of them.

    Args:
        path: the file.
        max_bytes: the largest size that is taken, in bytes.
        what: what the file holds, in the singular, for messages: "spec", "cubin".
        unreadable: raised where there is no such file, or it cannot be read; its cause is the `OSError`, if one.
        too_large: raised where the file is larger than `max_bytes`.

    Raises:
        GemmEvalError: `unreadable` or `too_large`, each with the path in the message.
    """
    try:
        with open(path, "rb", opener=_open) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            raw = file.read(max_bytes + 1) if is_regular else b""
    except OSError as error:
        raise unreadable(f"cannot read {_name_of(path)}: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have: a NUL, half a surrogate pair
        raise unreadable(f"cannot read {_name_of(path)}: {error}") from error
    if not is_regular:
        raise unreadable(f"cannot read {_name_of(path)}: not a regular file, but a pipe or a device")
    if len(raw) > max_bytes:
        raise too_large(f"{_name_of(path)}: larger than {max_bytes:,} bytes, which no {what} needs")
    return raw


def read_checked(path: Path) -> bytes | None:
    """Return what `write_checked` wrote, or None: no file, not all of it, or a file that others could have written."""
    if why_unsafe(path.parent, path) is not None:
        return None
    try:
        checksum, _, content = read_bounded(path, _MAX_CHECKED_BYTES, "file of a cache").partition(b"\n")
    except InvalidInputError:
        return None
    return content if hashlib.sha256(content).hexdigest().encode() == checksum else None


def write_checked(path: Path, content: bytes) -> None:
    """Write a checksum and `content`, whole or not at all. A folder that cannot be written only means no cache."""
    checksum = hashlib.sha256(content).hexdigest().encode()
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        write_whole(path, checksum + b"\n" + content, is_durable=False, is_private=True)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _EXTRA_FLAGS)


def _name_of(path: str | os.PathLike[str]) -> str:
    """The path on one line, all of it unless no file system would take it."""
    return one_line(str(Path(path)), _MAX_PATH_CHARS)
