"""`gemm-eval collective`, and the commands that fit and score it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import read_yaml
from gemm_eval.cli.operations import sizes_of
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.collective import CollectiveCalibration, collective_calibration_path
from tests.cli.commands import Ran, plain

WORDS = ("collective", "--arch", "h200-sxm", "all_reduce")


def test_one_message_in_words_and_json() -> None:
    result = GEMMEvaluator("h200-sxm").evaluate_collective("all_reduce", 1 << 20, 8)
    assert Ran(*WORDS, "1MiB", "--json").json() == plain(result.to_dict())
    for columns in (80, 200):
        ran = Ran(*WORDS, "1MiB", columns=columns)
        assert (ran.code, ran.err) == (0, "")
        assert max(map(len, ran.out.splitlines())) <= columns
        assert " ".join(ran.out.split()) == " ".join(result.explain().split())


def test_many_messages_are_a_table() -> None:
    words = (*WORDS, "1KiB..4KiB,1GiB", "--ranks", "2, 8", "--library", "nccl", "--dtype", "fp16")
    found = Ran(*words, "--json").json()
    assert [item["problem"]["message_bytes"] for item in found] == 2 * [1024, 2048, 4096, 1 << 30]
    assert [item["problem"]["num_ranks"] for item in found] == 4 * [2] + 4 * [8]
    out = Ran(*words).out
    assert "1,073,741,824" in out
    assert "NVLS" in out
    assert "fitted on timings of h200-sxm" in out


def test_sizes() -> None:
    assert sizes_of("4096") == sizes_of("4KiB") == sizes_of("4k") == sizes_of(" 4 kib ") == [4096]
    assert sizes_of("1.5MB,1GiB") == [1_500_000, 1 << 30]
    assert sizes_of("3KiB..13KiB") == [3072, 6144, 12288, 13312]
    assert sizes_of("1MiB..2MiB:512KiB") == [1 << 20, 3 << 19, 2 << 20]


@pytest.mark.parametrize("text", ["", "1Mix", "-4", "4KiB..1KiB", "0", "1..", "1,", "1e3", "1..4:0", "1:2"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"^sizes(: a range goes up| must be bytes such as 4096)"):
        sizes_of(text)


def test_too_many_sizes() -> None:
    with pytest.raises(InvalidOptionError, match="sizes must be at most 10,000 values"):
        sizes_of("1..1GiB:1")
    ran = Ran(*WORDS, "1..4096:1", "--ranks", "2,4,8")
    assert (ran.code, ran.out) == (2, "")
    assert "at most 10,000 combinations of SIZE and --ranks at once, got 12,288" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("collective", "--arch", "h200-sxm", "gather", "1MiB"), 2, "did you mean all_gather?"),
        ((*WORDS, "1MiB", "--ranks", "x"), 2, "--ranks must be whole numbers >= 1 such as"),
        ((*WORDS, "1MiB", "--ranks", "16"), 3, "joins at most 8 GPUs"),
        (("collective", "--arch", "demo-8core", "all_reduce", "1MiB"), 3, "does not say what joins it"),
        (("validate", "collective", "--arch", "t4"), 2, "gpu must be one of"),
        (("validate", "collective", "--hold-out", "points"), 2, "hold-out must be one of"),
        (("calibrate", "collective", "--arch", "t4"), 2, "no timings of collectives"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], code: int, said: str) -> None:
    ran = Ran(*words)
    assert ran.code == code
    assert said in " ".join(ran.err.split())


def test_errors_and_calibration(tmp_path: Path) -> None:
    words = ("validate", "collective", "--arch", "l40s", "--hold-out", "ranks")
    lines = Ran(*words, "--json").json()["lines"]
    assert {line["library"] for line in lines} == {"nccl", "trtllm"}
    assert {line["group"] for line in lines} == {"all"}
    out = Ran(*words, "--groups", columns=160).out
    assert "up to 64 KiB" in out
    assert "all rows of as many ranks" in out
    path = tmp_path / "collective.yaml"
    assert Ran("calibrate", "collective", "--arch", "l40s", "--out", str(path)).code == 0
    found, known = (
        CollectiveCalibration.model_validate(read_yaml(of)) for of in (path, collective_calibration_path("l40s"))
    )
    assert found.coefficients == pytest.approx(known.coefficients, rel=0.02)
