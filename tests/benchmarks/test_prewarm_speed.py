"""Speed of prewarming llama-3-70b, 8 batch sizes by 6 sequence lengths in both phases, and of reading it back."""

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.evaluate.costs import default_path
from gemm_eval.transformer.prewarm import PrewarmReport, prewarm

ARCH = "demo-8core"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SEQ_LENS = (128, 512, 1024, 2048, 4096, 8192)
ROUNDS = 5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GEMMEvaluator(ARCH, disk_cache=False).evaluate_many([(1, 1, 1, 1)])  # compiles
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))


def warm(evaluator: GEMMEvaluator) -> PrewarmReport:
    return prewarm(evaluator, "llama-3-70b", batch_sizes=BATCH_SIZES, seq_lens=SEQ_LENS, progress=False)


@pytest.mark.benchmark(group="prewarm of llama-3-70b")
def test_prewarm_from_nothing(benchmark: Any) -> None:
    def start() -> tuple[tuple[GEMMEvaluator], dict[str, Any]]:
        path = default_path(ARCH)
        assert path is not None
        path.unlink(missing_ok=True)
        return (GEMMEvaluator(ARCH),), {}

    report = benchmark.pedantic(warm, setup=start, rounds=ROUNDS)

    assert report.num_known == report.num_infeasible == 0
    assert report.num_stored == report.num_hits_after == report.num_unique


@pytest.mark.benchmark(group="prewarm of llama-3-70b")
def test_first_call_of_a_new_evaluator_reads_it_back(benchmark: Any) -> None:
    report = warm(GEMMEvaluator(ARCH))

    def start() -> tuple[tuple[GEMMEvaluator], dict[str, Any]]:
        return (GEMMEvaluator(ARCH),), {}

    def first_call(evaluator: GEMMEvaluator) -> int:
        evaluator.evaluate(1, 1, 8192, 10240, "bf16")  # as the model is published
        return evaluator.cache_info().records.currsize

    assert benchmark.pedantic(first_call, setup=start, rounds=ROUNDS) == report.num_unique
