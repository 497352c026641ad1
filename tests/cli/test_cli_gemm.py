"""The commands `evaluate`, `top` and `grouped`, sizes in a row or by name, lists and ranges."""

import re

import pytest
import typer

from gemm_eval import GEMMEvaluator, GEMMResult
from gemm_eval.cli.app import app
from gemm_eval.cli.output import format_change, format_number
from gemm_eval.cli.render import describe_difference
from gemm_eval.cli.values import (
    MAX_VALUES,
    Sizes,
    check_count,
    format_mapping,
    parse_mapping,
    parse_rows,
    parse_values,
)
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu import GPU_MODEL_VERSION
from gemm_eval.units import time_text
from tests.cli.commands import DEMO, WORDS, Ran, demo

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# evaluate


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


# top


@pytest.mark.parametrize("columns", [80, 300])
def test_top_table_shows_every_result(columns: int) -> None:
    results = GEMMEvaluator("demo-8core").top(demo().problem, 12)

    out = Ran("top", *DEMO, *WORDS, "-c", "12", columns=columns).out

    ranks = [str(rank) for rank in range(1, 13)]
    found = re.findall(r"^ *(\d+) ", out, flags=re.MULTILINE)
    assert found == ranks * (len(found) // len(ranks))
    for result in results:
        assert time_text(result.latency_us) in out
        assert f"{result.dram_bytes:,}" in out
        assert f"{result.sram_used_bytes:,}" in out
        assert "x".join(map(str, result.mapping.tile)) in out
        assert ",".join(map(str, result.mapping.partition)) in out
    assert format_change(results[-1].latency_us, results[0].latency_us) in out


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


def test_ranking_says_where_the_first_is_the_choice_of_a_library_and_others_are_faster() -> None:
    out = Ran("top", "--arch", "tpu-v4", "1", "208", "3", "3841", columns=240).out
    assert "chosen by the library" in out
    assert " faster" in out
    assert "same cost" not in out


GROUPS = (120, 3, 0, 17)
OF_GROUPS = ("-k", "512", "-n", "256", "--rows", "120,3,0,17")
GROUPED = ("grouped", *DEMO, *OF_GROUPS)


@pytest.fixture(scope="module")
def expected() -> GEMMResult:
    return GEMMEvaluator("demo-8core", disk_cache=False).evaluate_grouped(GROUPS, 512, 256)


def test_text_speaks_of_groups(expected: GEMMResult) -> None:
    out = Ran(*GROUPED, columns=120).out

    assert out.startswith("G=4 rows=140 (of a group 0 to 120) K=512 N=256")
    assert "Groups: 140 rows in 4 groups of 0 to 120, 10 in the median; 1 has none." in out
    assert re.findall(r"^latency +(\S.*?) *$", out, flags=re.MULTILINE) == [time_text(expected.latency_us)]
    assert "Groups:" not in Ran(*GROUPED, "--no-explain").out
    assert "explanation" in Ran(*GROUPED, "--json", "--explain").json()["results"][0]


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


GEMM = ("1", "64", "4096", "4096", "--arch", "h200-sxm", "--dtype", "bf16")


def test_evaluate_shows_the_interval_and_what_the_model_alone_says() -> None:
    result = GEMMEvaluator("h200-sxm").evaluate(1, 64, 4096, 4096, "bf16")
    ran = Ran("evaluate", *GEMM)

    assert ran.code == 0
    for label in ("80% interval", "model alone", "correction", f"{GPU_MODEL_VERSION}, corrected"):
        assert label in ran.out
    assert result.low_us is not None
    assert time_text(result.low_us) in ran.out


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("7", [7]), ("1,4,16", [1, 4, 16]), (" 4 , 1 ", [4, 1]), ("1..256", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("3..20", [3, 6, 12, 20]), ("5..5", [5]), ("1..2", [1, 2]), ("1..10:3", [1, 4, 7, 10]), ("1..9:3", [1, 4, 7]),
        ("4..4:9", [4]), ("1,3,8..64", [1, 3, 8, 16, 32, 64]), ("8..16,1..8,12", [8, 16, 1, 2, 4, 12]),
        (f"1..{MAX_VALUES}:1", list(range(1, MAX_VALUES + 1))),
        (f"1..{1 << 1000}", [1 << power for power in range(1001)]),
    ],
)  # fmt: skip
def test_lists_and_ranges(text: str, values: list[int]) -> None:
    assert parse_values("--batch", text) == values


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "x", "1.5", "0", "-1", "1...4", "1..", "..4", "1..x", "1..4:", "1..4:0", "1..4:x", "1:2", "0..4",
     "1..4..8", "1..4:1:1", "9" * 5000],
)  # fmt: skip
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"^--batch must be whole numbers >= 1 such as .*, got ") as caught:
        parse_values("--batch", text)
    assert len(str(caught.value)) < 300


def test_ranges_are_bounded_and_go_up() -> None:
    with pytest.raises(InvalidOptionError, match=r"^--batch: a range goes up, got '8\.\.4'$"):
        parse_values("--batch", "1,8..4")
    for text in (f"1..{MAX_VALUES + 1}:1", f"1..{MAX_VALUES}:1,{MAX_VALUES + 1}", f"1..{10**4000}:1"):
        with pytest.raises(InvalidOptionError, match=r"^--batch must be at most 10,000 values, got more in "):
            parse_values("--batch", text)
    check_count(MAX_VALUES, "--batch")
    with pytest.raises(InvalidOptionError, match="at most 10,000 combinations of --batch at once, got 10,001"):
        check_count(MAX_VALUES + 1, "--batch")


def test_sizes_in_a_row_or_by_name() -> None:
    def sizes(*in_a_row: str, order: str = "G M K N", **by_name: str) -> Sizes:
        return Sizes.of_words(order, in_a_row, **by_name)

    named = {"m": "2", "k": "3", "n": "4"}
    assert sizes("1", "2", "3", "4").words() == sizes(**named).words()
    assert sizes(g="7", **named).words() == {"G": "7", "M": "2", "K": "3", "N": "4"}
    assert sizes().words() == {}
    assert sizes("3", "4q", order="K N").one() == [3, "4q"]
    assert sizes("1", "1..4", "8", "3,5").all() == [(1, m, 8, n) for m in (1, 2, 4) for n in (3, 5)]
    assert sizes("x", "1", "8", "3").all() == [("x", 1, 8, 3)]
    for words, message in (
        (sizes("1", **named), "sizes are G M K N or have names, never both: got 1 and -m -k -n"),
        (sizes(*"11111"), "sizes are G M K N, or by name -m M -k K -n N, and -g G where it is not 1; got 5: 1 1 1"),
        (sizes(g="1"), "-m and -k and -n must be given, too"),
        (sizes("1", *3 * ["1..100:1"]), "at most 10,000 combinations of G M K N at once, got 1,000,000"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            words.all()
    with pytest.raises(InvalidOptionError, match="sizes are missing: K N, or by name -k K -n N, or --all"):
        sizes(order="K N").one(", or --all")


def test_sizes_stand_in_one_order_and_have_one_name_in_every_command() -> None:
    """A command's sizes are some of G M K N, in this order, and each letter is an option of one meaning."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        letters = {option[1:].upper() for param in command.params for option in param.opts if len(option) == 2}
        rows = [param.metavar for param in command.params if param.param_type_name == "argument"]
        orders = [row for row in rows if row and set(row.split()) <= set("GMKN")]
        if orders or letters & set("GMKN"):
            (found[name],) = orders
            assert letters & set("GMKN") == set(found[name].split())
            assert found[name].split() == [letter for letter in "GMKN" if letter in found[name]]
    assert found == {
        "evaluate": "G M K N", "top": "G M K N", "grouped": "K N", "kernels": "M K N", "profile": "M K N",
        "crossover": "K N",
    }  # fmt: skip
