"""Learned corrections are fitted, held out and judged; what users get is what was fitted."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import GPU_MODEL_VERSION, Correction, find_correction
from gemm_eval.validation.metrics import are_inside, are_inside_of_all, errors_table, score
from gemm_eval.validation.subjects import corrections, gemms
from gemm_eval.validation.subjects.dense import ModelPredictor, model_predictor
from gemm_eval.validation.subjects.gemms import compare
from gemm_eval.validation.tables import Timings, find_timings, list_correction_timings, list_timings
from tests.cli.commands import Ran

pytest.importorskip("sklearn")
A100 = load_arch("a100-sxm-80gb", GpuSpec)


@pytest.fixture(scope="module")
def timings() -> Timings:
    (found,) = find_timings(A100.name, ["aiconfigurator-0.12/bf16"])
    return found.select(np.isin(found.frame["M"], (1, 16, 128, 1024, 4096)))


def test_a_fit_brings_what_it_learned_to_other_pairs(timings: Timings) -> None:
    model = model_predictor(A100, "cublas")
    assert (
        corrections.CorrectedPredictor(model).predict(timings).tolist() == model.predict(timings).tolist()
    )  # nothing learned
    physics, corrected = (
        score(item, timings, 3).by_regime["all"] for item in (model, corrections.CorrectedPredictor(model))
    )
    assert corrected.mape_frac < 0.9 * physics.mape_frac


def test_held_out_rows_change_no_fit(timings: Timings) -> None:
    first = timings.select(np.arange(len(timings)) < 300)
    doubled = Timings(first.frame.assign(latency_us=2.0 * first.frame["latency_us"]), "other", A100.name, "cublas")
    model = corrections.CorrectedPredictor(ModelPredictor(A100, "cublas", num_rounds=1), frozenset({first.name}))
    fitted, other = model.fit(first), model.fit(first, doubled)
    assert fitted.physics.coefficients == other.physics.coefficients  # sets that are not named fit no coefficient
    assert fitted.predict(first).mean() < other.predict(first).mean()


def test_what_is_shipped_predicts_what_users_get(timings: Timings) -> None:
    shipped = corrections.CorrectedPredictor(model_predictor(A100, "cublas")).learn(
        *(item for item in list_correction_timings(A100.name) if item.library == "cublas")
    )
    evaluator = GEMMEvaluator(A100, disk_cache=False)
    table = evaluator.evaluate_many(timings.problems(), progress=False)
    assert set(table["source"]) == {"corrected"}
    assert shipped.predict(timings) == pytest.approx(table["latency_us"], rel=1e-12)  # sums by several threads


def test_a_correction_comes_with_its_verdict(timings: Timings, tmp_path: Path) -> None:
    (fitted,) = corrections.calibrate_correction(A100, "cublas", "sm80_mma", [timings])
    found = fitted.correction
    fitted.write(tmp_path / "one.yaml")
    assert found.is_on is all(item.corrected_mape_percent < item.physics_mape_percent for item in found.errors)
    assert [item.regime for item in found.errors] == ["decode", "mid", "prefill", "all"]
    assert found.data[0].num_rows == len(timings) == found.errors[-1].num_rows
    assert found.data[0].sha256 == timings.content_hash.removeprefix("sha256:")
    assert (tmp_path / "one.npz").is_file() is found.is_on
    assert yaml.safe_load((tmp_path / "one.yaml").read_text())["question"] == "f16-cold-burst"


def test_few_pairs_leave_it_off(timings: Timings, tmp_path: Path) -> None:
    pairs = sorted(set(timings.pairs))[: corrections.MIN_PAIRS - 1]
    few = timings.select(np.array([pair in pairs for pair in timings.pairs]))
    (fitted,) = corrections.calibrate_correction(A100, "cublas", "sm80_mma", [few])
    (tmp_path / "one.npz").write_bytes(b"of before")
    fitted.write(tmp_path / "one.yaml")
    assert not fitted.correction.is_on
    assert not (tmp_path / "one.npz").exists()


def test_intervals_alone_can_be_fitted_anew(timings: Timings) -> None:
    few = timings.select(np.arange(len(timings)) % 4 == 0)
    (refitted,) = corrections.refit_intervals(A100, "cublas", "sm80_mma", [few])
    found = find_correction(A100, "cublas", "sm80_mma", refitted.question, GPU_MODEL_VERSION)
    assert found is not None
    assert refitted.intervals != found[0].intervals
    assert [item.num_rows for item in refitted.intervals][-1] == len(few)
    kept = {"intervals": (), "physics_intervals": ()}
    assert refitted.model_copy(update=kept) == found[0].model_copy(update=kept)


def test_only_a_calibrated_gpu_can_be_corrected(timings: Timings) -> None:
    with pytest.raises(InvalidInputError, match="no calibration that could be corrected"):
        corrections.calibrate_correction(load_arch("a30", GpuSpec), "cublas", "sm80_mma", [timings])


def test_coefficients_are_those_of_the_sets_that_the_calibration_names() -> None:
    assert corrections.corrected_predictor(A100, "cublas", "sm80_mma").fitted_on == {"aiconfigurator-0.12/bf16"}
    assert "aiconfigurator-0.12/bf16" not in (
        corrections.corrected_predictor(load_arch("h200-sxm", GpuSpec), "cublas", "sm90_wgmma").fitted_on or ()
    )


def test_sets_that_are_held_back_can_correct_all_the_same() -> None:
    names = {item.name for item in list_correction_timings("h200-sxm")}
    default = {item.name for item in list_timings("h200-sxm")}
    assert names > default
    assert {"aiconfigurator-0.12/bf16", "aiconfigurator-0.12/fp8"} <= names - default
    assert not any("candidates" in name for name in names)


def test_validation_shows_the_corrected_model_and_coverage(timings: Timings) -> None:
    (compared,) = compare(A100, [timings], 3)
    names = [item.predictor for item in compared]
    assert names[:2] == ["gemm_eval", "corrected"]
    assert all(0.7 < item.coverage["all"] < 0.9 for item in compared[:2])
    assert compared[2].coverage == {}
    rng = np.random.default_rng(0)  # intervals hold 80% of rows that they have not seen, of each question
    questions, folds = (rng.integers(0, num, len(timings)) for num in (2, 5))
    predicted_us = timings.measured_us * np.exp(rng.normal(0.0, np.where(questions, 0.02, 0.2)))
    (inside,) = are_inside_of_all([timings], [predicted_us], [folds], [questions])
    assert [inside[questions == of].mean() for of in (0, 1)] == pytest.approx([0.8, 0.8], abs=0.05)
    assert are_inside(timings, predicted_us, folds)[questions == 1].mean() > 0.95
    headers = [str(column.header) for column in errors_table(compared).columns]
    assert headers[-1] == "in 80%"


def test_without_scikit_learn_the_model_stands_alone(timings: Timings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemms, "has_package", lambda _: False)
    (compared,) = compare(A100, [timings], 3)
    assert [item.predictor for item in compared][:2] == ["gemm_eval", "naive roofline"]


def test_the_command_writes_a_correction(tmp_path: Path) -> None:
    words = ["calibrate", "correction", "--arch", "h200-sxm", "--family", "sm90_wgmma", "--data", "cublaslt/fp8"]
    ran = Ran(*words, "--out", str(tmp_path))
    assert ran.code == 0
    assert "fp8-cold-burst" in ran.out
    path = tmp_path / "cublas-sm90_wgmma-fp8-cold-burst.yaml"
    assert Correction.model_validate(yaml.safe_load(path.read_text())).gpu == "h200-sxm"
