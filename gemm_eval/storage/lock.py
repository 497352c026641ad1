"""Locks between processes and threads, on files made for that: the one home of `fcntl` and `msvcrt`.

They are the operating system's, so a lock ends with its process, however that ends. It is a few lines, so the library
needs no package for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock"]

_POLL_S = 0.005
_held: set[int] = set()


class FileLock:
    """A lock on a file of its own: what it protects is replaced, and a lock would stay with the old file.

    The file is made, and stays. On a file system without locks nobody is kept out.

    Args:
        path: of the lock's own file; a link is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, *, shared: bool = False, timeout_s: float = 0.0) -> bool:
        """Return whether it is held now, or others still held it after so many seconds.

        Args:
            shared: with others that hold it shared; on Windows nobody else either way.
            timeout_s: how long to try.

        Raises:
            OSError: the file cannot be made or opened.
        """
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(self._path, flags, 0o600)
        _held.add(self._descriptor)
        deadline_s = time.monotonic() + timeout_s
        while not _try_lock(self._descriptor, shared=shared):
            if time.monotonic() >= deadline_s:
                self._close()
                return False
            time.sleep(_POLL_S)
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor in _held:
            with contextlib.suppress(OSError):
                _unlock(self._descriptor)  # closing would not do: a child forked just now has a copy of the descriptor
        self._close()

    def _close(self) -> None:
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)


def _close_in_child() -> None:
    """Let a forked child, such as a worker that outlives this process, not hold the locks of its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


if sys.platform == "win32":

    def _try_lock(descriptor: int, *, shared: bool) -> bool:  # noqa: ARG001
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        except OSError:
            return True
        return True

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(descriptor: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
