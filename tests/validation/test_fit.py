"""The fit of the GPU model: it finds what was planted, looks at nothing held out, and refuses what it cannot use."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.families import default_coefficients
from gemm_eval.validation.baselines import NaiveRoofline
from gemm_eval.validation.fit import MIN_ROWS
from gemm_eval.validation.subjects.dense import ModelPredictor, calibrate, fit_family, model_predictor
from gemm_eval.validation.subjects.dense_rows import pack_timings
from gemm_eval.validation.tables import PROBLEM_COLUMNS, Timings, find_timings
from tests.validation.inputs import H200, make_timings, with_latency

FAMILY = "sm90_wgmma"
PAIRS = [(n, k) for n in (1024, 3072, 8192, 28672) for k in (1024, 4096, 8192)]
ROWS = (
    1, 8, 16, 32, 40, 64, 96, 128, 192, 200, 256, 384, 512, 576, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120,
    6144, 8192,
)  # fmt: skip
PLANTED = default_coefficients(FAMILY) | {"kernel_us": 2.4, "dram_frac": 0.85, "step_cycles": 300.0}
NOISE = 0.02
FEW_ROUNDS = 3


def timings_of(pairs: Any = PAIRS, rows: Any = ROWS, **settings: Any) -> Timings:
    return make_timings(rows, pairs, **({"name": "planted"} | settings))


@pytest.fixture(scope="module")
def exact() -> Timings:
    timings = timings_of()
    return with_latency(timings, ModelPredictor(H200, "cublas", {FAMILY: PLANTED}).predict(timings))


@pytest.fixture(scope="module")
def noisy(exact: Timings) -> Timings:
    noise = np.random.default_rng(0).normal(0.0, NOISE, len(exact))
    return with_latency(exact, exact.measured_us * np.exp(noise))


@pytest.fixture(scope="module")
def fitted(noisy: Timings) -> ModelPredictor:
    return ModelPredictor(H200, "cublas", num_rounds=5).fit(noisy)


def test_a_fit_finds_what_was_planted(exact: Timings, fitted: ModelPredictor) -> None:
    assert len(exact) == 300
    start = np.abs(ModelPredictor(H200, "cublas").predict(exact) / exact.measured_us - 1.0).mean()
    error = np.abs(fitted.predict(exact) / exact.measured_us - 1.0).mean()
    found = fitted.coefficients[FAMILY]
    assert error < 0.01 < start
    assert found["kernel_us"] == pytest.approx(PLANTED["kernel_us"], abs=0.25)
    assert found["dram_frac"] == pytest.approx(PLANTED["dram_frac"], rel=0.05)
    assert found["step_cycles"] == pytest.approx(PLANTED["step_cycles"], rel=0.1)


def test_a_fit_holds_for_pairs_that_it_did_not_see(exact: Timings, fitted: ModelPredictor) -> None:
    unseen = timings_of([(5120, 2048), (12288, 6144)])
    truth = ModelPredictor(H200, "cublas", {FAMILY: PLANTED}).predict(unseen)
    assert np.abs(fitted.predict(unseen) / truth - 1.0).mean() < 0.015


@pytest.mark.parametrize("traced", [0, 1])
def test_kernels_that_no_trace_saw_are_not_known(traced: int) -> None:
    """Columns as `gemm-eval measure` writes them: of pandas' own types, whose missing values are pandas.NA."""
    timings = timings_of([(4096, 4096)], [4096, 8192, 300])
    seen: dict[str, object] = {
        "kernel": "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "grid_x": 2, "grid_y": 66, "grid_z": 1,
        "block_x": 384, "registers": 168, "smem_bytes": 213_000,
    }  # fmt: skip
    trace = {
        name: pd.array([value] * traced + [None] * (3 - traced), dtype="string" if name == "kernel" else "Int64")
        for name, value in seen.items()
    }
    packed = pack_timings(H200, "cublas", [Timings(timings.frame.assign(**trace), "traced", "h200-sxm", "cublas")])
    assert packed.known.tolist() == [0] * traced
    assert packed.known_configs.shape == (traced, 2)
    assert packed.measured_us.tolist() == [1.0] * 3


def test_a_fit_is_deterministic_and_within_bounds(noisy: Timings) -> None:
    timings = pack_timings(H200, "cublas", [noisy])
    first, again = (fit_family(timings, FAMILY, "cublas", FEW_ROUNDS) for _ in range(2))
    slow = with_latency(noisy, 50.0 * noisy.measured_us)
    outrageous = fit_family(pack_timings(H200, "cublas", [slow]), FAMILY, "cublas", 1)
    assert first == again
    assert set(first[0]) == {item.name for item in COEFFICIENTS}
    for values, _ in (first, outrageous):
        assert all(item.low <= values[item.name] <= item.high for item in COEFFICIENTS)


def test_a_start_of_elsewhere_does_not_count(noisy: Timings) -> None:
    """A predictor with a committed calibration has seen the rows that are held out now."""
    wrong = {family: default_coefficients(family) | {"kernel_us": 8.0} for family in ("sm90_wgmma", "sm80_mma")}
    fits = [ModelPredictor(H200, "cublas", seen, FEW_ROUNDS).fit(noisy) for seen in ({}, wrong)]
    assert fits[0].coefficients == fits[1].coefficients
    few = noisy.select(np.arange(len(noisy)) < MIN_ROWS - 1)
    assert ModelPredictor(H200, "cublas", wrong).fit(few).coefficients == {}


@pytest.mark.parametrize("name", ["cublas/fp16", "cublaslt/int8"])
def test_predictions_look_at_sizes_and_types_only(name: str) -> None:
    (real,) = find_timings("h200-sxm", [name])
    real = real.select(np.arange(len(real)) % 4 == 0)
    predictor = model_predictor(H200, "cublas")
    expected = predictor.predict(real)
    shuffled = real.frame.sample(frac=1.0, random_state=1).reset_index(drop=True)
    measured = [column for column in real.frame.columns if column not in PROBLEM_COLUMNS]
    problems = real.frame.drop(columns=measured).assign(latency_us=np.nan)
    assert "kernel" in measured
    for frame in (real.frame.assign(**{column: shuffled[column] for column in measured}), problems):
        assert (predictor.predict(Timings(frame, "other", "h200-sxm", "cublas")) == expected).all()


def test_what_the_timer_adds_is_predicted_and_never_learnt(exact: Timings) -> None:
    slow = replace(with_latency(exact, exact.measured_us + 4.7), timer_us=4.7)
    model = ModelPredictor(H200, "cublas", {FAMILY: PLANTED})
    assert model.predict(slow) == pytest.approx(slow.measured_us)
    assert slow.content_hash != with_latency(exact, slow.measured_us).content_hash
    naive = NaiveRoofline(H200)
    assert naive.predict(slow) == pytest.approx(naive.predict(exact) + 4.7)
    fits = [model.fit(timings).predict(exact) for timings in (exact, slow)]
    assert fits[1] == pytest.approx(fits[0], rel=0.02)
    assert model.fit(replace(slow, timer_us=0.0)).predict(exact).min() > 1.5 * fits[0].min()


def test_calibrate_fits_the_rows_of_its_family(noisy: Timings) -> None:
    odd = timings_of([(1023, 1024)], name="odd")
    found = calibrate(H200, "cublas", FAMILY, [noisy, odd], max_evaluations=1, seed=3)
    assert [(errors.data, errors.num_rows) for errors in found.errors] == [("planted", 300)]
    assert found.errors[0].mape_percent < 5.0
    assert "seed 3" in found.folds
    assert (found.gpu, found.library, found.family) == ("h200-sxm", "cublas", FAMILY)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"family": "sm90"}, InvalidOptionError, "family must be one of sm90_wgmma, sm80_mma"),
        ({"library": "mkl"}, InvalidOptionError, "library must be one of cublas"),
        ({"sets": []}, InvalidInputError, "at least 30 rows and 5 .* got 0 rows and 0 pairs"),
        ({"family": "sm80_mma"}, InvalidInputError, "got 0 rows"),
        ({"sets": [timings_of(PAIRS[:3])]}, InvalidInputError, "got 75 rows and 3 pairs"),
        ({"sets": [timings_of(gpu="h100-sxm")]}, InvalidInputError, "is of cublas on h100-sxm, not of cublas on h200"),
        ({"sets": [timings_of(library="trtllm")]}, InvalidInputError, "is of trtllm on h200-sxm"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    noisy: Timings, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"library": "cublas", "family": FAMILY, "sets": [noisy]} | change
    with pytest.raises(error, match=message):
        calibrate(H200, given["library"], given["family"], given["sets"])
