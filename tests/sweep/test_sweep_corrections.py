"""Sweeps are of the model alone: a point that is a preset must not differ from its neighbours by what was learned."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.sweep import Space, sweep

pytest.importorskip("pyarrow")
SIZES = (1, 64, 4096, 4096)


def test_a_point_that_is_a_preset_is_not_corrected() -> None:
    found = sweep(Space("h200-sxm", {"num_sms": [100, 132]}), [SIZES], dtype="bf16", progress=False)
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    physics, corrected = (evaluator.evaluate(*SIZES, "bf16", correction=on).latency_us for on in (False, True))

    assert found.row(1)["latency_us"] == pytest.approx(physics, rel=1e-12)
    assert physics != corrected
    (table,) = found.evaluate(1).values()
    assert table["latency_us"].tolist() == [physics]
