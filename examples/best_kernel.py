"""For kernel engineers: which W4A16 kernel to launch for a GEMM, without timing any, and what the runners-up cost.

python examples/best_kernel.py [K N [GPU]]
"""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, GemmProblem, select_config, w4a16_crossover
from gemm_eval.dtypes import DType


def main() -> None:
    """Print the best config for some M, the first five for one, and up to which M 4-bit weights beat cuBLAS in fp16."""
    K, N = (int(size) for size in sys.argv[1:3]) if len(sys.argv) > 2 else (4096, 12288)
    gpu = sys.argv[3] if len(sys.argv) > 3 else "h200-sxm"
    evaluator = GEMMEvaluator(gpu)
    console = Console(width=80, highlight=False)
    problems = [
        GemmProblem(1, M, K, N, input_dtype=DType.FP16, weight_dtype=DType.INT4, group_size=128)
        for M in (1, 16, 64, 256, 2048)
    ]

    table = Table(title=f"Best W4A16 kernel on {gpu}, K = {K:,}, N = {N:,}", title_justify="left")
    for name in ("M", "us", "bound", "config"):
        table.add_column(name, justify="right" if name in ("M", "us") else "left")
    for problem in problems:
        best = evaluator.evaluate_problem(problem)
        table.add_row(str(problem.M), f"{best.latency_us:.1f}", best.bound, str(best.mapping))
    console.print(table)

    configs = select_config(problems[2], gpu, k=5)
    start = time.perf_counter()
    select_config(problems[2], gpu)
    console.print(
        f"\nThe first five for M = {problems[2].M} (choosing one takes {1e6 * (time.perf_counter() - start):,.0f} us):"
    )
    for config in configs:
        result = evaluator.evaluate_mapping(problems[2], config)
        console.print(f"{result.latency_us:5.1f} us  {config}")
    console.print(f"\n{w4a16_crossover(evaluator, K=K, N=N).explain()}")


if __name__ == "__main__":
    main()
