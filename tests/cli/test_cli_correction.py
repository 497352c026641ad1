"""The command line with learned corrections and intervals: on, off, and as JSON."""

from __future__ import annotations

from gemm_eval import GEMMEvaluator
from gemm_eval.models.gpu import GPU_MODEL_VERSION
from gemm_eval.units import time_text
from tests.cli.commands import Ran

GEMM = ("1", "64", "4096", "4096", "--arch", "h200-sxm", "--dtype", "bf16")


def test_evaluate_shows_the_interval_and_what_the_model_alone_says() -> None:
    result = GEMMEvaluator("h200-sxm").evaluate(1, 64, 4096, 4096, "bf16")
    ran = Ran("evaluate", *GEMM)

    assert ran.code == 0
    for label in ("80% interval", "model alone", "correction", f"{GPU_MODEL_VERSION}, corrected"):
        assert label in ran.out
    assert result.low_us is not None
    assert time_text(result.low_us) in ran.out


def test_no_correction_is_the_model_alone() -> None:
    document = Ran("evaluate", *GEMM, "--no-correction", "--json").json()["results"][0]
    corrected = Ran("evaluate", *GEMM, "--json").json()["results"][0]

    assert (document["source"], corrected["source"]) == ("calibrated", "corrected")
    assert document["latency_us"] == corrected["physics_us"] != corrected["latency_us"]
    assert corrected["low_us"] < corrected["latency_us"] < corrected["high_us"]
    assert "model alone" not in Ran("evaluate", *GEMM, "--no-correction", "--no-explain").out


def test_top_takes_it_too() -> None:
    corrected, physics = (
        Ran("top", *GEMM, "-c", "3", "--json", *more).json()["results"] for more in ((), ("--no-correction",))
    )
    assert [one["mapping"] for one in corrected] == [one["mapping"] for one in physics]
    assert {one["source"] for one in physics} == {"calibrated"}


def test_a_multicore_chip_has_no_interval() -> None:
    ran = Ran("evaluate", "1", "64", "512", "512", "--arch", "demo-8core", "--arch", "h200-sxm", "--dtype", "fp16")
    assert ran.code == 0
    assert "80% interval" in ran.out
    assert "80% interval" not in Ran("evaluate", "1", "64", "512", "512", "--arch", "demo-8core").out
