"""The command `grouped`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult
from gemm_eval.cli.values import format_mapping, parse_rows
from gemm_eval.errors import InvalidOptionError
from gemm_eval.units import time_text
from tests.cli.commands import DEMO, Ran, plain
from tests.evaluate.grouped_stand_in import give_answers

pytestmark = pytest.mark.usefixtures("compiled_kernels")

GROUPS = (120, 3, 0, 17)
SIZES = ("-k", "512", "-n", "256", "--rows", "120,3,0,17")
WORDS = ("grouped", *DEMO, *SIZES)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> GEMMResult:
    give_answers(monkeypatch)
    return GEMMEvaluator("demo-8core", disk_cache=False).evaluate_grouped(GROUPS, 512, 256)


def test_json_is_the_library_result(expected: GEMMResult) -> None:
    (result,) = Ran(*WORDS, "--json").json()["results"]

    assert result == plain(expected.to_dict())
    assert result["problem"]["row_groups"] == [120, 3, 0, 17]
    assert "explanation" in Ran(*WORDS, "--json", "--explain").json()["results"][0]


def test_text_speaks_of_groups(expected: GEMMResult) -> None:
    out = Ran(*WORDS, columns=120).out

    assert out.startswith("G=4 rows=140 (of a group 0 to 120) K=512 N=256")
    assert "Groups: 140 rows in 4 groups of 0 to 120, 10 in the median; 1 has none." in out
    assert re.findall(r"^latency +(\S.*?) *$", out, flags=re.MULTILINE) == [time_text(expected.latency_us)]
    assert "Groups:" not in Ran(*WORDS, "--no-explain").out


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--dtype", "w4a16", "--group-size", "64", "--zero-dtype", "fp16"],
         {"dtype": "w4a16", "group_size": 64, "zero_dtype": "fp16"}),
        (["--input-dtype", "bf16", "--weight-dtype", "int8", "--output-dtype", "fp32", "--scale-dtype", "fp32"],
         {"input_dtype": "bf16", "weight_dtype": "int8", "output_dtype": "fp32", "scale_dtype": "fp32"}),
        (["--library", "trtllm", "--l2", "warm", "--clock", "sustained", "--dtype", "w4a16", "--no-correction"],
         {"library": "trtllm", "l2": "warm", "clock": "sustained", "dtype": "w4a16", "correction": False}),
        (["--dtype", "fp8_block", "--quantize-from", "bf16"], {"dtype": "fp8_block", "quantize_from": "bf16"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("expected")
def test_options_reach_the_library(words: list[str], options: dict[str, Any]) -> None:
    found = Ran("grouped", "--arch", "h200-sxm", *SIZES, *words, "--json").json()["results"]

    assert found == [plain(GEMMEvaluator("h200-sxm").evaluate_grouped(GROUPS, 512, 256, **options).to_dict())]


@pytest.mark.usefixtures("expected")
def test_archs_side_by_side() -> None:
    found = Ran("grouped", *DEMO, "--arch", "h200-sxm", *SIZES, "--dtype", "fp16", "--json").json()["results"]

    assert [one["arch_name"] for one in found] == ["demo-8core", "h200-sxm"]


def test_top_is_the_library_ranking(expected: GEMMResult) -> None:
    results = GEMMEvaluator("demo-8core").top(expected.problem, 3)

    assert Ran(*WORDS, "--top", "3", "--json").json() == {"results": [plain(one.to_dict()) for one in results]}
    out = Ran(*WORDS, "--top", "3", columns=300).out
    assert out.startswith("G=4 rows=140 (of a group 0 to 120) K=512 N=256")
    assert re.findall(r"^ *(\d+) ", out, flags=re.MULTILINE) == ["1", "2", "3"]


def test_a_mapping_is_replayed(expected: GEMMResult) -> None:
    mapping = format_mapping(expected.mapping)

    (found,) = Ran(*WORDS, "--mapping", mapping, "--json").json()["results"]
    assert (found["latency_us"], found["is_exhaustive"]) == (expected.latency_us, False)


def test_equal_groups_are_a_batch_on_chips_and_run_grouped_kernels_on_gpus() -> None:
    """Here the models answer themselves."""
    results = {}
    for arch in ("demo-8core", "h200-sxm"):
        words = ("--arch", arch, "--dtype", "fp16", "--json")
        (grouped,) = Ran("grouped", *words, "-k", "512", "-n", "256", "--rows", "64x3").json()["results"]
        (batch,) = Ran("evaluate", *words, "3", "64", "512", "256").json()["results"]
        results[arch] = grouped, batch
    grouped, batch = results["demo-8core"]
    assert (grouped["latency_us"], grouped["mapping"]) == (batch["latency_us"], batch["mapping"])
    grouped, batch = results["h200-sxm"]
    assert (grouped["options"]["library"], batch["options"]["library"]) == ("torch", "cublas")


def test_rows_in_short() -> None:
    assert parse_rows("120,3,0,17") == GROUPS
    assert parse_rows("120x64, 0x8") == (120,) * 64 + (0,) * 8
    assert parse_rows(" 7 ") == parse_rows("7x1") == (7,)
    assert len(parse_rows("1x1024")) == 1024


@pytest.mark.parametrize(
    "rows", ["", "120,", "a", "1.5", "-3", "3x", "x3", "3x0", "3x-1", "3x2x2", "1 2", "1x1025", "1x99999999999", "0,0"]
)
def test_bad_rows_are_one_line(rows: str) -> None:
    ran = Ran("grouped", *DEMO, "-k", "512", "-n", "256", f"--rows={rows}")

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert re.match(r"error: (--rows|row_groups) must (be|have) .*got ", ran.err)
    if rows != "0,0":
        with pytest.raises(InvalidOptionError, match=r"^--rows must be"):
            parse_rows(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top", "3", "--arch", "h200-sxm"], "--top ranks the mappings of one --arch, got 2"),
        (["--top", "3", "--explain"], "--top does not go with --explain"),
        (["--mapping", "1,1,1,1/1,1,1/mnk", "--top", "3"], "--mapping does not go with --top"),
        (["--top", "0"], "k must be an integer in 1..10000, got 0"),
        (["-k", "3"], "-k is given 2 times"),
        (["--l2", "warm"], "l2 is for GPUs"),
    ],
)
def test_what_does_not_go_together(words: list[str], message: str) -> None:
    ran = Ran(*WORDS, *words)

    assert (ran.code, ran.out) == (3 if "GPUs" in message else 2, "")
    assert message in ran.err


@pytest.mark.parametrize("missing", ["-k", "-n", "--rows", "--arch"])
def test_what_must_be_given(missing: str) -> None:
    words = list(WORDS)
    at = words.index(missing)
    ran = Ran(*words[:at], *words[at + 2 :])

    assert (ran.code, ran.out) == (2, "")
    assert missing in ran.err


def test_sizes_are_refused_by_the_library() -> None:
    ran = Ran("grouped", *DEMO, "-k", "0", "-n", "256", "--rows", "3,4")
    assert "K must be in 1..2**40, got 0" in ran.err
    assert "N must be an integer >= 1, got '8.5'" in Ran("grouped", *DEMO, "-k", "8", "-n", "8.5", "--rows", "3,4").err


@pytest.mark.parametrize("arch", ["demo-8core", "h200-sxm"])
def test_answers_of_the_models(arch: str) -> None:
    (found,) = Ran("grouped", "--arch", arch, *SIZES, "--dtype", "bf16", "--json").json()["results"]

    problem = GemmProblem.grouped(GROUPS, 512, 256, input_dtype="bf16")
    assert found == plain(GEMMEvaluator(arch).evaluate_problem(problem).to_dict())
    assert "Groups: 140 rows" in Ran("grouped", "--arch", arch, *SIZES, "--dtype", "bf16", columns=120).out
