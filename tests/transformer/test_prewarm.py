"""Prewarming: what it counts, and that what it warmed is a hit with the same bits, here and in later processes."""

import dataclasses
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GEMMResult, load_arch
from gemm_eval.errors import (
    GemmEvalError,
    InvalidInputError,
    InvalidOptionError,
    InvalidProblemError,
    ModelConfigError,
    UnsupportedError,
)
from gemm_eval.transformer import Ffn, GroupedAttention, ModelConfig, load_model, model_on, transformer_gemms, types_on
from gemm_eval.transformer.prewarm import PrewarmReport, prewarm, prewarm_for_transformer
from gemm_eval.workload import GemmProblem
from tests.cases import case

ARCH = load_arch("demo-8core")
BATCHES, LENGTHS = (1, 7), (16, 130)
SMALL = ModelConfig(
    name="small", hidden_size=256, num_layers=2, vocab_size=1000,
    attention=GroupedAttention(num_heads=4, num_kv_heads=2, head_dim=64), ffn=Ffn(intermediate_size=512),
)  # fmt: skip
FIELDS = [field.name for field in dataclasses.fields(GEMMResult) if field.compare]


pytestmark = pytest.mark.usefixtures("own_cache")


def gemms_of(
    model: ModelConfig, phases: Iterable[Any] = ("prefill", "decode"), tp: Iterable[int] = (1,),
    ep: Iterable[int] = (1,), dtypes: Iterable[str | None] = (None,),
) -> list[GemmProblem]:  # fmt: skip
    model = model_on(ARCH, model)
    return [
        gemm.problem
        for phase, batch, length, t, e, dtype in product(phases, BATCHES, LENGTHS, tp, ep, dtypes)
        for gemm in transformer_gemms(
            model, phase=phase, batch_size=batch, seq_len=length, tensor_parallel=t, expert_parallel=e,
            **types_on(ARCH, dtype, None, model),
        )
    ]  # fmt: skip


def call_of(problem: GemmProblem) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """How a user asks for a problem: the method's name and its arguments."""
    types: dict[str, Any] = {name: str(getattr(problem, f"{name}_dtype")) for name in ("input", "weight", "output")}
    types = {f"{name}_dtype": value for name, value in types.items()}
    if problem.group_size:
        types |= {"group_size": problem.group_size, "scale_dtype": str(problem.scale_dtype)}
    if problem.row_groups is None:
        return "evaluate", problem.sizes, types
    return "evaluate_grouped", (problem.row_groups, problem.K, problem.N), types


def check_warm(evaluator: GEMMEvaluator, problems: Iterable[GemmProblem]) -> None:
    """Every problem is a hit, and equal to what a never-warmed evaluator finds, in all fields."""
    never = GEMMEvaluator(evaluator.arch, disk_cache=False)
    before = evaluator.cache_info().records
    unique = list(dict.fromkeys(problems))
    for problem in unique:
        name, sizes, types = call_of(problem)
        result, fresh = (getattr(one, name)(*sizes, **types) for one in (evaluator, never))
        assert result.problem == problem
        assert [repr(getattr(result, name)) for name in FIELDS] == [repr(getattr(fresh, name)) for name in FIELDS]
    after = evaluator.cache_info().records
    assert (after.hits - before.hits, after.misses - before.misses) == (len(unique), 0)


MODELS: list[Any] = [
    ("llama-3-8b", {}),
    ("llama-3-8b", {"phases": ("prefill",)}),
    ("llama-3-8b", {"phases": ("decode",), "dtypes": ("w4a16", "w8a16", "bf16", "int8", "w4a8")}),
    ("llama-3-70b", {"tp": (1, 2, 8), "dtypes": ("w4a16",)}),
    ("mixtral-8x7b", {"tp": (1, 2), "ep": (1, 2, 4)}),
    ("deepseek-v3", {"tp": (2,), "ep": (1, 8), "phases": ("decode",)}),
    (SMALL, {"dtypes": ("fp16", "w8a16")}),
]


def run(evaluator: GEMMEvaluator, model: Any, ranges: dict[str, Any]) -> PrewarmReport:
    names = {"phases": "phases", "tp": "tensor_parallel", "ep": "expert_parallel", "dtypes": "dtypes"}
    options = {names[name]: values for name, values in ranges.items()}
    return prewarm(evaluator, model, batch_sizes=BATCHES, seq_lens=LENGTHS, **options)


@pytest.mark.parametrize(("model", "ranges"), MODELS)
def test_report_and_hits(model: Any, ranges: dict[str, Any]) -> None:
    config = load_model(model) if isinstance(model, str) else model
    problems = gemms_of(config, **ranges)
    num_unique = len(set(problems))
    evaluator = GEMMEvaluator(ARCH)

    report = run(evaluator, model, ranges)

    assert report == PrewarmReport(
        config.name, len(problems), num_unique, 0, 0, num_unique, num_unique, seconds=report.seconds
    )
    assert str(report).startswith(f"{config.name}: {len(problems):,} GEMMs, {num_unique:,} unique, 0 known before, ")
    assert 0 < report.seconds < 300
    check_warm(evaluator, problems)
    later = GEMMEvaluator(ARCH)
    check_warm(later, problems)
    again = run(GEMMEvaluator(ARCH), model, ranges)
    assert (again.num_known, again.num_hits_after) == (num_unique, num_unique)


def test_infeasible_gemms_are_counted_and_never_cached() -> None:
    arch = ARCH.with_(sram_bytes=64)
    for _ in range(2):
        evaluator = GEMMEvaluator(arch)
        report = run(evaluator, SMALL, {})

        assert report.num_infeasible == report.num_unique == len(set(gemms_of(SMALL)))
        assert (report.num_known, report.num_stored, report.num_hits_after) == (0, 0, 0)
        assert evaluator.cache_info().records.currsize == 0


@pytest.mark.parametrize("vocab_size", [None, 1000])
@pytest.mark.parametrize("dtype", [None, "w4a16"])
def test_transformer_by_its_sizes(vocab_size: int | None, dtype: str | None) -> None:
    evaluator = GEMMEvaluator(ARCH)
    report = prewarm_for_transformer(
        evaluator, 256, 512, 7, 130, num_kv_heads=2, head_dim=64, vocab_size=vocab_size, dtype=dtype
    )

    problems = [
        gemm.problem
        for phase in ("prefill", "decode")
        for gemm in transformer_gemms(SMALL, phase=phase, batch_size=7, seq_len=130, dtype=dtype or "fp16")
        if vocab_size or gemm.name != "lm_head"
    ]
    assert (report.num_gemms, report.num_unique) == (len(problems), len(set(problems)))
    assert report.num_unique == report.num_stored == report.num_hits_after
    check_warm(evaluator, problems)


RANGES = ("batch_sizes", "seq_lens", "phases", "tensor_parallel", "expert_parallel", "dtypes")
BAD_RANGES: tuple[Any, ...] = ([], "12", b"ab", 5, None, {}, iter([1]), [1.5], ["x"], [True], [0], [[1]])


def test_a_bad_range_is_refused() -> None:
    for name, value in product(RANGES, BAD_RANGES):
        with case(name, value):
            evaluator = GEMMEvaluator(ARCH)
            good: dict[str, Any] = {"batch_sizes": [1], "seq_lens": [8]}

            with pytest.raises((InvalidOptionError, InvalidProblemError)):
                prewarm(evaluator, SMALL, **(good | {name: value}))
            assert evaluator.cache_info().records.currsize == 0


@pytest.mark.parametrize(
    ("error", "words", "model", "options"),
    [
        (ModelConfigError, "no model", "llama-9", {}),
        (ModelConfigError, "no-such", Path("no-such.json"), {}),
        (ModelConfigError, "got 5", 5, {}),
        (ModelConfigError, "got None", None, {}),
        (InvalidOptionError, "must divide", SMALL, {"tensor_parallel": [1, 3]}),
        (InvalidOptionError, "expert_parallel", "mixtral-8x7b", {"expert_parallel": [1, 3]}),
        (InvalidOptionError, "phase must be", SMALL, {"phases": ["prefill", "decod"]}),
        (InvalidProblemError, "dtype must be", SMALL, {"dtypes": ["fp16", "w5a16"]}),
        (UnsupportedError, "cannot multiply", SMALL, {"dtypes": ["fp16", "int4"]}),
    ],
)
def test_refusals_come_before_any_work(error: type[GemmEvalError], words: str, model: Any, options: Any) -> None:
    evaluator = GEMMEvaluator(ARCH)
    with pytest.raises(error, match=words):
        prewarm(evaluator, model, batch_sizes=[1], seq_lens=[8], **options)
    assert evaluator.cache_info().records.currsize == 0


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((500, 512, 1, 8), {}), ((512.0, 512, 1, 8), {}), (("512", 512, 1, 8), {}), ((True, 512, 1, 8), {}),
        ((0, 512, 1, 8), {}), ((-128, 512, 1, 8), {}), ((512, 0, 1, 8), {}), ((512, 512, 0, 8), {}),
        ((512, 512, 1, 8.0), {}), *(((512, 512, 1, 8), {"head_dim": bad}) for bad in (0, -128, "128", 64.0, None)),
        *(((512, 512, 1, 8), {"num_heads": bad}) for bad in (0, 3.0)), ((512, 512, 1, 8), {"num_kv_heads": 3}),
        ((512, 512, 1, 8), {"vocab_size": 0}), ((512, 512, 1, 8), {"is_gated": 1}),
    ],
)  # fmt: skip
def test_sizes_that_make_no_transformer(sizes: Any, options: Any) -> None:
    with pytest.raises(InvalidInputError, match="evaluator must be"):
        prewarm_for_transformer("demo-8core", *sizes, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError):
        prewarm_for_transformer(GEMMEvaluator(ARCH), *sizes, **options)
