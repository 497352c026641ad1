"""The short form of `python -m tools.stress.sweep`: folders of sweeps under kills and crowds."""

import os
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    from tools.stress.sweep import crowd, kill_many

    killed = kill_many(3, 0, tmp_path)
    crowded = crowd(2, 4, 1, tmp_path)
    assert killed.num_kills >= 3
    assert crowded.num_calls == 8
    assert crowded.num_evaluated == crowded.num_points
