"""Files that others see whole or not at all: written beside their place under another name, which then changes.

A writer that is killed leaves its temporary file; `is_temporary` knows those by their names, and whoever owns a folder
may remove them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from gemm_eval.errors import GemmEvalError

__all__ = ["is_temporary", "place_new", "staged", "write_text", "write_whole"]

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")
_USUAL_MODE = 0o666  # less what the umask takes
_PRIVATE_MODE = 0o600


def is_temporary(name: str) -> bool:
    """Whether a file of this name, without its folder, is one that a writer of this module has not given away yet."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def staged(path: Path, content: bytes, *, is_durable: bool = True, is_private: bool = False) -> Iterator[Path]:
    """Write a file under another name beside its own; yields that one, which is removed unless it was renamed.

    Args:
        path: the name that it shall have.
        content: all of it.
        is_durable: wait until the disk has it, so that a name is never there before its bytes, whatever fails then.
            Without, a loss of power may leave a file of zeros: for those that carry a checksum.
        is_private: readable by this user only, whatever the umask says.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    opener = functools.partial(os.open, mode=_PRIVATE_MODE if is_private else _USUAL_MODE)
    try:
        with open(temporary, "xb", opener=opener) as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, is_durable: bool = True, is_private: bool = False) -> None:
    """Replace a file, or make it; arguments as of `staged`.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    with staged(path, content, is_durable=is_durable, is_private=is_private) as temporary:
        temporary.replace(path)
    if is_durable:
        _sync_folder(path.parent)


def place_new(temporary: Path, path: Path) -> None:
    """Give a staged file its name, unless a file has it: on a file system without locks somebody may be faster.

    Raises:
        OSError: it cannot have that name.
    """
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links, such as FAT; if it is something else, renaming says so, too
        if not os.path.lexists(path):
            temporary.rename(path)


def write_text(path: Path, text: str) -> None:
    """Replace a file that a user named by a text in UTF-8; makes its folder, and a link stays a link.

    Raises:
        GemmEvalError: it cannot be written; the old one is as it was.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise GemmEvalError(f"cannot write {path}: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a loss of power, where folders can be synchronized."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
