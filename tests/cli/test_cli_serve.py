"""The command `serve`: what it prints, and its exit codes."""

from pathlib import Path

import pytest

from tests.cli.commands import Ran

pytestmark = pytest.mark.usefixtures("own_cache")
SMALL = ("serve", "llama-3-8b", "--arch", "h200-sxm", "--isl", "2048", "--osl", "256", "--engine", "vllm")
SEARCH = (*SMALL, "--gpus", "2", "--concurrency", "8,64", "--tp", "1,2", "--pp", "1")


def test_a_search() -> None:
    ran = Ran(*SEARCH, columns=200)
    assert ran.code == 0, ran.err
    assert "Pareto front of 6 deployments" in ran.out
    assert "tok/s/GPU" in ran.out
    assert "vllm serve meta-llama/Meta-Llama-3-8B" in ran.out
    document = Ran(*SEARCH, "--json").json()
    assert document["num_points"] == 6
    assert document["front"][0]["output_tokens_per_s"] > 0
    assert document["commands"]


def test_one_layout() -> None:
    ran = Ran(*SMALL, "--tp", "2", "--concurrency", "32", columns=200)
    assert ran.code == 0, ran.err
    assert "llama-3-8b on 2 x h200-sxm" in ran.out
    assert "TPOT: the rest of its time" in ran.out
    assert "--max-num-seqs 32" in ran.out
    assert Ran(*SMALL, "--tp", "2", "--concurrency", "32", "--gpus", "3").code == 2
    assert Ran(*SMALL, "--tp", "2", "--concurrency", "32", "--tpot-ms", "3").code == 2


def test_files(tmp_path: Path) -> None:
    out = tmp_path / "front.csv"
    ran = Ran(*SEARCH, "--out", out)
    assert ran.code == 0, ran.err
    lines = out.read_text().splitlines()
    assert {"layout", "tokens_per_s_per_device", "ttft_us", "tensor_parallel"} <= set(lines[0].split(","))
    page = tmp_path / "serve.html"
    assert Ran(*SEARCH, "--page", page).code == 0
    text = page.read_text()
    assert "tok/s/GPU" in text
    assert "\n  --port" in text  # commands keep their lines and spaces


def test_limits_that_none_keeps() -> None:
    ran = Ran(*SEARCH, "--tpot-ms", "0.01")
    assert (ran.code, ran.out) == (3, "")
    assert "none of 6 deployments has TPOT within 10.0 us" in ran.err
