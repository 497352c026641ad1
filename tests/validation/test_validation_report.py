"""What is printed, written and drawn of scores, and the commands `validate` and `calibrate`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu.calibration import Origin
from gemm_eval.validation import baselines
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
from gemm_eval.validation.metrics import Score, errors_table, report_document, score, worst_table
from gemm_eval.validation.subjects import dense, gemms
from gemm_eval.validation.tables import Floats, Timings, find_timings, read_timings
from tests.validation.inputs import H200, run, shown

TABLE = "M,K,N,latency_us\n" + "".join(
    f"{m},{k},64,{2 + m * k * 1e-5}\n" for k in (64, 128, 256) for m in (1, 16, 64, 512)
)
GIVEN = ("--library", "cublas", "--dtype", "fp16")


class Half:
    """Predicts half of what was measured: every error is -50%."""

    name = "half"

    def fit(self, *train: Timings) -> Half:
        return self

    def predict(self, rows: Timings) -> Floats:
        return rows.measured_us / 2


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the GPU model, calibrated on h200-sxm, and no nvMatmulHeuristics: both have tests elsewhere."""
    monkeypatch.setattr(dense, "model_predictor", lambda *_: Half())
    monkeypatch.setattr(dense, "origin_of", lambda arch, _: Origin(arch.name == "h200-sxm", "h200-sxm", "of h200-sxm"))
    monkeypatch.setattr(dense, "describe_origin", lambda arch, timings, origin: origin.text)
    monkeypatch.setattr(baselines, "has_heuristics", lambda _: False)
    monkeypatch.setattr(gemms, "has_package", lambda _: False)


@pytest.fixture
def timings(table: Path) -> Timings:
    (timings,) = read_timings(table, gpu="h200-sxm", library="cublas", dtype="fp16")
    return timings


@pytest.fixture
def scores(timings: Timings) -> list[Score]:
    return [score(Half(), timings, 3), score(NaiveRoofline(H200), timings, 0)]


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_tables(scores: list[Score]) -> None:
    text = shown(errors_table(scores))
    rows = rows_of(text)
    assert "mine: 12 GEMMs, 3 (N, K) pairs, cublas on h200-sxm, cold L2, burst clock" in " ".join(text.split())
    assert ["decode", "half", "3-fold", "6", "50.0%", "50.0%", "50.0%", "-50.0%", "1.000"] in rows
    assert ["prefill", "half", "3-fold", "3", "50.0%", "50.0%", "50.0%", "-50.0%", "1.000"] in rows
    assert sum(row[:3] == ["naive", "roofline", "as"] for row in rows) == 4
    assert ["64", "64", "4", "50.0%", "-50.0%", "1", "-50.0%"] in rows_of(shown(worst_table(scores[0])))


def test_the_document_has_the_errors_of_all_scores(scores: list[Score]) -> None:
    document = report_document(scores, num_worst=1)
    (of_set,) = document["sets"]
    assert of_set["content_hash"] == scores[0].timings.content_hash
    for predictor, scored in zip(of_set["predictors"], scores, strict=True):
        assert len(predictor["worst_pairs"]) == 1
        for group, errors in predictor["errors"].items():
            assert errors == scored.by_regime[group]._asdict() | {"coverage_frac": None}
    json.dumps(document, allow_nan=False)


def test_validate_writes_json(table: Path) -> None:
    document = json.loads(run("validate", "dense", "--data", str(table), *GIVEN, "--json"))
    assert document["arch"] == "h200-sxm"
    assert [(predictor["name"], predictor["fit"]) for predictor in document["sets"][0]["predictors"]] == [
        ("half", "3-fold"), ("naive roofline", "as it is"), ("fitted roofline", "3-fold"), ("interpolation", "3-fold"),
    ]  # fmt: skip
    assert document["coefficients"] == {"mine": "refitted on this set"}


def test_without_fit_the_model_is_as_it_is(table: Path) -> None:
    text = run("validate", "dense", "--data", str(table), *GIVEN, "--no-fit")
    assert "not refitted; coefficients: of h200-sxm" in text
    (of_model,) = (row for row in rows_of(text) if row[:5] == ["all", "half", "on", "h200-sxm", "12"])
    assert of_model[5] != "50.0%"  # what users are answered, whatever a predictor would say
    assert ["fitted", "roofline", "3-fold"] in [row[:3] for row in rows_of(text)]


def test_transferred_roofline_is_one_of_shares(table: Path) -> None:
    """Constants of an H200 fit, on the data sheet of an H100."""
    h100 = load_arch("h100-sxm", GpuSpec)
    (timings,) = read_timings(table, gpu="h100-sxm", library="cublas", dtype="fp16")
    roofline = gemms.carried_roofline(h100, timings)
    assert roofline is not None
    assert roofline.arch is h100
    assert 0.5 < roofline.roofs[""].dram_frac < 1.1
    of_h200 = FittedRoofline(H200).fit(*find_timings("h200-sxm", ["aiconfigurator/float16", "cublas/fp16"]))
    assert roofline.roofs[""].compute_frac == pytest.approx(of_h200.roofs[""].compute_frac, rel=0.1)


def test_calibrate_writes_what_was_fitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def fake(arch: GpuSpec, library: str, family: str, sets: list[Timings], **rest: Any) -> Any:
        asked.append((arch.name, library, family, [timings.name for timings in sets], rest))
        errors = SimpleNamespace(
            data="cublas/fp16", num_rows=1700, mape_percent=5.0, median_percent=3.0, p90_percent=11.0,
            bias_percent=-1.0, kendall_tau=0.97,
        )  # fmt: skip
        of = {"family": family, "library": library, "gpu": arch.name, "folds": "5-fold", "errors": (errors,)}
        return SimpleNamespace(to_yaml=lambda: "fitted: 1\n", **of)

    monkeypatch.setattr(dense, "calibrate", fake)
    out = tmp_path / "new" / "x.yaml"
    words = ("--arch", "h200-sxm", "--family", "sm90_wgmma", "--out", str(out), "--max-evaluations", "7")
    rows = rows_of(run("calibrate", "dense", *words))
    ((gpu, library, family, names, rest),) = asked

    assert out.read_text() == "fitted: 1\n"
    assert ["cublas/fp16", "1,846", "1,700", "5.0%", "3.0%", "11.0%", "-1.0%", "0.970"] in rows
    assert ["cublaslt/int8", "274", "0", "-"] in [row[:4] for row in rows]
    assert (gpu, library, family, rest) == ("h200-sxm", "cublas", "sm90_wgmma", {"seed": 0, "max_evaluations": 7})
    assert {"aiconfigurator/float16", "cublas/fp16", "engines/w4a16/cublas-fp16-burst"} <= set(names)
    assert not any("warm" in name or "sustained" in name or "int4" in name for name in names)
