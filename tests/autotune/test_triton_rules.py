"""Pruning of Triton configs without Triton: rules, ranking in two steps, what stays of a list, and what is said."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GemmEvalError, GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import KernelArguments, TritonPruner, is_small, reject_configs
from gemm_eval.autotune.triton import compile as touching
from gemm_eval.autotune.triton.arguments import SMALL_SHARE, reject_alone, work_us
from gemm_eval.autotune.triton.pruner import COMPILED_PER_KEPT, MIN_COMPILED, num_kept, rank_configs
from gemm_eval.errors import ArchNotFoundError, InvalidOptionError, UnsupportedError
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from tests.autotune.fake_triton import FakeConfig, FakeModel, area, code_of, tensors, tiles

# ---- rules -----------------------------------------------------------------------------------------------------------


H200 = load_arch("h200-sxm", GpuSpec)
A100 = load_arch("a100-sxm-80gb", GpuSpec)
FP16 = GemmProblem(1, 4096, 4096, 4096)
FP8 = GemmProblem(1, 4096, 4096, 4096, input_dtype="fp8", output_dtype="bf16")
W4A16 = GemmProblem(1, 4096, 4096, 4096, weight_dtype="int4", group_size=128)
GOOD = TritonConfig(128, 128, 64, 8, 3)


def reject(config: TritonConfig, problem: GemmProblem = FP16, arch: GpuSpec = H200) -> Any:
    return reject_configs(arch, problem, [config])[0]


@pytest.mark.parametrize(
    ("changes", "rule", "numbers", "can_run"),
    [
        ({"block_m": 96}, "blocks", "block M 96", False),
        ({"block_k": 8}, "k_step", "block K 8 is no multiple of 16", False),
        ({"num_warps": 3}, "launch", "3 warps", False),
        ({"num_warps": 64}, "launch", "64 warps.* at most 32", False),
        ({"num_stages": 0}, "launch", "0 stages", False),
        ({"num_ctas": 32}, "launch", "32 CTAs.*at most 8", False),
        ({"split_k": 0}, "launch", "split-K 0", False),
        ({"block_m": 16, "block_n": 32}, "mma_shape", "512 elements of C for 8 warps.* 1024", True),
        ({"block_m": 256, "block_n": 256}, "registers", "256 accumulators .* are 282 registers, there are 255", True),
        ({"num_warps": 4, "maxnreg": 152}, "registers", "are 154 registers, there are 152", True),
        ({"block_m": 256, "block_n": 256, "num_warps": 16}, "registers", "there are 128", True),
        ({"block_k": 256}, "shared_memory", "at least 262,144 bytes .* in 3 stages, a CTA has 232,448", False),
        ({"split_k": 65}, "split_k", "split-K 65 of 64 steps", True),
    ],
)
def test_each_rule_says_demand_and_limit(changes: dict[str, int], rule: str, numbers: str, can_run: bool) -> None:
    found = reject(GOOD._replace(**changes))

    assert (found.rule, found.can_run) == (rule, can_run)
    assert re.search(numbers, found.reason), found.reason
    assert "\n" not in found.reason


def test_shared_memory_is_that_of_the_gpu() -> None:
    config = GOOD._replace(block_k=128, num_stages=4)  # 196,608 bytes at least

    assert reject(config, arch=H200) is None
    assert reject(config, arch=A100).rule == "shared_memory"
    assert reject(config, FP8, load_arch("l40s", GpuSpec)) is None
    assert reject(config, W4A16, A100) is None  # only A is sure to be there


def test_accumulators_in_tensor_memory_take_no_registers() -> None:
    b200 = load_arch("b200", GpuSpec)
    assert reject(TritonConfig(128, 256, 64, 4, 3), arch=b200) is None
    assert reject(TritonConfig(128, 256, 64, 4, 3), arch=H200).rule == "registers"


def test_a_tile_far_beyond_the_problem_falls_if_a_smaller_one_stands() -> None:
    problem = GemmProblem(1, 20, 4096, 4096)
    large, medium, small = (TritonConfig(size, 64, 64, 4, 3) for size in (128, 64, 32))

    found = reject_configs(A100, problem, [large, medium, small])
    assert [no and no.rule for no in found] == ["oversized", "oversized", None]
    assert "block M 128 for M = 20: 32 does" in found[0].reason  # type: ignore[union-attr]
    assert reject_configs(A100, problem, [large, medium]) == (None, None)
    # 64 rows are one wgmma: not known to be waste
    assert [no and no.rule for no in reject_configs(H200, problem, [large, medium, small])] == ["oversized", None, None]


def test_a_witness_that_falls_itself_counts_for_nothing() -> None:
    problem = GemmProblem(1, 16, 4096, 4096)
    broken = TritonConfig(16, 64, 8, 4, 3)

    assert reject_configs(A100, problem, [TritonConfig(128, 64, 64, 4, 3), broken])[0] is None


SOME_CONFIGS = st.builds(
    TritonConfig, *(st.sampled_from([8, 16, 32, 48, 64, 128, 256]),) * 3, st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.integers(0, 7), split_k=st.integers(1, 16),
)  # fmt: skip
SOME_PROBLEMS = st.builds(
    GemmProblem, st.just(1), *(st.integers(1, 10_000),) * 3,
    input_dtype=st.sampled_from(["fp16", "bf16", "fp8", "int8"]),
)  # fmt: skip


@given(SOME_PROBLEMS, st.lists(SOME_CONFIGS, min_size=1, max_size=12))
def test_comparing_never_rejects_all(problem: GemmProblem, configs: list[TritonConfig]) -> None:
    alone = [reject_alone(H200, problem, config) is not None for config in configs]
    found = reject_configs(H200, problem, configs)

    assert all(no is not None for no, broken in zip(found, alone, strict=True) if broken)
    assert any(no is None for no in found) == (not all(alone))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (GemmProblem(1, 16, 128, 128), True),
        (GemmProblem(1, 256, 256, 256), False),
        (GemmProblem(1, 1, 128, 512), True),
        (GemmProblem(1, 16, 4096, 64), False),  # a long way along K
        (GemmProblem(1, 16, 128, 65536), False),  # 16 MiB of weights
        (GemmProblem(64, 128, 128, 128), False),
        (GemmProblem(1, 16, 128, 128, weight_dtype="int4", group_size=128), True),
        (GemmProblem(1, 16, 256, 256, weight_dtype="int4", group_size=128), False),
        (GemmProblem(1, 1, 2048, 1024, weight_dtype="int4", group_size=128), False),  # unpacking 1 MiB takes its time
        (GemmProblem(1, 4096, 4096, 4096), False),
    ],
)
def test_small_is_what_a_launch_costs(problem: GemmProblem, expected: bool) -> None:
    assert is_small(problem, H200) is expected
    assert (work_us(problem, H200) <= SMALL_SHARE * H200.graph_node_us) is expected


# ---- ranking ---------------------------------------------------------------------------------------------------------


RANKED = [TritonConfig(64, 64, 64, 4, 3, group_m=i + 1) for i in range(40)]  # distinct, and all sound
BROKEN = [config._replace(block_k=8) for config in RANKED[:3]]
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
    configs: Sequence[TritonConfig] = RANKED
    us: Us = by_group
    answers: Answers | None = None
    options: Mapping[str, Any] = {}
    batches: Sequence[Sequence[int]] = ()
    reasons: Mapping[int, str] = {}
    note: str = ""


CASES = {
    "without a compiler the estimate decides": Case(
        [39, 38, 37], RANKED[::-1], reasons={0: "number 40: the best 3 stay"}
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
            9: code_of(RANKED[9], smem_bytes=H200.smem_per_cta_bytes + 1, is_compiled=True),
            10: code_of(RANKED[10]._replace(num_warps=16), registers=168, is_compiled=True),
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
        [0, 1, 2], [*RANKED[:3], BROKEN[0]], us=lambda *_: math.inf, options={"k": 1}, note="what rules leave stay"
    ),
    "what the model cannot launch falls": Case(
        range(1, 40), us=lambda config, _: math.inf if config.group_m == 1 else config.group_m, options={"k": 40},
        reasons={0: "cannot be launched"},
    ),
    "a small GEMM gets the estimate at once": Case(
        [0], answers={}, options={"k": 8, "is_small": True}, reasons={1: "a small GEMM"}
    ),
    "a small GEMM prefers what surely launches": Case([1], [RISKY, RANKED[4]], options={"k": 2, "is_small": True}),
    "a single candidate is not compiled": Case([0], RANKED[:1], answers={}),
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
    ranking = rank_configs(H200, FP16, case.configs, numbers, kernel="k", model=FakeModel(case.us), **options)
    verdicts = {verdict.given: verdict for verdict in ranking.verdicts}
    assert ranking.kept == list(case.kept) == list(verdicts)[: len(case.kept)]
    assert sorted(verdicts) == list(numbers)
    assert batches == [list(batch) for batch in case.batches]
    assert ranking.num_compiled == sum(map(len, batches))
    assert ranking.is_small is case.options.get("is_small", False)
    read = {i for batch in batches for i in batch if isinstance((case.answers or {}).get(i, code_of(RANKED[0])), tuple)}
    assert {i for i, verdict in verdicts.items() if verdict.is_compiled} == read
    for i, reason in case.reasons.items():
        assert reason in verdicts[i].reason
    assert all(not verdicts[i].reason for i in case.kept)
    assert case.note in "".join(ranking.notes)
    for i in case.kept:
        assert verdicts[i].time_us in (None, case.us(case.configs[i], i in read))


# ---- pruning ---------------------------------------------------------------------------------------------------------


CALL = {**tensors(), "M": 4096, "N": 4096, "K": 4096}
SMALL = CALL | {"M": 16, "N": 128, "K": 128}


def pruner(**options: Any) -> TritonPruner:
    return TritonPruner("h200-sxm", **{"model": FakeModel(area), **options})


@pytest.mark.parametrize(
    ("top_k", "num_configs", "expected"),
    [
        (0.2, 72, 14), (0.2, 4, 1), (0.2, 1, 1), (0.01, 3, 1), (0.29, 100, 29), (0.7, 10, 7), (1.0, 5, 5),
        (1, 5, 1), (3, 5, 3), (9, 5, 5),
    ],
)  # fmt: skip
def test_top_k_is_a_count_or_a_share_rounded_down(top_k: float, num_configs: int, expected: int) -> None:
    assert num_kept(top_k, num_configs) == expected


@pytest.mark.parametrize("top_k", [0, -1, 0.0, 1.5, -0.1, True, "3", None, math.nan])
def test_top_k_out_of_range(top_k: Any) -> None:
    with pytest.raises(InvalidOptionError, match="top_k must be"):
        pruner(top_k=top_k)


def test_the_best_stay_in_order_and_never_none() -> None:
    configs, hopeless = tiles(), tiles(sizes=(48, 96))
    assert pruner(top_k=2).early_config_prune(configs, CALL) == [
        configs[2],
        configs[1],
    ]  # 16x16 is below one mma a warp
    six_break_a_rule = [*configs, *tiles(sizes=(48,) * 6)]
    assert len(pruner(top_k=0.3).early_config_prune(six_break_a_rule, CALL)) == 3  # a share is of the full list
    chooser = pruner(top_k=1)
    assert chooser.early_config_prune(hopeless, CALL) == hopeless
    assert "all stay" in str(chooser.last)


def test_an_unknown_kind_of_kernel_keeps_all_and_warns() -> None:
    class Refuses(FakeModel):
        def triton_times(self, *args: Any) -> Any:
            raise UnsupportedError("no such tensor core")

    chooser = pruner(top_k=1, model=Refuses(area))
    with pytest.warns(UserWarning, match="no such tensor core"):
        assert len(chooser.early_config_prune(tiles(), CALL)) == 4


def test_small_problems_are_dispatched() -> None:
    configs = tiles(sizes=(64, 32))
    chooser = pruner(top_k=1.0)

    assert chooser.early_config_prune(configs, SMALL) == [configs[1]]
    assert chooser.last is not None
    assert chooser.last.is_small
    assert len(pruner(top_k=1.0, small=None).early_config_prune(configs, SMALL)) == 2
    assert len(pruner(top_k=1.0, small=lambda problem, arch: True).early_config_prune(configs, CALL)) == 1


def test_a_single_survivor_is_not_benchmarked() -> None:
    calls: list[Any] = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        calls.append(call)
        return [7.0] * len(quantiles)

    chooser = pruner(top_k=1, bench=bench)
    chooser.early_config_prune(tiles(), CALL)
    assert chooser.do_bench(pytest.fail, quantiles=(0.5, 0.2, 0.8)) == [0.01024] * 3
    assert chooser.do_bench(pytest.fail) == 0.01024
    assert calls == []

    chooser.top_k = 2
    chooser.early_config_prune(tiles(), CALL)
    assert chooser.do_bench(print, quantiles=(0.5, 0.2, 0.8)) == [7.0] * 3
    assert calls == [print]


def test_verbose_says_why_each_fell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    configs = [*tiles(), *tiles(sizes=(48,))]
    chooser = pruner(top_k=1, verbose=True)
    chooser.early_config_prune(configs, CALL)
    printed = capsys.readouterr().out

    assert "1 of 5 configs stay" in printed
    for text in ("32x32x32", "stays", "number 2: the best 1 stay", "mma_shape: 256 elements", "block M 48 is no power"):
        assert text in printed
    assert chooser.last is not None
    assert all(verdict.reason for verdict in chooser.last.verdicts if not verdict.is_kept)
    assert "block M 48 is no power" in str(chooser.last)
    pruner(top_k=1).early_config_prune(configs, CALL)
    assert capsys.readouterr().out == ""


def test_the_gpu_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "_name_of_gpu", lambda: "NVIDIA H200")
    chooser = TritonPruner(model=FakeModel(area), top_k=1)
    assert len(chooser.early_config_prune(tiles(), CALL)) == 1
    assert chooser.last is not None
    assert chooser.last.gpu == load_arch("h200-sxm").name

    monkeypatch.setattr(touching, "_name_of_gpu", lambda: "NVIDIA GeForce RTX 3060")
    with pytest.raises(ArchNotFoundError, match=r"'NVIDIA GeForce RTX 3060': give arch.*h200-sxm"):
        chooser.rank(tiles(), CALL)


def test_without_triton_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[triton\]'"):
        touching.import_triton()


def test_ranking_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    assert len(pruner(top_k=2).early_config_prune(tiles(FakeConfig), CALL)) == 2


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: pruner(arguments=KernelArguments(M="rows")).rank(tiles(), CALL), InvalidOptionError,
         r"M is 'rows', but .* have BLOCK_K"),
        (lambda: pruner().rank([], CALL), InvalidOptionError, "at least one"),
        (lambda: pruner(num_compile_threads=0), InvalidOptionError, "num_compile_threads"),
        (lambda: TritonPruner("sg2260"), InvalidOptionError, "is none"),
        (lambda: TritonPruner("h300"), ArchNotFoundError, "h300"),
    ],
)  # fmt: skip
def test_wrong_names_and_options(act: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act()
