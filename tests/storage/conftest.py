"""A file for a cache, and caches that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.storage.cache import DiskCache
from tests.storage.disk_caches import Make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "folder" / "cache é #1%?.sqlite3"


@pytest.fixture
def make(path: Path) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> DiskCache:
        cache = DiskCache(options.pop("path", path), **({"namespace": "model 1", "timeout_s": 0.2} | options))
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()
