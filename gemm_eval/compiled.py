"""Compile all kernels that the library's calls need, in several processes at a time, with one bar for all.

``python -m gemm_eval.compiled`` does it; `gemm_eval.jit` runs this command when it first finds a kernel that no earlier
process has compiled. ``GEMM_EVAL_COMPILE=needed`` has each process compile only what it calls, when it calls it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gemm_eval.evaluate import GEMMEvaluator

SHAPE = (1, 64, 64, 64)
MAX_PROCESSES = 4
"""As each takes up to 600 MB of memory."""


def compile_dense(evaluator: GEMMEvaluator, dtype: str = "fp16") -> None:
    """Search, rank, evaluate one mapping and a batch, explain."""
    problem = evaluator.evaluate(*SHAPE, dtype=dtype).problem
    best = evaluator.top(problem, 2)[0]
    evaluator.evaluate_mapping(problem, best.mapping)
    evaluator.evaluate_many([SHAPE, (1, 64, 64, 128)], dtype)
    best.explain()


def compile_gpu(dtype: str) -> None:
    """Do so for the kernels of a GPU."""
    from gemm_eval.evaluate import GEMMEvaluator

    compile_dense(GEMMEvaluator("h200-sxm", disk_cache=False), dtype)


def compile_multicore(timing: str) -> None:
    """Do so for a multi-core chip, with the restricted searches and the Pareto front of sweeps."""
    from gemm_eval.arch import MulticoreSpec, load_arch
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.search import PlanOptions
    from gemm_eval.sweep import pareto_rank

    arch = load_arch("demo-8core", MulticoreSpec).with_(timing=timing)
    compile_dense(GEMMEvaluator(arch, disk_cache=False))
    if timing == "overlap":
        for plan in ("balanced", PlanOptions.heuristic(2, 2)):
            GEMMEvaluator(arch, plan=plan, disk_cache=False).evaluate(*SHAPE)
        pareto_rank([[1.0, 2.0, 3.0]])


def compile_attention() -> None:
    """Search and evaluate mappings of attention on a multi-core chip."""
    from gemm_eval.evaluate import GEMMEvaluator

    for arch in ("demo-8core", "h200-sxm"):
        GEMMEvaluator(arch, disk_cache=False).evaluate_attention(batch=1, q_len=64, kv_len=64, num_heads=2)


def compile_grouped(timing: str) -> None:
    """Search, evaluate and replay mappings of grouped GEMMs, alone and in a batch."""
    from gemm_eval.arch import MulticoreSpec, load_arch
    from gemm_eval.models.multicore import evaluate_mapping, pack_params, unpack_cost
    from gemm_eval.search import find_best, find_best_many, replay_mappings
    from gemm_eval.workload import GemmProblem, pack_layouts

    arch = load_arch("demo-8core", MulticoreSpec).with_(timing=timing)
    grouped = GemmProblem.grouped((64, 3), 64, 64)
    params, layouts = pack_params(arch, grouped.types), pack_layouts([grouped.row_groups])
    best = find_best(arch, grouped, params, allow_idle_cores=True)
    evaluate_mapping(arch, grouped, params, unpack_cost(best[0]).mapping)
    batch = params, np.zeros(1, np.int64), np.array([grouped.sizes])
    find_best_many(arch, *batch, layouts, allow_idle_cores=True)
    replay_mappings(*batch, best, layouts)
    replay_mappings(*batch, best)


JOBS: dict[str, tuple[float, Callable[[], None]]] = {
    "grouped": (16.0, lambda: compile_grouped("overlap")),
    "multicore": (14.0, lambda: compile_multicore("overlap")),
    "attention": (10.0, compile_attention),
    "w4a16": (8.0, lambda: compile_gpu("w4a16")),
    "grouped_pipeline": (8.0, lambda: compile_grouped("pipeline")),
    "gpu": (6.0, lambda: compile_gpu("fp16")),
    "multicore_pipeline": (4.0, lambda: compile_multicore("pipeline")),
}
"""Name -> about how many seconds of one core it takes, and what compiles it; no two compile the same large kernel."""


def run_job(name: str) -> float:
    """Compile the kernels of a job in a process of its own; return the job's seconds.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    environment = os.environ | {"GEMM_EVAL_COMPILE": "needed"}
    command = [sys.executable, "-m", "gemm_eval.compiled", name]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return JOBS[name][0]


def main(names: list[str]) -> None:
    """Run the named jobs in this process; all of them, each in its own, where none is named."""
    for name in names:
        JOBS[name][1]()
    if names:
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    num_processes = min(MAX_PROCESSES, os.cpu_count() or 1)
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(num_processes) as pool:
        text = "gemm_eval: compiling its kernels, once per machine and version"
        bar = progress.add_task(text, total=sum(seconds for seconds, _ in JOBS.values()))
        for done in as_completed([pool.submit(run_job, name) for name in JOBS]):
            progress.advance(bar, done.result())


if __name__ == "__main__":
    main(sys.argv[1:])
