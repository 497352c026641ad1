"""The life of a cache file in this process: opened late, locked, closed around a fork, replaced when damaged, given up.

One connection with a lock serves all threads: a read takes microseconds, and connections of dead threads are a burden.

SQLite keeps its books of file locks by process and inode. A forked child inherits the books but not the locks, so even
a new connection to the same file would be unsafe in the child. Therefore every open file is closed just before a fork;
parent and child open it again when they need it. A fork that Python did not see, from C, is noticed by the changed
process number; such a child goes without the cache.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gemm_eval.storage.cache.files import Identity, doubted, identity_of
from gemm_eval.storage.cache.trouble import Kind, Trouble

if TYPE_CHECKING:
    from gemm_eval.storage.cache.store import Store

__all__ = ["Notice", "Session"]

T = TypeVar("T")

MAX_TRIES = 4  # of one operation: the file may have to be replaced, or was replaced by another process
MAX_FAILURES = 3  # in a row, after which this process gives the cache up
MAX_DAMAGES = 3  # in all: whatever damages the file so often will do it again
IMPATIENCE = 10  # times the timeout: how long nothing waits after a wait in vain

_RETRY = {Kind.DAMAGED, Kind.MOVED}
_KEEP_OPEN = {Kind.BUSY, Kind.NO_SPACE}
_SILENT = {Kind.BUSY, Kind.READ_ONLY, Kind.CANNOT_OPEN, Kind.MOVED}


class Notice(NamedTuple):
    """What the user should be told; of a `kind` other than "damaged" once."""

    kind: str
    text: str


class Session:
    """Runs operations on a cache file, whatever happens to it. See `DiskCache` for the arguments."""

    def __init__(self, path: Path, *, namespace: str, max_bytes: int, timeout_s: float) -> None:
        self._path = path
        self._namespace = namespace
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._identity: Identity | None = None
        self._pid = os.getpid()
        self._num_failures = 0
        self._num_damages = 0
        self._impatient_until_s = -math.inf
        self._given_up = ""
        self._notices: list[Notice] = []
        _live.add(self)

    def run(self, operation: Callable[[Store], T], default: T) -> tuple[T, list[Notice]]:
        """Run `operation` on the open file, and return its result and what to tell the user.

        Returns `default` where the file cannot be used. Only exceptions of wrong use leave.
        """
        if os.getpid() != self._pid:
            self._notice_fork()
        with self._lock:
            result = default
            for _ in range(MAX_TRIES):
                if self._given_up:
                    break
                try:
                    result = operation(self._current_store())
                    self._num_failures = 0
                    break
                except Trouble as trouble:
                    if not self._can_retry(trouble):
                        break
            notices, self._notices = self._notices, []
            return result, notices

    @property
    def status(self) -> str:
        """``not open``, ``read and write``, ``read only`` or ``given up: `` with the reason."""
        store = self._store
        if self._given_up:
            return f"given up: {self._given_up}"
        if store is None:
            return "not open"
        return "read only" if store.is_read_only else "read and write"

    def close(self, patience_s: float = -1.0) -> None:
        """Write the stamps that are due and close the file, unless other threads use it for longer than `patience_s`.

        Negative patience waits for ever. The next operation opens the file again.
        """
        if os.getpid() != self._pid:
            self._notice_fork()
        if not self._lock.acquire(timeout=patience_s):
            return
        try:
            if self._store is not None and self._is_current():
                with contextlib.suppress(Trouble):
                    self._store.flush_touched()
            self._close_store()
        finally:
            self._lock.release()

    def before_fork(self) -> None:
        """Close the file and keep everybody out until `after_fork`."""
        self._lock.acquire()
        self._close_store()

    def after_fork(self) -> None:
        """Let everybody in again, in the parent and in the child."""
        self._pid = os.getpid()
        self._lock.release()

    def _notice_fork(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # the old one may be held by a thread that is not in this process
        if self._store is not None:
            _inherited.append(self._store)
            self._store = None
            self._given_up = "the process was forked while the file was open"

    def _current_store(self) -> Store:
        patience_s = self._timeout_s if time.monotonic() >= self._impatient_until_s else 0.0
        if self._store is not None:
            if self._is_current():
                self._store.set_patience(patience_s)
                return self._store
            self._close_store()
        try:
            from gemm_eval.storage.cache.opening import open_or_build
            from gemm_eval.storage.cache.store import Store
        except ImportError as error:
            raise Trouble(Kind.READ_ONLY, f"this Python has no SQLite ({error})") from error
        opened, said = open_or_build(self._path, timeout_s=patience_s)
        self._count_damages(said)
        self._identity = opened.identity
        self._store = Store(
            opened.connection,
            namespace=self._namespace,
            max_bytes=self._max_bytes,
            patience_s=patience_s,
            is_read_only=opened.is_read_only,
        )
        return self._store

    def _is_current(self) -> bool:
        """Whether the open file still lies at the path: others may have set it aside or deleted it. Takes 2 us."""
        try:
            return identity_of(self._path) == self._identity
        except OSError:
            return False

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _can_retry(self, trouble: Trouble) -> bool:
        """Do what `trouble` calls for, and say whether the operation is worth another try."""
        was_open = self._store is not None
        if self._store is not None and not self._store.is_read_only:
            trouble = doubted(trouble, self._path)
        if trouble.kind not in _KEEP_OPEN:
            self._close_store()
        if trouble.kind is Kind.DAMAGED and was_open and self._identity is not None:
            trouble = self._replaced(self._identity, trouble)
        if trouble.kind in _RETRY:
            return True
        if trouble.kind is Kind.FOREIGN:
            self._notices.append(Notice(trouble.kind.name, f"{self._path} is no cache of gemm_eval: {trouble.reason}"))
            return False
        if trouble.kind is Kind.BUSY:
            self._impatient_until_s = time.monotonic() + IMPATIENCE * self._timeout_s
        if trouble.kind not in _SILENT:
            self._notices.append(Notice(trouble.kind.name, f"cache file {self._path}: {trouble.reason}"))
        if trouble.kind is Kind.UNSAFE or (trouble.kind is Kind.READ_ONLY and not was_open):
            self._given_up = trouble.reason
        elif trouble.kind not in _KEEP_OPEN or not was_open:
            self._num_failures += 1
            if self._num_failures >= MAX_FAILURES and trouble.kind is not Kind.BUSY:
                self._given_up = trouble.reason
        return False

    def _replaced(self, identity: Identity, damage: Trouble) -> Trouble:
        """Set the damaged file aside; return `damage`, or what came in the way."""
        from gemm_eval.storage.cache.opening import replace_damaged

        try:
            self._count_damages(replace_damaged(self._path, identity, damage.reason, timeout_s=self._timeout_s))
        except Trouble as trouble:
            if trouble.kind is Kind.FOREIGN:
                return trouble
            if trouble.kind is not Kind.BUSY:
                self._given_up = f"it is damaged ({damage.reason}) and cannot be set aside ({trouble.reason})"
                self._notices.append(Notice("unusable", f"no cache: {self._path}: {self._given_up}"))
            return Trouble(Kind.BUSY, trouble.reason)
        return damage

    def _count_damages(self, said: list[str]) -> None:
        self._notices += [Notice("damaged", text) for text in said]
        self._num_damages += len(said)
        if self._num_damages > MAX_DAMAGES:
            self._given_up = "it was damaged again and again"


_live: weakref.WeakSet[Session] = weakref.WeakSet()
_inherited: list[Store] = []  # of a parent process; closing them here would confuse SQLite
_around_fork: list[Session] = []


def _before_fork() -> None:
    while True:
        try:
            _around_fork[:] = list(_live)
            break
        except RuntimeError:  # another thread is making a cache
            continue
    for session in _around_fork:
        session.before_fork()


def _after_fork() -> None:
    for session in _around_fork:
        session.after_fork()
    _around_fork.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
