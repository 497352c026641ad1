"""Lists and ranges of options, and sizes in a row or by name."""

from __future__ import annotations

import pytest
import typer

from gemm_eval.cli.app import app
from gemm_eval.cli.values import (
    MAX_VALUES,
    all_sizes,
    check_count,
    one_of_each,
    parse_all_values,
    parse_values,
    read_sizes,
)
from gemm_eval.errors import InvalidOptionError
from tests.cli.commands import DEMO, Ran


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("7", [7]),
        ("1,4,16", [1, 4, 16]),
        (" 4 , 1 ", [4, 1]),
        ("1..256", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("3..20", [3, 6, 12, 20]),
        ("5..5", [5]),
        ("1..2", [1, 2]),
        ("1..10:3", [1, 4, 7, 10]),
        ("1..9:3", [1, 4, 7]),
        ("4..4:9", [4]),
        ("1,3,8..64", [1, 3, 8, 16, 32, 64]),
        ("8..16,1..8,12", [8, 16, 1, 2, 4, 12]),
        (f"1..{MAX_VALUES}:1", list(range(1, MAX_VALUES + 1))),
        (f"1..{1 << 1000}", [1 << power for power in range(1001)]),
    ],
)
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


def test_repeated_options_are_one_list() -> None:
    assert parse_all_values("--tp", ["1..4", "2,8", "3"]) == [1, 2, 4, 8, 3]


def test_sizes_in_a_row_or_by_name() -> None:
    order = "G M K N"
    nothing = dict.fromkeys("GMKN")
    named = {"G": None, "M": "2", "K": "3", "N": "4"}

    assert read_sizes(order, ["1", "2", "3", "4"], nothing) == read_sizes(order, None, named)
    assert read_sizes(order, [], named | {"G": "7"}) == {"G": "7", "M": "2", "K": "3", "N": "4"}
    assert read_sizes(order, None, nothing) == {}
    assert one_of_each("K N", ["3", "4k"], {}) == [3, "4k"]
    assert all_sizes(order, ["1", "1..4", "8", "3,5"], nothing) == [
        (1, m, 8, n) for m in (1, 2, 4) for n in (3, 5)
    ]  # fmt: skip
    assert all_sizes(order, ["x", "1", "8", "3"], nothing) == [("x", 1, 8, 3)]
    for in_a_row, by_name, message in (
        (["1"], named, "sizes are G M K N or have names, never both: got 1 and -m -k -n"),
        (["1"] * 5, nothing, "sizes are G M K N, or by name -m M -k K -n N, and -g G where it is not 1; got 5: 1 1 1"),
        ([], nothing | {"G": "1"}, "-m and -k and -n must be given, too"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            read_sizes(order, in_a_row, by_name)
    with pytest.raises(InvalidOptionError, match="sizes are missing: K N, or by name -k K -n N, or --all"):
        one_of_each("K N", [], {}, ", or --all")
    with pytest.raises(InvalidOptionError, match="at most 10,000 combinations of G M K N at once, got 1,000,000"):
        all_sizes(order, ["1", "1..100:1", "1..100:1", "1..100:1"], nothing)


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


@pytest.mark.parametrize(
    ("in_a_row", "by_name"),
    [
        ("evaluate 2 16 64 48", "evaluate -n 48 -k 64 -m 16 -g 2"),
        ("evaluate 1 16 64 48", "evaluate --m 16 --k 64 --n 48"),
        ("top 1 16 64 48 --count 2", "top -m 16 -k 64 -n 48 -c 2"),
        ("grouped 64 48 --rows 3,4", "grouped -k 64 -n 48 --rows 3,4"),
    ],
)
def test_names_say_the_same(in_a_row: str, by_name: str) -> None:
    row, name = (Ran(*words.split(), *DEMO, "--json").json() for words in (in_a_row, by_name))
    assert row == name
    sizes = [name["results"][0]["problem"][letter] for letter in "KN"]
    assert sizes == [64, 48]


def test_kernels_take_sizes_in_a_row() -> None:
    words = ("kernels", "--arch", "h200-sxm", "--family", "w4a16_gemv", "--json")
    assert Ran(*words, "4", "512", "256").json() == Ran(*words, "-m", "4", "-k", "512", "-n", "256").json()


def test_ranges_of_options() -> None:
    model = Ran("model", "llama-3-8b", *DEMO, "--batch", "1..4", "--prompt", "16,32..64:32", "--json").json()
    assert [(one["batch"], one["prompt_len"]) for one in model] == [(b, p) for b in (1, 2, 4) for p in (16, 32, 64)]
    gemms = Ran(
        "gemms", "llama-3-8b", *DEMO, "--batch", "1..2", "--seq-len", "16", "--phase", "decode", "--json"
    ).json()
    one = Ran("gemms", "llama-3-8b", *DEMO, "--batch", "2", "--seq-len", "16", "--phase", "decode", "--json").json()
    assert gemms[1] == one
    report = Ran("prewarm", "llama-3-8b", *DEMO, "--batch", "1..4", "--seq-len", "16", "--json").json()
    once = Ran("prewarm", "llama-3-8b", *DEMO, "--batch", "1", "--seq-len", "16", "--json").json()
    assert report["num_gemms"] == 3 * once["num_gemms"]
    tokens = Ran(
        "moe", *DEMO, "--tokens", "2..7", "--hidden", "64", "--inter", "64", "--experts", "8", "--topk", "2", "--json"
    ).json()
    assert [layer["layer"]["num_tokens"] for layer in tokens["layers"]] == [2, 4, 7]


def test_attention_of_several_batches_and_lengths() -> None:
    words = ("attention", *DEMO, "--arch", "h200-sxm", "--batch", "1..4", "--kv", "64,128", "--heads", "4")
    found = Ran(*words, "--dtype", "fp16", "--json").json()
    problems = [(one["problem"]["batch"], one["problem"]["kv_len"], one["arch_name"]) for one in found]
    assert problems == [(b, kv, arch) for b in (1, 2, 4) for kv in (64, 128) for arch in ("demo-8core", "h200-sxm")]
    alone = Ran("attention", *DEMO, "--batch", "2", "--kv", "128", "--heads", "4", "--dtype", "fp16", "--json").json()
    assert found[6] == alone
    out = Ran(*words, columns=200).out
    assert out.startswith("4 heads of 128, 4 KV heads")
    assert len([line for line in out.splitlines() if line.split()[:1] in (["demo-8core"], ["h200-sxm"])]) == 12
