"""The best few mappings against every legal one: bounds that cut too much show in what comes after the best."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InfeasibleError, MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, enumerate_partitions
from gemm_eval.models.multicore import cost_of_mapping
from gemm_eval.models.multicore.cost_kernels import block_of, sram_used_bytes
from gemm_eval.models.multicore.count_kernels import ceil_div, reload_factors
from gemm_eval.models.multicore.params import pack_params, params_in_room
from tools.laws.multicore_draws import draw_chip, draw_problem, legal_sizes

NUM_CHIPS = 400
MOST_MAPPINGS = 6000  # of a problem; larger ones are left out
K = 25

Latencies = list[float]


def list_mappings(arch: MulticoreSpec, problem: GemmProblem, params: np.ndarray) -> Iterator[tuple[tuple, tuple]]:
    """Every legal mapping (partition, tile, order), and what names the group of which only the best is listed."""
    p = params[0]
    unit_k = int(p["unit_k"])
    for partition in enumerate_partitions(arch.num_cores, allow_idle_cores=True).tolist():
        block = block_of(p, *problem.sizes, *partition)
        cut = (block.E_G, block.E_M, block.E_N, block.E_K)
        if cut != tuple(partition) or (block.E_K > 1 and arch.reduction == "none"):
            continue  # cores that get nothing: another partition
        units = ((block.m, arch.cube_m), (block.n, arch.cube_n), (block.k, unit_k))
        for tile in itertools.product(*(legal_sizes(*unit) for unit in units)):
            if sram_used_bytes(p, *tile) > p["sram_usable_bytes"]:
                continue
            trips = [ceil_div(size, part) for size, part in zip((block.m, block.n, block.k), tile, strict=True)]
            moved = [reload_factors(int(order), *trips) for order in LoopOrder]
            for order in LoopOrder:
                if arch.timing == "pipeline":
                    yield (*partition, *tile, int(order)), (*partition, *tile, int(order))
                else:  # the first order that moves the same, and any tile_k
                    yield (*partition, *tile, int(order)), (*cut, *trips[:2], moved.index(moved[order]))


def brute_force(arch: MulticoreSpec, problem: GemmProblem) -> Latencies | None:
    """Latencies of all that `top` may list, ascending; None where there are too many."""
    params = params_in_room(pack_params(arch, problem.types), problem)
    best: dict[tuple, float] = {}
    for number, (mapping, group) in enumerate(list_mappings(arch, problem, params)):
        if number == MOST_MAPPINGS:
            return None
        cost = cost_of_mapping(params, problem, MulticoreMapping(mapping[:4], mapping[4:7], mapping[7]))
        best[group] = min(best.get(group, np.inf), float(cost["latency_us"][0]))
    return sorted(best.values())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_best_few_are_those_of_brute_force(part: int) -> None:
    num_compared = 0
    for seed in range(part, NUM_CHIPS, 4):
        rng = random.Random(seed)
        arch = draw_chip(rng)
        problem = draw_problem(rng, arch)
        expected = brute_force(arch, problem)
        if expected is None:
            continue
        num_compared += 1
        evaluator = GEMMEvaluator(arch, disk_cache=False)
        if not expected:
            with pytest.raises(InfeasibleError):
                evaluator.evaluate_problem(problem)
            continue
        assert evaluator.evaluate_problem(problem).latency_us == expected[0], seed
        assert [result.latency_us for result in evaluator.top(problem, K)] == expected[:K], seed
    assert num_compared > NUM_CHIPS // 10
