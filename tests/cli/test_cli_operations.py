"""The commands `attention`, `collective` and `moe`: tables, fits and what they write."""

import re
from pathlib import Path

import pytest

from gemm_eval import MoeLayer, moe_layers
from gemm_eval.arch import read_yaml
from gemm_eval.cli.operations import sizes_of
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.attention import AttentionCalibration
from gemm_eval.models.gpu.correction import load_trees
from gemm_eval.models.gpu.learned import LearnedCorrection, learned_path, load_learned
from gemm_eval.transformer import load_model, moe_layer_of
from gemm_eval.units import time_text
from gemm_eval.validation.subjects import attention as measured_attention
from tests.cli.commands import Ran, plain
from tests.cli.test_cli_answers import ANSWERS, Answer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the table that is fitted in no time."""
    some = [item for item in measured_attention.tables("a100-sxm-80gb") if item.phase == "mla_generation"]
    monkeypatch.setattr(measured_attention, "tables", lambda _gpu: some)


@pytest.mark.usefixtures("quick")
def test_calibrate_correction_writes_what_is_committed(tmp_path: Path) -> None:
    ran = Ran("calibrate", "correction", "--subject", "attention", "--arch", "a100-sxm-80gb", "--out", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    (path,) = tmp_path.glob("*.yaml")
    written = LearnedCorrection.model_validate(read_yaml(path))
    committed, _ = load_learned(learned_path(written.gpu, written.subject, written.group))
    for name in ("group", "is_on", "physics", "features"):
        assert getattr(written, name) == getattr(committed, name)
    before, after = written.data[0], committed.data[0]
    assert before.physics_mape_percent == pytest.approx(after.physics_mape_percent, rel=0.02)
    assert before.corrected_mape_percent == pytest.approx(after.corrected_mape_percent, rel=0.05)
    assert load_trees(path.with_suffix(".npz"), written.arrays_sha256, len(written.features)).roots.size


@pytest.mark.usefixtures("quick")
def test_calibrate_writes_what_validate_scores(tmp_path: Path) -> None:
    out = tmp_path / "attention.yaml"
    ran = Ran("calibrate", "attention", "--arch", "a100-sxm-80gb", "--out", out, columns=140)
    assert ran.code == 0
    fitted = AttentionCalibration.model_validate(read_yaml(out))
    assert f"{fitted.errors[0].mape_percent:.1f}%" in ran.out
    lines = Ran("validate", "attention", "a100-sxm-80gb", "--groups", "--json").json()["lines"]
    whole = next(line for line in lines if line["group"] == "all")
    assert whole["errors"]["physics"]["mape_frac"] * 100 == pytest.approx(fitted.errors[0].mape_percent, rel=0.02)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("words", [[], ["--groups"]])
def test_validate_shows_errors_beside_rooflines(words: list[str]) -> None:
    ran = Ran("validate", "attention", "a100-sxm-80gb", *words, columns=120)
    assert (ran.code, ran.err) == (0, "")
    assert "roofline" in ran.out
    assert ("up to 65,536" in ran.out) == bool(words)
    assert "a100-sxm-80gb, trtllm, mla_generation" in ran.out
    assert Ran("validate", "attention", "h100-sxm").code == 2


def test_sizes() -> None:
    assert sizes_of("4096") == sizes_of("4KiB") == sizes_of("4k") == sizes_of(" 4 kib ") == [4096]
    assert sizes_of("1.5MB,1GiB") == [1_500_000, 1 << 30]
    assert sizes_of("3KiB..13KiB") == [3072, 6144, 12288, 13312]
    assert sizes_of("1MiB..2MiB:512KiB") == [1 << 20, 3 << 19, 2 << 20]


@pytest.mark.parametrize("text", ["", "1Mix", "-4", "4KiB..1KiB", "0", "1..", "1,", "1e3", "1..4:0", "1:2"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"^sizes(: a range goes up| must be bytes such as 4096)"):
        sizes_of(text)


MOE = [(line, answer) for line, answer in ANSWERS if line.startswith("moe ")]


@pytest.mark.parametrize("columns", [80, 100, 220])
@pytest.mark.parametrize(("line", "answer"), MOE, ids=[line for line, _ in MOE])
def test_text_has_a_row_for_each_number_of_tokens(line: str, answer: Answer, columns: int) -> None:
    ran = Ran(*line.split(), columns=columns)

    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out
    for result in answer()["layers"]:
        row = " ".join(re.findall(rf"^ *{result['layer']['num_tokens']:,} .*$", ran.out, flags=re.MULTILINE))
        shown = [result["latency_us"], result["min_us"], result["max_us"], *filter(None, result["breakdown"].values())]
        assert {time_text(value) for value in shown} <= set(re.findall(r"\S+ [mun]?s\b", row))
        assert result["bound"] in row.split()


def test_sizes_come_from_a_model_and_options_win() -> None:
    words = ("moe", "--arch", "h200-sxm", "--tokens", "64", "--ep", "8", "--dtype", "fp8_block", "--json")
    of_model = Ran(*words, "--model", "deepseek-v3").json()
    narrower = Ran(*words, "--model", "deepseek-v3", "--inter", "1024", "--shared", "0").json()

    layer = moe_layer_of(load_model("deepseek-v3"), 64, ep=8, dtype="fp8_block")
    assert of_model["model"] == "deepseek-v3"
    assert of_model["layers"] == [plain(result.to_dict()) for result in moe_layers("h200-sxm", [layer])]
    assert of_model["layers"][0]["layer"] | {"dtype": None} == plain(
        MoeLayer(64, 7168, 2048, 256, 8, ep=8, num_shared_experts=1).to_dict()
    )
    assert of_model["layers"][0]["breakdown"]["shared_us"] > 0
    assert narrower["layers"][0]["layer"]["inter"] == 1024
    assert narrower["layers"][0]["breakdown"]["shared_us"] == 0
