"""Laws of grouped GEMMs on GPUs, on random groups for each library that runs them (`tests.grouped_cases`).

The search is compared with the whole list of configs, one order of groups with another, groups with a row or a group
more, answers with the data sheet, and batches on all threads with their problems one by one. More rows may help by a
part that is stated for each library: a tile more can spare a wave of another kernel, and wait less.
"""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemm_eval import GemmProblem
from gemm_eval.models.gpu import pack_gpu
from gemm_eval.search.gpu import find_best_config, find_best_config_many, find_top_configs
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import pack_layouts
from tests.grouped_cases import CASES, GroupedCase, draw_problem, problem_of
from tools.laws.report import Report

ROUNDING = 1e-9
_PROBLEMS = 50  # of one library, types and states
_COUNTS = ("num_candidates", "num_bounded")


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random grouped GEMMs, rounded up."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _PROBLEMS):
        case = CASES[(seed + start // _PROBLEMS) % len(CASES)]
        _Checks(case, rng, report, min(_PROBLEMS, count - start)).check()
    return report


class _Checks:
    def __init__(self, case: GroupedCase, rng: random.Random, report: Report, num: int) -> None:
        self.case, self.rng, self.report = case, rng, report
        self.arch = case.arch
        self.l2 = rng.choice(("cold", "cold-all", "warm"))
        self.packed = pack_gpu(self.arch, case.types, case.options(self.l2))
        drawn = (draw_problem(rng, case.types) for _ in range(num))
        self.problems = [problem for problem in drawn if problem.row_groups is not None]  # others are batches

    def check(self) -> None:
        found = self.find(self.problems)
        latency_us = found["latency_us"]
        self.check_search(found)
        self.check_data_sheet(latency_us)
        shuffled = self.changed(lambda groups: [*self.rng.sample(groups, len(groups)), 0])
        self.same("the order of groups, and groups without rows, change nothing", found, shuffled)
        more = self.changed(self._with_a_row)
        self.no_faster("a row more", more["latency_us"], latency_us)
        more = self.changed(lambda groups: [*groups, self.rng.choice(groups)])
        self.no_faster("a group more", more["latency_us"], latency_us)

    def find(self, problems: Sequence[GemmProblem]) -> npt.NDArray[np.void]:
        sizes = np.array([problem.sizes for problem in problems], np.int64)
        layouts = pack_layouts([problem.row_groups for problem in problems])
        return find_best_config_many([self.packed], np.zeros(len(sizes), np.int64), sizes, layouts=layouts)

    def changed(self, change: object) -> npt.NDArray[np.void]:
        """Answers with the rows of groups changed."""
        return self.find([
            problem_of(tuple(change(list(problem.row_groups or ()))), problem.K, problem.N, self.case.types)  # type: ignore[operator]
            for problem in self.problems
        ])  # fmt: skip

    def check_search(self, found: npt.NDArray[np.void]) -> None:
        law = "the search is the best of the whole list, and of a batch"
        for problem, record in zip(self.problems, found, strict=True):
            alone = find_best_config(self.arch, problem, self.packed)[0]
            first = find_top_configs(self.arch, problem, self.packed, 1)[0]
            self.report.checked[law] += 1
            kept = [name for name in found.dtype.names or () if name not in _COUNTS]
            if len({tuple(answer[name].tobytes() for name in kept) for answer in (record, alone, first)}) > 1:
                self.violates(law, problem, record)

    def check_data_sheet(self, latency_us: npt.NDArray[np.float64]) -> None:
        law = "no faster than the data sheet"
        types = self.case.types
        rate = self.arch.tensor_flop_per_cycle[types.a.dtype] * self.arch.num_sms * self.arch.max_clock_ghz * 1e3
        dram = bytes_per_us(self.arch.dram_gb_per_s) * 1.1  # as a fitted share of one kernel's may be
        for problem, time in zip(self.problems, latency_us.tolist(), strict=True):
            rows = problem.row_groups or ()
            num_active = sum(num > 0 for num in rows)
            weights_us = num_active * types.b.total_bits(problem.N, problem.K) / 8 / dram
            least = max(2.0 * sum(rows) * problem.K * problem.N / rate, 0.0 if self.l2 == "warm" else weights_us)
            self.report.checked[law] += 1
            if time < least * (1.0 - ROUNDING):
                self.violates(law, problem, f"{time} us, at least {least}")

    def same(self, law: str, one: npt.NDArray[np.void], other: npt.NDArray[np.void]) -> None:
        for problem, first, second in zip(self.problems, one, other, strict=True):
            self.report.checked[law] += 1
            if first.tobytes() != second.tobytes():
                self.violates(law, problem, f"{first}, {second}")

    def no_faster(self, what: str, more_us: npt.NDArray[np.float64], fewer_us: npt.NDArray[np.float64]) -> None:
        law = f"{what} helps by little"
        for problem, more, fewer in zip(self.problems, more_us.tolist(), fewer_us.tolist(), strict=True):
            self.report.checked[law] += 1
            gain = 1.0 - more / fewer
            if gain > ROUNDING:
                self.report.except_(f"{law}: {self.case}", gain)
            if gain > self.case.row_helps:
                self.violates(law, problem, f"{fewer} to {more} us, by {gain:.3f}")

    def violates(self, law: str, problem: GemmProblem, what: object) -> None:
        self.report.violations.append(f"{law}: {self.case} {self.l2} {problem}: {what}")

    def _with_a_row(self, groups: list[int]) -> list[int]:
        groups[self.rng.randrange(len(groups))] += 1
        return groups
