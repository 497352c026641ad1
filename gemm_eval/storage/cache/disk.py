"""`DiskCache`: what the rest of the library sees of the cache file."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gemm_eval.errors import InvalidOptionError, StorageError
from gemm_eval.storage.cache.session import Session
from gemm_eval.storage.cache.trouble import Kind
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.storage.cache.store import Store

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_TIMEOUT_S", "DiskCache"]

T = TypeVar("T")

DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_TIMEOUT_S = 2.0
MIN_MAX_BYTES = 64 << 10  # the empty file takes five pages of 4 KiB
FINALIZER_PATIENCE_S = 0.5  # at exit a daemon thread may hold the cache; do not hang on it
_FOREIGN = Kind.FOREIGN.name
PAGE_ENTRIES = 2048  # read at a time by load_all: nobody else is kept waiting for longer

_said: set[tuple[str, str]] = set()


class DiskCache:
    """A bounded map from digests to JSON texts in one SQLite file, shared by any number of processes and threads.

    A cache never fails its user: where the file cannot be used, reads find nothing and writes do nothing. Trouble that
    the user can mend (a full disk, a damaged file) is told by one RuntimeWarning; a read-only place just means that
    nothing is written. `status` says how things are.

    - **Opened at first use.** Constructing one costs microseconds and touches no file. One object serves all threads
      and may be shared by all that use the file; it may be pickled; it survives `os.fork` on both sides.
    - **Damaged or newer caches** are renamed to ``<name>.damaged-<UTC time>-<pid>`` (the last three are kept), never
      overwritten. A file that does not begin as a cache does, or a folder, is never touched. Each entry has a checksum:
      a value that comes back is the one that was put for that key.
    - **Bounded.** When the file outgrows `max_bytes`, the least recently used entries of all namespaces go, a tenth of
      the file at once. "Used" is coarse: a stamp is renewed when it is more than an hour old, and in batches, together
      with the next write. Between equal stamps the older entry goes first. Beside the file, the ``-wal`` file takes up
      to 4 MiB, and more while a large write is under way.

    Args:
        path: the file, made with its folder when first needed; None turns the cache off.
        namespace: whose entries these are, e.g. ``"result schema 1, model 3"``; entries of others are never returned.
        max_bytes: bound of the file, at least 64 KiB. When processes disagree, the lowest wins.
        timeout_s: how long an operation waits for other processes before it is skipped. After a wait in vain nothing
            waits for ten times as long, so that a file locked for good does not slow its users down.
        is_chosen: the user named the file: each operation raises a StorageError where it is somebody's, not a cache.
            False: a RuntimeWarning says so once.

    Raises:
        InvalidOptionError: an option out of its range.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        namespace: str,
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        is_chosen: bool = False,
    ) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InvalidOptionError(f"path must be a path or None, got {shown(path)}")
        if not isinstance(namespace, str) or not namespace or not namespace.isprintable():
            raise InvalidOptionError(f"namespace must be a printable text, not empty, got {shown(namespace)}")
        if not isinstance(max_bytes, int) or max_bytes < MIN_MAX_BYTES:
            raise InvalidOptionError(f"max_bytes must be an int >= {MIN_MAX_BYTES}, got {shown(max_bytes)}")
        if not 0 <= timeout_s <= 3600:
            raise InvalidOptionError(f"timeout_s must be 0 to 3600 seconds, got {shown(timeout_s)}")
        # absolute now: the current folder may change before the file is opened
        self._path = None if path is None else Path(path).absolute()
        self._options: dict[str, Any] = {"namespace": namespace, "max_bytes": max_bytes, "timeout_s": timeout_s}
        self._is_chosen = is_chosen
        self._session: Session | None = None
        if self._path is not None:
            self._session = Session(self._path, **self._options)
            # also at exit; it must not refer to self, or it would keep it alive
            weakref.finalize(self, self._session.close, FINALIZER_PATIENCE_S)

    def __repr__(self) -> str:
        return f"DiskCache({self._path!r}, namespace={self._options['namespace']!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._path, self._options | {"is_chosen": self._is_chosen})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path | None:
        """The file, or None when the cache is off."""
        return self._path

    @property
    def status(self) -> str:
        """``off``, ``not open``, ``read and write``, ``read only``, or ``given up: `` and why. For people."""
        return "off" if self._session is None else self._session.status

    def get(self, key: bytes) -> str | None:
        """The value of `key`, or None. Takes tens of microseconds.

        Raises:
            TypeError: `key` is not bytes.
        """
        _check_key(key)
        nothing: dict[bytes, str] = {}
        return self._run(lambda store: store.get_many((key,)), nothing).get(key)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, str]:
        """The values of those `keys` that are stored.

        Raises:
            TypeError: a key is not bytes.
        """
        wanted = list(keys)
        for key in wanted:
            _check_key(key)
        nothing: dict[bytes, str] = {}
        return self._run(lambda store: store.get_many(wanted), nothing) if wanted else nothing

    def put_many(self, items: Mapping[bytes, str]) -> int:
        """Store `items`, replacing older values, and return how many were written: all or, after trouble, 0.

        Up to 16,384 entries are one transaction.

        Raises:
            TypeError: a key is not bytes, or a value not str.
            UnicodeEncodeError: a value holds lone surrogates.
        """
        own = dict(items)
        for key, value in own.items():
            _check_key(key)
            if not isinstance(value, str):
                raise TypeError(f"a value must be a JSON text (str), got {type(value).__name__}")
        return self._run(lambda store: store.put_many(own), 0) if own else 0

    def load_all(self, prefix: bytes = b"") -> Iterator[tuple[bytes, str]]:
        """All entries of this namespace whose keys begin with `prefix`, in the order of the keys.

        Entries that others write meanwhile may come or not. Loading does not count as use: see `touch`.

        Raises:
            TypeError: `prefix` is not bytes.
        """
        _check_key(prefix)
        return self._load_all(prefix)

    def _load_all(self, prefix: bytes) -> Iterator[tuple[bytes, str]]:
        after, is_first = prefix, True
        nothing: list[tuple[bytes, str]] = []
        while True:
            page = self._run(_page_reader(after, is_first), nothing)
            for key, value in page:
                if not key.startswith(prefix):
                    return
                yield key, value
            if len(page) < PAGE_ENTRIES:
                return
            after, is_first = page[-1][0], False

    def touch(self, keys: Iterable[bytes]) -> None:
        """Count `keys` as used just now, e.g. because the caller answered them from memory after `load_all`.

        Raises:
            TypeError: a key is not bytes.
        """
        used = list(keys)
        for key in used:
            _check_key(key)
        self._run(lambda store: store.touch(used), None)

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove those of `keys` that are stored, e.g. because their values make no sense.

        Raises:
            TypeError: a key is not bytes.
        """
        unwanted = list(keys)
        for key in unwanted:
            _check_key(key)
        if unwanted:
            self._run(lambda store: store.remove_many(unwanted), None)

    @property
    def num_entries(self) -> int:
        """Entries of this namespace; 0 when the file cannot be used."""
        return self._run(lambda store: store.num_entries(), 0)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk: the file with all its namespaces, and its ``-wal``."""
        if self._path is None:
            return 0
        return sum(_size_bytes(self._path.with_name(self._path.name + suffix)) for suffix in ("", "-wal"))

    def clear(self, *, all_namespaces: bool = False) -> int:
        """Remove the entries of this namespace, or all; give the room back; return how many there were."""
        return self._run(lambda store: store.clear(all_namespaces=all_namespaces), 0)

    def close(self) -> None:
        """Write what is due and close the file. Later calls open it again."""
        if self._session is not None:
            self._session.close()

    def _run(self, operation: Callable[[Store], T], default: T) -> T:
        if self._session is None:
            return default
        result, notices = self._session.run(operation, default)
        for notice in notices:  # not before the lock is free: with warnings as errors this raises
            if notice.kind == _FOREIGN and self._is_chosen:
                raise StorageError(f"disk_cache: {notice.text}; give the path of a new file, or delete this one")
            once = (str(self._path), notice.kind)
            if notice.kind == "damaged" or once not in _said:
                _said.add(once)
                warnings.warn(notice.text, RuntimeWarning, stacklevel=3)
        return result


def _page_reader(after: bytes, is_first: bool) -> Callable[[Store], list[tuple[bytes, str]]]:
    return lambda store: store.page(after, is_first=is_first, limit=PAGE_ENTRIES)


def _check_key(key: object) -> None:
    if not isinstance(key, bytes):
        raise TypeError(f"a key must be a digest (bytes), got {type(key).__name__}")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _rebuild(path: Path | None, options: dict[str, Any]) -> DiskCache:
    return DiskCache(path, **options)
