"""Grouped GEMMs side by side: routings, what is checked, and who is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.engines import (
    EXPERT_LAYERS,
    ExpertGrid,
    ExpertLayer,
    GroupedGemm,
    SideBySide,
    choose_grouped_engines,
    compare_grouped_engines,
)
from tests.measure.fake_engines import FakeDevice, FakeGroupedEngine, fake_grouped_engine
from tests.measure.test_side_by_side import PROTOCOL

LAYERS = (ExpertLayer("wide", 4, 4, 2, 64, 256), ExpertLayer("one-of-eight", 2, 16, 4, 128, 64))
GRID = ExpertGrid(LAYERS, tokens=(40, 1), group_size=32)


def run(engines: list[type[FakeGroupedEngine]], grid: ExpertGrid = GRID, **options: Any) -> SideBySide:
    device: Any = FakeDevice()
    return compare_grouped_engines(
        device, engines, grid, protocol=PROTOCOL, progress=False, sleep=lambda _: None, **options
    )  # fmt: skip


@pytest.mark.parametrize("layer", EXPERT_LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("tokens", [1, 4, 300])
def test_routings_have_rows_and_differ(layer: ExpertLayer, tokens: int) -> None:
    gemm = GroupedGemm(layer, tokens, 128, DType.FP16)
    again = GroupedGemm(layer, tokens, 128, DType.FP16)
    totals = [int(offsets[-1]) for offsets in gemm.routings]

    assert len(totals) == 8
    for offsets, same in zip(gemm.routings, again.routings, strict=True):
        assert offsets.dtype == np.int32
        assert offsets.shape == (layer.num_groups + 1,)
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()
        assert (np.diff(offsets) <= tokens).all()
        np.testing.assert_array_equal(offsets, same)
    assert len({offsets.tobytes() for offsets in gemm.routings}) > 1
    assert 1 <= min(totals) <= max(totals) == gemm.rows <= tokens * layer.topk
    assert 1 <= gemm.expected_rows <= gemm.rows
    if layer.num_groups == layer.num_experts:
        assert set(totals) == {tokens * layer.topk}


def test_engines_are_timed_on_every_layer() -> None:
    found = run([fake_grouped_engine("ours", lambda gemm: 10.0), fake_grouped_engine("humming", lambda gemm: 25.0)])

    assert not found.failures
    assert {(row.N, row.K, row.M) for row in found.timings} == {(one.N, one.K, m) for one in LAYERS for m in (1, 40)}
    assert all(0 < row.relative_error < 2e-3 for row in found.timings)
    for row in found.timings:
        assert row.latency_us == pytest.approx({"ours": 10.0, "humming": 25.0}[row.engine], rel=0.01)


def test_weights_of_another_expert_are_found_out() -> None:
    found = run([
        fake_grouped_engine("ours", lambda gemm: 10.0), fake_grouped_engine("humming", lambda gemm: 1.0, is_wrong=True)
    ])  # fmt: skip

    assert {row.engine for row in found.timings} == {"ours"}
    assert len(found.failures) == 4
    assert all("its result is wrong" in failure.error for failure in found.failures)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="--rows must be integers >= 1, got none"):
        ExpertGrid(tokens=())
    with pytest.raises(InvalidOptionError, match="--group-size must be 32, 64 or 128, got 16"):
        ExpertGrid(group_size=16)
    with pytest.raises(InvalidOptionError, match="--activation must be one of"):
        ExpertGrid(dtype="fp8")
    with pytest.raises(InvalidOptionError, match="--engine must be one of ours, humming, one-launch-a-group with"):
        choose_grouped_engines(["cublas"])
