"""Points of a sweep are answered as changes of their preset: with its learned correction as a factor."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.sweep import Space, sweep

pytest.importorskip("pyarrow")
SIZES = (1, 64, 4096, 4096)


def test_points_have_the_correction_of_their_preset() -> None:
    result = sweep(Space("h200-sxm", {"num_sms": [100, 132]}), [SIZES], dtype="bf16", progress=False)
    base = load_arch("h200-sxm")
    changed = GEMMEvaluator(base.with_(num_sms=100), disk_cache=False).evaluate(*SIZES, "bf16")
    preset = GEMMEvaluator(base, disk_cache=False).evaluate(*SIZES, "bf16")

    assert [result.row(point)["latency_us"] for point in (0, 1)] == [changed.latency_us, preset.latency_us]
    assert preset.latency_us != preset.physics_us
    assert changed.latency_us / changed.physics_us == pytest.approx(preset.latency_us / preset.physics_us)
    (table,) = result.evaluate(1).values()
    assert table["latency_us"].tolist() == [preset.latency_us]
