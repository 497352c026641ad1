"""`GEMMTable` and the progress bar: columns, rows, plain values, DataFrames; what is shown, and when."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from gemm_eval import GemmEvalError, GEMMEvaluator, GemmProblem, GEMMTable, load_arch
from gemm_eval.evaluate import table as _progress
from gemm_eval.evaluate.table import progress_bar
from tests.evaluate.gemm_laws import VARIANTS, evaluator, random_problems

SHAPES = [(1, 64, 96, 128), (2, 7, 100, 33), (1, 1, 4096, 11)]


@pytest.fixture
def table() -> GEMMTable:
    return evaluator("demo").evaluate_many([*SHAPES, GemmProblem(*SHAPES[0])], "w4a16")


def names_of(row: Any) -> dict[str, Any]:
    """The columns of a row, from its result."""
    p, mapping = row.problem, row.mapping
    given = {name: getattr(p, name) for name in ("G", "M", "K", "N", "row_groups", "group_size", "group_n")}
    types = {name: str(getattr(p, name)) for name in ("input_dtype", "weight_dtype", "output_dtype")}
    types |= {name: getattr(p, name) and str(getattr(p, name)) for name in ("scale_dtype", "zero_dtype")}
    numbers = ("latency_us", "physics_us", "low_us", "high_us", "source", "tflop_per_s", "utilization_frac", "bound",
               "compute_us", "dram_us", "dram_bytes", "energy_pj", "sram_used_bytes", "active_cores")  # fmt: skip
    chosen = mapping.partition._asdict() | mapping.tile._asdict() | {"loop_order": mapping.loop_order.name}
    return given | types | {name: getattr(row, name) for name in numbers} | dict(row.breakdown) | chosen


@pytest.mark.parametrize("variant", VARIANTS)
def test_columns_are_those_of_the_results_to_the_bit(variant: str) -> None:
    problems = random_problems(variant, 40)
    odd = dataclasses.replace(problems[0], G=3, M=2**17 - 1, K=2**17 + 7, N=2**18 + 5)  # FLOP of more than 53 bits
    table = evaluator(variant).evaluate_many([*problems, odd])
    dicts = table.to_dicts()

    assert dicts == [names_of(row) for row in table]
    assert all(list(values) == list(table.columns) for values in dicts)
    assert json.loads(json.dumps(dicts, allow_nan=False)) == dicts
    plain = {int, float, str, type(None)}
    assert {type(value) for values in dicts for value in values.values()} <= plain


def test_rows(table: GEMMTable) -> None:
    assert len(table) == 4
    assert [table[-1], table[np.int64(3)], table[-4]] == [table[3], table[3], table[0]]
    assert table[3].problem == GemmProblem(*SHAPES[0])
    assert list(table) == [table[row] for row in range(4)] == list(iter(table))
    assert table[0].explain() == evaluator("demo").evaluate(*SHAPES[0], "w4a16").explain()
    for row in (4, -5, 10**30):
        with pytest.raises(IndexError, match=f"row {row} of 4"):
            table[row]
    for bad in (slice(1, 2), 1.0, None, (0, "M"), b"M"):
        with pytest.raises(TypeError):
            table[bad]  # type: ignore[index]
    for name in ("nope", "", "latency", "__class__", "is_feasible"):
        with pytest.raises(KeyError, match="must be one of G, M, K, N"):
            table[name]


def test_columns_cannot_be_changed(table: GEMMTable) -> None:
    for name in table.columns:
        assert table[name] is table[name]
        with pytest.raises(ValueError, match="read-only"):
            table[name][0] = table[name][1]
    with pytest.raises(ValueError, match="read-only"):
        table.records["latency_us"] = 0
    with pytest.raises(ValueError, match="read-only"):
        table.is_feasible[:] = False
    table.to_dicts()[0].clear()
    assert table.to_dicts()[0]


def test_words_and_pickle(table: GEMMTable) -> None:
    assert repr(table) == "<GEMMTable of 4 GEMMs on demo-8core>"
    assert table.evaluator is evaluator("demo")
    again = pickle.loads(pickle.dumps(table))
    assert list(again) == list(table)


def test_to_pandas_and_back(table: GEMMTable) -> None:
    pd = pytest.importorskip("pandas")
    frame = table.to_pandas()

    assert (list(frame.columns), len(frame)) == (list(table.columns), 4)
    for name in table.columns:
        if table[name].dtype != object:
            assert frame[name].dtype == table[name].dtype
            assert frame[name].to_numpy().tobytes() == table[name].tobytes()
    assert frame.groupby("weight_dtype").size().to_dict() == {"fp16": 1, "int4": 3}
    assert frame["group_size"].tolist()[0] == 128
    assert pd.isna(frame["group_size"].tolist()[3])
    frame.loc[0, "latency_us"] = -1.0  # the user's own copy
    assert table["latency_us"][0] > 0
    assert list(GEMMEvaluator("demo-8core").evaluate_many(table.to_pandas())) == list(table)
    assert list(evaluator("demo").evaluate_many(pd.DataFrame(table.to_dicts()))) == list(table)


@pytest.mark.parametrize("arch", ["h200-sxm", "demo-8core"])
def test_a_frame_keeps_its_own_columns_and_its_index(arch: str) -> None:
    pd = pytest.importorskip("pandas")
    given = pd.DataFrame(
        {"layer": ["a", "b", "c"], "G": 1, "M": [4, 512, 4], "K": 4096, "N": 1024, "latency_us": [3.0, 4.0, 5.0],
         "dtype": ["fp16", "fp16", "w4a16"], "bound": None, 7: [1, 2, 3], pd.NA: "x"},
        index=[7, 9, 9],
    )  # fmt: skip
    before = given.copy()
    ev = GEMMEvaluator(arch, disk_cache=False)

    table = ev.evaluate_many(given)
    frame = table.to_pandas()

    assert given.equals(before)
    assert list(frame.columns.fillna("NA")) == ["layer", "latency_us_given", "dtype", 7, "NA", *table.columns]
    assert list(frame.index) == [7, 9, 9]
    for name in ("layer", "dtype", 7):
        assert frame[name].equals(given[name])
    assert frame["latency_us_given"].equals(given["latency_us"].rename("latency_us_given"))
    assert frame["latency_us"].tolist() == [result.latency_us for result in table]
    given.loc[:, "layer"] = "z"  # the user's own
    assert table.to_pandas().equals(frame)
    assert ev.evaluate_many(frame).to_pandas().equals(frame)  # there and back
    assert len(ev.evaluate_many(given.iloc[:0]).to_pandas().columns) == 4 + len(table.columns)


@pytest.mark.parametrize("arch", ["h200-sxm", "l40s", "demo-8core", "sg2260"])
def test_columns_have_the_source_the_interval_and_the_terms(arch: str) -> None:
    table = GEMMEvaluator(arch, disk_cache=False).evaluate_many([*SHAPES, (1, 4096, 4096, 4096)], "fp16")
    for place, result in enumerate(table):
        assert table["source"][place] == result.source
        assert result.low_us in (None, table["low_us"][place])
        assert result.high_us in (None, table["high_us"][place])
        assert {name: table[name][place] for name in result.breakdown} == dict(result.breakdown)
        assert sum(table[name][place] for name in result.breakdown) == pytest.approx(result.latency_us, rel=1e-9)


def test_terms_of_what_does_not_fit_are_not_known() -> None:
    ev = GEMMEvaluator(load_arch("demo-8core").with_(sram_bytes=1024), disk_cache=False)
    table = ev.evaluate_many(SHAPES, errors="mark")

    assert not table.is_feasible.any()
    assert np.isnan(table["matrix_us"]).all()
    assert {row["hidden_us"] for row in table.to_dicts()} == {None}


def test_without_pandas(table: GEMMTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[table\]'"):
        table.to_pandas()
    assert len(table.to_dicts()) == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_bar(monkeypatch: pytest.MonkeyPatch, stream: Any, is_shown: bool | None, seconds: float) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    with progress_bar(4, "GEMMs here", is_shown) as advance:
        for _ in range(4):
            advance(1)
    return "" if stream is None or stream.closed else str(stream.getvalue())


@pytest.mark.parametrize(
    ("stream", "is_shown", "seconds", "is_seen"),
    [
        (io.StringIO, True, 0.0, True), (io.StringIO, False, 9.0, False), (io.StringIO, None, 9.0, False),
        (Terminal, True, 0.0, True), (Terminal, False, 9.0, False), (Terminal, None, 9.0, True),
        (Terminal, None, 0.01, False), (lambda: None, None, 9.0, False), (lambda: None, False, 9.0, False),
    ],
)  # fmt: skip
def test_when_a_bar_is_shown(
    monkeypatch: pytest.MonkeyPatch, stream: Any, is_shown: bool | None, seconds: float, is_seen: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    text = run_bar(monkeypatch, stream(), is_shown, seconds)
    assert ("GEMMs here" in text) == is_seen
    assert bool(text) == is_seen


def test_a_closed_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    assert run_bar(monkeypatch, stream, None, 9.0) == ""


def test_progress_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    ev = GEMMEvaluator("demo-8core", disk_cache=False)
    batch = [(1, m, 8, 8) for m in range(1, 101)]
    ev.evaluate_many(batch)  # on a fresh machine this compiles, and says so
    ev.cache_clear()
    capsys.readouterr()
    for progress in (False, None):
        ev.evaluate_many(batch[:50], progress=progress)
        assert capsys.readouterr() == ("", "")
        ev.cache_clear()
    ev.evaluate_many(batch[:50])
    ev.evaluate_many(batch + batch, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "GEMMs on demo-8core" in err
    assert "50/50" in err  # what was not known before, each once
    ev.evaluate_many(batch, progress=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arch", ["demo-8core", "h100-sxm"])
def test_the_whole_table_is_looked_at_once_however_many_rows_are_asked(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iterating, and `evaluate --shapes`, asked all rows whether they are feasible for each row."""
    from gemm_eval.cli.shapes import Shape, documents, evaluate_shapes

    own = GEMMEvaluator(arch, disk_cache=False)
    looked_at: list[int] = []
    is_feasible = own.backend.is_feasible

    def count(records: Any) -> Any:
        looked_at.append(len(records))
        return is_feasible(records)

    sizes = [(1, 16 + row, 64, 64) for row in range(60)]
    answers = evaluate_shapes(own, [Shape(row) for row in sizes], {}, dict.fromkeys(
        ("library", "l2", "clock", "quantize_from", "correction")
    ))  # fmt: skip
    table = own.evaluate_many(sizes, progress=False)
    monkeypatch.setattr(own.backend, "is_feasible", count)
    assert [result.problem.sizes for result in table] == sizes
    assert len(list(documents(answers))) == len(sizes)
    assert looked_at.count(len(sizes)) <= 2, looked_at
    assert not table.is_feasible.flags.writeable
