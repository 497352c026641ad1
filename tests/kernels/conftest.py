"""Caches of configs that have said and remember nothing yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemm_eval.kernels import config_cache
from gemm_eval.kernels.config_records import _hash_of, why_void


@pytest.fixture
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_noted", "_warned"):
        monkeypatch.setattr(config_cache, name, set())
    _hash_of.cache_clear()
    monkeypatch.setattr(config_cache, "_loaded", {})
    yield
    why_void.cache_clear()
    _hash_of.cache_clear()
