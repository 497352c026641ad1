"""Shapes from files, and results into files: CSV and parquet."""

import csv
import math
import re
from pathlib import Path

import pandas
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.cli.output import read_records, write_records
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from tests.cli.commands import DEMO, Ran, chip_file, plain

pytestmark = pytest.mark.usefixtures("compiled_kernels")

SHAPES = """name,M,K,N,dtype,latency_us
up,16,64,256,,10.5
down,16,256,64,w4a16,
"""


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    path.write_text(SHAPES)
    return path


def test_a_file_of_shapes_is_what_the_library_says(shapes: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.csv"

    ran = Ran("evaluate", *DEMO, "--shapes", shapes, "--out", out)

    frame = pandas.DataFrame({
        "name": ["up", "down"], "G": 1, "M": 16, "K": [64, 256], "N": [256, 64], "dtype": [None, "w4a16"],
        "latency_us": [10.5, None],
    })  # fmt: skip
    expected = GEMMEvaluator("demo-8core").evaluate_many(frame).to_pandas()
    found = table(out)
    assert (ran.code, ran.err, ran.out) == (0, "", f"{out}: 2 rows, {len(found[0])} columns\n")
    assert list(found[0]) == ["arch", *expected.columns]
    for row, like in zip(found, expected.to_dict("records"), strict=True):
        assert row.pop("arch") == "demo-8core"
        for name, cell in row.items():
            assert cell == ("" if pandas.isna(like[name]) else str(like[name])), name


def test_archs_follow_each_other_shape_by_shape(shapes: Path) -> None:
    words = ("evaluate", *DEMO, "--arch", "h200-sxm", "--shapes", shapes, "--dtype", "fp16")
    found = Ran(*words, "--json").json()["results"]

    assert [(one["arch_name"], one["given"]["name"]) for one in found] == [
        ("demo-8core", "up"), ("h200-sxm", "up"), ("demo-8core", "down"), ("h200-sxm", "down"),
    ]  # fmt: skip
    expected = GEMMEvaluator("h200-sxm").evaluate(1, 16, 256, 64, "w4a16").to_dict()  # a row's own type wins
    assert found[3] == plain(expected) | {"given": {"name": "down", "dtype": "w4a16", "latency_us": None}}
    for columns in (80, 200):
        out = Ran(*words, columns=columns).out
        assert out.startswith("4 GEMMs: G=1 M=16\n"[:16])
        assert "fp16 x int4" in out
        assert max(map(len, out.splitlines())) <= columns


def test_parquet_is_the_same_table(shapes: Path, tmp_path: Path) -> None:
    for name in ("out.csv", "out.parquet"):
        assert Ran("evaluate", *DEMO, "--shapes", shapes, "--out", tmp_path / name).code == 0
    of_csv, of_parquet = pandas.read_csv(tmp_path / "out.csv"), pandas.read_parquet(tmp_path / "out.parquet")

    for name in of_csv:
        for one, other in zip(of_csv[name], of_parquet[name], strict=True):  # CSV may be read some last bits off
            is_same = pandas.isna(one) if pandas.isna(other) else one == other
            assert is_same or math.isclose(one, other, rel_tol=1e-13), name
    assert of_parquet["latency_us_given"].dtype == float  # though CSV gave a text
    again = Ran("evaluate", *DEMO, "--shapes", tmp_path / "out.parquet", "--json").json()["results"]
    first = Ran("evaluate", *DEMO, "--shapes", shapes, "--json").json()["results"]
    assert [one | {"given": None} for one in again] == [one | {"given": None} for one in first]


def test_results_may_be_shapes_again(shapes: Path, tmp_path: Path) -> None:
    """Sizes, types and options of a table are read as they were written; columns that say nothing new are not kept."""
    out, again = tmp_path / "out.csv", tmp_path / "again.csv"
    Ran("evaluate", "--arch", "h200-sxm", "--shapes", shapes, "--l2", "warm", "--out", out)
    Ran("evaluate", "--arch", "h200-sxm", "--shapes", out, "--out", again)

    assert table(again) == table(out)
    assert table(out)[1]["l2"] == "warm"


BAD = [
    ("M,K,N\n1,2,3\n1,4q,3\n", "shapes.csv, line 3, column K: K must be an integer >= 1, got '4q'"),
    ("M,K,N\n\n1,2,0\n", "shapes.csv, line 3, column N: N must be in 1..2**40, got 0"),
    ("M,K,N\n1,2\n", "shapes.csv, line 2, column N: N must be an integer >= 1, got None"),
    ("M,K,N\n1,2,3,4\n", "shapes.csv, line 2: 4 cells under 3 columns"),
    ("M,K\n1,2\n", "shapes.csv, line 2: there is no column N; shapes have M, K, N, and may have G"),
    ("m,K,N\n1,2,3\n", "there is no column M, did you mean m?"),
    ("M,K,N,K\n1,2,3,4\n", "shapes.csv, line 1: column 'K' is there twice"),
    ('M,K,N,note\n1,2,3,"two\nlines"\n1,x,3,\n', "shapes.csv, line 4, column K"),
    ("M,K,N,dtype\n1,2,3,fp61\n", "shapes.csv, line 2, column dtype: dtype must be one of"),
    ("M,K,N,group_size\n1,2,3,64\n", "shapes.csv, line 2, column group_size: group_size is for quantized"),
    ("M,K,N,correction\n1,2,3,maybe\n", "shapes.csv, line 2, column correction: true or false, got 'maybe'"),
    ("M,K,N,l2\n1,2,3,cold\n", "shapes.csv, line 2"),
    ("K,N,row_groups\n2,3,a\n", "shapes.csv, line 2, column row_groups: --rows must be"),
    ("M,K,N\n", "shapes.csv has no rows"),
    ("", "shapes.csv has no rows"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_bad_row_is_one_line_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text(text)
    ran = Ran("evaluate", *DEMO, "--shapes", tmp_path / "shapes.csv", "--out", tmp_path / "out.csv")

    assert (ran.code in (2, 3), ran.out, ran.err.count("\n")) == (True, "", 1)
    assert message in ran.err
    assert not (tmp_path / "out.csv").exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00M")
    (tmp_path / "text.parquet").write_text("M,K,N\n")
    for words, message in (
        (("--shapes", tmp_path / "no.csv"), "there is no file"),
        (("--shapes", tmp_path / "shapes.xlsx"), "--shapes must end with .csv or .parquet, got"),
        (("--shapes", tmp_path / "binary.csv"), "binary.csv cannot be read as CSV in UTF-8"),
        (("--shapes", tmp_path / "text.parquet"), "text.parquet cannot be read as parquet"),
        (("--shapes", tmp_path / "x.csv", "-m", "4"), "--shapes does not go with -m"),
        (("--shapes", tmp_path / "x.csv", "1", "1", "1", "1"), "--shapes does not go with G M K N"),
        (("1", "1", "1", "1", "--out", tmp_path / "out.json"), "--out must end with .csv or .parquet, got"),
        (("1", "1", "1", "1", "--out", tmp_path / "out.csv", "--explain"), "--out does not go with --explain"),
    ):
        ran = Ran("evaluate", *DEMO, *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert message in ran.err
    (tmp_path / "file").write_text("")
    ran = Ran("evaluate", *DEMO, "1", "16", "16", "16", "--out", tmp_path / "file" / "out.csv")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


def test_a_shape_that_does_not_fit_is_marked(tmp_path: Path) -> None:
    """Others are answered all the same; where none fits the error is that of one GEMM."""
    words = ("evaluate", "--arch", chip_file(tmp_path, sram_bytes=1024), "-k", "1,64", "-n", "64", "-m")
    said = "1 of 2 do not fit; the first, on bare: G=1 M=1 K=64 N=64"

    out = Ran(*words, "1", columns=400).out
    assert re.findall(r"^ *64 +does not fit +-", out, flags=re.MULTILINE)
    assert said in out
    fits, misfit = Ran(*words, "1", "--json").json()["results"]
    assert fits["latency_us"] > 0
    assert misfit["problem"] == {"G": 1, "M": 1, "K": 64, "N": 64}
    assert misfit["error"]["type"] == "InfeasibleError"
    assert "would fit with: sram_bytes >=" in misfit["error"]["message"]
    ran = Ran(*words, "1", "--out", tmp_path / "out.csv")
    assert ran.code == 0
    assert ran.err.startswith(said)
    assert [bool(row["latency_us"]) for row in table(tmp_path / "out.csv")] == [True, False]
    ran = Ran(*words[:3], "-k", "64", "-n", "64", "-m", "16,32")
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)
    assert "would fit with: sram_bytes >=" in ran.err


def test_cells_keep_what_they_are(tmp_path: Path) -> None:
    rows = [{"a": "007", "b": 1, "c": "2", "d": None}, {"a": "x\x1b", "b": 2.5, "c": "3", "e": True}]
    write_records(tmp_path / "t.csv", rows, json=False)
    assert [row for _, row in read_records(tmp_path / "t.csv")] == [
        {"a": "007", "b": "1", "c": "2", "d": None, "e": None},
        {"a": r"x\x1b", "b": "2.5", "c": "3", "d": None, "e": "True"},
    ]
    write_records(tmp_path / "t.parquet", rows, json=False)
    assert [row for _, row in read_records(tmp_path / "t.parquet")] == [
        {"a": "007", "b": 1.0, "c": 2, "d": None, "e": None},
        {"a": r"x\x1b", "b": 2.5, "c": 3, "d": None, "e": True},
    ]
    with pytest.raises(InvalidOptionError, match=r"--out must end with \.csv or \.parquet"):
        write_records(tmp_path / "t.txt", rows, json=False)
    with pytest.raises(InvalidInputError, match="there is no file"):
        read_records(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("line", "num", "cells"),
    [
        ("evaluate 1 16 64 64", 1, {"arch": "demo-8core", "M": "16"}),
        ("evaluate 1 16 64 64 --mapping 1,1,4,1/16,16,64/mnk", 1, {"P_N": "4", "K": "64"}),
        ("top 1 16 64 64 -c 3", 3, {"rank": "1", "arch": "demo-8core"}),
        ("grouped 64 64 --rows 3,0,4", 1, {"row_groups": "3,0,4", "G": "3"}),
        ("gemms llama-3-8b --seq-len 16 --batch 1..2", 28, {"gemm": "qkv_proj", "phase": "prefill"}),
        ("model llama-3-8b --batch 1..4 --prompt 16", 3, {"model": "llama-3-8b", "prompt_len": "16"}),
        ("moe --tokens 2..4 --model mixtral-8x7b", 2, {"num_tokens": "2", "model": "mixtral-8x7b"}),
        ("attention --kv 64 --heads 4", 1, {"kv_len": "64", "arch": "demo-8core"}),
        ("collective all_reduce 1KiB..4KiB", 3, {"message_bytes": "1024", "arch": "h200-sxm"}),
    ],
)
def test_commands_whose_answer_is_a_table_write_it(line: str, num: int, cells: dict[str, str], tmp_path: Path) -> None:
    out, arch = tmp_path / "out.csv", cells.get("arch", "demo-8core")
    words = [*line.split(), "--arch", arch]
    document = Ran(*words, "--out", out, "--json").json()
    rows = table(out)

    assert document == {"path": str(out), "num_rows": num, "columns": list(rows[0])}
    assert len(rows) == num
    assert {name: rows[0][name] for name in cells} == cells
    times = [name for name in ("latency_us", "ttft_us") if name in rows[0]]
    assert all(float(row[name]) > 0 for row in rows for name in times)
    assert times
