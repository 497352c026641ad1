"""Timings of Triton kernels: loading, machine code as a table, folds, fits, scores, and the two commands."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_eval.errors import InvalidInputError
from gemm_eval.measure import dataset_hash
from gemm_eval.measure import read_timings as read_measured
from gemm_eval.models.gpu.triton import TRITON_COEFFICIENTS, TritonCalibration, triton_calibration_path
from gemm_eval.validation.fit import assign_folds
from gemm_eval.validation.studies import order_by, ranked_choice, share_of_configs, worst_choices
from gemm_eval.validation.subjects import triton as subject
from gemm_eval.validation.tables import Floats, Timings, find_timings
from tests.validation.inputs import H200, run

TABLE = subject.triton_table("h200-sxm")
MODEL = subject.TritonModel(H200)


@pytest.fixture(scope="module")
def committed() -> Timings:
    return subject.read_triton_timings(H200, TABLE)


@pytest.fixture(scope="module")
def some(committed: Timings) -> Timings:
    """A twentieth of the GEMMs, whole."""
    return committed.select(committed.gemm % 20 == 0)


@pytest.fixture(scope="module")
def small_table(committed: Timings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 GEMMs."""
    path = tmp_path_factory.mktemp("triton") / "timings.parquet"
    committed.frame[committed.gemm % 60 == 0].to_parquet(path, index=False)
    (path.parent / subject.CODES_FILE).write_bytes(TABLE.with_name(subject.CODES_FILE).read_bytes())
    return path


def choice_speeds(timings: Timings, predicted_us: Floats) -> Floats:
    """Of the first config, the best of the first three and of the first fifth, [gemms, 3]."""
    order = order_by(timings, predicted_us)
    nums = (1, 3, share_of_configs(timings, 0.2))
    return np.stack([ranked_choice(timings, "", order, num).speeds for num in nums], axis=1)


def calibration() -> TritonCalibration:
    return TritonCalibration.model_validate(yaml.safe_load(triton_calibration_path("h200-sxm").read_text()))


def test_committed_table(committed: Timings) -> None:
    meta = yaml.safe_load(TABLE.with_suffix(".meta.yaml").read_text())
    gemms = committed.frame[subject.GEMM_COLUMNS].drop_duplicates()
    assert tuple(pd.read_parquet(TABLE).columns) == subject.TIMING_COLUMNS
    assert (len(committed), len(gemms), committed.gemm.max()) == (39558, 730, 729)
    assert committed.groups[:3] == ("w4a16-fp16", "fp16", "fp8")
    assert (meta["num_rows"], meta["sha256"]) == (len(committed), dataset_hash(TABLE))
    assert len(read_measured(TABLE)) == len(committed)
    assert (subject.rows_of(committed).launches.ctas_per_sm > 0).all()
    (fastest,) = find_timings("h200-sxm", ["triton/timings"])
    assert (len(fastest), fastest.library, fastest.l2, set(fastest.frame["rank"])) == (730, "triton", "cold", {0})
    assert np.isfinite(MODEL.predict(subject.without_code(committed))).all()
    ranks = committed.frame.sort_values([*subject.GEMM_COLUMNS, "latency_us"], kind="stable")["rank"]
    assert (
        ranks.groupby(committed.gemm[ranks.index]).apply(lambda of_gemm: set(of_gemm) == set(range(len(of_gemm)))).all()
    )


def test_every_kernel_has_its_code_and_back(tmp_path: Path) -> None:
    codes = subject.read_codes(TABLE.with_name(subject.CODES_FILE))
    subject.write_codes(tmp_path / "codes.csv", codes)
    assert len(codes) == 792
    assert all(code.is_compiled and code.loop.mma and code.loop.k % key.block_k == 0 for key, code in codes.items())
    assert (tmp_path / "codes.csv").read_bytes() == TABLE.with_name(subject.CODES_FILE).read_bytes()
    assert subject.read_codes(tmp_path / "codes.csv") == codes


def test_what_lacks_is_named(tmp_path: Path, some: Timings) -> None:
    path = tmp_path / "timings.parquet"
    with pytest.raises(InvalidInputError, match="cannot read timings from"):
        subject.read_triton_timings(H200, path)
    some.frame.drop(columns=["split_k"]).to_parquet(path)
    with pytest.raises(InvalidInputError, match="lacks split_k"):
        subject.read_triton_timings(H200, path)
    some.frame.to_parquet(path)
    with pytest.raises(InvalidInputError, match=r"cannot read timings from .*codes\.csv"):
        subject.read_triton_timings(H200, path)
    codes = pd.read_csv(TABLE.with_name(subject.CODES_FILE))
    codes.drop(columns=["mma"]).to_csv(tmp_path / subject.CODES_FILE)
    with pytest.raises(InvalidInputError, match="lacks mma"):
        subject.read_triton_timings(H200, path)
    codes[codes["data_set"] != "fp8"].to_csv(tmp_path / subject.CODES_FILE)
    with pytest.raises(InvalidInputError, match=r"has no row for KernelKey\(data_set='fp8'"):
        subject.read_triton_timings(H200, path)
    assert tuple(codes.columns) == subject.CODE_COLUMNS


def test_a_fit_recovers_coefficients_of_its_own_times(some: Timings) -> None:
    true = {
        item.name: min(max(item.default * factor, item.low), item.high)
        for item, factor in zip(
            TRITON_COEFFICIENTS, np.tile([0.9, 1.1, 1.05], 6)[: len(TRITON_COEFFICIENTS)], strict=True
        )
    }
    made = some.frame.assign(latency_us=replace(MODEL, coefficients={"": true}).predict(some))
    fitted = MODEL.fit(replace(some, frame=made))
    found = fitted.values
    assert MODEL.without({"add_cycles": 0.0}).fit(some).values["add_cycles"] == 0.0
    assert np.abs(fitted.predict(some) / replace(MODEL, coefficients={"": true}).predict(some) - 1.0).max() < 0.01
    for item in TRITON_COEFFICIENTS:
        assert found[item.name] == pytest.approx(true[item.name], rel=0.1), item.name


def test_what_cannot_be_fitted_is_refused(some: Timings) -> None:
    with pytest.raises(InvalidInputError, match="at least 200 timings of Triton kernels, got 5"):
        MODEL.fit(some.select(np.arange(len(some)) < 5))
    launches = some.packed.launches
    is_seventh = np.arange(len(launches.ctas_per_sm)) == some.column("packed_row")[7]
    broken = launches._replace(ctas_per_sm=np.where(is_seventh, 0.0, 1.0))
    with pytest.raises(InvalidInputError, match="row 8 has a kernel that cannot be launched"):
        MODEL.fit(replace(some, packed=subject.TritonRows(broken, broken)))


def test_the_committed_calibration_is_of_the_committed_data(committed: Timings) -> None:
    found = calibration()
    assert (found.gpu, found.triton_version) == ("h200-sxm", "3.6.0")
    assert {errors.sha256 for errors in found.errors} == {hashlib.sha256(TABLE.read_bytes()).hexdigest()}
    assert {errors.data: errors.num_rows for errors in found.errors} == {
        f"triton/{name}": int(committed.of_group(name).sum()) for name in committed.groups
    }


def test_the_committed_figures_come_out_again(committed: Timings) -> None:
    """One fold of five, fitted from the committed coefficients on: the same optimum, and errors like those stated."""
    found = calibration()
    folds = assign_folds(committed, 5, 0)
    train, held_out = committed.select(folds != 0), committed.select(folds == 0)
    model = subject.TritonModel(H200, {"": found.coefficients})
    fitted = model.fit(train.select(np.arange(len(train)) % 4 == 0))
    stated = sum(errors.mape_percent * errors.num_rows for errors in found.errors) / len(committed)

    def error_percent(predictor: subject.TritonModel, rows: Timings) -> float:
        return float(100.0 * np.abs(predictor.predict(rows) / rows.measured_us - 1.0).mean())

    assert error_percent(model, committed) == pytest.approx(stated, abs=0.3)
    assert error_percent(fitted, held_out) == pytest.approx(error_percent(model, held_out), abs=0.5)
    speeds = choice_speeds(committed, model.predict(committed))
    assert np.exp(np.log(speeds).mean(axis=0)) == pytest.approx([0.965, 0.99, 0.998], abs=0.01)


def test_scores_of_a_table(some: Timings) -> None:
    study = subject.study_triton(H200, some, 2, 0, is_fit=False)
    perfect = choice_speeds(some, some.measured_us)
    of_all = {item.predictor: item for item in study.errors if (item.group, item.regime) == ("all", "all")}
    first = {
        item.method: item for item in study.losses if (item.group, item.regime, item.how) == ("all", "all", "first")
    }
    assert perfect.shape == (len(np.unique(some.gemm)), 3)
    assert (perfect == 1.0).all()
    assert of_all["model"].errors.mape_frac < of_all["naive roofline"].errors.mape_frac
    assert of_all["naive roofline"].tau_within_gemms is None
    assert first["at random"].speed_frac < first["model"].speed_frac <= 1.0
    (worst,) = worst_choices(study, 1)
    assert worst["speed_frac"] == first["model"].least_speed_frac
    assert worst["chosen"]["predicted_us"] <= worst["best"]["predicted_us"]


def test_validate_prints_at_most_80_columns(small_table: Path) -> None:
    text = run("validate", "triton", "--data", small_table, "--folds", 2, "--worst", 1, columns=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("model", "no code", "fitted roofline", "naive roofline", "at random", "w4a16-fp16", "decode"):
        assert word in text
    document = json.loads(run("validate", "triton", "--data", small_table, "--no-fit", "--worst", 2, "--json"))
    assert (document["num_gemms"], len(document["worst"])) == (13, 2)
    assert set(document["predictors"]) == {"model", "no code", "naive roofline"}


def test_calibrate_writes_what_the_library_reads(small_table: Path, tmp_path: Path) -> None:
    out = tmp_path / "triton.yaml"
    text = run("calibrate", "triton", "--arch", "h200-sxm", "--data", small_table, "--out", out)
    found = TritonCalibration.model_validate(yaml.safe_load(out.read_text()))
    assert "triton/w4a16-fp16" in text
    assert sum(errors.num_rows for errors in found.errors) == len(pd.read_parquet(small_table))


def test_the_committed_code_is_what_the_compiler_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two kernels of `examples/measure_triton.py --codes`, which takes minutes for all."""
    triton = pytest.importorskip("triton")
    if triton.__version__ != calibration().triton_version:
        pytest.skip(f"the table is of Triton {calibration().triton_version}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "examples")
    from triton_codes import compile_pool
    from triton_pool import DATA_SETS

    committed_codes = subject.read_codes(TABLE.with_name(subject.CODES_FILE))
    (fp8,) = (data for data in DATA_SETS if data.name == "fp8")
    found = compile_pool(fp8, 2)
    assert len(found) == 2
    assert {key: committed_codes[key] for key in found} == found
