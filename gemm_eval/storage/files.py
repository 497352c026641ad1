"""Files of the library: its cache folder, folders that only this user can write, whole writes, bounded reads, locks.

A path is unsafe if it, or a folder above it, belongs to another user than this one and root, or may be written by
others. A file is written under another name beside its own and then renamed: others see all of it or nothing.
"""

import contextlib
import functools
import hashlib
import os
import re
import stat
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.words import one_line

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_ROOT_UID = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_USUAL_MODE, _PRIVATE_MODE = 0o666, 0o600  # less what the umask takes
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")
_NUM_KEPT_ASIDE = 3
_MAX_PATH_CHARS = 1024
_MAX_CHECKED_BYTES = 1 << 26  # a cubin takes a few megabytes at most, and a larger file is made anew
# Without O_NONBLOCK, opening a FIFO may wait for a writer for ever; without O_NOCTTY, a terminal may become ours.
_EXTRA_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # Windows has neither
_POLL_S = 0.005


def cache_dir() -> Path | None:
    """Return the user's cache folder of this library; None: caching is turned off, or others can write there.

    In the latter case a RuntimeWarning says so once. The folder may not exist yet: `make_folder` makes it.
    """
    configured = os.environ.get("GEMM_EVAL_CACHE_DIR")
    if configured is None:
        import platformdirs

        folder = platformdirs.user_cache_path("gemm_eval", appauthor=False)
    elif configured.strip().lower() in ("", "off", "0", "none"):
        return None
    else:
        folder = Path(configured)
    return folder if _is_ours(folder) else None


@functools.cache
def _is_ours(folder: Path) -> bool:
    unsafe = why_unsafe(folder)
    if unsafe is not None:
        warnings.warn(
            f"no cache in {folder}, which is not yours alone: {unsafe}; GEMM_EVAL_CACHE_DIR names another",
            RuntimeWarning,
            stacklevel=3,
        )
    return unsafe is None


def why_unsafe(*paths: Path) -> str | None:
    """Return why others could have written one of these files or folders, and what to do; None: none could.

    Of a path that does not exist, the folders above decide; of those the sticky bit is enough (``/tmp``): under it
    users cannot rename files of others. Links are followed. Windows has no modes, and its profiles keep others out.
    """
    if not hasattr(os, "geteuid"):
        return None
    own_uids = {_ROOT_UID, os.geteuid()}
    return next(filter(None, (_why_unsafe(path, own_uids) for path in paths)), None)


def _why_unsafe(path: Path, own_uids: set[int]) -> str | None:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:
        return f"{path} cannot be followed ({error})"
    for part in (resolved, *resolved.parents):
        try:
            status = part.stat()
        except OSError:  # missing, or this user cannot read it either
            continue
        if status.st_uid not in own_uids:
            return f"{part} belongs to user {status.st_uid}"
        if not status.st_mode & _OTHERS_WRITE:
            continue
        is_guarded = (
            part is not resolved and status.st_mode & stat.S_ISVTX
            if stat.S_ISDIR(status.st_mode)
            else not part.parent.stat().st_mode & _OTHERS_ENTER
        )
        if not is_guarded:
            mode = stat.S_IMODE(status.st_mode)
            return f"others may write {part} (mode {mode:o}; chmod go-w would mend it)"
    return None


def make_folder(folder: Path) -> None:
    """Make a folder, and the missing ones above it, for this user alone."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def is_temporary(name: str) -> bool:
    """Return True if a file name, without its folder, is that of a file that `staged` wrote."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def staged(path: Path, *parts: bytes | memoryview, is_durable: bool = True, is_private: bool = False) -> Iterator[Path]:
    """Write a file of these parts beside its own name; yield that path, which is removed unless it was renamed.

    `is_durable`: wait until the disk has it, so that a name never appears before its bytes. Without it, a loss of power
    may leave a file of zeros: for files that carry a checksum. `is_private`: readable by this user only.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    opener = functools.partial(os.open, mode=_PRIVATE_MODE if is_private else _USUAL_MODE)
    try:
        with open(temporary, "xb", opener=opener) as file:
            for part in parts:
                file.write(part)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, is_durable: bool = True, is_private: bool = False) -> None:
    """Replace a file, or make it; arguments as for `staged`. After an `OSError` the old file is as it was."""
    with staged(path, content, is_durable=is_durable, is_private=is_private) as temporary:
        temporary.replace(path)
    if is_durable:
        with contextlib.suppress(OSError):  # where folders can be synchronized, the name survives a loss of power too
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace a file that a user named by a text in UTF-8; makes its folder, and a link stays a link."""
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise GemmEvalError(f"cannot write {path}: {error}") from error


def set_aside(path: Path, name: str | None = None) -> Path:
    """Rename a damaged file within its folder, by default to ``<name>.damaged-<n>``; return its new path.

    Numbers count up, and the last three files stay. A file that has the given name is replaced.
    """
    number = re.compile(re.escape(path.name) + r"\.damaged-(\d+)")
    matches = (number.fullmatch(file.name) for file in path.parent.iterdir())
    earlier = [] if name else sorted(int(match[1]) for match in matches if match)
    aside = path.with_name(name or f"{path.name}.damaged-{earlier[-1] + 1 if earlier else 1}")
    path.replace(aside)
    for old in (path.with_name(f"{path.name}.damaged-{number}") for number in earlier[: 1 - _NUM_KEPT_ASIDE]):
        with contextlib.suppress(OSError):  # too many files take room, and harm nobody; a folder is not ours
            old.unlink(missing_ok=True)
    return aside


def read_bounded(
    path: str | os.PathLike[str],
    max_bytes: int,
    what: str,
    *,
    unreadable: type[GemmEvalError] = InvalidInputError,
    too_large: type[GemmEvalError] = InvalidInputError,
) -> bytes:
    """Return the content of a file; pipes, devices, sockets and folders are refused before anything is read of them.

    `what` the file holds, such as "spec", is for messages. The cause of an `unreadable` error is the `OSError`.
    """
    name = one_line(str(Path(path)), _MAX_PATH_CHARS)  # all of it, unless no file system would take it
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | _EXTRA_FLAGS)) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            raw = file.read(max_bytes + 1) if is_regular else b""
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL or half a surrogate
        raise unreadable(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    if not is_regular:
        raise unreadable(f"cannot read {name}: not a regular file, but a pipe or a device")
    if len(raw) > max_bytes:
        raise too_large(f"{name}: larger than {max_bytes:,} bytes, which no {what} needs")
    return raw


def read_checked(path: Path) -> bytes | None:
    """Return what `write_checked` wrote; None: no file, not all of it, or a file that others could have written."""
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


_held: set[int] = set()


class FileLock:
    """A lock between processes and threads, on a file of its own, which is made and stays.

    It is the operating system's, so it ends with its process. On a file system without locks no process is kept out. A
    link in the place of the lock's own file is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, *, timeout_s: float = 0.0) -> bool:
        """Return True once it is held, False if others hold it for `timeout_s`; raise `OSError` without a file."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(self._path, flags, _PRIVATE_MODE)
        _held.add(self._descriptor)
        deadline_s = time.monotonic() + timeout_s
        while not _try_lock(self._descriptor):
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

    def _try_lock(descriptor: int) -> bool:
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

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
