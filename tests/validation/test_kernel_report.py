"""Scores of W4A16 kernels: errors on made-up timings, ablation, tables, documents, and `gemm-eval validate w4a16`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.metrics import make_score
from gemm_eval.validation.subjects import configs, w4a16
from gemm_eval.validation.subjects.dense import describe_held_out
from gemm_eval.validation.tables import Timings
from tests.validation.inputs import run, shown
from tests.validation.test_kernel_choice import H200, packed, timings_of, two_gemms

pytest.importorskip("scipy")
W4A16 = ("validate", "w4a16")
GEMMS = [(M, 4096, N) for N in (1024, 2048, 8192) for M in (1, 16)]
TERMS = (
    configs.Ablated("w4a16_sm90", "issue", 1.0, "an instruction takes one slot", 4.5, 0.9, 5.0),
    configs.Ablated("w4a16_sm90", "part_cycles", 0.0, "costs nothing", 4.5, 0.01, 0.01, 0.019, -0.1),
    configs.Ablated("w4a16_gemv", "cut_us", 0.0, "costs nothing", 5.0, 0.5, 0.1, 0.02, 0.0, 0.3),
)
TOGETHER = configs.Removed("w4a16_sm90", ("part_cycles",), ("ramp_us",), 0.01, -0.02)
ABLATION = configs.Ablation(TERMS, (TOGETHER,))


def as_predicted(num: int = 12, kind: int = 0) -> Timings:
    """Timings of `num` kernels of a family on 6 GEMMs, as the model with default coefficients has them."""
    places = np.flatnonzero(packed()[1]["coefficient_set"] == kind)[:num].tolist()
    timings = timings_of([(gemm, place, 1, 1.0) for gemm in GEMMS for place in places])
    return replace(timings, frame=timings.frame.assign(latency_us=w4a16.W4A16Model(H200).predict(timings)))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice of the timings that come with the library: a few GEMMs of four pairs, up to 8 configs each."""
    pytest.importorskip("pyarrow")
    (path,) = (path for path in w4a16.list_w4a16_tables("h200-sxm") if path.stem == "fp16")
    frame = pd.read_parquet(path)
    frame = frame[(frame["mode"] == "group") & (frame["group_size"] == 128) & frame["M"].isin([1, 256, 2048])]
    frame = frame[frame["N"].isin(sorted(frame["N"].unique())[:4])]
    frame = frame.groupby(["M", "K", "N"]).head(8)
    out = tmp_path_factory.mktemp("w4a16") / "slice.parquet"
    frame.to_parquet(out)
    return out


def test_errors_by_family_and_regime() -> None:
    timings = two_gemms()
    predicted_us = timings.measured_us * np.array([1.1, 1.0, 1.0, 0.8, 0.8])
    found = make_score(timings, "it", predicted_us, has_order=True).errors
    by_group = {(item.group, item.regime): item for item in found}
    assert by_group["all", "all"].errors.mape_frac == pytest.approx(0.1)
    assert by_group["all", "all"].errors.bias_frac == pytest.approx(-0.06)
    assert by_group["all", "decode"].errors.mape_frac == pytest.approx(0.1 / 3)
    assert by_group["all", "prefill"].errors.mape_frac == pytest.approx(0.2)
    assert by_group["all", "near best"].errors.num == 4  # 20 us is twice the best of its GEMM
    assert ("all", "mid") not in by_group
    assert all(item.tau_within_gemms is None for item in found)  # no GEMM has 6 configs


def test_a_term_that_matters_and_one_that_does_not() -> None:
    model, timings = w4a16.W4A16Model(H200, families=("w4a16_gemv_mma",)), as_predicted(kind=1)
    names = ("step_cycles", "line_waste")
    found = {item.coefficient: item for item in configs.ablate(model, timings, 2, names=names)}
    assert set(found) == set(names)
    assert found["step_cycles"].in_sample_points > 0
    assert found["step_cycles"].reached_frac > 0.5
    assert found["line_waste"].reached_frac == 0.0  # all K are multiples of 64
    assert found["line_waste"].held_out_points == pytest.approx(0.0, abs=0.02)
    assert found["line_waste"].held_out_reached_points is None
    assert found["line_waste"] in configs.Ablation(tuple(found.values())).useless
    (removed,) = configs.remove_in_turn(model, timings, [found["line_waste"]], 2)
    assert (removed.family, removed.coefficients, removed.kept) == ("w4a16_gemv_mma", ("line_waste",), ())
    assert removed.held_out_points == pytest.approx(found["line_waste"].held_out_points)
    assert list(configs.ablate(w4a16.W4A16Model(H200), as_predicted(2), 2)) == []  # families with few rows are left out


def test_what_buys_nothing() -> None:
    table, *lines = configs.ablation_report(ABLATION)
    text = shown(table)
    assert [item.coefficient for item in ABLATION.useless] == ["part_cycles"]
    assert "buys nothing: w4a16_sm90.part_cycles" in " ".join(text.split())
    assert "w4a16_sm90 (4.50%)" in text
    assert "+0.019" in text
    assert lines == [
        "w4a16_sm90: part_cycles together change the held-out MAPE by +0.010 points, near the best by -0.020; "
        "kept, since the others are gone: ramp_us",
        "",
    ]


def test_which_tables_are_fitted_on(tmp_path: Path, table: Path) -> None:
    fitted, held_back = w4a16.find_w4a16_tables(H200, [], is_fit=None)
    assert fitted == w4a16.list_w4a16_tables("h200-sxm")
    assert held_back == w4a16.list_w4a16_tables("h200-sxm", is_held_back=True)
    assert w4a16.find_w4a16_tables(H200, [], is_fit=False) == ([], fitted + held_back)
    assert w4a16.find_w4a16_tables(H200, [table], is_fit=None) == ([table], [])
    mine = tmp_path / "mine.parquet"
    mine.write_bytes(table.read_bytes())
    mine.with_suffix(".meta.yaml").write_text("held_back: for the end\n")
    assert w4a16.find_w4a16_tables(H200, [table, mine], is_fit=True) == ([table], [mine])
    with pytest.raises(InvalidInputError, match="no such file"):
        w4a16.find_w4a16_tables(H200, [tmp_path / "none.parquet"], is_fit=True)


def test_command_prints_tables(table: Path) -> None:
    text = run(*W4A16, "--data", table, "--no-fit", "--worst", 2, columns=80)
    assert "slice: " in text
    words = " ".join(text.split())
    assert "model as it is, coefficients fitted on timings of h200-sxm" in words
    assert "model + profile 3" in text
    assert "among the timed" in words
    assert max(map(len, text.splitlines())) <= 80
    assert "largest errors of the model near the best" in text
    assert "int4_wo" not in text  # a table was named


def test_command_holds_pairs_out(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "run_ablation", lambda *_: ABLATION)
    text = run(*W4A16, "--data", table, "--folds", 2, "--ablation", "--json")
    document = json.loads(text[text.index("{") :])
    (part,) = document["parts"]

    assert (document["arch"], document["num_folds"], document["seed"]) == ("h200-sxm", 2, 0)
    assert part["tables"] == ["slice"]
    assert "2 folds, seed 0" in part["title"]
    whole = [item for item in part["errors"] if (item["family"], item["regime"]) == ("all", "all")]
    names = ["model", "physics", "fitted roofline", "naive roofline"]
    assert [item["predictor"] for item in whole] == names == list(part["predictors"])
    assert whole[0]["num"] == part["num_rows"]
    assert set(whole[0]) == {
        "predictor", "family", "regime", "num", "mape_frac", "median_frac", "p90_frac", "bias_frac",
        "tau_within_gemms", "num_gemms",
    }  # fmt: skip
    assert max(whole[0]["mape_frac"], whole[1]["mape_frac"]) < whole[2]["mape_frac"] < whole[3]["mape_frac"]
    answers = {item["regime"]: item for item in part["answers"]}
    assert {item["mode"] for item in part["answers"]} == {"group 128"}
    assert answers["all"]["errors"]["gemm_eval"]["num"] == part["num_gemms"]
    assert 0.0 < answers["all"]["coverage_frac"] <= 1.0
    chosen = {
        item["method"]: item for item in part["choices"] if (item["gemms"], item["regime"]) == ("all GEMMs", "all")
    }
    assert chosen["profile all"]["worst_frac"] == 0.0
    assert chosen["model + profile 10"]["mean_frac"] == 0.0  # 8 configs a GEMM
    assert chosen["model"]["mean_frac"] < chosen["random"]["mean_frac"]
    assert part["cost"]["num_gemms"] == 0
    assert part["cost"]["model_us"] > 0
    assert part["cost"]["profile_s"] == part["cost"]["ratio"] == 0
    assert len(part["worst"]) == 5
    assert sum(part["worst"][0]["terms_us"].values()) == pytest.approx(part["worst"][0]["predicted_us"])
    assert document["ablation"]["useless"] == ["w4a16_sm90.part_cycles"]
    assert document["ablation"]["together"][0]["kept"] == ["ramp_us"]
    assert document["int4_wo"] == {"sets": []}


def test_held_out_errors_in_words() -> None:
    assert "sm90_wgmma: held out" in describe_held_out("h200-sxm", "trtllm", "aiconfigurator/int4_wo")
    assert describe_held_out("l4", "trtllm", "aiconfigurator/int4_wo") == ""
