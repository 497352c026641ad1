"""Savings and losses of each search plan: ``make plans`` prints them.

Loss is the latency of a plan's mapping over that of the exact search, minus one, over 2,000 transformer GEMMs on chips
of four core counts. Both are timed in one run, and the mappings that a plan costs are counted.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, MulticoreSpec, PlanOptions, SearchPlan, load_arch
from tests.benchmarks.transformer_gemms import transformer_gemms

NUM_GEMMS = 2000
CORE_COUNTS = (8, 16, 64, 132)
PLANS = (
    PlanOptions(SearchPlan.BALANCED),
    PlanOptions(SearchPlan.AGGRESSIVE),
    PlanOptions.heuristic(8, 8),
    PlanOptions.heuristic(20, 10),
)


def _lines() -> Iterator[dict[str, Any]]:
    """Return the cost and loss of each plan, by cores and plan."""
    base = load_arch("demo-8core", MulticoreSpec)
    shapes = transformer_gemms(NUM_GEMMS)
    for num_cores in CORE_COUNTS:
        arch = base.with_(num_cores=num_cores, dram_gb_per_s=base.dram_gb_per_s * num_cores / base.num_cores)
        exact_us, exact = _run(GEMMEvaluator(arch, allow_idle_cores=False, disk_cache=False), shapes)
        for plan in PLANS:
            plan_us, found = _run(GEMMEvaluator(arch, plan=plan, allow_idle_cores=False, disk_cache=False), shapes)
            loss = np.array(found[0]) / np.array(exact[0]) - 1.0
            yield {
                "num_cores": num_cores,
                "plan": str(plan.plan) if plan.plan != "heuristic" else f"heuristic({plan.top_k}, {plan.top_tiles})",
                "num_mappings": statistics.median(found[1]), "loss_mean_frac": float(loss.mean()),
                "loss_p99_frac": float(np.percentile(loss, 99)), "loss_worst_frac": float(loss.max()),
                "no_loss_frac": float((loss == 0).mean()), "plan_us": plan_us, "exact_us": exact_us,
            }  # fmt: skip


def main() -> None:
    """Print a table with a row for each core count and plan; with ``--json`` one JSON document."""
    if sys.argv[1:] == ["--json"]:
        print(json.dumps({"num_gemms": NUM_GEMMS, "lines": list(_lines())}))
        return
    table = Table(title=f"Search plans against the exact search, {NUM_GEMMS:,} transformer GEMMs, demo-8core scaled")
    table.add_column("cores", justify="right")
    table.add_column("plan")
    for name in ("mappings costed", "loss mean", "p99", "worst", "no loss", "us a GEMM", "exact us"):
        table.add_column(name, justify="right")
    for num_cores, lines in groupby(_lines(), lambda line: line["num_cores"]):
        for of in lines:
            table.add_row(
                str(num_cores), of["plan"], f"{of['num_mappings']:,.0f}",
                f"{of['loss_mean_frac']:.2%}", f"{of['loss_p99_frac']:.1%}", f"{of['loss_worst_frac']:.1%}",
                f"{of['no_loss_frac']:.0%}", f"{of['plan_us']:,.0f}", f"{of['exact_us']:,.0f}",
            )  # fmt: skip
        table.add_section()
    Console(width=130).print(table)


def _run(
    evaluator: GEMMEvaluator, shapes: list[tuple[int, int, int, int]]
) -> tuple[float, tuple[list[float], list[int]]]:
    """Evaluate all; return the median time of one in us, and the latencies and numbers of mappings costed."""
    evaluator.evaluate(1, 64, 64, 64)
    latencies, counts, times = [], [], []
    for shape in shapes:
        started = time.perf_counter()
        result = evaluator.evaluate(*shape)
        times.append((time.perf_counter() - started) * 1e6)
        latencies.append(result.latency_us)
        counts.append(result.num_candidates)
    return statistics.median(times), (latencies, counts)


if __name__ == "__main__":
    main()
