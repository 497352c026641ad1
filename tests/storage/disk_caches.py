"""What the tests of the disk cache share: entries, fresh processes, and questions to a file."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from gemm_eval.storage.cache import DiskCache
from gemm_eval.storage.cache.files import is_ours

ROOT = Path(__file__).parents[2]
NOBODY = 65534
Make = Callable[..., DiskCache]
"""What the fixture `make` is: options -> a cache."""


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def some(num: int, *, size: int = 300, start: int = 0) -> dict[bytes, str]:
    return {key_of(i): f'{{"i": {i}, "text": "{"ä" * (size // 2)}"}}' for i in range(start, start + num)}


def asides(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.glob(f"{path.name}.damaged-*") if not p.name.endswith(("-wal", "-shm")))


def run_python(code: str, *args: object) -> str:
    """Run `code` in a fresh interpreter that turns every warning into an error, and return what it printed."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "not even an unraisable exception"
    return done.stdout


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """All warnings of a block; they must be RuntimeWarnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told
    assert all(warning.category is RuntimeWarning for warning in told)


@contextlib.contextmanager
def other_connection(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def write_text(path: Path) -> None:
    path.write_text("dear diary")


def check_damaged(path: Path, content: bytes, items: dict[bytes, str]) -> bool:
    """Check that a file is used, or set aside with a warning and the cache works on; say whether it was.

    One that no longer begins as a cache does stays as it is.
    """
    for found in path.parent.iterdir():
        found.unlink()
    path.write_bytes(content)
    with recorded() as told:
        with DiskCache(path, namespace="model 1") as cache:
            answers = cache.get_many(items)
            answers |= dict(cache.load_all())
            assert answers.items() <= items.items()
            if not is_ours(path):
                assert (cache.put_many(items), asides(path), path.read_bytes()) == (0, [], content)
                return False
            assert cache.put_many(items) == len(items), cache.status
        with DiskCache(path, namespace="model 1") as cache:
            assert cache.get_many(items) == items
    assert len(told) == len(asides(path)) <= 1
    return bool(told)


def integrity(cache: DiskCache) -> str:
    assert cache.path is not None
    with other_connection(cache.path) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
