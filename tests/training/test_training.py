"""Training steps: terms, memory and layouts, and schedules of pipelines."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import (
    GEMMEvaluator,
    InfeasibleError,
    InvalidOptionError,
    UnsupportedError,
    load_arch,
    load_model,
    prewarm_for_transformer,
)
from gemm_eval.cli.subjects import VALIDATE
from gemm_eval.sweep import transformer_workloads
from gemm_eval.training import (
    BREAKDOWN,
    StageTimes,
    Task,
    TrainingEstimate,
    estimate_training,
    find_training_layouts,
    model_flop,
    num_in_flight,
    schedule_us,
    stage_chunks,
    timeline,
)
from gemm_eval.training.step import stage_parts
from gemm_eval.transformer import (
    GemmWork,
    ModelConfig,
    count_parameters,
    legal_layouts,
    training_parts,
    transformer_gemms,
)
from gemm_eval.validation.subjects.stacks import published_runs

# ---- training --------------------------------------------------------------------------------------------------------


H100 = GEMMEvaluator("h100-sxm", clock="sustained", disk_cache=False)
GPT3 = load_model("gpt-3-175b")


def estimate(model: Any = "llama-3-8b", arch: Any = H100, **options: Any) -> TrainingEstimate:
    return estimate_training(model, arch, **{"global_batch": 64, "seq_len": 4096, "ignore_memory": True} | options)


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "mxfp8"])
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_each_gemm_has_two_gradients_of_its_work(model: str, dtype: str) -> None:
    gemms = {g.name: g for g in transformer_gemms(
        load_model(model), phase="train", batch_size=2, seq_len=256, dtype=dtype
    )}  # fmt: skip
    for name in [name for name in gemms if not name.endswith("grad")]:
        forward, dgrad, wgrad = (gemms[f"{name}{end}"].problem for end in ("", "_dgrad", "_wgrad"))
        assert dgrad.flop == forward.flop
        assert wgrad.flop == pytest.approx(forward.flop, rel=0.05)  # groups have a mean length
        assert (dgrad.K, dgrad.N, dgrad.row_groups) == (forward.N, forward.K, forward.row_groups)
        assert (wgrad.M, wgrad.N) == (forward.N, forward.K)
        is_wide = forward.input_dtype.bits == 16
        assert (dgrad.layout, wgrad.layout) == (("nn", "nt") if is_wide else ("tn", "tn"))
        assert str(wgrad.output_dtype) == ("fp32" if gemms[name].is_weight else str(forward.output_dtype))
        assert (dgrad.accumulate, wgrad.accumulate) == ((None, None) if is_wide or dtype != "fp8" else ("full", "full"))
    kept = {name for name, gemm in gemms.items() if gemm.problem.input_dtype.bits == 16}
    assert {"lm_head", "lm_head_wgrad"} <= kept
    assert ("o_proj_wgrad" in kept) == (dtype == "bf16")
    assert gemms["lm_head"].problem.M == 512


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="has no gradients: train in a type"):
        transformer_gemms(load_model("llama-3-8b"), phase="train", batch_size=1, seq_len=64, dtype="w4a16")
    with pytest.raises(InvalidOptionError, match="new_tokens is of inference"):
        transformer_gemms(load_model("llama-3-8b"), phase="train", batch_size=1, seq_len=64, new_tokens=1)
    for options, words in (
        ({"zero": 4}, "zero must be"), ({"recompute": "some"}, "recompute"), ({"overlap": {"xp": 1.0}}, "overlap"),
        ({"overlap": {"tp": 2.0}}, "overlap of tp must be in 0..1"), ({"num_chunks": 2}, "interleaved"),
        ({"data_parallel": 3}, "global_batch must be"), ({"num_devices": 3, "tensor_parallel": 2}, "num_devices"),
        ({"expert_parallel": 2}, "expert_parallel"), ({"context_parallel": 3}, "chunks"),
    ):  # fmt: skip
        with pytest.raises(InvalidOptionError, match=words):
            estimate(**options)
    with pytest.raises(UnsupportedError, match="joins"):
        estimate(arch="l40s", num_devices=64)
    with pytest.raises(UnsupportedError, match=r"a100-sxm-80gb does not multiply fp8, .*; use fp16"):
        estimate(arch="a100-sxm-80gb", dtype="fp8")


def test_a_microbatch_has_the_flop_of_three_passes() -> None:
    """Six for each parameter of a GEMM and token, on all devices together."""
    for model, ranks in (("llama-3-8b", 4), ("qwen3-30b-a3b", 1)):
        config = load_model(model)
        parts = training_parts(config, batch_size=1, seq_len=2048, tensor_parallel=ranks)
        flop = sum(
            op.work.problem.flop * op.num_layers * max(1, len(part.layers))
            for part in parts for op in part.operations if isinstance(op.work, GemmWork)
        )  # fmt: skip
        counts = count_parameters(config)
        used = counts.layer_matrices - counts.idle_experts + config.vocab_size * config.hidden_size
        assert flop * ranks == pytest.approx(6 * used * 2048, rel=1e-3)


def test_messages_of_sequence_parallelism_come_back() -> None:
    """Korthikanti et al. 2022: four all-gathers and reduce-scatters a layer and pass, inputs are gathered once more."""
    (layer,) = [p for p in training_parts(GPT3, batch_size=1, seq_len=2048, tensor_parallel=8) if p.layers]
    for operations, gathers, scatters in ((layer.forward, 2, 2), (layer.dgrad, 2, 2), (layer.wgrad, 2, 0)):
        whats = Counter(op.work.what for op in operations if op.kind == "collective")  # type: ignore[union-attr]
        assert (whats["all_gather"], whats["reduce_scatter"]) == (gathers, scatters)


def test_activations_are_those_of_the_published_formula() -> None:
    """Korthikanti et al. 2022, equation 4: 34 sbh / t with fused attention; 2 of these are dropout masks."""
    for ranks in (1, 8):
        (layer,) = [p for p in training_parts(GPT3, batch_size=1, seq_len=2048, tensor_parallel=ranks) if p.layers]
        sums = 4 * 2048 * GPT3.attention.num_heads // ranks  # of each row of the softmax, in fp32
        assert layer.saved_bytes == pytest.approx(32 * 2048 * GPT3.hidden_size / ranks + sums)
        assert layer.input_bytes == 2 * 2048 * GPT3.hidden_size // ranks


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_terms_add_up_and_figures_follow_from_each_other() -> None:
    found = estimate(num_devices=8, tensor_parallel=2, pipeline_parallel=2, recompute="selective")
    assert tuple(found.breakdown) == BREAKDOWN
    assert sum(found.breakdown.values()) == pytest.approx(found.latency_us)
    assert found.low_us < found.latency_us < found.high_us
    assert found.tokens_per_s_per_device == pytest.approx(64 * 4096 / found.latency_us * 1e6 / 8)
    peak = load_arch("h100-sxm").peak_tflop_per_s("bf16") * 1e6 * 8  # FLOP a microsecond
    assert found.mfu_frac == pytest.approx(64 * model_flop(load_model("llama-3-8b"), 4096) / found.latency_us / peak)
    assert found.palm_mfu_frac > found.mfu_frac == found.hfu_frac
    document = json.loads(json.dumps(found.to_dict()))
    assert document["fits"] is True
    assert set(document["definitions"]) <= set(document)
    assert sum(found.sources.values()) == pytest.approx(1.0)
    assert set(found.libraries) == {"gemm", "attention", "collective"}
    assert "computation rests on" in found.explain()


def test_an_interval_is_as_wide_as_what_is_not_given() -> None:
    """Given shares narrow it; the host stays."""
    options: dict[str, Any] = {"num_devices": 16, "tensor_parallel": 8}
    free = estimate(**options)
    given = estimate(**options, overlap={"tp": 1 - 1 / 8, "dp": 1 - 1 / 32})
    assert given.latency_us == pytest.approx(free.latency_us)
    assert free.low_us < given.low_us
    assert given.high_us < free.high_us
    exposed = estimate(**options, overlap={"tp": 0.0, "dp": 0.0})
    assert given.latency_us < exposed.latency_us < free.high_us


def test_tokens_go_between_nodes_once_or_in_copies() -> None:
    options: dict[str, Any] = {"model": "qwen3-30b-a3b", "num_devices": 16, "expert_parallel": 16}
    once, copies = (estimate(**options, dispatcher=name) for name in ("once", "alltoall"))
    assert 2 < copies.breakdown["ep"] / once.breakdown["ep"] < 5
    hidden = estimate(**options, overlap={"ep": 1.0})
    assert hidden.breakdown["ep"] == pytest.approx(once.breakdown["ep"] * 20 / 132, rel=0.01)  # SMs
    with pytest.raises(InvalidOptionError, match="dispatcher"):
        estimate(**options, dispatcher="mail")


def test_dualpipe_hides_messages_but_while_it_fills_and_drains() -> None:
    """A device has two stages; messages of passes that run alone are exposed, and SMs are taken from the others."""
    options: dict[str, Any] = {
        "model": "qwen3-30b-a3b", "num_devices": 16, "pipeline_parallel": 2, "expert_parallel": 8, "global_batch": 256,
    }  # fmt: skip
    plain, paired = (estimate(**options, schedule=name) for name in ("1f1b", "dualpipe"))
    alone, num = 3, plain.num_microbatches
    slower_us = (num - alone) * sum(plain.breakdown[kind] for kind in ("gemm", "attention", "memory")) / num * 20 / 112
    assert paired.breakdown["ep"] == pytest.approx(plain.breakdown["ep"] * alone / num + slower_us, rel=0.2)
    assert paired.latency_us < plain.latency_us
    assert paired.memory.weight_bytes > 1.8 * plain.memory.weight_bytes
    for changes in ({"pipeline_parallel": 1}, {"global_batch": 8}):
        with pytest.raises(InvalidOptionError, match="dualpipe takes an even number of stages"):
            estimate(**options | {"schedule": "dualpipe"} | changes)


def test_a_further_token_is_a_layer_a_projection_and_a_head() -> None:
    plain, more = (
        training_parts(load_model("deepseek-v3"), batch_size=1, seq_len=256, expert_parallel=64, mtp_layers=num)
        for num in (0, 1)
    )
    assert plain == tuple(part for part in more if not part.name.startswith("mtp"))
    layer, further, heads = plain[2], more[4], [part for part in more if part.name.endswith("head")]
    assert (further.name, further.layers) == ("mtp", (61,))
    assert further.num_params - layer.num_params == 2 * 7168 * 7168 + 2 * 7168
    assert {op.name for op in further.forward} - {op.name for op in layer.forward} == {
        "embedding", "mtp_hidden_norm", "mtp_token_norm", "mtp_concat", "mtp_proj",
    }  # fmt: skip
    assert heads[0].operations == heads[1].operations
    assert heads[1].num_params == 0
    stages = stage_parts(more, 61, 16, 1)  # as Megatron Bridge deals them: Et*4|(t*4|)*14tmL
    assert [sum(n for index, n in stage if more[index].layers) for stage in stages] == [4] * 15 + [2]
    names = {more[index].name for index, _ in stages[-1]}
    assert names == {layer.name, "mtp", "head", "mtp head", "send"}


def test_selective_recomputation_has_q_k_and_v_of_mla_from_latents() -> None:
    (_, layer, *_) = training_parts(load_model("deepseek-v3"), batch_size=1, seq_len=256)
    names = {op.name for op in layer.recomputed}
    assert {"q_b_proj", "kv_b_proj", "keys_concat", "input_norm", "ffn_activation"} <= names
    assert not names & {"qkv_a_proj", "o_proj", "attention", "down_proj"}
    attention = 256 * 128 * 2 * (192 + 192 + 128)
    assert layer.saved_bytes - layer.selective_bytes > attention


def test_tokens_of_experts_are_biased_and_sorted_by_kernels_of_their_own() -> None:
    asked: dict[str, Any] = {"batch_size": 1, "seq_len": 256, "expert_parallel": 8, "dtype": "bf16"}
    once, copies = (
        training_parts(load_model("gpt-oss-120b"), **asked, sorts_copies=sorts)[1] for sorts in (False, True)
    )
    names = [op.name for op in copies.operations]
    assert {"permute_sort", "expert_down_sort"} <= set(names) - {op.name for op in once.operations}
    assert names.count("expert_bias") == names.count("expert_bias_backward") == 1
    assert not any("bias" in op.name for part in training_parts(load_model("qwen3-30b-a3b"), **asked)
                   for op in part.operations)  # fmt: skip


def test_zero_divides_what_it_says() -> None:
    held = [estimate(num_devices=8, zero=zero).memory for zero in range(4)]
    assert held[1].moment_bytes == pytest.approx(held[0].moment_bytes / 8, rel=1e-6)
    assert held[0].gradient_bytes == held[1].gradient_bytes == pytest.approx(8 * held[2].gradient_bytes, rel=1e-6)
    assert held[2].weight_bytes > held[3].weight_bytes
    params = count_parameters(load_model("llama-3-8b")).total
    assert held[0].weight_bytes == 2 * params
    assert held[0].main_bytes + held[0].moment_bytes == 12 * params


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(InfeasibleError, match=r"would fit with: .*zero=3") as caught:
        estimate_training("llama-3-8b", H100, global_batch=64, seq_len=4096, num_devices=8, zero=0)
    assert "tensor_parallel=8" in str(caught.value)
    with pytest.raises(InfeasibleError, match="training llama-3-70b does not fit"):
        find_training_layouts("llama-3-70b", H100, num_devices=8, global_batch=64, seq_len=4096)
    with pytest.raises(InvalidOptionError, match="no such layout"):
        find_training_layouts("llama-3-70b", H100, num_devices=8, global_batch=64, seq_len=4096, tensor=[3])


def test_layouts_are_those_asked_for_the_fastest_first() -> None:
    asked: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "num_devices": 8, "zeros": (1, 3)}
    found = find_training_layouts("qwen3-30b-a3b", H100, **asked, ignore_memory=True)
    assert [each.latency_us for each in found] == sorted(each.latency_us for each in found)
    assert {each.layout for each in found} == set(legal_layouts(load_model("qwen3-30b-a3b"), 8))
    best = found[0]
    alone = estimate(
        "qwen3-30b-a3b", num_devices=8, tensor_parallel=best.layout.tensor, pipeline_parallel=best.layout.pipeline,
        expert_parallel=best.layout.expert, **{name: best.options[name] for name in (
            "micro_batch", "zero", "recompute", "schedule", "num_chunks"
        )},
    )  # fmt: skip
    assert alone == best


def test_a_chip_of_ones_own_trains_on_one_device() -> None:
    small: ModelConfig = load_model("llama-3.2-1b")
    found = estimate(small, "sg2260e", global_batch=2, seq_len=1024)
    assert found.fits is None
    assert 0 < found.mfu_frac < 1
    with pytest.raises(UnsupportedError, match="does not say what joins it"):
        estimate(small, "sg2260e", global_batch=2, seq_len=1024, num_devices=2)


def test_published_runs_are_cited_and_few() -> None:
    runs = published_runs()
    assert len({run.name for run in runs}) == len(runs) <= 25
    assert all(run.source.startswith("https://") and run.tokens_per_s > 0 for run in runs)
    (line,) = [run for run in runs if run.name == "bridge-70b-h100-fp8"]
    found = estimate_training(line.model, line.arch, ignore_memory=True, **line.options)
    assert found.tokens_per_s_per_device == pytest.approx(line.tokens_per_s, rel=0.15)
    assert "training" in VALIDATE


def test_sweeps_and_prewarming_take_the_phase() -> None:
    (load,) = transformer_workloads("llama-3.2-1b", seq_len=512, phases=["train"], dtype="bf16")
    assert load.name == "train"
    assert load.num_tokens == 512
    assert {problem.backward: num for problem, num in load.attention} == {False: 16, True: 16}
    forward, *_ = transformer_workloads("llama-3.2-1b", seq_len=512, dtype="bf16")
    assert len(load.gemms) > 2 * len(forward.gemms)
    evaluator = GEMMEvaluator("demo-8core", disk_cache=False)
    report = prewarm_for_transformer(evaluator, 512, 1024, 1, 128, phase="train")
    assert (report.num_gemms, report.num_known) == (18, 0)  # qkv, scores, values, o, gate and up, down: three each


# ---- schedules -------------------------------------------------------------------------------------------------------


US = st.floats(0.1, 10.0)
TIMES = st.builds(StageTimes, US, US, US)


def end_us(tasks: list[Task]) -> float:
    return max(task.end_us for task in tasks)


def most_in_flight(tasks: list[Task], stage: int, num_chunks: int) -> float:
    held = most = 0
    for task in tasks:
        if task.stage == stage:
            held += 1 if task.is_forward else -1
            most = max(most, held)
    return most / num_chunks


def play_zero_bubble(times: StageTimes, num_stages: int, num_micro: int) -> float:
    """ZB-H1 of equal stages: backward, then forward as far as 1F1B's memory goes, else weight gradients."""
    forward_us, dgrad_us, wgrad_us = times
    ready: list[dict[str, list[float]]] = [{"F": [], "B": [], "W": []} for _ in range(num_stages)]
    ready[0]["F"] = [0.0] * num_micro
    free, started = [0.0] * num_stages, [0] * num_stages  # forwards less dgrads
    counts = [dict.fromkeys("FBW", 0) for _ in range(num_stages)]
    while any(count["W"] < num_micro for count in counts):
        # the next event anywhere: of each device what it can start first, by priority at that time
        options = []
        for stage in range(num_stages):
            count = counts[stage]
            for rank, kind in enumerate("BFW"):
                if kind == "F" and started[stage] >= num_stages - stage:
                    continue
                if count[kind] < len(ready[stage][kind]):
                    options.append((max(free[stage], ready[stage][kind][count[kind]]), rank, stage, kind))
        at_us, _, stage, kind = min(options)
        us = {"F": forward_us, "B": dgrad_us, "W": wgrad_us}[kind]
        end_us = free[stage] = at_us + us
        counts[stage][kind] += 1
        if kind == "F":
            started[stage] += 1
            follower, where = ("F", stage + 1) if stage < num_stages - 1 else ("B", stage)
            ready[where][follower].append(end_us)
        elif kind == "B":
            started[stage] -= 1
            ready[stage]["W"].append(end_us)
            if stage:
                ready[stage - 1]["B"].append(end_us)
    return max(free)


@given(TIMES, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_equal_stages_take_what_the_simulator_says(
    times: StageTimes, num_stages: int, rounds: int, num_chunks: int
) -> None:
    num_chunks = num_chunks if num_stages > 1 else 1
    schedule = "interleaved" if num_chunks > 1 else "1f1b"
    stages, num_micro = [times] * num_stages, rounds * num_stages
    tasks = timeline(stages, num_micro, schedule, num_chunks)
    assert schedule_us(stages, num_micro, schedule, num_chunks) == pytest.approx(end_us(tasks))
    for stage in range(num_stages):
        held = num_in_flight(stage, num_stages, num_micro, schedule, num_chunks)
        assert held == pytest.approx(most_in_flight(tasks, stage, num_chunks))


@given(TIMES, st.lists(US, min_size=1, max_size=6), st.integers(1, 20))
def test_stages_in_proportion_take_at_most_the_closed_form_and_at_least_the_slowest(
    times: StageTimes, factors: list[float], num_micro: int
) -> None:
    stages = [StageTimes(*(factor * us for us in times)) for factor in factors]
    latency_us = end_us(timeline(stages, num_micro))
    assert latency_us <= schedule_us(stages, num_micro) * (1 + 1e-9)
    assert latency_us >= num_micro * max(stage.total_us for stage in stages) * (1 - 1e-9)


@given(st.lists(TIMES, min_size=1, max_size=6), st.integers(1, 20))
def test_unequal_stages_take_no_longer_than_as_many_of_the_slowest_passes(
    stages: list[StageTimes], num_micro: int
) -> None:
    pass_us = max(of.forward_us for of in stages) + max(of.dgrad_us + of.wgrad_us for of in stages)
    most_us = (num_micro + len(stages) - 1) * pass_us
    assert end_us(timeline(stages, num_micro)) <= most_us * (1 + 1e-9)


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 6), (4, 8), (8, 24)])
def test_zero_bubble_fills_all_but_the_published_bubble(num_stages: int, num_micro: int) -> None:
    equal = StageTimes(1.0, 1.0, 1.0)
    closed_us = schedule_us([equal] * num_stages, num_micro, "zero-bubble")
    assert closed_us == num_micro * 3 + (num_stages - 1) == play_zero_bubble(equal, num_stages, num_micro)
    short = StageTimes(1.0, 1.2, 0.8)
    closed_us = schedule_us([short] * num_stages, num_micro, "zero-bubble")
    assert play_zero_bubble(short, num_stages, num_micro) == pytest.approx(closed_us, rel=0.03)


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 4), (8, 20), (16, 120)])
def test_dualpipe_has_the_published_bubble(num_stages: int, num_micro: int) -> None:
    """(PP / 2 - 1) (F&B + B - 3W) of the whole backward pass B, beside PP + 1 microbatches whose passes are alone."""
    equal, pair_us = StageTimes(1.0, 1.0, 1.0), 2.4
    latency_us = schedule_us([equal] * num_stages, num_micro, "dualpipe", pairs_us=[pair_us] * num_stages)
    busy_us = (num_micro - num_stages - 1) * pair_us + (num_stages + 1) * equal.total_us
    assert latency_us - busy_us == pytest.approx((num_stages / 2 - 1) * (pair_us + 2.0 - 3.0))


@pytest.mark.parametrize(("num_stages", "num_micro"), [(1, 4), (3, 8), (4, 4), (4, 9)])
def test_numbers_that_dualpipe_does_not_take_are_refused(num_stages: int, num_micro: int) -> None:
    with pytest.raises(InvalidOptionError, match=f"got {num_stages} and {num_micro}"):
        schedule_us([StageTimes(1.0, 1.0, 1.0)] * num_stages, num_micro, "dualpipe")


@given(st.lists(TIMES, min_size=4, max_size=4), st.integers(4, 16), st.floats(0.5, 1.0))
def test_dualpipe_waits_for_its_busiest_device(stages: list[StageTimes], rounds: int, share: float) -> None:
    pairs_us = [share * stage.total_us for stage in stages]
    latency_us = schedule_us(stages, 2 * rounds, "dualpipe", pairs_us=pairs_us)
    slowest_us = max(pairs_us[0] + pairs_us[3], pairs_us[1] + pairs_us[2]) / 2
    assert latency_us >= 2 * rounds * slowest_us * (1 - 1e-9)
    longer_us = schedule_us(stages, 2 * rounds + 2, "dualpipe", pairs_us=pairs_us)
    assert 0 < longer_us - latency_us <= 2 * max(pairs_us) * (1 + 1e-9)
    assert latency_us <= schedule_us(stages, 2 * rounds, "dualpipe") * (1 + 1e-9)  # one after the other


def test_what_is_not_played_is_refused() -> None:
    times = StageTimes(1.0, 1.1, 0.9)
    with pytest.raises(UnsupportedError, match="got dualpipe"):
        timeline([times] * 16, 120, "dualpipe")
    for stages, num_micro in ((4, 6), (1, 4)):
        with pytest.raises(InvalidOptionError, match="several chunks take two or more stages"):
            timeline([times] * stages, num_micro, "interleaved", 2)


@given(st.lists(TIMES, min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 3))
def test_a_step_has_each_pass_once_and_no_stage_does_two_things_at_once(
    stages: list[StageTimes], rounds: int, num_chunks: int
) -> None:
    num_chunks = num_chunks if len(stages) > 1 else 1
    num_micro = rounds * len(stages)
    tasks = timeline(stages, num_micro, "interleaved" if num_chunks > 1 else "1f1b", num_chunks)
    for stage, times in enumerate(stages):
        own = [task for task in tasks if task.stage == stage]
        assert {task[1:4] for task in own} == set(itertools.product((False, True), range(num_micro), range(num_chunks)))
        assert len(own) == 2 * num_micro * num_chunks
        assert all(later.start_us >= task.end_us for task, later in itertools.pairwise(own))
        assert sum(task.end_us - task.start_us for task in own) == pytest.approx(num_micro * times.total_us)


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 8))
def test_runs_of_layers_are_all_layers_once_and_as_even_as_they_go(num: int, num_stages: int, num_chunks: int) -> None:
    stages = stage_chunks(num, num_stages, num_chunks)
    in_order = [stages[index % num_stages][index // num_stages] for index in range(num_stages * num_chunks)]
    assert [layer for run in in_order for layer in run] == list(range(num))
    lengths = [len(run) for run in in_order]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == lengths[-1] == min(lengths) or num % len(lengths) > len(lengths) - 2
