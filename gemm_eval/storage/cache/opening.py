"""How a path becomes an open cache file: found, built, or set aside and built anew, with others doing the same."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from typing import NamedTuple

from gemm_eval.storage.cache.files import (
    Identity,
    can_write,
    check_safe,
    doubted,
    guard,
    identity_of,
    is_on_network,
    is_ours,
    set_aside,
)
from gemm_eval.storage.cache.sqlite import build, open_existing, translated
from gemm_eval.storage.cache.trouble import Kind, Trouble
from gemm_eval.storage.folders import make_folder

__all__ = ["Opened", "open_or_build", "replace_damaged"]

_MAX_ROUNDS = 4  # each lost race against another process costs one


class Opened(NamedTuple):
    """An open, checked file and which one it is."""

    connection: sqlite3.Connection
    identity: Identity
    is_read_only: bool


class _DamagedError(Exception):
    def __init__(self, identity: Identity, reason: str) -> None:
        super().__init__(reason)
        self.identity = identity
        self.reason = reason


def open_or_build(path: Path, *, timeout_s: float) -> tuple[Opened, list[str]]:
    """Open the file at `path`; also say what was set aside for it.

    Raises:
        Trouble: it cannot be opened or built.
    """
    said: list[str] = []
    with translated():
        use_wal = not is_on_network(path.parent)
        for _ in range(_MAX_ROUNDS):
            check_safe(path)
            try:
                with guard(path, exclusive=False, timeout_s=timeout_s):
                    opened = _open(path, timeout_s=timeout_s, use_wal=use_wal)
                if opened is not None:
                    return opened, said
            except _DamagedError as damage:
                said += replace_damaged(path, damage.identity, damage.reason, timeout_s=timeout_s)
            make_folder(path.parent)
            if not can_write(path.parent):
                raise Trouble(Kind.READ_ONLY, f"cannot write to {path.parent}")
            with guard(path, exclusive=True, timeout_s=timeout_s):
                if identity_of(path) is None:
                    build(path, use_wal=use_wal)
    raise Trouble(Kind.BUSY, "others keep replacing the file")


def replace_damaged(path: Path, identity: Identity, reason: str, *, timeout_s: float) -> list[str]:
    """Set the damaged file aside, unless another process was faster; the next opening builds a new one.

    Raises:
        Trouble: FOREIGN where it does not begin as a cache does; or it cannot be renamed, or others are opening it
            for longer than `timeout_s`.
    """
    with translated(), guard(path, exclusive=True, timeout_s=timeout_s):
        if identity_of(path) != identity:
            return []
        if not is_ours(path):
            raise Trouble(Kind.FOREIGN, reason)
        aside = set_aside(path)
    return [f"cannot use the cache file {path}: {reason}; it was set aside as {aside.name}, and a new one is begun"]


def _open(path: Path, *, timeout_s: float, use_wal: bool) -> Opened | None:
    identity = identity_of(path)
    if identity is None:
        return None
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _DamagedError(identity, "it is not a file")
    if found.st_size == 0:  # `build` never leaves one
        raise _DamagedError(identity, "it is empty")
    is_read_only = not can_write(path, path.parent)  # SQLite needs the folder, too, for its companions
    try:
        connection = open_existing(path, timeout_s=timeout_s, use_wal=use_wal, is_read_only=is_read_only)
    except Trouble as error:
        trouble = error if is_read_only else doubted(error, path)
        if trouble.kind is Kind.DAMAGED:
            raise _DamagedError(identity, trouble.reason) from error
        raise
    return Opened(connection, identity, is_read_only)
