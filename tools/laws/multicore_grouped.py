"""Laws of grouped GEMMs on multi-core chips, on random chips and groups: MODEL.md, "Grouped GEMMs".

The search is compared with brute force, the cost of a mapping with the plain-Python oracle, groups with batches, and
one order of groups with another. A row more may make the best answer faster: MODEL.md says why, this counts how often.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval import GemmProblem
from gemm_eval.mapping import LoopOrder, MulticoreMapping
from gemm_eval.models.multicore import cost_of_mapping
from gemm_eval.models.multicore.model import batch_sizes, unpack_cost
from tests.oracle import naive
from tools.laws.multicore import PLAIN, ROUNDING, Case
from tools.laws.multicore_draws import draw_chip, draw_grouped, draw_mapping
from tools.laws.report import Report

MOST_GAIN_OF_A_ROW = 1.0
"""Largest share by which a row more may speed up the best answer: twice as many rows can use twice as many cores."""


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random grouped GEMMs."""
    rng, report = random.Random(seed), Report()
    for _ in range(count):
        arch = draw_chip(rng)
        case = _GroupedCase(arch, draw_grouped(rng, arch), rng, report)
        case.check_search()
        case.check_top()
        case.check_mapping()
        case.check_more_hardware()
        case.check_groups()
    return report


class _GroupedCase(Case):
    def evaluate_into(self, params: npt.NDArray[np.void], mapping: MulticoreMapping, out: Any) -> None:
        out[:] = cost_of_mapping(params, self.problem, mapping, as_groups=True)

    def check_mapping(self) -> None:
        """Laws that hold at any mapping, whether it fits in SRAM or not."""
        mapping = draw_mapping(self.rng, self.arch, self.problem, self.params)
        self.check_truth(mapping, naive.evaluate_mapping(self.arch, self.problem, mapping))
        cost = self.cost(mapping)
        self.is_most("no faster than computation alone", cost.compute_us, cost.main_us, mapping)
        self.check_buffers(mapping)
        if self.arch.noc_gb_per_s is None and not (self.arch.vector_is_concurrent and cost.vector_us > 0.0):
            pipeline = self.cost(mapping, timing="pipeline", input_buffers=2, **PLAIN)
            serial = self.cost(mapping, timing="overlap", overlap_frac=0.0, **PLAIN)
            self.is_most("no overlap is no faster than the pipeline", pipeline.latency_us, serial.latency_us, mapping)
        self.check_traffic(mapping, cost)
        self.check_orders(mapping)

    def check_groups(self) -> None:
        """Equal groups are a batch, empty ones nothing, their order is nothing, and a row more costs something."""
        groups = list(self.problem.row_groups or (self.problem.M,) * self.problem.G)
        rows = max(groups)
        equal = self._regrouped([rows] * 3 + [0] * self.rng.randint(0, 3))
        assert batch_sizes(equal.problem) == (3, rows, self.problem.K, self.problem.N)
        law = "equal groups are the batch to the bit"
        self.report.checked[law] += 1
        mapping = draw_mapping(self.rng, self.arch, equal.problem, self.params)
        mapping = mapping._replace(loop_order=self.rng.choice(tuple(LoopOrder)))
        if equal.cost(mapping) != unpack_cost(cost_of_mapping(equal.params, equal.problem, mapping)[0]):
            self.violates(law, f"{mapping}")
        before = self.best(self.arch)
        shuffled = self._regrouped([*self.rng.sample(groups, len(groups)), 0])
        law = "the order of groups, and groups without rows, change nothing"
        self.report.checked[law] += 1
        if shuffled.best(self.arch) != before:
            self.violates(law, f"{shuffled.problem}")
        if self.arch.resident:  # what no longer fits on the chip comes from DRAM, which may be the faster way
            return
        which = self.rng.randrange(len(groups))
        groups[which] += 1
        after = self._regrouped(groups).best(self.arch)
        law = "a row more is no faster"
        self.report.checked[law] += 1
        if before is not None and after is not None and after.latency_us < before.latency_us * (1 - ROUNDING):
            gain = before.latency_us / after.latency_us - 1.0
            self.report.except_(law, gain)
            if gain > MOST_GAIN_OF_A_ROW:
                self.violates(law, f"group {which}: {before.latency_us} to {after.latency_us}")

    def _regrouped(self, groups: list[int]) -> _GroupedCase:
        types = {field.name: getattr(self.problem, field.name) for field in dataclasses.fields(self.problem)[4:-2]}
        problem = GemmProblem.grouped(groups, self.problem.K, self.problem.N, **types)
        return _GroupedCase(self.arch, problem, self.rng, self.report)
