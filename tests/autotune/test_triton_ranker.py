"""Two steps: estimates choose what is compiled, machine code chooses what stays; at least one always does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from gemm_eval import GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.ranking import COMPILED_PER_KEPT, MIN_COMPILED, rank_configs
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from tests.autotune.fake_triton import FakeModel, code_of

H200 = load_arch("h200-sxm", GpuSpec)
PROBLEM = GemmProblem(1, 4096, 4096, 4096)
CONFIGS = [TritonConfig(64, 64, 64, 4, 3, group_m=i + 1) for i in range(40)]  # distinct, and all sound
BROKEN = [config._replace(block_k=8) for config in CONFIGS[:3]]
SPILLS = [TritonConfig(256, 256, 64, 8, 2, group_m=group) for group in (3, 2, 1)]
RISKY = TritonConfig(128, 128, 128, 8, 4, group_m=1)  # 196,608 to 262,144 bytes and a little: perhaps too much
FAILS = "it does not compile: no"
Answers = Mapping[int, KernelCode | str | None]
Us = Callable[[TritonConfig, bool], float]


def by_group(config: TritonConfig, is_compiled: bool) -> float:
    return float(config.group_m)


class Case(NamedTuple):
    """Configs, how they are ranked, and what stays; `answers` of a compiler by index, {}: codes of all."""

    kept: Sequence[int]
    configs: Sequence[TritonConfig] = CONFIGS
    us: Us = by_group
    answers: Answers | None = None
    options: Mapping[str, Any] = {}
    batches: Sequence[Sequence[int]] = ()
    reasons: Mapping[int, str] = {}
    note: str = ""


CASES = {
    "without a compiler the estimate decides": Case(
        [39, 38, 37], CONFIGS[::-1], reasons={0: "number 40: the best 3 stay"}
    ),
    "only the best by estimate are compiled": Case(
        range(6), answers={}, batches=[range(6 * COMPILED_PER_KEPT)],
        reasons={12: "number 13 by estimate, the best 12 were compiled"},
    ),
    "at least so many are compiled": Case([0], answers={}, batches=[range(MIN_COMPILED)]),
    "as many are compiled as are asked for": Case([0], answers={}, options={"num_to_compile": 2}, batches=[range(2)]),
    "machine code overturns the estimate": Case(
        [7, 6], us=lambda config, is_compiled: 100.0 - config.group_m if is_compiled else config.group_m, answers={},
        batches=[range(8)], reasons={5: "number 3: the best 2 stay"},
    ),
    "what does not compile or launch falls and others take its place": Case(
        [11, 12, 13, 14],
        answers={
            **dict.fromkeys(range(9), FAILS),
            9: code_of(CONFIGS[9], smem_bytes=H200.smem_per_cta_bytes + 1, is_compiled=True),
            10: code_of(CONFIGS[10]._replace(num_warps=16), registers=168, is_compiled=True),
        },
        batches=[range(8), [8, 9, 10, 11], [12, 13, 14]],
        reasons={
            0: FAILS, 9: "232,449 bytes of shared memory, 4 warps of 64 registers; a CTA has at most 232,448",
            10: "16 warps of 168 registers",
        },
    ),
    "code that cannot be read leaves the estimate": Case([0], answers={0: None}, batches=[range(8)]),
    "if nothing compiles the estimate decides": Case(
        [0, 1], answers=dict.fromkeys(range(40), FAILS), note=FAILS,
        batches=[range(8), *([i, i + 1] for i in range(8, 40, 2))],
    ),
    "if every config breaks a rule the best that runs stays": Case(
        [2], [*SPILLS, BROKEN[0]], reasons={3: "k_step"}, note="every config breaks a rule"
    ),
    "if none can run all stay": Case([0, 1, 2], BROKEN, options={"k": 1}, note="all stay"),
    "if none can launch all that rules leave stay": Case(
        [0, 1, 2], [*CONFIGS[:3], BROKEN[0]], us=lambda *_: math.inf, options={"k": 1}, note="what rules leave stay"
    ),
    "what the model cannot launch falls": Case(
        range(1, 40), us=lambda config, _: math.inf if config.group_m == 1 else config.group_m, options={"k": 40},
        reasons={0: "cannot be launched"},
    ),
    "a small GEMM gets the estimate at once": Case(
        [0], answers={}, options={"k": 8, "is_small": True}, reasons={1: "a small GEMM"}
    ),
    "a small GEMM prefers what surely launches": Case([1], [RISKY, CONFIGS[4]], options={"k": 2, "is_small": True}),
    "a single candidate is not compiled": Case([0], CONFIGS[:1], answers={}),
    **{
        f"ties go to the first {k}": Case(range(k), us=lambda *_: 1.0) for k in (1, 7, 40)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ranking(case: Case) -> None:
    batches: list[list[int]] = []

    def compile_configs(indices: Sequence[int]) -> list[KernelCode | str | None]:
        assert case.answers is not None
        batches.append(list(indices))
        return [case.answers.get(i, code_of(case.configs[i], is_compiled=True)) for i in indices]

    options = {"k": len(case.kept), "code_of": None if case.answers is None else compile_configs, **case.options}
    numbers = range(len(case.configs))  # in the place of Triton's configs
    ranking = rank_configs(H200, PROBLEM, case.configs, numbers, kernel="k", model=FakeModel(case.us), **options)
    verdicts = {verdict.given: verdict for verdict in ranking.verdicts}
    assert ranking.kept == list(case.kept) == list(verdicts)[: len(case.kept)]
    assert sorted(verdicts) == list(numbers)
    assert batches == [list(batch) for batch in case.batches]
    assert ranking.num_compiled == sum(map(len, batches))
    assert ranking.is_small is case.options.get("is_small", False)
    read = {
        i for batch in batches for i in batch if isinstance((case.answers or {}).get(i, code_of(CONFIGS[0])), tuple)
    }
    assert {i for i, verdict in verdicts.items() if verdict.is_compiled} == read
    for i, reason in case.reasons.items():
        assert reason in verdicts[i].reason
    assert all(not verdicts[i].reason for i in case.kept)
    assert case.note in "".join(ranking.notes)
    for i in case.kept:
        assert verdicts[i].time_us in (None, case.us(case.configs[i], i in read))
