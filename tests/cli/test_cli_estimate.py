"""`gemm-eval model`: what it prints is what `estimate_model` says."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval import estimate_model
from tests.cli.commands import Ran, plain

CALLS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--batch", "8", "--prompt", "500", "--output", "32", "--dtype", "w4a16", "--kv-dtype", "fp8"],
     {"batch": 8, "prompt_len": 500, "output_len": 32, "dtype": "w4a16", "kv_dtype": "fp8"}),
    (["--tp", "2", "--pp", "2", "--chunk", "256", "--speculate", "2", "--acceptance", "0.5"],
     {"tensor_parallel": 2, "pipeline_parallel": 2, "chunk_tokens": 256, "speculative_tokens": 2, "acceptance": 0.5}),
    (["--unfused"], {"fused": False}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "options"), CALLS)
def test_one_estimate_in_json_and_words(words: list[str], options: dict[str, Any]) -> None:
    found = estimate_model("llama-3-8b", "h200-sxm", **options)
    assert Ran("model", "llama-3-8b", "--arch", "h200-sxm", *words, "--json").json() == plain(found.to_dict())
    ran = Ran("model", "llama-3-8b", "--arch", "h200-sxm", *words)
    assert (ran.code, ran.err) == (0, "")
    assert " ".join(ran.out.split()) == " ".join(found.explain().split())


@pytest.mark.parametrize("columns", [80, 160])
def test_several_stand_in_a_table(columns: int) -> None:
    words = (
        "model",
        "llama-3-8b",
        "--arch",
        "h200-sxm",
        "--arch",
        "rtx-4090",
        "--batch",
        "1,4096",
        "--prompt",
        "128,512",
    )
    ran = Ran(*words, columns=columns)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= columns
    lines = [line.split() for line in ran.out.splitlines() if line.startswith(("h200-sxm", "rtx-4090"))]
    assert [(line[0], line[1], line[-1]) for line in lines[-8::2]] == [
        ("h200-sxm", "1", "yes"), ("h200-sxm", "4,096", "no"), ("rtx-4090", "1", "yes"), ("rtx-4090", "4,096", "no"),
    ]  # fmt: skip
    found = Ran(*words, "--json").json()
    assert [(item["arch_name"], item["batch"], item["prompt_len"]) for item in found] == [
        (arch, batch, prompt) for arch in ("h200-sxm", "rtx-4090") for batch in (1, 4096) for prompt in (128, 512)
    ]


def test_operations_and_memory_where_asked() -> None:
    words = ("model", "qwen3-30b-a3b", "--arch", "h200-sxm", "--operations", "--memory")
    ran = Ran(*words, columns=200)
    assert ran.code == 0
    found = estimate_model("qwen3-30b-a3b", "h200-sxm")
    for cost in found.decode.costs:
        assert cost.operation.name in ran.out
    assert "Memory of a device" in ran.out
    assert max(map(len, Ran(*words).out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--batch", "1,x"], 2, "--batch must be whole numbers >= 1 such as 16, 1,4,16, 1..256"),
        (["--prompt", "0"], 2, "--prompt must be whole numbers >= 1"),
        (["--batch", "100000"], 3, "does not fit"),
        (["--dtype", "int9"], 2, "int9"),
    ],
)
def test_what_is_refused(words: list[str], code: int, said: str) -> None:
    ran = Ran("model", "llama-3-8b", "--arch", "h200-sxm", *words)
    assert ran.code == code
    assert said in " ".join(ran.err.split())
