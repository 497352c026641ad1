"""Engines side by side: that each is checked, timed in turn and summed up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval.device import TimingProtocol
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import dequantize
from gemm_eval.measure.engines import (
    ENGINES,
    Grid,
    Operands,
    SideBySide,
    Weights,
    by_regime,
    by_rows,
    choose_engines,
    compare_engines,
    list_cases,
    losses,
    stand,
)
from tests.measure.fake_engines import FakeDevice, FakeEngine, fake_engine

GRID = Grid(pairs=((64, 128), (128, 256)), rows=(1, 40), group_size=64)
PROTOCOL = TimingProtocol(cold_bytes=1, l2_multiple=0, num_replays=3, max_short_rows=0)

OURS = fake_engine("ours", lambda gemm: 10.0)
HUMMING = fake_engine("humming", lambda gemm: 8.0 if gemm.M == 40 else 20.0)
CUBLAS = fake_engine("cublas", lambda gemm: 30.0 if gemm.N == 64 else 12.0)


def run(engines: list[type[FakeEngine]], grid: Grid = GRID, **options: Any) -> SideBySide:
    device: Any = FakeDevice()
    found = compare_engines(device, engines, grid, protocol=PROTOCOL, progress=False, sleep=lambda _: None, **options)
    assert device.num_freed == len(grid.pairs)
    return found


def test_engines_are_timed_on_every_gemm() -> None:
    seen: list[int] = []
    found = run([OURS, HUMMING, CUBLAS], on_pair=lambda so_far: seen.append(len(so_far.timings)))

    assert seen == [6, 12]
    assert not found.failures
    assert found.engines == {"ours": "ours 1.0", "humming": "humming 1.0", "cublas": "cublas 1.0"}
    assert {(row.N, row.K, row.M) for row in found.timings} == {(n, k, m) for n, k in GRID.pairs for m in (1, 40)}
    for row in found.timings:
        assert row.num_replays == 3
        assert 0 < row.relative_error < 2e-3
    (row,) = [row for row in found.timings if row[:4] == (128, 256, 40, "humming")]
    assert row.latency_us == pytest.approx(8.0, rel=0.01)
    assert row.config == "humming tile"


def test_bf16_is_checked_too() -> None:
    found = run([OURS], Grid(pairs=((64, 128),), rows=(3,), group_size=32, dtype="bf16"))

    assert len(found.timings) == 1
    assert 1e-4 < found.timings[0].relative_error < 1e-2


def test_a_wrong_engine_is_not_timed() -> None:
    found = run([OURS, fake_engine("humming", lambda gemm: 1.0, is_wrong=True)])

    assert {row.engine for row in found.timings} == {"ours"}
    assert len(found.failures) == 4
    assert all("its result is wrong: relative error 1" in failure.error for failure in found.failures)


def test_an_engine_that_cannot_load_is_left_out_of_a_pair() -> None:
    class Picky(HUMMING):  # type: ignore[misc, valid-type]
        def pack(self, weights: Weights) -> Any:
            if weights.N == 64:
                raise ValueError("N\nmust be 128")
            return super().pack(weights)

    found = run([OURS, Picky])

    assert found.failures == [(64, 128, None, "humming", "ValueError: N must be 128")]
    assert {row.N for row in found.timings if row.engine == "humming"} == {128}


def test_an_engine_for_few_rows_gets_few_rows() -> None:
    class Few(CUBLAS):  # type: ignore[misc, valid-type]
        largest_rows = 16

    found = run([OURS, Few])

    assert {row.M for row in found.timings if row.engine == "cublas"} == {1}
    assert not found.failures


def test_standings() -> None:
    cases = list_cases(run([OURS, HUMMING, CUBLAS]).timings)
    against = stand(cases, "humming")

    assert len(cases) == 4
    assert against is not None
    assert against.mean == pytest.approx((2.0 * 2.0 * 0.8 * 0.8) ** 0.25, rel=0.01)
    assert (against.worst, against.worst_case.M) == (pytest.approx(0.8, rel=0.01), 40)
    better = stand([case for case in cases if case.M == 1], "better")
    assert better is not None
    assert better.mean == pytest.approx((2.0 * 1.2) ** 0.5, rel=0.01)
    assert {m: len(some) for m, some in by_rows(cases).items()} == {1: 2, 40: 2}
    assert {name: len(some) for name, some in by_regime(cases).items()} == {
        "M <= 16": 2, "M 17-64": 2, "all": 4,
    }  # fmt: skip
    behind = losses(cases, ["humming", "cublas"], 0.97)
    assert [(engine, case.N, case.M) for _, engine, case in behind] == [("humming", 64, 40), ("humming", 128, 40)]
    assert stand(cases, "tinygemm") is None


def test_every_engine_gets_the_same_weights() -> None:
    """What ours packs is what cuBLAS has in 16 bits, and what a reference takes exactly."""
    device: Any = FakeDevice()
    weights = Weights.random(device, 128, 256, 64, DType.FP16)
    operands = Operands(device, DType.FP16, 256, 128)
    ours = ENGINES["ours"](device, operands, PROTOCOL)
    exact = weights.columns(np.arange(128))

    np.testing.assert_array_equal(dequantize(ours.pack(weights)), exact)
    np.testing.assert_allclose(weights.dense().T.astype(np.float64), exact, rtol=1e-3)
    assert set(np.unique(weights.integers)) == set(range(16))


def test_unknown_engines_and_grids_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="--engine must be one of ours, humming, cublas, tinygemm"):
        choose_engines(["marlin"])
    for options, message in (
        ({"pairs": ((60, 128),)}, "--pair must be K,N"),
        ({"pairs": ((64, 100),)}, "K a multiple of 128 and N of 8, got 100,64"),
        ({"rows": (0,)}, "--rows must be integers >= 1"),
        ({"dtype": "fp8"}, "--activation must be one of fp16, bf16"),
        ({"group_size": 16}, "--group-size must be 32, 64 or 128"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            Grid(**options)  # type: ignore[arg-type]


def test_ours_is_always_among_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES["humming"], "why_missing", lambda: "not here")
    engines, missing = choose_engines(["humming"])

    assert [engine.name for engine in engines] == ["ours"]
    assert missing == {"humming": "not here"}
