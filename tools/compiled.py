"""Compile the kernels that many tests use, so that no two processes of the tests do it at the same time.

python -m tools.compiled
"""

from __future__ import annotations

import numpy as np

from gemm_eval import GEMMEvaluator, GemmProblem, MulticoreSpec, load_arch
from gemm_eval.models.multicore import evaluate_mapping, unpack_cost
from gemm_eval.models.multicore.params import pack_params
from gemm_eval.search import find_best, find_best_many, replay_mappings
from gemm_eval.search.restricted import PlanOptions
from gemm_eval.sweep import pareto_rank
from gemm_eval.workload import pack_layouts

SHAPE = (1, 64, 64, 64)


def compile_grouped(arch: MulticoreSpec) -> None:
    """A grouped GEMM of groups that differ: search, a batch, one mapping, mappings of a library."""
    grouped = GemmProblem.grouped((64, 3), 64, 64)
    params, layouts = pack_params(arch, grouped.types), pack_layouts([grouped.row_groups])
    best = find_best(arch, grouped, params, allow_idle_cores=True)
    evaluate_mapping(arch, grouped, params, unpack_cost(best[0]).mapping)
    of_one = params, np.zeros(1, np.int64), np.array([grouped.sizes])
    find_best_many(arch, *of_one, layouts, allow_idle_cores=True)
    replay_mappings(*of_one, best, layouts)
    replay_mappings(*of_one, best)


def compile_multicore() -> None:
    """Both timings: search, the best few, a batch, one mapping, plans."""
    overlap = load_arch("demo-8core")
    assert isinstance(overlap, MulticoreSpec)
    for arch in (overlap, overlap.with_(timing="pipeline")):
        evaluator = GEMMEvaluator(arch, disk_cache=False)
        evaluator.evaluate(*SHAPE).explain()
        found = evaluator.top(GemmProblem(*SHAPE), 2)[0]
        evaluator.evaluate_mapping(found.problem, found.mapping)
        evaluator.evaluate_attention(batch=1, q_len=64, kv_len=64, num_heads=2)
        evaluator.evaluate_many([SHAPE, (1, 64, 64, 128)])
        compile_grouped(arch)
    for plan in ("balanced", PlanOptions.heuristic(2, 2)):
        GEMMEvaluator(overlap, plan=plan, disk_cache=False).evaluate(*SHAPE)


def compile_gpu() -> None:
    """Plain and W4A16 kernels: search, the best few, a batch, one config."""
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    for dtype in ("fp16", "w4a16"):
        evaluator.evaluate(*SHAPE, dtype=dtype).explain()
        found = evaluator.top(evaluator.evaluate(*SHAPE, dtype=dtype).problem, 2)[0]
        evaluator.evaluate_mapping(found.problem, found.mapping)
        evaluator.evaluate_many([SHAPE, (1, 64, 64, 128)], dtype)


if __name__ == "__main__":
    compile_multicore()
    compile_gpu()
    pareto_rank([[1.0, 2.0, 3.0]])
