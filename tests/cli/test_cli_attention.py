"""`gemm-eval attention`, and the commands that fit and score it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import read_yaml
from gemm_eval.models.gpu.attention import AttentionCalibration
from gemm_eval.validation.subjects import attention
from tests.cli.commands import Ran, plain

SIZES: dict[str, Any] = {"batch": 1, "q_len": 1, "kv_len": 4096, "num_heads": 32}
WORDS = ("--kv", "4096", "--heads", "32")
CALLS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("h200-sxm", ["--kv-heads", "8", "--kv-dtype", "fp8", "--dtype", "bf16", "--batch", "16"],
     {"num_kv_heads": 8, "kv_dtype": "fp8", "dtype": "bf16", "batch": 16}),
    ("b200", ["--q", "4096", "--window", "128", "--head-dim", "64"], {"q_len": 4096, "window": 128, "head_dim": 64}),
    ("h200-sxm", ["--full", "--unfused", "--q", "7"], {"causal": False, "fused": False, "q_len": 7}),
    ("a100-sxm-80gb", ["--latent", "--head-dim", "576", "--v-head-dim", "512"],
     {"is_latent": True, "num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512}),
    ("demo-8core", [], {}),
]  # fmt: skip
IDS = [" ".join([arch, *words]) for arch, words, _ in CALLS]


@pytest.mark.parametrize(("arch", "words", "options"), CALLS, ids=IDS)
def test_json_and_text_are_what_the_library_says(arch: str, words: list[str], options: dict[str, Any]) -> None:
    result = GEMMEvaluator(arch).evaluate_attention(**SIZES | options)
    assert Ran("attention", "--arch", arch, *WORDS, *words, "--json").json() == plain(result.to_dict())
    for columns in (80, 200):
        ran = Ran("attention", "--arch", arch, *WORDS, *words, columns=columns)
        assert (ran.code, ran.err) == (0, "")
        assert max(map(len, ran.out.splitlines())) <= columns
        assert " ".join(ran.out.split()) == " ".join(result.explain().split())


def test_several_chips_stand_one_after_the_other() -> None:
    ran = Ran("attention", "--arch", "h200-sxm", "--arch", "b200", *WORDS)
    assert ran.out.index("on h200-sxm") < ran.out.index("on b200")
    assert len(Ran("attention", "--arch", "h200-sxm", "--arch", "b200", *WORDS, "--json").json()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--q", "5000"], "q_len must be <= kv_len"),
        (["--kv-heads", "5"], "num_kv_heads must divide"),
        (["--dtype", "fp4"], "dtype of attention must be"),
    ],
)
def test_what_is_refused(words: list[str], said: str) -> None:
    ran = Ran("attention", "--arch", "h200-sxm", *WORDS, *words)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the table that is fitted in no time."""
    some = [item for item in attention.tables("a100-sxm-80gb") if item.phase == "mla_generation"]
    monkeypatch.setattr(attention, "tables", lambda _gpu: some)


@pytest.mark.usefixtures("quick")
def test_calibrate_writes_what_validate_scores(tmp_path: Path) -> None:
    out = tmp_path / "attention.yaml"
    ran = Ran("calibrate", "attention", "--arch", "a100-sxm-80gb", "--out", out, columns=140)
    assert ran.code == 0
    fitted = AttentionCalibration.model_validate(read_yaml(out))
    assert f"{fitted.errors[0].mape_percent:.1f}%" in ran.out
    lines = Ran("validate", "attention", "a100-sxm-80gb", "--groups", "--json").json()["lines"]
    whole = next(line for line in lines if line["group"] == "all")
    assert whole["errors"]["gemm_eval"]["mape_frac"] * 100 == pytest.approx(fitted.errors[0].mape_percent, rel=0.02)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("words", [[], ["--groups"]])
def test_validate_shows_errors_beside_rooflines(words: list[str]) -> None:
    ran = Ran("validate", "attention", "a100-sxm-80gb", *words, columns=120)
    assert (ran.code, ran.err) == (0, "")
    assert "roofline" in ran.out
    assert ("up to 65,536" in ran.out) == bool(words)
    assert "a100-sxm-80gb, trtllm, mla_generation" in ran.out
    assert Ran("validate", "attention", "h100-sxm").code == 2
