"""`evaluate_many` and its table: the same answers as one by one, columns, DataFrames, progress, and refusals."""

import dataclasses
import hashlib
import io
import itertools
import json
import multiprocessing
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import (
    DType,
    GemmEvalError,
    GEMMEvaluator,
    GemmProblem,
    GEMMTable,
    InfeasibleError,
    InvalidOptionError,
    InvalidProblemError,
    UnsupportedError,
)
from gemm_eval import progress as _progress
from gemm_eval import progress as _threads
from gemm_eval.progress import progress_bar
from tests.evaluate.gemm_laws import VARIANTS, evaluator, random_problems

# ---- the call --------------------------------------------------------------------------------------------------------


SHAPES = [(1, 64, 96, 128), (2, 7, 100, 33), (1, 1, 4096, 11), (1, 64, 96, 128), (3, 500, 1, 9)]
SIZES = dict(zip("GMKN", map(list, zip(*SHAPES, strict=True)), strict=True))


def fresh(variant: str = "demo", **changes: Any) -> GEMMEvaluator:
    arch = evaluator(variant).arch
    return GEMMEvaluator(arch.with_(**changes), disk_cache=False)


@pytest.fixture
def ev() -> GEMMEvaluator:
    return fresh()


def is_untouched(ev: GEMMEvaluator) -> bool:
    return ev.cache_info().records[:2] == (0, 0) == ev.cache_info()[:2]


def one_by_one(shapes: Any = SHAPES, **types: Any) -> list[Any]:
    return [fresh().evaluate(*(int(size) for size in shape), **types) for shape in shapes]


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_the_results_of_one_by_one(variant: str) -> None:
    problems = random_problems(variant, 60)
    alone, many = fresh(variant), fresh(variant)
    seen = [many.evaluate_problem(problem) for problem in problems[::7]]
    batch = problems + problems[10:20] + problems[:1]
    table = many.evaluate_many(batch)

    assert list(table) == [alone.evaluate_problem(problem) for problem in batch]  # counts of the search included
    assert [table.problem(row) for row in range(len(table))] == batch
    assert [table[row] for row in range(0, 60, 7)] == seen
    assert many.cache_info().records.currsize == len(set(problems))
    again = many.evaluate_many(batch[::-1])
    assert again.records.tobytes() == table.records[::-1].tobytes()
    assert many.evaluate_problem(problems[3]) == table[3]


@pytest.mark.parametrize(
    "give",
    [
        tuple, iter, np.array, np.asfortranarray, (lambda s: (shape for shape in s)), (lambda s: [list(x) for x in s]),
        (lambda s: list(np.array(s))), (lambda s: list(np.array(s, np.uint64))), (lambda s: np.array(s, np.int32)),
        (lambda s: np.array(s, np.uint64)), (lambda s: np.array(s, ">i8")), (lambda s: np.array(s, np.uint16)),
        (lambda s: np.repeat(np.array(s), 2, axis=0)[::2]), (lambda s: np.array(s)[:, ::-1][:, ::-1]),
        (lambda s: np.hstack([np.array(s)] * 2)[:, :4]), (lambda s: dict.fromkeys(map(tuple, s)) and list(s)),
        (lambda s: [GemmProblem(*x) if i % 2 else x for i, x in enumerate(s)]),
        (lambda s: [(np.int8(g), np.array(m), k, np.uint64(n)) for g, m, k, n in s]),
        (lambda s: pd.DataFrame(s, columns=list("GMKN"), index=[5] * len(s))),
        (lambda s: pd.DataFrame(s, columns=list("GMKN"))[["N", "K", "M", "G"]].assign(other="x")),
        (lambda s: pd.DataFrame(s, columns=list("GMKN")).astype({"G": "uint64", "M": "int8", "K": "Int64"})),
    ],
)  # fmt: skip
def test_any_form_gives_the_same(give: Any) -> None:
    shapes = [(1, 64, 96, 127), (2, 7, 100, 33), (1, 1, 4096, 11), (1, 64, 96, 127), (3, 100, 1, 9)]
    assert list(fresh().evaluate_many(give(shapes))) == one_by_one(shapes)


@pytest.mark.parametrize("types", [{}, {"dtype": "w4a16"}])
@pytest.mark.parametrize(
    "nothing",
    [[], (), iter([]), np.zeros((0, 4), int), np.zeros((0, 4), np.uint8), pd.DataFrame(columns=list("GMKN")),
     pd.DataFrame({name: [] for name in [*"GMKN", "dtype", "group_size"]})],
)  # fmt: skip
def test_nothing(ev: GEMMEvaluator, nothing: Any, types: dict[str, Any]) -> None:
    table = ev.evaluate_many(nothing, **types, progress=True)
    assert (len(table), list(table), table.to_dicts()) == (0, [], [])
    assert list(table.to_pandas().columns)[-len(table.columns) :] == [*table.columns]
    assert all(len(table[name]) == 0 for name in table.columns)


def test_types_of_the_call_and_of_problems(ev: GEMMEvaluator) -> None:
    types = {"dtype": "w4a16", "group_size": 32, "zero_dtype": "int4", "output_dtype": "fp32"}
    assert list(ev.evaluate_many(SHAPES, **types)) == one_by_one(**types)
    own = GemmProblem(1, 64, 96, 128, DType.BF16, DType.INT8, scale_dtype=DType.FP32)
    table = ev.evaluate_many([own, SHAPES[0], GemmProblem(*SHAPES[0])], **types)
    assert table.problem(0) == own
    assert [table.problem(1), table.problem(2)] == [one_by_one(**types)[0].problem, GemmProblem(*SHAPES[0])]


def test_types_of_rows_go_before_types_of_the_call(ev: GEMMEvaluator) -> None:
    columns = {"dtype": ["fp16", None, "w4a16", "w8a16", np.nan], "group_size": [np.nan, 64, 32, None, -1],
               "zero_dtype": [None, "int4", None, "fp16", None]}  # fmt: skip
    wanted = [("fp16", None, None), ("w4a16", 64, "int4"), ("w4a16", 32, None), ("w8a16", None, "fp16"),
              ("w4a16", -1, None)]  # fmt: skip
    expected = [
        fresh().evaluate(*s, d, group_size=g, zero_dtype=z) for s, (d, g, z) in zip(SHAPES, wanted, strict=True)
    ]
    frame = pd.DataFrame(SIZES | columns)
    for own in (frame, frame.astype({"group_size": "Int64", "dtype": "string"}), frame.astype({"dtype": "category"})):
        assert list(ev.evaluate_many(own, "w4a16")) == expected

    frame = pd.DataFrame(SIZES | {"weight_dtype": ["int8", None, "int4", None, "bf16"]})
    table = ev.evaluate_many(frame, input_dtype="bf16")
    assert table["weight_dtype"].tolist() == ["int8", "bf16", "int4", "bf16", "bf16"]
    # a row's shorthand replaces all types of the call, also those that would not go with it
    frame = pd.DataFrame(SIZES | {"dtype": ["fp16", None, "fp8", "w4a16", None]})
    table = ev.evaluate_many(frame, "w8a16", group_size=50, zero_dtype="int8", output_dtype="fp32")
    assert table["group_size"].tolist() == [None, 50, None, 128, 50]
    assert table["output_dtype"].tolist() == ["fp16", "fp32", "bf16", "fp16", "fp32"]


GOOD = (1, 8, 8, 8)


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ("must be an iterable", None), ("must be an iterable", 5), ("must be an iterable", "1234"),
        ("must be an iterable", GemmProblem(*GOOD)), ("problem 0 must be .G, M, K, N", GOOD),
        ("problem 0 must be", ["1888"]), ("problem 0 must be", {"G": [1]}), ("problem 1 must be", [GOOD, None]),
        ("problem 1 must be", [GOOD, (1, 8, 8)]), ("problem 2 must be", [GOOD, GOOD, (1, 8, 8, 8, 8)]),
        ("problem 0 must be", [()]), ("problem 0 must be", [np.array(5)]),
        ("problem 0 must be", [np.ones((4, 1), int)]), ("problem 2 must be", [GemmProblem(*GOOD), GOOD, (1, 8)]),
        ("problem 2: K must be", [GemmProblem(*GOOD), GOOD, (1, 8, 0, 8)]),
        ("problem 1: M must be", [GOOD, (1, 8.0, 8, 8)]), ("problem 1: M must be", [GOOD, (1, np.float32(8), 8, 8)]),
        ("problem 1: G must be .* got True", [GOOD, (True, 8, 8, 8)]), ("problem 0: N must be", [(1, 8, 8, np.True_)]),
        ("problem 0: N must be", [(1, 8, 8, "8")]), ("problem 0: N must be", [(1, 8, 8, None)]),
        ("problem 0: G must be", [(np.timedelta64(1, "s"), 8, 8, 8)]), ("problem 0: M must be", [(1, [8], 8, 8)]),
        ("problem 1: M .* more than 64", [GOOD, (1, 10**30, 8, 8)]), ("problem 1: M must be", [GOOD, (1, -3, 8, 8)]),
        ("problem 1: M .*2..40, got 18446744073709551615", [GOOD, (1, np.uint64(2**64 - 1), 8, 8)]),
        ("problem 1: M .*, got 1099511627777", [GOOD, (1, 2**40 + 1, 8, 8)]), ("problem 0: G must be", [(0, 8, 8, 8)]),
        ("problem 1: G.M.K.N must be", [GOOD, (1, 2**19, 2**19, 2**19 + 1)]),
        ("problem 1: G.M.K.N must be", [GOOD, (2**40, 2**40, 2**40, 2**40)]),
        ("problem 1: G.M.K.N must be", np.array([GOOD, (2, 2**19, 2**19, 2**19)])),
        ("problem 1: K must be .* got 9223372036854775808", np.array([GOOD, (1, 8, 2**63, 8)], np.uint64)),
        ("problem 1: K must be", np.array([GOOD, (1, 8, -1, 8)], np.int8)), ("shape", np.ones(4, int)),
        ("shape", np.ones((2, 3), int)), ("shape", np.ones((2, 4, 1), int)), ("shape", np.array(5)),
        ("integers, got float", np.ones((2, 4))), ("integers, got bool", np.ones((2, 4), bool)),
        ("integers, got object", np.array([GOOD], object)), ("integers, got <U", np.array([["1", "8", "8", "8"]])),
        ("K, N missing", pd.DataFrame({"G": [1], "M": [8]})), ("column M .* float", pd.DataFrame(SIZES | {"M": 8.0})),
        ("column N .* bool", pd.DataFrame(SIZES | {"N": True})), ("column N", pd.DataFrame(SIZES | {"N": "8"})),
        ("column M", pd.DataFrame(SIZES | {"M": pd.array([8, None, 8, 8, 8], "Int64")})),
        ("one column N, got 2", pd.DataFrame([(*GOOD, 9)], columns=list("GMKNN"))),
        ("problem 4: N must be", pd.DataFrame(SIZES | {"N": [8, 8, 8, 8, 0]})),
        ("problem 0: N .* 18446744073709551615", pd.DataFrame(SIZES | {"N": np.array([2**64 - 1] * 5, np.uint64)})),
        ("problem 2: dtype must be", pd.DataFrame(SIZES | {"dtype": ["fp16", None, "fp17", "w4a16", "x"]})),
        ("problem 0: dtype must be", pd.DataFrame(SIZES | {"dtype": [["fp16"]] * 5})),
        ("problem 1: group_size must be", pd.DataFrame(SIZES | {"dtype": "w4a16", "group_size": [8, "x", 8, 8, 8]})),
        ("problem 1: group_size must be", pd.DataFrame(SIZES | {"dtype": "w4a16", "group_size": [8, 8.5, 8, 8, 8]})),
        ("problem 3: group_size must be", pd.DataFrame(SIZES | {"dtype": "w4a16", "group_size": [8, 8, 8, np.inf, 8]})),
        ("problem 0: group_size must be", pd.DataFrame(SIZES | {"dtype": "w4a16", "group_size": True})),
        ("problem 1: group_size is for", pd.DataFrame(SIZES | {"group_size": [None, 64, None, None, 64]})),
    ],
)  # fmt: skip
def test_bad_problems_are_refused_before_any_work(ev: GEMMEvaluator, words: str, problems: Any) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        ev.evaluate_many(problems)
    assert is_untouched(ev)


def test_types_that_cannot_run_are_refused_before_any_work(ev: GEMMEvaluator) -> None:
    with pytest.raises(UnsupportedError, match="int4"):
        ev.evaluate_many(pd.DataFrame(SIZES | {"dtype": [*["fp16"] * 4, "int4"]}), errors="mark")
    with pytest.raises(InvalidProblemError, match=r"^dtype must be"):
        ev.evaluate_many([], "fp17")
    for bad in ("ignore", None, True, ["raise"]):
        with pytest.raises(InvalidOptionError, match="errors must be"):
            ev.evaluate_many(SHAPES, errors=bad)  # type: ignore[arg-type]
    assert is_untouched(ev)


def test_infeasible_rows() -> None:
    ev = GEMMEvaluator(evaluator("demo").arch.with_(sram_bytes=6000), disk_cache=False)
    good = [GemmProblem(*shape) for shape in SHAPES[:2]]
    bad = [GemmProblem(1, 64, 4096, n, DType.FP16, DType.INT4, group_size=1024) for n in (64, 65)]
    problems = [good[0], bad[0], good[1], bad[1]]
    for _ in range(2):
        table = ev.evaluate_many(problems, errors="mark")
        assert table.is_feasible.tolist() == [True, False, True, False]
        for name in ("latency_us", "tflop_per_s", "utilization_frac", "compute_us", "dram_us", "energy_pj"):
            assert np.isnan(table[name]).tolist() == [False, True, False, True]
        assert [table["bound"][1], table["loop_order"][1], table["active_cores"][1]] == [None, None, 0]
        given = {"G": 1, "M": 64, "K": 4096, "N": 64, "input_dtype": "fp16", "weight_dtype": "int4", "layout": "tn",
                 "output_dtype": "fp16", "group_size": 1024, "scale_dtype": "fp16", "group_n": 1}  # fmt: skip
        assert table.to_dicts()[1] == dict.fromkeys(table.columns) | given
        assert table[0] == ev.evaluate_problem(good[0])
        for call in (lambda t=table: t[1], lambda t=table: t[-3], lambda t=table: list(t),
                     lambda: ev.evaluate(*bad[0].sizes, "w4a16", group_size=1024), lambda: ev.evaluate_many(bad),
                     lambda: ev.evaluate_problem(bad[0]), lambda: ev.evaluate_many(problems)):  # fmt: skip
            with pytest.raises(InfeasibleError, match=r"K=4096 N=64 fp16 x int4 .* does not fit") as caught:
                call()
            assert caught.value.gap > 0
        with pytest.raises(InfeasibleError, match="N=65 fp16 x int4 "):
            ev.evaluate_many(bad[::-1])
    assert ev.cache_info().records.currsize == 2


def test_the_number_of_workers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [problem for variant in ("demo", "static") for problem in random_problems(variant, 100)]
    expected = fresh().evaluate_many(problems).records.tobytes()
    for workers, largest, per_worker in itertools.product((1, 3, 64), (1, 7, 1000), (1, 8)):
        monkeypatch.setattr(_threads, "_WORKERS", workers)
        monkeypatch.setattr(_threads, "_MAX_CHUNK", largest)
        monkeypatch.setattr(_threads, "_CHUNKS_PER_WORKER", per_worker)
        assert fresh().evaluate_many(problems).records.tobytes() == expected


def test_threads_give_the_serial_answers(ev: GEMMEvaluator) -> None:
    problems = random_problems("demo", 120)
    expected = [fresh().evaluate_problem(problem) for problem in problems]

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(problems))
        if seed % 3 == 0:
            return all(ev.evaluate_problem(problems[i]) == expected[i] for i in order)
        if seed == 10:
            ev.cache_clear()
        table = ev.evaluate_many([problems[i] for i in order])
        return [table[row] for row in range(len(table))] == [expected[i] for i in order]

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(24)))


def _in_child(ev: GEMMEvaluator, results: Any) -> None:
    table = ev.evaluate_many(SHAPES * 20 + [(1, m, 77, 9) for m in range(1, 300)])
    results.put(hashlib.sha256(table.records.tobytes()).hexdigest())  # a pipe holds no more


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_child_evaluates_too(ev: GEMMEvaluator) -> None:
    ev.evaluate_many([(1, m, 5, 5) for m in range(1, 300)])  # threads run now
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks of many threads
        child = context.Process(target=_in_child, args=(ev, results))
        child.start()
    child.join(60)
    assert child.exitcode == 0
    _in_child(fresh(), here := context.SimpleQueue())
    assert results.get() == here.get()


# ---- the table -------------------------------------------------------------------------------------------------------


ROWS = [(1, 64, 96, 128), (2, 7, 100, 33), (1, 1, 4096, 11)]


@pytest.fixture
def table() -> GEMMTable:
    return evaluator("demo").evaluate_many([*ROWS, GemmProblem(*ROWS[0])], "w4a16")


def names_of(row: Any) -> dict[str, Any]:
    """The columns of a row, from its result."""
    p, mapping = row.problem, row.mapping
    given = {name: getattr(p, name) for name in ("G", "M", "K", "N", "group_size", "group_n")}
    given["row_groups"] = p.row_groups and list(p.row_groups)
    given |= {"layout": p.layout, "accumulate": p.accumulate}
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
    assert table["row_groups"].tolist() == [row.problem.row_groups for row in table]
    plain = {int, float, str, list, type(None)}
    assert {type(value) for values in dicts for value in values.values()} <= plain


def test_rows(table: GEMMTable) -> None:
    assert len(table) == 4
    assert [table[-1], table[np.int64(3)], table[-4]] == [table[3], table[3], table[0]]
    assert table[3].problem == GemmProblem(*ROWS[0])
    assert list(table) == [table[row] for row in range(4)] == list(iter(table))
    assert table[0].explain() == evaluator("demo").evaluate(*ROWS[0], "w4a16").explain()
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


@pytest.mark.parametrize("arch", ["h200-sxm", "demo-8core"])
def test_a_frame_keeps_its_own_columns_and_its_index(arch: str) -> None:
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
    table = GEMMEvaluator(arch, disk_cache=False).evaluate_many([*ROWS, (1, 4096, 4096, 4096)], "fp16")
    for place, result in enumerate(table):
        assert table["source"][place] == result.source
        assert result.low_us in (None, table["low_us"][place])
        assert result.high_us in (None, table["high_us"][place])
        columns = {name: table[name][place] for name in result.breakdown}
        assert columns == pytest.approx(dict(result.breakdown), abs=1e-12)  # Python's sum of floats differs by version
        assert sum(table[name][place] for name in result.breakdown) == pytest.approx(result.latency_us, rel=1e-9)


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
        (io.StringIO, True, 0.0, True), (io.StringIO, False, 9.0, False), (io.StringIO, None, 9.0, True),
        (io.StringIO, None, 0.01, False),
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


def test_work_of_unknown_length_prints_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(_progress, "_LINE_EVERY_S", 0.002)
    with _progress.progress_status("validate"):
        _progress.progress_note("fit 1 of 2")
        with progress_bar(4, "GEMMs here", None) as advance:  # inside: shows nothing
            advance(4)
        while "validate: fit 1 of 2 (" not in stream.getvalue():
            threading.Event().wait(0.001)
    assert "GEMMs here" not in stream.getvalue()
