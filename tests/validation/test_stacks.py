"""Whole steps of stacks of layers beside what was timed: nothing is fitted on them; the figures of MODEL.md."""

import json
from statistics import fmean

import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator, estimate_model
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import shared_frac, sum_interval
from gemm_eval.evaluate.interval import SHARED_FRAC
from gemm_eval.models.gpu import SWITCH_COEFFICIENTS, SWITCH_DEFAULTS, switch_us
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork, load_model, model_operations
from gemm_eval.validation.subjects import stacks
from gemm_eval.validation.tables import measured_root
from tests.cli.commands import Ran

GPU = "h200-sxm"


@pytest.fixture(scope="module")
def lines() -> list[stacks.StackLine]:
    return list(stacks.score_stacks(GPU))


def test_every_step_is_within_eight_percent_and_three_in_the_mean(lines: list[stacks.StackLine]) -> None:
    errors = [abs(line.errors["error_frac"]) for line in lines]
    assert stacks.gpus_with_stacks() == [GPU]
    assert len(errors) == 36
    assert max(errors) < 0.08
    assert fmean(errors) < 0.03
    assert fmean(abs(line.errors["roofline_error_frac"]) for line in lines) > 0.3


def test_memory_is_within_two_percent_of_what_torch_counts(lines: list[stacks.StackLine]) -> None:
    assert max(abs(line.errors["memory_error_frac"]) for line in lines) < 0.02
    for line in lines:  # weights and cache by themselves too
        assert line.predicted_bytes[0] == pytest.approx(line.step.weight_bytes, rel=0.002)
        assert abs(line.predicted_bytes[1] - line.step.cache_bytes) < 1e6  # a workspace was counted with some


def test_four_in_five_steps_and_layers_lie_inside_their_intervals(lines: list[stacks.StackLine]) -> None:
    """Together 80%; steps alone a little less, layers a little more."""
    switches = stacks.score_switches(GPU)
    assert switches is not None
    sums = [(line.step.latency_us, tuple(line.predicted.values())) for line in lines]
    for each, low, high in ((sums, 0.70, 0.85), (switches.layers, 0.75, 0.90), ([*sums, *switches.layers], 0.75, 0.85)):
        ends = [(us, *sum_interval(parts)) for us, parts in each]
        assert low <= fmean(low_us <= us <= high_us for us, low_us, high_us in ends) <= high
    assert pytest.approx(shared_frac([*sums, *switches.layers]), abs=0.05) == SHARED_FRAC


def test_gpus_without_stacks_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="gpu must be one of h200-sxm"):
        list(stacks.list_stack_steps("b200"))


def test_what_switching_takes_is_what_a_fit_gives() -> None:
    """The defaults are the fit of all layers, rounded."""
    found = stacks.score_switches(GPU)
    assert found is not None
    assert found.num_layers == 30
    assert found.held_out_frac < 0.013
    assert found.alone_frac > 0.025
    arch = load_arch(GPU, GpuSpec)
    for rows in (1, 16, 64):
        assert switch_us(arch, rows) == pytest.approx(switch_us(arch, rows, found.coefficients), rel=0.02)


def test_a_fit_of_switches_finds_what_was_planted() -> None:
    table = pd.read_csv(measured_root(GPU) / "switches" / "layers.csv")
    assert table is not None
    planted = {"code_cycles": 700.0, "input_cycles": 1500.0, "half_rows": 12.0}
    arch = load_arch(GPU, GpuSpec)
    more_us = 5 * (
        switch_us(arch, table["batch"], planted) - switch_us(arch, table["batch"], stacks.fit_switches(GPU, table))
    )
    again = stacks.fit_switches(GPU, table.assign(layer_us=table["layer_us"] + more_us))
    for rows in (1, 16, 64):
        assert switch_us(arch, rows, again) == pytest.approx(switch_us(arch, rows, planted), rel=0.15)
    assert all(item.low <= again[item.name] <= item.high for item in SWITCH_COEFFICIENTS)


def test_switches_grow_with_rows_and_shrink_with_the_clock() -> None:
    arch = load_arch(GPU, GpuSpec)
    assert 0 < switch_us(arch, 1) < switch_us(arch, 16) < switch_us(arch, 64) == switch_us(arch, 5000) < 2
    faster = replace_clock(arch, 2 * arch.boost_clock_ghz)
    assert switch_us(faster, 16) == pytest.approx(switch_us(arch, 16) / 2)
    neutral = {item.name: item.neutral.value for item in SWITCH_COEFFICIENTS}
    assert switch_us(arch, 16, neutral | {"half_rows": 1.0}) == 0.0
    assert GEMMEvaluator("demo-8core").switch_us(16) == 0.0
    assert GEMMEvaluator(GPU).switch_us(16) == switch_us(arch, 16, SWITCH_DEFAULTS)


def replace_clock(arch: GpuSpec, ghz: float) -> GpuSpec:
    return arch.model_copy(update={"boost_clock_ghz": ghz})


def test_gemms_and_attention_of_a_step_take_it_and_memory_bound_kernels_do_not() -> None:
    ev = GEMMEvaluator(GPU)
    operations = model_operations(load_model("llama-3-8b"), phase="decode", batch_size=16, seq_len=1024)
    for cost in operation_costs(ev, operations):
        of = cost.operation.work
        if isinstance(of, GemmWork):
            alone_us = ev.evaluate_problem(of.problem).latency_us
        elif isinstance(of, AttentionWork):
            (alone,) = ev.evaluate_attention_problems([of.problem])
            alone_us = alone.latency_us
        else:
            assert isinstance(of, MemoryWork)
            continue
        assert cost.latency_us == pytest.approx(alone_us + ev.switch_us(16))


def test_the_command_prints_what_scores_say(lines: list[stacks.StackLine]) -> None:
    document = json.loads(Ran("validate", "stacks", "--json").out)
    assert [one["error_frac"] for one in document["gpus"][GPU]] == [line.errors["error_frac"] for line in lines]
    assert document["switches"][GPU]["num_layers"] == 30
    plain = Ran("validate", "stacks", "--arch", GPU, "--operations")
    assert plain.code == 0
    assert "36 steps: gemm_eval" in plain.out
    assert plain.out.count("lm_head") == 36
    assert Ran("validate", "stacks", "--arch", "b200").code == 2


def test_estimates_are_made_of_the_same_costs() -> None:
    """What stacks hold is what `estimate_model` adds up, but for the library of attention."""
    found = estimate_model("llama-3-8b", GPU, batch=16, prompt_len=1024, output_len=1)
    assert found.decode.latency_us == pytest.approx(sum(cost.total_us for cost in found.decode.costs))
