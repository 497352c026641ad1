"""Hypothesis profiles: `default`, `nojit` (kernels as plain Python, slowly) and `deep` (for long runs)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {
    "deadline": None,  # the first example may compile kernels
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    "derandomize": "CI" in os.environ,  # the same examples in every CI run; new ones at every developer's run
}
settings.register_profile("default", max_examples=150, **_COMMON)
settings.register_profile("nojit", max_examples=25, **_COMMON)
settings.register_profile("deep", max_examples=5000, **_COMMON)
settings.load_profile("default")
