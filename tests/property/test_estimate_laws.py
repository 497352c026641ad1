"""A short run of the laws of whole models; `python -m tools.laws estimate` makes long ones."""

from __future__ import annotations

import numba
import pytest

from tools.laws import estimate


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="hundreds of times as slow without the JIT")
def test_estimates_keep_their_laws() -> None:
    report = estimate.run(seed=16, count=100)
    assert not report.violations
    assert len(report.checked) == 9
    assert report.checked["times, rates and bytes are finite and add up"] == 100
