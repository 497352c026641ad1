"""Speed of the disk cache: 10,000 results of half a kilobyte, written in one transaction and read back.

The promise is well under 0.5 s to write and well under 0.2 s to read. As plain tests these only check the contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.storage.cache import DiskCache

NUM_ENTRIES = 10_000
ITEMS = {
    hashlib.sha256(str(i).encode()).digest(): f'{{"latency_us": {i}.5, "mapping": "{"x" * 460}"}}'
    for i in range(NUM_ENTRIES)
}
GROUP = "10,000 entries of the disk cache"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[DiskCache]:
    with DiskCache(tmp_path / "cache.sqlite3", namespace="benchmark") as cache:
        cache.num_entries  # noqa: B018  opens the file
        yield cache


@pytest.fixture
def full(empty: DiskCache) -> DiskCache:
    empty.put_many(ITEMS)
    return empty


@pytest.mark.benchmark(group=GROUP)
def test_put_many(benchmark: Any, empty: DiskCache) -> None:
    assert benchmark.pedantic(empty.put_many, (ITEMS,), setup=lambda: empty.clear() and None, rounds=10) == NUM_ENTRIES


@pytest.mark.benchmark(group=GROUP)
def test_get_many(benchmark: Any, full: DiskCache) -> None:
    assert benchmark.pedantic(full.get_many, (ITEMS,), rounds=20) == ITEMS


@pytest.mark.benchmark(group=GROUP)
def test_load_all(benchmark: Any, full: DiskCache) -> None:
    assert benchmark.pedantic(lambda: dict(full.load_all()), rounds=20) == ITEMS


@pytest.mark.benchmark(group=GROUP)
def test_open_and_load_all(benchmark: Any, full: DiskCache) -> None:
    """What the next process does."""
    assert benchmark.pedantic(lambda: dict(full.load_all()), setup=full.close, rounds=20) == ITEMS


@pytest.mark.benchmark(group="one entry of the disk cache")
def test_get(benchmark: Any, full: DiskCache) -> None:
    key = next(iter(ITEMS))
    assert benchmark(full.get, key) == ITEMS[key]
