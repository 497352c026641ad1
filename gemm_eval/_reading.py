"""Reading a file that somebody else wrote: a regular file only, and no more of it than a written maximum."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gemm_eval.errors import GemmEvalError, InvalidInputError

__all__ = ["read_bounded"]

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


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _EXTRA_FLAGS)


def _name_of(path: str | os.PathLike[str]) -> str:
    """The path as it is, or with escapes if it would not print as one line."""
    text = str(Path(path))
    return text if text.isprintable() else repr(text)
