"""Intervals around predictions: their quantiles, and how much wider they are where nothing was fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu import (
    GPU_MODEL_VERSION,
    RegimeInterval,
    fit_intervals,
    interval_for,
    interval_of,
    load_calibration,
)
from gemm_eval.models.gpu.calibration import (
    ALIKE,
    OTHER_SMS,
    REGIMES_OF_M,
    calibration_path,
    regime_place,
    regime_places,
)

ROWS = np.array([1, 16, 17, 256, 257, 8192])


def interval(gpu: str | GpuSpec, library: str = "cublas", family: str = "sm90_wgmma", question: str = "x"):  # type: ignore[no-untyped-def]
    arch = load_arch(gpu, GpuSpec) if isinstance(gpu, str) else gpu
    return interval_for(arch, library, family, question, GPU_MODEL_VERSION, is_corrected=False)


def test_regimes_of_rows() -> None:
    assert [regime_place(M) for M in ROWS.tolist()] == regime_places(ROWS).tolist() == [0, 0, 1, 1, 2, 2]


def test_intervals_are_quantiles_that_hold_80_percent_of_each_regime() -> None:
    rng = np.random.default_rng(0)
    M = np.repeat([4, 64, 1024], 2000)
    log_errors = rng.normal(0.0, np.repeat([0.05, 0.1, 0.2], 2000))
    found = interval_of(fit_intervals(M, log_errors))
    factors = np.exp(log_errors)
    inside = (factors >= np.array(found.low_frac)[regime_places(M)]) & (
        factors <= np.array(found.high_frac)[regime_places(M)]
    )

    assert inside.reshape(3, 2000).mean(axis=1) == pytest.approx([0.8, 0.8, 0.8], abs=0.002)
    assert found.high_frac[0] == pytest.approx(math.exp(1.2816 * 0.05), rel=0.01)


def test_a_regime_of_few_rows_has_the_quantiles_of_all() -> None:
    M = np.array([4] * 50 + [1024])
    found = fit_intervals(M, np.linspace(-0.1, 0.1, 51))

    assert [item.regime for item in found] == ["decode", "all"]
    assert interval_of(found).high_frac[2] == pytest.approx(math.exp(found[1].high_log))


def test_a_prediction_lies_in_its_interval_whatever_its_bias() -> None:
    low, high = interval_of(fit_intervals(np.full(50, 8), np.full(50, 0.3))).of_rows(8)
    assert (low, high) == (1.0, pytest.approx(math.exp(0.3)))


def test_bounds_have_their_sides() -> None:
    with pytest.raises(ValueError, match="low_log"):
        RegimeInterval(regime="mid", num_rows=3, low_log=0.1, high_log=0.2)
    with pytest.raises(ValueError, match="regime must be one of"):
        RegimeInterval(regime="large", num_rows=3, low_log=-0.1, high_log=0.2)


def test_where_nothing_was_fitted_intervals_are_wider() -> None:
    fitted = load_calibration(calibration_path("h200-sxm", "cublas", "sm90_wgmma")).intervals
    own, alike, changed = (
        interval("h200-sxm"),
        interval("h100-sxm"),
        interval(load_arch("h200-sxm", GpuSpec).with_(num_sms=99)),
    )

    assert own == interval_of(fitted)
    assert changed == interval_of(fitted, ALIKE)
    # of one GPU's errors and what carrying over adds, neither is lost and both are told in squares
    assert math.log(changed.high_frac[0]) == pytest.approx(math.hypot(math.log(own.high_frac[0]), ALIKE))
    for place in range(len(REGIMES_OF_M)):
        assert alike.high_frac[place] == changed.high_frac[place]
        assert alike.low_frac[place] < own.low_frac[place] < 1.0 < own.high_frac[place] < alike.high_frac[place]


def test_another_generation_is_wider_still_and_defaults_are_widest() -> None:
    of_ampere = interval("a30", family="sm80_mma")
    of_ada = interval("rtx-5090", family="sm80_mma")
    defaults = interval("v100", family="sm70_mma")

    assert ALIKE < OTHER_SMS
    assert max(of_ampere.high_frac) < 2.0
    assert (min(defaults.low_frac), max(defaults.high_frac)) == (0.5, 2.0)
    assert of_ada.high_frac != of_ampere.high_frac


def test_what_is_exact_on_its_own_gpu_is_not_on_another() -> None:
    question = "fp4-g16-cold-burst-bf16"
    own = interval("b200", "trtllm", "sm100_block_fp4", question)
    carried = interval("b300", "trtllm", "sm100_block_fp4", question)

    assert max(own.high_frac) < 1.08
    for low, high in zip(carried.low_frac, carried.high_frac, strict=True):  # 2.5 times a twentieth holds 62 to 64%
        assert low < 0.87
        assert high > 1.15


def test_a_question_that_was_timed_has_an_interval_of_its_own() -> None:
    assert interval("h200-sxm", question="f16-cold-burst") != interval("h200-sxm")
