"""DRAM traffic of single GEMMs: never less than a state of L2 leaves to be read, and no time is below its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.workload import make_problem

SEED, NUM = 7, 150
CASES = (
    ("h200-sxm", "bf16", None), ("h200-sxm", "w4a16", "gemm-eval"), ("h200-sxm", "w4a16", "hypothetical"),
    ("b200", "nvfp4", None), ("b200", "fp8_block", None), ("l40s", "fp8", None), ("rtx-pro-6000-server", "fp8", None),
    ("a100-sxm-80gb", "int8", None), ("a100-sxm-80gb", "w4a16", "trtllm"),
)  # fmt: skip


def problems(arch: GpuSpec, dtype: str) -> list[GemmProblem]:
    rng = np.random.default_rng(SEED)
    sizes = np.exp2(rng.uniform(0.0, 14.0, (NUM, 3))).astype(int)
    sizes[:, 1:] = np.maximum(sizes[:, 1:] // 128, 1) * 128
    return [make_problem(1, *size, default_dtype=arch.default_dtype, dtype=dtype) for size in sizes.tolist()]


@pytest.mark.parametrize(("gpu", "dtype", "library"), CASES)
def test_no_traffic_is_below_what_l2_leaves_to_be_read(gpu: str, dtype: str, library: str | None) -> None:
    arch = load_arch(gpu, GpuSpec)
    asked, evaluator = problems(arch, dtype), GEMMEvaluator(arch, disk_cache=False)
    weights = np.array([-(-problem.types.b.total_bits(problem.N, problem.K) // 8) for problem in asked])
    everything = np.array([problem.compulsory_bytes for problem in asked])
    for l2 in ("cold", "cold-all"):
        records = evaluator.evaluate_many(asked, library=library, l2=l2, progress=False).records
        of_weights = records["dram_b_bytes"] + records["dram_scale_bytes"]
        assert (of_weights >= weights).all()
        if l2 == "cold-all":
            assert (records["dram_bytes"] >= everything).all()
        least_us = records["dram_bytes"] / (arch.dram_gb_per_s * 1e3)
        assert (records["physics_us"] >= least_us).all()
        assert (records["latency_us"] >= of_weights / (arch.dram_gb_per_s * 1e3)).all()


def test_what_l2_has_is_no_traffic_that_was_saved() -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    kept, read = (evaluator.evaluate(1, 64, 4100, 4096, dtype="w4a16", l2=l2) for l2 in ("cold", "cold-all"))

    assert kept.dram_bytes < kept.problem.compulsory_bytes <= read.dram_bytes
    assert "% of A, B and C: L2 has the rest" in kept.explain()
    assert "x what must move at least once" in read.explain()
