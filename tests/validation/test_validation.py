"""Validation: metrics against numbers worked out by hand, folds, baselines that recover what was planted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.validation import baselines
from gemm_eval.validation.fit import assign_folds, cross_fit
from gemm_eval.validation.metrics import REGIMES, measure_errors, row_groups, score
from gemm_eval.validation.subjects.gemms import make_baselines
from gemm_eval.validation.tables import Band, Floats, Timings
from tests.validation import inputs
from tests.validation.inputs import H200, with_latency

PAIRS = [(n, k) for n in (128, 1024, 4096, 16384) for k in (256, 2048, 8192)]
ROWS = (1, 16, 17, 160, 256, 257, 4096)
FOLDS_OF_SEED_0 = [2, 0, 3, 4, 4, 2, 3, 1, 1, 0, 0, 1]


def make_timings(rows: Any = ROWS, pairs: Any = PAIRS, latency_us: Any = 1.0, **changes: Any) -> Timings:
    return inputs.make_timings(rows, pairs, latency_us, **changes)


@dataclass(frozen=True)
class MeanOfTrain:
    """Predicts the mean of the rows that it was fitted on, and remembers nothing else."""

    mean_us: float = 1.0
    name: str = "mean"

    def fit(self, *train: Timings) -> MeanOfTrain:
        return MeanOfTrain(float(np.concatenate([timings.measured_us for timings in train]).mean()))

    def predict(self, rows: Timings) -> Floats:
        return np.full(len(rows), self.mean_us)


def test_errors_by_hand() -> None:
    measured = np.array([10.0, 20.0, 40.0, 80.0, 100.0])
    predicted = np.array([11.0, 18.0, 40.0, 120.0, 110.0])  # errors +10%, -10%, 0, +50%, +10%
    errors = measure_errors(measured, predicted)
    assert errors.num == 5
    assert errors.mape_frac == pytest.approx(0.16)
    assert errors.median_frac == pytest.approx(0.10)
    assert errors.p90_frac == pytest.approx(0.10 + 0.6 * 0.40)  # 0.9 x 4 = 3.6 between the 4th and the 5th
    assert errors.bias_frac == pytest.approx(0.12)
    assert errors.kendall_tau == pytest.approx((9 - 1) / 10)  # of 10 pairs only (80, 100) is in the wrong order


@pytest.mark.parametrize(
    ("measured", "predicted", "message"),
    [
        *(([1.0, 2.0], [1.0, bad], r"must be positive, got .* \(row 2\)") for bad in (0.0, -1.0, np.nan, np.inf)),
        ([1.0, 2.0], [1.0], "equally many"),
        ([], [], "at least one"),
    ],
)
def test_bad_predictions(measured: list[float], predicted: list[float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        measure_errors(np.array(measured), np.array(predicted))


def test_regimes_cover_every_row_once_and_bands_stand_apart() -> None:
    timings = make_timings()
    groups = {regime: rows for _, regime, rows in row_groups(timings)}
    M = timings.column("M")
    assert list(groups) == ["decode", "mid", "prefill", "all"]
    assert sum(groups[regime.name].astype(int) for regime in REGIMES[:-1]).tolist() == [1] * len(timings)
    assert [set(M[groups[name]]) for name in groups][:3] == [{1, 16}, {17, 160, 256}, {257, 4096}]
    with_band = make_timings(bands={"rough": Band(160, 256, "noise")})
    groups = {regime: rows for _, regime, rows in row_groups(with_band)}
    assert [set(M[groups[name]]) for name in ("rough", "mid")] == [{160, 256}, {17}]
    assert (groups["all"] ^ groups["rough"]).all()


def test_pairs_are_on_one_side_only() -> None:
    timings = make_timings()
    folds = assign_folds(timings)
    pairs = timings.frame.groupby(["N", "K"]).ngroup().to_numpy()
    assert set(folds) == set(range(5))
    assert all(len(set(folds[pairs == pair])) == 1 for pair in set(pairs))
    sizes = np.bincount(folds) // len(ROWS)
    assert sizes.max() - sizes.min() <= 1


def test_folds_depend_on_pairs_and_seed_only() -> None:
    timings = make_timings()
    order = np.random.default_rng(1).permutation(len(timings))
    shuffled = Timings(timings.frame.iloc[order].reset_index(drop=True), "s", "h200-sxm", "cublas")
    assert (assign_folds(shuffled) == assign_folds(timings)[order]).all()
    assert (assign_folds(timings, seed=1) != assign_folds(timings)).any()
    # the same on every machine: a hash of text, not Python's own
    assert assign_folds(make_timings(rows=(1,)), seed=0).tolist() == FOLDS_OF_SEED_0


@pytest.mark.parametrize("num_folds", [1, len(PAIRS) + 1])
def test_number_of_folds_has_limits(num_folds: int) -> None:
    with pytest.raises(InvalidOptionError, match=f"2..{len(PAIRS)}"):
        assign_folds(make_timings(), num_folds)


def test_no_row_is_predicted_by_a_fit_on_its_pair() -> None:
    timings = make_timings(rows=(1, 2), pairs=[(64, 64), (64, 128)], latency_us=[1.0, 3.0, 10.0, 30.0])
    assert cross_fit(MeanOfTrain(), [timings], num_folds=2).predict(timings).tolist() == [20.0, 20.0, 2.0, 2.0]
    first = make_timings(rows=(1,), pairs=[(64, 64), (64, 128)], latency_us=[1.0, 10.0])
    second = make_timings(rows=(1,), pairs=[(64, 128), (64, 64)], latency_us=[30.0, 3.0])  # pairs held out of both
    fits = cross_fit(MeanOfTrain(), [first, second], num_folds=2)
    assert [fits.predict(first, 0).tolist(), fits.predict(second, 1).tolist()] == [[20.0, 2.0], [2.0, 20.0]]


def test_bands_are_predicted_but_not_fitted_on() -> None:
    latency_us = [1.0, 1000.0, 2.0, 1000.0]
    bands = {"rough": Band(160, 384, "noise")}
    timings = make_timings(rows=(1, 200), pairs=[(64, 64), (64, 128)], latency_us=latency_us, bands=bands)
    assert cross_fit(MeanOfTrain(), [timings], num_folds=2).predict(timings).tolist() == [2.0, 2.0, 1.0, 1.0]


def test_without_refit_the_predictor_stays_as_it_is() -> None:
    scored = score(MeanOfTrain(mean_us=7.0), make_timings(), num_folds=0)
    assert (set(scored.predicted_us), scored.num_folds) == ({7.0}, 0)


def test_naive_roofline_is_the_data_sheet() -> None:
    timings = make_timings(rows=(1, 8192), pairs=[(8192, 8192)])
    latency_us = baselines.NaiveRoofline(H200).predict(timings)
    assert latency_us[0] == pytest.approx(2 * (8192 * 8192 + 2 * 8192) / 4.8e6)
    assert latency_us[1] == pytest.approx(2 * 8192**3 / 989.43e6, rel=1e-5)


def test_fitted_roofline_recovers_what_was_planted() -> None:
    timings = make_timings()
    planted = baselines.FittedRoofline(H200, roofs={"": baselines.SmoothRoof(2.5, 0.66, 0.85, 3.0)})
    exact = with_latency(timings, planted.predict(timings))
    exact.frame.loc[::10, "latency_us"] *= 3.0  # one row in ten is an outlier: the loss is robust
    compute_us, dram_us = baselines.rooflines(H200, timings)
    assert baselines.SmoothRoof(0.0, 1.0, 1.0, 2.0).predict(compute_us, dram_us) == pytest.approx(
        np.hypot(compute_us, dram_us)
    )
    fitted = baselines.FittedRoofline(H200).fit(exact).roofs[""]
    assert fitted.overhead_us == pytest.approx(2.5, rel=0.05)
    assert fitted.compute_frac == pytest.approx(0.66, rel=0.05)
    assert fitted.dram_frac == pytest.approx(0.85, rel=0.05)


def test_interpolation_is_linear_in_logarithms_inside_and_scales_the_nearest_outside() -> None:
    table = make_timings(rows=(1, 64, 4096), pairs=[(n, k) for n in (1024, 8192) for k in (1024, 8192)])
    M, K, N = (table.column(name).astype(float) for name in "MKN")
    planted = with_latency(table, M**0.5 * K**0.75 * N**0.25)
    fitted = baselines.TableInterpolation(H200).fit(planted)
    inside = make_timings(rows=(8, 500), pairs=[(2048, 4096), (6144, 1536)])
    M, K, N = (inside.column(name).astype(float) for name in "MKN")
    assert fitted.predict(inside) == pytest.approx(M**0.5 * K**0.75 * N**0.25)
    outside = make_timings(rows=(4096,), pairs=[(32768, 8192)])
    nearest = make_timings(rows=(4096,), pairs=[(8192, 8192)])
    growth = baselines.NaiveRoofline(H200).predict(outside) / baselines.NaiveRoofline(H200).predict(nearest)
    assert fitted.predict(outside) == pytest.approx(fitted.predict(nearest) * growth)
    assert np.isnan(fitted.predict(make_timings(input_dtype="bf16", weight_dtype="bf16", output_dtype="bf16"))).all()
    assert np.isfinite(baselines.TableInterpolation(H200).fit(nearest).predict(inside)).all()  # a table of one GEMM


@pytest.fixture
def fake_library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A stand-in for the C++ library, which answers 10 us and 2 us a million MACs, and notes what it was asked."""
    asked: list[tuple[Any, ...]] = []

    class Interface:
        def __init__(self, **settings: Any) -> None:
            asked.append((settings["backend"], settings["gpu"]))

        def makeNvMatmulHeuristicsProblem(self, *sizes: int) -> tuple[int, ...]:  # noqa: N802
            return sizes

        def get(self, problem: tuple[int, ...], count: int, precision: str) -> list[dict[str, float]]:
            asked.append((*problem, precision))
            best_s = 1e-5 + 2e-12 * problem[0] * problem[1] * problem[2]
            return [{"runtime": 2 * best_s}, {"runtime": best_s}][:count]

    module: Any = ModuleType("nvMatmulHeuristics")
    module.NvMatmulHeuristicsTarget = SimpleNamespace(CUTLASS3="c3", CUTLASS="c2")
    module.NvMatmulHeuristicsMatmulLayout = {"NT_ROW_MAJOR": "nt"}
    module.NvMatmulHeuristicsFlags = SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING=8)
    module.NvMatmulHeuristicsNvidiaGpu = {"H200_SXM": 9003, "A100_SXM_80GB": 8000}
    module.NvMatmulHeuristicsInterfaceEx = Interface
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", module)
    monkeypatch.setattr(baselines, "has_package", lambda _: True)
    monkeypatch.setattr(baselines, "check_extra", lambda *_: None)
    baselines._library.cache_clear()
    baselines._least_us.cache_clear()
    return asked


def test_nvidia_heuristics_take_the_best_kernel(fake_library: list[tuple[Any, ...]]) -> None:
    timings = make_timings(rows=(16,), pairs=[(1024, 2048)], G=3)
    heuristics = baselines.NvidiaHeuristics("h200-sxm")
    assert heuristics.predict(timings) == pytest.approx([10 + 2e-6 * 16 * 1024 * 2048])
    assert heuristics.predict(timings) == pytest.approx([10 + 2e-6 * 16 * 1024 * 2048])
    assert fake_library == [("c3", 9003), (16, 1024, 2048, "nt", 3, "HSH")]  # M, N, K; asked once
    baselines.NvidiaHeuristics("a100-sxm-80gb").predict(make_timings(input_dtype="bf16", weight_dtype="bf16"))
    assert fake_library[2] == ("c2", 8000)
    assert fake_library[3][-1] == "TST"


@pytest.mark.usefixtures("fake_library")
def test_nvidia_heuristics_refit_is_affine() -> None:
    timings = make_timings()
    raw = baselines.NvidiaHeuristics("h200-sxm")
    measured = with_latency(timings, -6.0 + 0.7 * raw.predict(timings))
    refit = baselines.NvidiaHeuristics("h200-sxm", is_refit=True).fit(measured)
    assert raw.fit(measured) is raw
    assert (refit.offset_us, refit.scale) == pytest.approx((-6.0, 0.7), rel=1e-3)


@pytest.mark.usefixtures("fake_library")
def test_baselines_are_those_that_can_answer() -> None:
    names = [baseline.name for baseline in make_baselines(H200, make_timings())]
    assert names == ["naive roofline", "fitted roofline", "interpolation", "nvMatmulHeuristics", "nvMMH, refitted"]
    quantized = make_timings(weight_dtype="int4")
    assert [baseline.name for baseline in make_baselines(H200, quantized)] == names[:3]


def test_what_no_baseline_knows() -> None:
    with pytest.raises(UnsupportedError, match="no gtx-1080; it has a100"):
        baselines.NvidiaHeuristics("gtx-1080")
    with pytest.raises(UnsupportedError, match="h200-sxm has no peak for bfp8"):
        baselines.NaiveRoofline(H200).predict(make_timings(input_dtype="bfp8", weight_dtype="bfp8"))
