"""The commands `evaluate` and `top`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.cli.output import format_change, format_number
from gemm_eval.cli.render import describe_difference
from gemm_eval.cli.values import format_mapping, parse_mapping
from gemm_eval.units import time_text
from gemm_eval.workload import make_problem
from tests.cli.commands import DEMO, SIZES, WORDS, Ran, demo, plain

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# evaluate


def test_evaluate_json_is_the_library_result() -> None:
    assert Ran("evaluate", *DEMO, *WORDS, "--json").json() == {"results": [plain(demo().to_dict())]}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--dtype", "w4a16"], {"dtype": "w4a16"}),
        (["--input-dtype", "bf16"], {"input_dtype": "bf16"}),
        (["--weight-dtype", "int8"], {"weight_dtype": "int8"}),
        (["--output-dtype", "fp32"], {"output_dtype": "fp32"}),
        (["--dtype", "w4a16", "--group-size", "64"], {"dtype": "w4a16", "group_size": 64}),
        (["--dtype", "w4a16", "--group-size", "-1"], {"dtype": "w4a16", "group_size": -1}),
        (["--dtype", "w4a16", "--zero-dtype", "fp16"], {"dtype": "w4a16", "zero_dtype": "fp16"}),
        (["--dtype", "W4A16_MXFP4"], {"dtype": "w4a16_mxfp4"}),
        (["--dtype", "w4a16", "--scale-dtype", "float32"], {"dtype": "w4a16", "scale_dtype": "fp32"}),
        (["--dtype", "w4a16", "--group-n", "1"], {"dtype": "w4a16", "group_n": 1}),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "top"])
def test_type_options_reach_the_library(command: str, words: list[str], options: dict[str, Any]) -> None:
    document = Ran(command, *DEMO, *WORDS, *words, "--json").json()

    assert document["results"][0]["problem"] == plain(demo(**options).to_dict()["problem"])
    assert document["results"][0]["problem"] != plain(demo().to_dict()["problem"])


@pytest.mark.parametrize("command", ["evaluate", "top"])
def test_no_idle_cores_reaches_the_library(command: str) -> None:
    words = (command, *DEMO, "1", "16", "16", "16", "--json")
    idle, busy = (
        GEMMEvaluator("demo-8core", allow_idle_cores=allow).evaluate(1, 16, 16, 16) for allow in (True, False)
    )
    assert idle.mapping != busy.mapping

    assert Ran(*words).json()["results"][0]["mapping"] == plain(idle.to_dict()["mapping"])
    assert Ran(*words, "--no-idle-cores").json()["results"][0]["mapping"] == plain(busy.to_dict()["mapping"])


def test_evaluate_compares_archs_in_the_order_given() -> None:
    archs = ["sg2260e", "demo-8core", "ascend-910"]
    words = [word for name in archs for word in ("--arch", name)]

    results = Ran("evaluate", *words, *WORDS, "--json").json()["results"]
    text = Ran("evaluate", *words, *WORDS, "--no-explain", columns=200)

    assert [result["arch_name"] for result in results] == archs
    assert results == [plain(GEMMEvaluator(name).evaluate(*SIZES).to_dict()) for name in archs]
    (row,) = re.findall(r"^latency(.*)$", text.out, flags=re.MULTILINE)
    assert row.split() == " ".join(time_text(result["latency_us"]) for result in results).split()


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_archs_stand_side_by_side_without_a_broken_word(columns: int) -> None:
    archs = ["h200-sxm", "demo-8core", "b200", "l40s", "a100-sxm-80gb"]
    words = [word for name in archs for word in ("--arch", name)]
    results = [GEMMEvaluator(name).evaluate(*SIZES) for name in archs]

    out = Ran("evaluate", *words, *WORDS, "--no-explain", columns=columns).out

    tables, mappings = out[: out.index("\nh200-sxm: --mapping")], out[out.index("\nh200-sxm: --mapping") :]
    assert max(map(len, tables.splitlines())) <= columns
    whole = {word for line in Ran("evaluate", *words, *WORDS, columns=1000).out.splitlines() for word in line.split()}
    assert {word for word in tables.split() if word[0] not in "─"} <= whole
    headers = [name for line in tables.splitlines() if set(line.split()) <= set(archs) for name in line.split()]
    assert headers == archs  # each once, in the order given
    assert len(re.findall("^G=1 ", tables, flags=re.MULTILINE)) == {40: 5, 80: 3, 100: 2, 120: 2, 200: 1}[columns]
    for result in results:
        assert f"\n{result.arch_name}: --mapping {format_mapping(result.mapping)}\n" in mappings


def test_evaluate_prints_what_the_result_says() -> None:
    result = demo()
    assert result.energy_pj is not None

    out = Ran("evaluate", *DEMO, *WORDS).out

    rows = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", out, flags=re.MULTILINE))
    assert rows["latency"] == time_text(result.latency_us)
    assert rows["TFLOP/s"] == format_number(result.tflop_per_s)
    assert rows["utilization of peak"] == f"{result.utilization_frac:.1%}"
    assert rows["bound by"] == result.bound
    assert rows["DRAM, bytes"] == f"{result.dram_bytes:,}"
    assert rows["DRAM, GB/s (of peak)"].startswith(format_number(result.dram_gb_per_s))
    assert rows["energy, uJ"] == format_number(result.energy_pj / 1e6)
    assert rows["active cores"] == "8 of 8"
    assert rows["matrix"].startswith(f"{time_text(result.breakdown['matrix_us'])} (")
    assert rows["hidden by overlap"].startswith(f"{time_text(result.breakdown['hidden_us'])} (")
    assert rows["B"].startswith(f"{result.traffic['b_bytes']:,} (")
    assert rows["--mapping"] == format_mapping(result.mapping)
    assert "".join(result.explain().split()) in "".join(out.split())


def test_evaluate_leaves_out_unknown_energy_and_explanations_on_demand() -> None:
    out = Ran("evaluate", "--arch", "sg2260e", *WORDS, "--no-explain").out

    assert "energy" not in out
    assert "Would help" not in out


def test_explanation_in_json_on_demand_only() -> None:
    words = ("evaluate", *DEMO, *WORDS, "--json")

    assert "explanation" not in Ran(*words).json()["results"][0]
    assert Ran(*words, "--explain").json()["results"][0]["explanation"] == demo().explain()


def test_mapping_is_replayed() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    text = "1,4,2,1/128,256,144/nkm"

    problem = make_problem(*SIZES, default_dtype=evaluator.arch.default_dtype)
    expected = evaluator.evaluate_mapping(problem, parse_mapping(text))

    assert Ran("evaluate", *DEMO, *WORDS, "--mapping", text, "--json").json() == {
        "results": [plain(expected.to_dict())]
    }
    assert expected.latency_us != demo().latency_us


def test_printed_mapping_can_be_replayed() -> None:
    out = Ran("evaluate", *DEMO, *WORDS, "--no-explain").out
    (text,) = re.findall(r"^--mapping +(\S+)", out, flags=re.MULTILINE)

    (replayed,) = Ran("evaluate", *DEMO, *WORDS, "--mapping", text, "--json").json()["results"]

    assert parse_mapping(text) == demo().mapping
    assert replayed["latency_us"] == demo().latency_us


# top


@pytest.mark.parametrize("distinct", ["mapping", "partition"])
def test_top_json_is_the_library_ranking(distinct: Any) -> None:
    expected = GEMMEvaluator("demo-8core").top(demo().problem, 7, distinct=distinct)

    document = Ran("top", *DEMO, *WORDS, "-c", "7", "--distinct", distinct, "--json").json()

    assert document == {"results": [plain(result.to_dict()) for result in expected]}


def test_top_lists_ten_by_default() -> None:
    assert len(Ran("top", *DEMO, *WORDS, "--json").json()["results"]) == 10


@pytest.mark.parametrize("columns", [80, 300])
def test_top_table_shows_every_result(columns: int) -> None:
    results = GEMMEvaluator("demo-8core").top(demo().problem, 12)

    out = Ran("top", *DEMO, *WORDS, "-c", "12", columns=columns).out

    ranks = [str(rank) for rank in range(1, 13)]
    assert re.findall(r"^ *(\d+) ", out, flags=re.MULTILINE) == ranks
    for result in results:
        assert time_text(result.latency_us) in out
        assert f"{result.dram_bytes:,}" in out
        assert f"{result.sram_used_bytes:,}" in out
        assert "x".join(map(str, result.mapping.tile)) in out
        assert ",".join(map(str, result.mapping.partition)) in out
    assert format_change(results[-1].latency_us, results[0].latency_us) in out


@pytest.mark.parametrize("columns", [30, 50, 80, 120])
def test_top_breaks_no_word(columns: int) -> None:
    words = ("top", "--arch", "h200-sxm", *WORDS, "-c", "4")
    narrow, wide = Ran(*words, columns=columns).out, Ran(*words, columns=1000).out

    assert max(map(len, narrow.splitlines())) <= columns
    assert {word for word in narrow.split() if word[0] not in "─"} <= set(wide.split())
    for word in ("cooperative", "data parallel", "along M by"):
        assert narrow.count(word) == wide.count(word)


def test_difference_names_choices_and_their_effect() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    problem = demo().problem
    best = evaluator.evaluate_mapping(problem, parse_mapping("1,2,4,1/256,256,352/mnk"))

    def words(mapping: str) -> str:
        return describe_difference(best, evaluator.evaluate_mapping(problem, parse_mapping(mapping)))

    assert words("1,2,4,1/256,256,352/mnk") == "nothing; same cost"
    assert words("1,2,4,1/256,256,352/nmk") == "loop order; same cost"
    assert words("1,2,4,1/256,128,352/mnk") == "tile; more DRAM traffic: A; fill drain +0.384 us; bound by dram"
    assert words("1,2,4,1/256,128,352/kmn") == (
        "tile, loop order; more DRAM traffic: C spill, C refill; fill drain +0.384 us; bound by dram"
    )
    assert words("1,2,2,1/256,256,352/mnk").startswith(
        "partition; 4 fewer active cores; more DRAM traffic: A; matrix +"
    )
