"""What can go wrong with the cache file, sorted by what to do about it. Knows nothing of SQLite."""

from __future__ import annotations

import errno
from enum import Enum

__all__ = ["Kind", "Trouble", "from_os_error"]


class Kind(Enum):
    """What a failed operation calls for."""

    DAMAGED = "set the file aside and build a new one"
    FOREIGN = "somebody's file, not a cache: leave it as it is and say so"
    MOVED = "another process set the file aside: open the path anew"
    BUSY = "somebody else holds the file: skip this operation"
    READ_ONLY = "read what is there, write nothing"
    UNSAFE = "others could have written the file: go without it"
    CANNOT_OPEN = "no access, or no file descriptors left"
    NO_SPACE = "the write failed, reads go on"
    FAILED = "anything else: close, and try again at the next operation"


class Trouble(Exception):  # noqa: N818  it never leaves this package
    """An operation on the cache file failed."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


_KIND_OF_ERRNO = {
    errno.ENOSPC: Kind.NO_SPACE,
    errno.EDQUOT: Kind.NO_SPACE,
    errno.EFBIG: Kind.NO_SPACE,
    errno.EACCES: Kind.READ_ONLY,
    errno.EPERM: Kind.READ_ONLY,
    errno.EROFS: Kind.READ_ONLY,
    errno.EEXIST: Kind.CANNOT_OPEN,
    errno.ENOTDIR: Kind.CANNOT_OPEN,
}


def from_os_error(error: OSError) -> Trouble:
    """Sort an error of the operating system."""
    return Trouble(_KIND_OF_ERRNO.get(error.errno or 0, Kind.FAILED), str(error))
