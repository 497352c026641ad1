"""Laws of answers on the presets of multi-core chips, under every policy that they have, on random GEMMs.

Under each policy tiles fit in SRAM, no answer is above the peak, `top` begins with what `evaluate` answers, a batch
answers what single calls do, an answer costs what a replay of its mapping says, and `explain` says that no mapping is
better only where none is. Policy best is at least as good as the library with as many passes of the matrix unit, and
more cores are never slower. A library that chooses by what it believes of the chip, not by what is, may do worse with
more cores: such cases are counted.
"""

import math
import random
from collections.abc import Iterator
from functools import cache

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, InfeasibleError, MulticoreSpec, load_arch
from gemm_eval.arch import preset_files
from gemm_eval.evaluate.multicore import FIDELITY, Policy
from tools.laws.report import Report

ROUNDING = 1e-12
MAX_CORES = 256
"""Larger presets take seconds a GEMM, and are the same code."""
_BELIEVES = "a library that believes otherwise does worse with more cores"


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random GEMMs of random presets."""
    rng, report = random.Random(seed), Report()
    for _ in range(count):
        arch = rng.choice(presets())
        dtype = rng.choice(sorted(arch.cube_steps_per_cycle))
        M, K, N = (_draw_size(rng, bits) for bits in (13, 14, 14))
        problem = GemmProblem(rng.choice((1, 1, 1, 2, 5)), M, K, N, dtype)
        check_problem(arch, problem, rng, report)
    return report


@cache
def presets() -> tuple[MulticoreSpec, ...]:
    """Return the presets that are small enough."""
    archs = (load_arch(name, MulticoreSpec) for name in preset_files("multicore"))
    return tuple(arch for arch in archs if arch.num_cores <= MAX_CORES)


def check_problem(arch: MulticoreSpec, problem: GemmProblem, rng: random.Random, report: Report) -> None:
    """Check the laws of one GEMM on one preset."""
    policies = [Policy.BEST, *([Policy.LIBRARY] if arch.rules else [])]
    for policy in policies:
        evaluator = GEMMEvaluator(arch, policy=policy, disk_cache=False)
        try:
            result = evaluator.evaluate_problem(problem)
        except InfeasibleError:
            report.excepted["nothing fits"] += 1
            report.worst["nothing fits"] = 1.0
            continue
        for law, holds in _laws(evaluator, arch, result, policy):
            report.checked[law] += 1
            if not holds:
                report.violations.append(f"{law}: {result} {result.mapping} of {problem!r} on {arch.name}, {policy}")
        _check_cores(arch, problem, result, policy, rng, report)


def _laws(
    evaluator: GEMMEvaluator, arch: MulticoreSpec, result: GEMMResult, policy: Policy
) -> Iterator[tuple[str, bool]]:
    problem, latency_us = result.problem, result.latency_us
    top = evaluator.top(problem, 3)
    yield (
        "the tiles fit in SRAM",
        all(0 < (one.sram_used_bytes or 0) <= arch.sram_usable_bytes for one in (result, *top)),
    )
    yield "no answer is above the peak", all(one.utilization_frac <= 1.0 + ROUNDING for one in (result, *top))
    yield "top begins with the answer", (top[0].latency_us, top[0].mapping) == (latency_us, result.mapping)
    by_partition = evaluator.top(problem, 1, distinct="partition")[0]
    yield "top of partitions begins with the answer", by_partition.latency_us == latency_us
    table = evaluator.evaluate_many([problem], progress=False)
    yield "a batch answers what a call does", float(table["latency_us"][0]) == latency_us
    yield "a replay costs the same", evaluator.evaluate_mapping(problem, result.mapping).latency_us == latency_us
    if policy is Policy.LIBRARY:
        library = evaluator.backend._chip  # type: ignore[attr-defined]
        rates = {name: getattr(library, name) for name in FIDELITY}
        best = GEMMEvaluator(arch.with_(**rates), policy=Policy.BEST, disk_cache=False).evaluate_problem(problem)
        # a changed spec has no correction
        yield "best is at least as good as the library", best.latency_us <= result.physics_us * (1 + ROUNDING)
        yield (
            "none is better only where none is",
            ("none is better" in result.explain()) == math.isclose(best.latency_us, result.physics_us, rel_tol=1e-12),
        )


def _check_cores(
    arch: MulticoreSpec, problem: GemmProblem, result: GEMMResult, policy: Policy, rng: random.Random, report: Report
) -> None:
    if arch.num_cores == 1:
        return
    fewer = arch.with_(num_cores=rng.randint(1, arch.num_cores - 1))
    try:
        before_us = GEMMEvaluator(fewer, policy=policy, disk_cache=False).evaluate_problem(problem).latency_us
    except InfeasibleError:
        return
    law = "more cores are no slower"
    report.checked[law] += 1
    if result.physics_us > before_us * (1 + ROUNDING):  # a changed spec has no correction
        if policy is Policy.LIBRARY and arch.rules and arch.rules.believes:
            report.except_(_BELIEVES, result.physics_us / before_us)
        else:
            report.violations.append(
                f"{law}: {before_us} us on {fewer.num_cores} cores, {result} {result.mapping} of {problem!r} on "
                f"{arch.name}, {policy}"
            )


def _draw_size(rng: random.Random, most_bits: int) -> int:
    return 1 << rng.randint(0, most_bits) if rng.random() < 0.4 else int(2 ** (rng.random() * most_bits))
