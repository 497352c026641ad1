"""How long the exact search for fused attention takes on multi-core chips: ``make bench`` prints it by preset."""

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gemm_eval import GEMMEvaluator, load_arch

HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
"""Of Llama 3 8B."""
KINDS: dict[str, dict[str, Any]] = {
    "prefill": {"batch": 1, "q_len": 8192, "kv_len": 8192},
    "window": {"batch": 1, "q_len": 8192, "kv_len": 8192, "window": 1024},
    "decode": {"batch": 16, "q_len": 1, "kv_len": 4096},
    "long": {"batch": 1, "q_len": 1, "kv_len": 131072},
}


@pytest.mark.benchmark(group="fused attention of Llama 3 8B, cold, by preset")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["demo-8core", "tpu-v7", "ascend-910", "blackhole-p150", "ipu-gc200"])
def test_cold_presets(benchmark: BenchmarkFixture, name: str, kind: str) -> None:
    evaluator = GEMMEvaluator(load_arch(name))
    sizes = {"dtype": "bf16" if "bf16" in evaluator.arch.cube_steps_per_cycle else "fp16", **HEADS, **KINDS[kind]}  # type: ignore[union-attr]
    evaluator.evaluate_attention(**sizes | {"q_len": 1, "kv_len": 16, "window": None})  # compiles
    result = benchmark.pedantic(
        evaluator.evaluate_attention, kwargs=sizes, setup=evaluator.cache_clear, rounds=5, warmup_rounds=1
    )
    assert result.is_fused
