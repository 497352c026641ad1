"""The command `moe`: what it prints is what the library says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gemm_eval import MoeLayer, moe_layers
from gemm_eval.transformer import load_model, moe_layer_of
from gemm_eval.units import time_text
from tests.cli.commands import Ran, plain

SIZES = ("--hidden", "256", "--inter", "128", "--experts", "16", "--topk", "4")
LAYER: dict[str, Any] = {"hidden": 256, "inter": 128, "num_experts": 16, "topk": 4}
CALLS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("h200-sxm", [], {}),
    ("demo-8core", ["--ep", "4", "--tp", "2", "--rank", "mean"], {"ep": 4, "tp": 2, "rank": "mean"}),
    (
        "h200-sxm",
        ["--ep", "2", "--rank", "1", "--distribution", "power_law_1.2", "--draws", "3", "--seed", "7"],
        {"ep": 2, "rank": 1, "distribution": "power_law_1.2", "num_draws": 3, "seed": 7},
    ),
    (
        "h200-sxm",
        ["--dtype", "fp8_block", "--no-gate", "--shared", "2", "--shared-inter", "256"],
        {"dtype": "fp8_block", "gated": False, "num_shared_experts": 2, "shared_inter": 256},
    ),
]
IDS = [" ".join(words) for _, words, _ in CALLS]


@pytest.mark.parametrize(("arch", "words", "options"), CALLS, ids=IDS)
def test_json_is_what_the_library_says(arch: str, words: list[str], options: dict[str, Any]) -> None:
    found = Ran("moe", "--arch", arch, "--tokens", "8, 64,512", *SIZES, *words, "--json").json()
    table = moe_layers(arch, [MoeLayer(num, **LAYER, **options) for num in (8, 64, 512)])

    assert found == {"arch": arch, "model": None, "layers": [plain(result.to_dict()) for result in table]}


@pytest.mark.parametrize("columns", [80, 100, 220])
@pytest.mark.parametrize(("arch", "words", "options"), CALLS, ids=IDS)
def test_text_has_a_row_for_each_number_of_tokens(
    arch: str, words: list[str], options: dict[str, Any], columns: int
) -> None:
    ran = Ran("moe", "--arch", arch, "--tokens", "8,1024", *SIZES, *words, columns=columns)

    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out
    for result in moe_layers(arch, [MoeLayer(num, **LAYER, **options) for num in (8, 1024)]):
        line = " ".join(re.findall(rf"^ *{result.layer.num_tokens:,} .*$", ran.out, flags=re.MULTILINE))
        shown = [result.latency_us, result.min_us, result.max_us, *filter(None, result.breakdown.values())]
        assert {time_text(value) for value in shown} <= set(re.findall(r"\S+ [mun]?s\b", line))
        assert result.bound in line.split()


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


def test_layers_of_models() -> None:
    qwen = moe_layer_of(load_model("qwen1.5-moe-a2.7b"), 5)
    alone = moe_layer_of(load_model("qwen1.5-moe-a2.7b"), 5, num_shared_experts=0)

    assert qwen == MoeLayer(5, 2048, 1408, 60, 4, num_shared_experts=1, shared_inter=5632)
    assert alone == MoeLayer(5, 2048, 1408, 60, 4)
    assert moe_layer_of(load_model("llama-4-scout"), 5) == MoeLayer(5, 5120, 8192, 16, 1, num_shared_experts=1)
    assert moe_layer_of(load_model("gpt-oss-20b"), 5) == MoeLayer(5, 2880, 2880, 32, 4)


FAILURES = [
    (2, "InvalidOptionError", ["--tokens", "8"], "give --hidden, --inter, --experts, --topk, or --model"),
    (2, "InvalidOptionError", ["--tokens", "8", *SIZES[:4]], "give --experts, --topk, or --model"),
    (2, "InvalidOptionError", ["--tokens", "8,x", *SIZES], "or 1..256:32, got 'x' in '8,x'"),
    (2, "InvalidOptionError", ["--tokens", "0", *SIZES], "--tokens must be whole numbers >= 1"),
    (2, "InvalidOptionError", ["--tokens", "8", *SIZES, "--ep", "3"], "ep must divide num_experts = 16, got 3"),
    (2, "InvalidOptionError", ["--tokens", "8", *SIZES, "--rank", "all"], "rank must be most_loaded, mean"),
    (2, "InvalidOptionError", ["--tokens", "8", *SIZES, "--distribution", "zipf"], "distribution must be one of"),
    (2, "InvalidOptionError", ["--tokens", "8", "--model", "llama-3-8b"], "llama-3-8b has no layers with experts"),
    (2, "InvalidProblemError", ["--tokens", "8", *SIZES, "--dtype", "w9"], "dtype must be one of"),
    (2, "ModelConfigError", ["--tokens", "8", "--model", "deepseek-v9"], "did you mean"),
    (2, "UsageError", [*SIZES], "--tokens"),
    (2, "UsageError", ["--tokens", "8", *SIZES, "--expert", "4"], "--experts"),
    (3, "UnsupportedError", ["--tokens", "8", *SIZES, "--l2", "warm"], "demo-8core"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind", "words", "message"), FAILURES, ids=[f"{f[1]}-{f[3][:24]}" for f in FAILURES])
def test_an_error_is_one_line_on_stderr(code: int, kind: str, words: list[str], message: str) -> None:
    text, as_json = Ran("moe", "--arch", "demo-8core", *words), Ran("moe", "--arch", "demo-8core", *words, "--json")

    assert (text.code, text.out, as_json.code, as_json.out) == (code, "", code, "")
    assert re.fullmatch(r"error: [^\n]+\n", text.err)
    assert message in text.err
    error = json.loads(as_json.err)["error"]
    assert error["type"] == kind
    assert message in error["message"]


def test_help_names_the_words() -> None:
    ran = Ran("moe", "--help")
    words = " ".join(ran.out.split())

    assert (ran.code, ran.err) == (0, "")
    assert "…" not in ran.out
    for word in ("--tokens", "--experts", "--topk", "--ep", "--distribution", "--rank", "--model", "power_law"):
        assert word in words
