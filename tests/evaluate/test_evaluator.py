"""`GEMMEvaluator`, `GEMMResult` and `select_config`: laws, refusals, how answers are shared, and their order."""

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import (
    DType,
    GemmEvalError,
    GEMMEvaluator,
    GemmProblem,
    InfeasibleError,
    InvalidInputError,
    InvalidMappingError,
    InvalidOptionError,
    InvalidProblemError,
    UnsupportedError,
    load_arch,
    select_config,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import ArchNotFoundError
from gemm_eval.evaluate import GemmOptions, RunArguments
from gemm_eval.evaluate.batch import _KIND_COLUMNS
from gemm_eval.workload import RunOptions
from tests.evaluate.gemm_laws import VARIANTS, check, evaluator, random_problems, same_cost

# ---- evaluator -------------------------------------------------------------------------------------------------------


HUGE = [(1, 2**20, 2**17, 2**20), (2**40, 1, 1, 1), (1, 2**40, 1, 2**17), (1, 2**28, 2, 2**27), (1, 1, 2**40, 1),
        (1, 1, 1, 2**40), (2**19, 2**19, 2**19, 1), (1, 2**19, 2**19, 2**19), (2**40, 2**17, 1, 1)]  # fmt: skip
ODD = [(1, 1, 1, 1), (1, 7919, 7907, 7901), (999983, 3, 5, 7), (13, 1, 17, 1), (1, 1, 1, 31), (2, 2, 2, 2)]
MAX_SECONDS = 15.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_top_and_explain_and_json(variant: str) -> None:
    ev = evaluator(variant)
    for problem in random_problems(variant, 12):
        best = ev.evaluate_problem(problem)
        assert best.is_exhaustive
        assert best.num_candidates >= 1
        for distinct in ("mapping", "partition"):
            top = ev.top(problem, 7, distinct=distinct)  # type: ignore[arg-type]
            assert 1 <= len(top) <= 7
            assert same_cost(top[0], best)
            assert [r.latency_us for r in top] == sorted(r.latency_us for r in top)
            assert len({r.mapping if distinct == "mapping" else r.mapping.partition for r in top}) == len(top)
            for result in top:
                check(result, ev)
        text = best.explain()
        assert "bound by" in text
        assert "Would help most: " in text or "No single doubling" in text
        assert not {"nan", "inf"} & set(text.replace(",", " ").split())
        data = json.loads(json.dumps(best.to_dict(), allow_nan=False))
        assert data["latency_us"] == best.latency_us
        assert data["problem"]["M"] == problem.M
        assert data["mapping"]["partition"]["P_K"] == best.mapping.partition.P_K


@pytest.mark.parametrize("sizes", [*HUGE, *ODD], ids=str)
@pytest.mark.parametrize("variant", ["demo", "pipeline", "sg2260e"])
def test_huge_and_odd_sizes_take_seconds_and_do_not_overflow(variant: str, sizes: tuple[int, int, int, int]) -> None:
    ev = evaluator(variant)
    ev.evaluate(1, 8, 8, 8)  # compile first
    start = time.perf_counter()
    for dtype in (None, "w4a16"):
        check(ev.evaluate(*sizes, dtype), ev)
    assert time.perf_counter() - start < MAX_SECONDS


def test_options_have_one_set_of_names() -> None:
    assert {"dtype", *GemmOptions.__annotations__} == {*_KIND_COLUMNS}
    assert tuple(RunArguments.__annotations__) == RunOptions._fields
    assert RunArguments.__annotations__.items() <= GemmOptions.__annotations__.items()
    with pytest.raises(TypeError, match="unexpected keyword argument 'libary'"):
        evaluator("demo").evaluate(1, 8, 8, 8, libary="cublas")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'libary'"):
        evaluator("demo").evaluate_many([(1, 8, 8, 8)], libary="cublas")  # type: ignore[call-arg]


def test_results_are_frozen_and_shared() -> None:
    ev = GEMMEvaluator("demo-8core")
    r = ev.evaluate(1, 64, 64, 64)

    with pytest.raises(dataclasses.FrozenInstanceError):
        r.latency_us = 0.0  # type: ignore[misc]
    for terms in (r.breakdown, r.traffic, r.num_refused):
        with pytest.raises(TypeError):
            terms["launch_us"] = 0  # type: ignore[index]
        with pytest.raises(TypeError):
            terms.clear()
    r.to_dict()["breakdown"].clear()
    assert ev.evaluate(1, 64, 64, 64) is r
    assert ev.evaluate(G=1, M=64, K=64, N=64) is r
    assert r.breakdown
    assert hash(r) == hash(copy.deepcopy(r))
    assert pickle.loads(pickle.dumps(r)) == r
    assert pickle.loads(pickle.dumps(ev)).evaluate(1, 64, 64, 64) == r


def test_equal_arguments_of_other_types_are_not_confused() -> None:
    ev = GEMMEvaluator("demo-8core")
    one = ev.evaluate(1, 8, 8, 8)

    for bad in (True, 1.0, np.True_, np.float64(1)):
        with pytest.raises(InvalidProblemError, match="G must be"):
            ev.evaluate(bad, 8, 8, 8)
    for good in (np.int64(1), np.uint8(1), np.array(1)):
        assert ev.evaluate(good, 8, 8, 8) == one
        assert type(ev.evaluate(good, 8, 8, 8).problem.G) is int
    assert ev.evaluate(1, 8, 8, 8, "fp16") == ev.evaluate(1, 8, 8, 8, DType.FP16) == one


def test_a_fresh_process_gives_the_same_bits() -> None:
    code = (
        "import sys; from gemm_eval import *; ev = GEMMEvaluator('demo-8core')\n"
        "for r in (ev.evaluate(*sizes) for sizes in eval(sys.argv[1])):\n"
        "    print(repr((r.latency_us, r.energy_pj, r.dram_bytes, tuple(r.mapping))))"
    )
    sizes = [p.sizes for p in random_problems("demo", 20)]
    env = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sizes)], capture_output=True, text=True, check=True, env=env
    )

    results = [evaluator("demo").evaluate(*s) for s in sizes]
    assert done.stdout.splitlines() == [
        repr((r.latency_us, r.energy_pj, r.dram_bytes, tuple(r.mapping))) for r in results
    ]


@pytest.mark.parametrize(
    ("rule", "mapping"),
    [
        ("form", None), ("form", ((1, 2, 4), (32, 16, 64), "mnk")), ("form", ((1, 2, 4, 1), (32, 16, 64))),
        ("form", ("1241", (32, 16, 64), "mnk")), ("form", ((0, 2, 4, 1), (32, 16, 64), "mnk")),
        ("form", ((1, 2, 4, 1), (-32, 16, 64), "mnk")), ("form", ((1, 2, 4, 1.0), (32, 16, 64), "mnk")),
        ("form", ((True, 2, 4, 1), (32, 16, 64), "mnk")), ("form", ((1, 2, 4, 1), (32, 16, 64), "abc")),
        ("form", ((1, 2, 4, 1), (32, 16, 64), 6)), ("form", ((1, 2, 4, 1), (32, 16, 64), True)),
        ("form", ((1, 2, 4, 1), (32, 16, 64), 0.0)), ("num_cores", ((1, 3, 3, 1), (16, 16, 64), "mnk")),
        ("num_cores", ((1 << 61, 1 << 61, 1, 1), (16, 16, 64), "mnk")),
        ("tile_m_block", ((1, 2, 4, 1), (64, 16, 64), "mnk")), ("tile_n_block", ((1, 2, 4, 1), (32, 32, 64), "mnk")),
        ("tile_k_block", ((1, 2, 2, 2), (32, 32, 64), "mnk")),
        ("tile_m_multiple", ((1, 2, 4, 1), (17, 16, 64), "mnk")),
        ("tile_n_multiple", ((1, 2, 2, 1), (32, 24, 64), "mnk")),
        ("tile_k_multiple", ((1, 2, 4, 1), (32, 16, 40), "mnk")),
    ],
)  # fmt: skip
def test_mapping_refusal(rule: str, mapping: Any) -> None:
    with pytest.raises(InvalidMappingError) as caught:
        evaluator("demo").evaluate_mapping(GemmProblem(1, 64, 64, 64), mapping)
    assert caught.value.rule == rule


def test_mapping_refusals_of_the_arch() -> None:
    with pytest.raises(InvalidMappingError, match="bytes of SRAM") as caught:
        evaluator("demo").evaluate_mapping(GemmProblem(1, 4096, 4096, 4096), ((1, 8, 1, 1), (512, 4096, 4096), "mnk"))
    assert caught.value.rule == "sram"
    with pytest.raises(InvalidMappingError, match="P_K must be 1") as caught:
        evaluator("no-split").evaluate_mapping(GemmProblem(1, 64, 64, 64), ((1, 1, 1, 2), (16, 16, 32), "mnk"))
    assert caught.value.rule == "reduction"


@pytest.mark.parametrize("order", ["mnk", "MNK", 0, np.int64(0)])
def test_mapping_in_plain_words(order: Any) -> None:
    r = evaluator("demo").evaluate_mapping(GemmProblem(1, 64, 64, 64), ((np.int64(1), 2, 4, 1), (32, 16, 64), order))
    assert (r.mapping.partition.P_M, r.mapping.tile.tile_m, r.mapping.loop_order.name) == (2, 32, "MNK")


@pytest.mark.parametrize("frac", [1.0, 0.9375, 0.7, 1 / 3, 0.1])
@pytest.mark.parametrize("dtype", ["fp16", "fp32", "w4a16"])
def test_infeasible_says_by_how_much_and_its_first_lever_helps(frac: float, dtype: str) -> None:
    arch = load_arch("demo-8core").with_(sram_bytes=1000, sram_usable_frac=frac)
    with pytest.raises(InfeasibleError, match=r"does not fit demo-8core") as caught:
        GEMMEvaluator(arch).evaluate(1, 64, 4096, 64, dtype)
    e = caught.value

    assert (e.resource, e.unit, e.limit, e.gap) == ("sram", "bytes", arch.sram_usable_bytes, e.demand - e.limit)
    assert e.gap > 0
    assert {"input_buffers: 1", "smaller lane_num or align_bytes (padding)"} <= set(e.levers)
    assert e.levers[0].startswith("sram_bytes >= ")
    needed = int(e.levers[0].removeprefix("sram_bytes >= ").replace(",", ""))
    result = GEMMEvaluator(arch.with_(sram_bytes=needed)).evaluate(1, 64, 4096, 64, dtype)
    assert result.sram_used_bytes == e.demand
    with pytest.raises(InfeasibleError):
        GEMMEvaluator(arch.with_(sram_bytes=needed - 2)).evaluate(1, 64, 4096, 64, dtype)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (UnsupportedError, "cannot multiply int4", lambda ev: ev.evaluate(1, 8, 8, 8, "int4")),
        (UnsupportedError, "dequant", lambda ev: ev.on(ev.arch.with_(dequant="none")).evaluate(1, 8, 8, 8, "w4a16")),
        (InvalidProblemError, "^M must be", lambda ev: ev.evaluate(1, [8], 8, 8)),
        (InvalidProblemError, "^dtype must be", lambda ev: ev.evaluate(1, 8, 8, 8, {})),
        (InvalidProblemError, "must be a GemmProblem", lambda ev: ev.evaluate_problem((1, 8, 8, 8))),
        (InvalidProblemError, "must be a GemmProblem", lambda ev: ev.evaluate_mapping((1, 8, 8, 8), None)),
        (InvalidOptionError, "^k must be", lambda ev: ev.top(GemmProblem(1, 8, 8, 8), 0)),
        (InvalidOptionError, "^k must be", lambda ev: ev.top(GemmProblem(1, 8, 8, 8), True)),
        (InvalidOptionError, "^k must be", lambda ev: ev.top(GemmProblem(1, 8, 8, 8), 10_001)),
        (InvalidOptionError, "^distinct must be", lambda ev: ev.top(GemmProblem(1, 8, 8, 8), distinct="x")),
        (InvalidInputError, "arch must be", lambda ev: GEMMEvaluator(None)),
        (InvalidOptionError, "allow_idle_cores must be", lambda ev: GEMMEvaluator("demo-8core", allow_idle_cores=1)),
        (InvalidOptionError, "False above 4096", lambda ev: GEMMEvaluator(ev.arch.with_(num_cores=5000))),
    ],
)
def test_refusal(error: type[GemmEvalError], words: str, call: Any) -> None:
    with pytest.raises(error, match=words):
        call(evaluator("demo"))


# ---- select_config ---------------------------------------------------------------------------------------------------


H200 = load_arch("h200-sxm", GpuSpec)
W4A16 = GemmProblem(1, 16, 4096, 12288, input_dtype="fp16", weight_dtype="int4", group_size=128)


@pytest.mark.parametrize("options", [{}, {"l2": "warm", "clock": "sustained"}, {"library": "gemm-eval"}], ids=str)
@pytest.mark.parametrize("problem", [W4A16, GemmProblem(2, 300, 1024, 520, input_dtype="bf16")], ids=str)
def test_the_order_is_that_of_the_evaluator(problem: GemmProblem, options: dict[str, str]) -> None:
    if problem is not W4A16:
        options = {name: value for name, value in options.items() if name != "library"}
    top = [result.mapping for result in GEMMEvaluator(H200).top(problem, 5, **options)]

    assert list(select_config(problem, H200, 5, **options)) == top
    assert select_config(problem, H200, **options) == (top[0],)


def test_a_file_is_read_at_every_call(tmp_path: Path) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text("base: h200-sxm\n")
    assert select_config(W4A16, str(path)) == select_config(W4A16, H200)

    path.write_text("base: sg2260\n")
    with pytest.raises(InvalidOptionError, match="kernels of GPUs, chip is none"):
        select_config(W4A16, str(path))


def test_what_does_not_exist() -> None:
    with pytest.raises(ArchNotFoundError, match=r"did you mean .*h200-sxm"):
        select_config(W4A16, "h200")
    with pytest.raises(InvalidOptionError, match="library must be one of"):
        select_config(W4A16, H200, library="mine")
    with pytest.raises(InvalidOptionError, match=r"l2 must be a word or None, got \[\]"):
        select_config(W4A16, H200, l2=[])  # type: ignore[arg-type]
