"""Two steps: estimates choose what is compiled, machine code chooses what stays; at least one always does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gemm_eval import GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.ranking import COMPILED_PER_KEPT, MIN_COMPILED, Outcome, rank_configs
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from tests.autotune.fake_triton import FakeModel, code_of

H200 = load_arch("h200-sxm")
assert isinstance(H200, GpuSpec)
PROBLEM = GemmProblem(1, 4096, 4096, 4096)
CONFIGS = [TritonConfig(64, 64, 64, 4, 3, group_m=i + 1) for i in range(40)]  # distinct, and all sound


def by_group(config: TritonConfig, is_compiled: bool) -> float:
    return float(config.group_m)


class Compiler:
    """Gives codes, or what `answers` says for an index, and counts."""

    def __init__(
        self, configs: Sequence[TritonConfig], answers: dict[int, KernelCode | str | None] | None = None
    ) -> None:
        self.configs, self.answers = configs, answers or {}
        self.batches: list[list[int]] = []

    def __call__(self, indices: Sequence[int]) -> list[KernelCode | str | None]:
        self.batches.append(list(indices))
        return [self.answers.get(i, code_of(self.configs[i], is_compiled=True)) for i in indices]


def kept(outcome: Outcome) -> list[int]:
    return list(outcome.order[: outcome.num_kept])


def test_without_a_compiler_the_estimate_decides() -> None:
    outcome = rank_configs(H200, PROBLEM, CONFIGS[::-1], k=3, model=FakeModel(by_group))

    assert kept(outcome) == [39, 38, 37]
    assert sorted(outcome.order) == list(range(40))
    assert not any(outcome.is_compiled)
    assert outcome.reasons[0] == "number 40: the best 3 stay"


def test_only_the_best_by_estimate_are_compiled() -> None:
    compiler = Compiler(CONFIGS)
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=6, model=FakeModel(by_group), code_of=compiler)

    assert compiler.batches == [list(range(6 * COMPILED_PER_KEPT))]
    assert outcome.num_compiled == 12
    assert "number 13 by estimate, the best 12 were compiled" in outcome.reasons[12]
    assert [i for i, done in enumerate(outcome.is_compiled) if done] == list(range(12))
    few = Compiler(CONFIGS)
    rank_configs(H200, PROBLEM, CONFIGS, k=1, model=FakeModel(by_group), code_of=few)
    assert len(few.batches[0]) == MIN_COMPILED
    asked = Compiler(CONFIGS)
    rank_configs(H200, PROBLEM, CONFIGS, k=1, model=FakeModel(by_group), code_of=asked, num_to_compile=2)
    assert len(asked.batches[0]) == 2


def test_machine_code_overturns_the_estimate() -> None:
    model = FakeModel(lambda config, is_compiled: 100.0 - config.group_m if is_compiled else config.group_m)
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=2, model=model, code_of=Compiler(CONFIGS))

    assert kept(outcome) == [7, 6]
    assert outcome.times_us[7] == 92.0
    assert outcome.reasons[5] == "number 3: the best 2 stay"


def test_what_does_not_compile_or_launch_falls_and_others_take_its_place() -> None:
    answers: dict[int, KernelCode | str | None] = dict.fromkeys(range(9), "it does not compile: no")
    answers[9] = code_of(CONFIGS[9], smem_bytes=H200.smem_per_cta_bytes + 1, is_compiled=True)
    answers[10] = code_of(CONFIGS[10]._replace(num_warps=16), registers=168, is_compiled=True)
    compiler = Compiler(CONFIGS, answers)
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=4, model=FakeModel(by_group), code_of=compiler)

    assert compiler.batches == [list(range(8)), [8, 9, 10, 11], [12, 13, 14]]
    assert kept(outcome) == [11, 12, 13, 14]
    assert outcome.reasons[0] == "it does not compile: no"
    assert "232,449 bytes" in outcome.reasons[9]
    assert "at most 232,448" in outcome.reasons[9]
    assert "16 warps of 168 registers" in outcome.reasons[10]


def test_code_that_cannot_be_read_leaves_the_estimate() -> None:
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=1, model=FakeModel(by_group), code_of=Compiler(CONFIGS, {0: None}))

    assert kept(outcome) == [0]
    assert not outcome.is_compiled[0]


def test_if_nothing_compiles_the_estimate_decides() -> None:
    answers: dict[int, KernelCode | str | None] = dict.fromkeys(range(40), "it does not compile: syntax")
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=2, model=FakeModel(by_group), code_of=Compiler(CONFIGS, answers))

    assert kept(outcome) == [0, 1]
    assert "syntax" in outcome.notes[0]


def test_if_every_config_breaks_a_rule_the_best_that_runs_stays() -> None:
    spills = [TritonConfig(256, 256, 64, 8, 2, group_m=group) for group in (3, 2, 1)]
    outcome = rank_configs(H200, PROBLEM, [*spills, CONFIGS[0]._replace(block_k=8)], k=1, model=FakeModel(by_group))

    assert kept(outcome) == [2]
    assert "k_step" in outcome.reasons[3]
    assert "every config breaks a rule" in outcome.notes[0]


def test_if_none_can_launch_all_stay() -> None:
    broken = [config._replace(block_k=8) for config in CONFIGS[:3]]
    assert kept(rank_configs(H200, PROBLEM, broken, k=1, model=FakeModel(by_group))) == [0, 1, 2]

    hopeless = FakeModel(lambda config, is_compiled: math.inf)
    outcome = rank_configs(H200, PROBLEM, [*CONFIGS[:3], broken[0]], k=1, model=hopeless)
    assert kept(outcome) == [0, 1, 2]


def test_what_the_model_cannot_launch_falls() -> None:
    model = FakeModel(lambda config, is_compiled: math.inf if config.group_m == 1 else config.group_m)
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=40, model=model)

    assert kept(outcome) == list(range(1, 40))
    assert "cannot be launched" in outcome.reasons[0]
    assert outcome.times_us[0] is None


def test_small_dispatches_the_estimate_at_once() -> None:
    compiler = Compiler(CONFIGS)
    model = FakeModel(by_group)
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=8, model=model, code_of=compiler, is_small=True)

    assert kept(outcome) == [0]
    assert outcome.is_small
    assert compiler.batches == []
    assert "a small GEMM" in outcome.reasons[1]


def test_small_prefers_what_surely_launches() -> None:
    risky = TritonConfig(128, 128, 128, 8, 4, group_m=1)  # 196,608 to 262,144 bytes and a little: perhaps too much
    outcome = rank_configs(H200, PROBLEM, [risky, CONFIGS[4]], k=2, model=FakeModel(by_group), is_small=True)

    assert kept(outcome) == [1]


def test_a_single_candidate_is_not_compiled() -> None:
    compiler = Compiler(CONFIGS)
    outcome = rank_configs(H200, PROBLEM, CONFIGS[:1], k=1, model=FakeModel(by_group), code_of=compiler)

    assert kept(outcome) == [0]
    assert compiler.batches == []


@pytest.mark.parametrize("k", [1, 7, 40])
def test_ties_go_to_the_first(k: int) -> None:
    outcome = rank_configs(H200, PROBLEM, CONFIGS, k=k, model=FakeModel(lambda config, is_compiled: 1.0))

    assert kept(outcome) == list(range(k))
