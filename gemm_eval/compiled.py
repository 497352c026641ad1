"""Compile all kernels that the library's calls need, in several processes at a time, with one bar for all.

``python -m gemm_eval.compiled`` does it; `gemm_eval.jit` runs this command when it first finds a kernel that no earlier
process has compiled. ``GEMM_EVAL_COMPILE=needed`` has each process compile only what it calls, when it calls it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import numpy as np

from gemm_eval.arch import MulticoreSpec, load_arch
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.jit import number_functions
from gemm_eval.models.multicore import evaluate_mapping, pack_params, unpack_cost
from gemm_eval.progress import progress_bar
from gemm_eval.search import find_best, find_best_many, replay_mappings
from gemm_eval.workload import GemmProblem, pack_layouts

SHAPE = (1, 64, 64, 64)
MAX_PROCESSES = 4
"""As each takes up to 600 MB of memory."""


def compile_dense(evaluator: GEMMEvaluator, dtype: str = "fp16") -> None:
    """Search, rank, evaluate one mapping and a batch, explain."""
    problem = evaluator.evaluate(*SHAPE, dtype=dtype).problem
    best = evaluator.top(problem, 2)[0]
    evaluator.evaluate_mapping(problem, best.mapping)
    evaluator.evaluate_many([SHAPE, (1, 64, 64, 128)], dtype)["low_us"]
    best.explain()


def compile_gpu(dtype: str) -> None:
    """Compile the kernels of searches, rankings, batches and explanations on a GPU."""
    compile_dense(GEMMEvaluator("h200-sxm", disk_cache=False), dtype)


def compile_multicore(timing: str) -> None:
    """Compile the kernels of searches, rankings, batches and explanations on a multi-core chip."""
    arch = load_arch("demo-8core", MulticoreSpec).with_(timing=timing)
    compile_dense(GEMMEvaluator(arch, disk_cache=False))


def compile_fronts() -> None:
    """Compile the Pareto front of sweeps."""
    from gemm_eval.sweep import pareto_rank

    pareto_rank([[1.0, 2.0, 3.0]])


def compile_attention() -> None:
    """Search mappings of attention on a multi-core chip, and answer for the operations of a GPU."""
    from gemm_eval.moe import MoeLayer, moe_layers

    chip, gpu = (GEMMEvaluator(arch, disk_cache=False) for arch in ("demo-8core", "h200-sxm"))
    for evaluator in (chip, gpu):
        evaluator.evaluate_attention(batch=1, q_len=64, kv_len=64, num_heads=2)
    gpu.evaluate_memory_bound(1 << 20, 1 << 20)
    gpu.evaluate_collective("all_reduce", 1 << 20, 8)
    moe_layers(gpu, [MoeLayer(64, hidden=64, inter=64, num_experts=4, topk=2)], progress=False)


def compile_grouped(timing: str) -> None:
    """Search, evaluate and replay mappings of grouped GEMMs, alone and in a batch."""
    arch = load_arch("demo-8core", MulticoreSpec).with_(timing=timing)
    grouped = GemmProblem.grouped((64, 3), 64, 64)
    params, layouts = pack_params(arch, grouped.types), pack_layouts([grouped.row_groups])
    best = find_best(arch, grouped, params, allow_idle_cores=True)
    evaluate_mapping(arch, grouped, params, unpack_cost(best[0]).mapping)
    batch = params, np.zeros(1, np.int64), np.array([grouped.sizes])
    find_best_many(arch.num_cores, *batch, layouts, allow_idle_cores=True)
    replay_mappings(*batch, best, layouts)
    replay_mappings(*batch, best)


def compile_rules() -> None:
    """Search the mappings that the library of a chip chooses from by rules."""
    GEMMEvaluator("tpu-v4", disk_cache=False).evaluate(*SHAPE)


JOBS: dict[str, tuple[float, Callable[[], None]]] = {
    "grouped": (15.0, lambda: compile_grouped("overlap")),
    "multicore": (12.0, lambda: compile_multicore("overlap")),
    "attention": (11.0, compile_attention),
    "w4a16": (11.0, lambda: compile_gpu("w4a16")),
    "gpu": (8.0, lambda: compile_gpu("fp16")),
    "rules": (5.0, compile_rules),
}
"""Name -> about how many seconds of one core it takes, and what compiles it; no two compile the same large kernel."""

RARE_JOBS: dict[str, tuple[float, Callable[[], None]]] = {
    "grouped_pipeline": (19.0, lambda: compile_grouped("pipeline")),
    "multicore_pipeline": (13.0, lambda: compile_multicore("pipeline")),
    "fronts": (4.0, compile_fronts),
}
"""The same of sweeps, and of chips that no preset describes; a process that needs one compiles it."""


def start_worker() -> None:
    """Prepare a process that compiles."""
    os.environ["GEMM_EVAL_COMPILE"] = "needed"
    number_functions()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def run_job(name: str) -> float:
    """Compile the kernels of a job; return about how many seconds it takes."""
    seconds, compile_kernels = (JOBS | RARE_JOBS)[name]
    compile_kernels()
    return seconds


def main(names: list[str]) -> None:
    """Run a named job in this process; jobs in processes of their own where none is named, rare ones too by --all."""
    jobs = JOBS | RARE_JOBS
    if names and names != ["--all"]:
        for name in names:
            run_job(name)
        return
    jobs = jobs if names else JOBS
    all_s = round(sum(seconds for seconds, _ in jobs.values()))
    text, is_terminal = "gemm_eval: compiling its kernels, once per machine and version", sys.stderr.isatty()
    context = get_context("fork" if sys.platform == "linux" else "spawn")  # a fork has all modules loaded
    num_processes = min(MAX_PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, context, start_worker) as pool:
        results = as_completed([pool.submit(run_job, name) for name in jobs])  # forked before the bar has a thread
        with progress_bar(all_s, text, is_terminal or None) as advance:
            for result in results:
                advance(round(result.result()))


if __name__ == "__main__":
    main(sys.argv[1:])
