"""`python -m tools.laws [LAW ...] [--count N] [--seed S] [--jobs J]`: check laws on random problems, print the counts.

Exits with 1 where one is violated. `exact`: the search of GPUs against brute force, count problems. `physics`: what a
GPU cannot do, count comparisons. `corrected`: what of it answers with learned corrections keep. `multicore`: the search
and the laws of multi-core chips, count problems; `grouped`, `gpu-grouped`: those of grouped GEMMs on them and on GPUs;
`attention`, `gpu-attention`: those of fused attention on multi-core chips and on GPUs; `presets`: what every policy of
multi-core presets keeps; `collective`: those of collectives between GPUs;
`experts`: those of layers of experts on GPUs, count layers; `memory-bound`: those of such kernels; `estimate`: those of
whole models on GPUs, count questions (300,000 take about ten minutes on 16 cores); `serving`: those of served models
(20,000 take eight minutes on one core); `training`: those of training steps.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable

from tools.laws import (
    collective,
    estimate,
    gpu_attention,
    gpu_corrected,
    gpu_exact,
    gpu_experts,
    gpu_grouped,
    gpu_physics,
    memory_bound,
    multicore,
    multicore_attention,
    multicore_grouped,
    multicore_presets,
    serving,
    training,
)
from tools.laws.report import Report

LAWS: dict[str, tuple[Callable[[int, int], Report], int]] = {
    "exact": (gpu_exact.run, 2_000),
    "physics": (gpu_physics.run, 20_000),
    "corrected": (gpu_corrected.run, 20_000),
    "multicore": (multicore.run, 50),
    "grouped": (multicore_grouped.run, 50),
    "attention": (multicore_attention.run, 50),
    "gpu-attention": (gpu_attention.run, 5_000),
    "presets": (multicore_presets.run, 50),
    "gpu-grouped": (gpu_grouped.run, 850),
    "collective": (collective.run, 5_000),
    "estimate": (estimate.run, 500),
    "experts": (gpu_experts.run, 1_000),
    "memory-bound": (memory_bound.run, 5_000),
    "serving": (serving.run, 500),
    "training": (training.run, 100),
}
"""Name -> what checks it, and how much of it one process does at a time."""


def _work(task: tuple[str, int, int]) -> Report:
    name, seed, count = task
    return LAWS[name][0](seed, count)


def main() -> int:
    """Run the laws that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tools.laws", description=__doc__)
    parser.add_argument("laws", nargs="*", metavar="LAW", help=f"of {', '.join(LAWS)}; all, if none is named")
    parser.add_argument("--count", type=int, default=100_000, help="how many of each")
    parser.add_argument("--seed", type=int, default=0, help="of the first problems; every seed has other problems")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    for name in asked.laws:
        if name not in LAWS:
            parser.error(f"no law {name!r}; there are {', '.join(LAWS)}")
    has_violations = False
    for name in asked.laws or LAWS:
        run, size = LAWS[name]
        run(0, 1)  # compiles, before the processes fork
        starts = range(0, asked.count, size)
        tasks = [
            (name, (asked.seed << 32) + place, min(size, asked.count - start)) for place, start in enumerate(starts)
        ]
        began, report = time.monotonic(), Report()
        with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
            for part in pool.imap_unordered(_work, tasks):
                report.add(part)
        print(f"{name}: {report.text()}\n{time.monotonic() - began:,.0f} s, seed {asked.seed}", flush=True)
        has_violations |= bool(report.violations)
    return int(has_violations)


if __name__ == "__main__":
    sys.exit(main())
