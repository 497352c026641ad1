"""The files around a cache: where it lies, who may open or replace it, and how a damaged one is set aside.

SQLite finds the companions of a file (``-wal``, ``-shm``) by name, so replacing a file that others are about to open
could pair the new file with the old companions. Therefore everyone opens under a shared lock on ``<name>.guard`` and
replaces under an exclusive one. The operating system drops these locks when a process dies.

Nothing here may open a cache file that works: closing any descriptor of a file drops all POSIX locks that this process
holds on it, those of SQLite included. ``stat`` is safe.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gemm_eval.storage import aside
from gemm_eval.storage.cache.trouble import Kind, Trouble
from gemm_eval.storage.folders import cache_dir, why_unsafe
from gemm_eval.storage.lock import FileLock

__all__ = [
    "Identity",
    "can_write",
    "check_safe",
    "default_path",
    "doubted",
    "guard",
    "identity_of",
    "is_on_network",
    "is_ours",
    "remove_leftovers",
    "set_aside",
    "staging_path",
]

COMPANIONS = ("-wal", "-shm", "-journal")
NUM_KEPT_ASIDE = 3
APPLICATION_ID = 0x47454D4D  # "GEMM"
_ID = APPLICATION_ID.to_bytes(4, "big")
_MAGIC, _ID_OFFSET = b"SQLite format 3\0", 68  # https://www.sqlite.org/fileformat.html, "The Database Header"
_FILE_NAME = "results-v1.sqlite3"  # the schema's version: a later one will not meet this file

Identity = tuple[int, int]  # device and inode


def default_path() -> Path | None:
    """The cache file in the user's cache folder, or None when ``GEMM_EVAL_CACHE_DIR`` turns caching off."""
    folder = cache_dir()
    return None if folder is None else folder / _FILE_NAME


def identity_of(path: Path) -> Identity | None:
    """Which file lies at `path`, or None if none does.

    Raises:
        OSError: the folder cannot be searched.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  half the time of Path.stat, and every operation asks
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def is_ours(path: Path) -> bool:
    """Return whether the file at `path` begins as a cache does: SQLite's magic bytes, and our application id.

    Only of a file that SQLite cannot use: see above.
    """
    if not path.is_file():  # opening a pipe would wait
        return False
    with path.open("rb") as file:
        header = file.read(_ID_OFFSET + len(_ID))
    return header.startswith(_MAGIC) and header[_ID_OFFSET:] == _ID


def can_write(*places: Path) -> bool:
    """Whether all these files and folders may be read and written."""
    effective = os.access in os.supports_effective_ids
    return all(os.access(place, os.R_OK | os.W_OK, effective_ids=effective) for place in places)


def doubted(trouble: Trouble, path: Path) -> Trouble:
    """Return `trouble` as damage if it says that the file at `path` is read-only, and the system says that it is not.

    A byte of SQLite's header tells which versions may write the file.
    """
    if trouble.kind is Kind.READ_ONLY and can_write(path, path.parent):
        return Trouble(Kind.DAMAGED, f"{trouble.reason}, it says of itself")
    return trouble


def check_safe(path: Path) -> None:
    """Check that nobody else could have written the file at `path` or a companion, whether it exists or not.

    Raises:
        Trouble: UNSAFE, somebody could.
    """
    unsafe = why_unsafe(path.parent, path, *(path.with_name(path.name + suffix) for suffix in COMPANIONS))
    if unsafe is not None:
        raise Trouble(Kind.UNSAFE, f"it is not yours alone: {unsafe}")


@contextlib.contextmanager
def guard(path: Path, *, exclusive: bool, timeout_s: float) -> Iterator[None]:
    """Hold the right to open (shared) or to replace (exclusive) the file at `path`.

    Without POSIX locks, or where the guard file cannot be made, it guards nothing: Windows refuses to replace open
    files anyway, and a folder that cannot be written has no file to replace.

    Raises:
        Trouble: BUSY, others held it for longer than `timeout_s` seconds.
    """
    if sys.platform == "win32":
        yield
        return
    lock = FileLock(path.with_name(path.name + ".guard"))
    try:
        is_ours = lock.acquire(shared=not exclusive, timeout_s=timeout_s)
    except OSError:
        yield
        return
    if not is_ours:
        raise Trouble(Kind.BUSY, "others are opening or replacing the file")
    try:
        yield
    finally:
        lock.release()


def staging_path(path: Path) -> Path:
    """Where a new file is built before it appears at `path`."""
    return path.with_name(f"{path.name}.new-{os.getpid()}")


def remove_leftovers(path: Path) -> None:
    """Remove what killed builders and a deleted cache file left behind. Only under the exclusive guard.

    Raises:
        OSError: something cannot be removed; a new file beside an old ``-wal`` would be unsafe.
    """
    for suffix in COMPANIONS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    for stale in _siblings(path, ".new-"):
        stale.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename what lies at `path`, with its companions, to ``<name>.damaged-<UTC time>-<pid>``, and return that path.

    Of the files set aside earlier the newest stay, three in all. Only under the exclusive guard: a companion that
    cannot be renamed is removed before a new file is made.

    Raises:
        OSError: it cannot be renamed.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return aside.set_aside(
        path,
        f"{path.name}.damaged-{stamp}-{os.getpid()}",
        companions=COMPANIONS,
        earlier=rf"{re.escape(path.name)}\.damaged-.*?",
        num_kept=NUM_KEPT_ASIDE,
    )


def _siblings(path: Path, infix: str) -> list[Path]:
    return [found for found in path.parent.iterdir() if found.name.startswith(path.name + infix)]


# fmt: off
_NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2",
    "smb3", "smbfs", "virtiofs",
})
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")  # `man 5 proc`: "... mount-point options [tags] - type source options"


def is_on_network(folder: Path) -> bool:
    """Whether `folder` lies on a file system whose shared memory other hosts do not see; known on Linux only."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        target = folder.resolve()
    except OSError:
        return False
    longest, file_system = -1, ""
    for line in lines:
        mount, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split(" ")[4])
        if len(point) >= longest and target.is_relative_to(point):  # of two on one point the later is on top
            longest, file_system = len(point), rest.split(" ")[0]
    return file_system in _NETWORK_FILE_SYSTEMS or file_system.startswith("fuse.")
