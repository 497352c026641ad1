"""Kernels are compiled for the types of their arguments: not again for constants, nor for integers given as reals."""

from __future__ import annotations

import numba
import pytest
from numba.core.caching import NullCache

from gemm_eval.jit import entry_point, kernel


@kernel
def _add(a: int, b: float) -> float:
    return a + b


def _sum(n: int) -> float:
    return _add(n, 1) + _add(2, n) + _add(3, 4.0) + _add(n, 0.5)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled without the JIT")
def test_constants_and_integers_compile_nothing_more() -> None:
    from_disk = entry_point(_sum)
    from_disk._cache = NullCache()  # type: ignore[attr-defined]  # else nothing would be compiled at a second run
    assert from_disk(10) == 10 + 1 + 2 + 10 + 3 + 4 + 10 + 0.5
    assert _add.signatures == [(numba.int64, numba.float64)]  # type: ignore[attr-defined]
