"""Whole models: steps are the sums of their operations; pipelines against a simulation of their events."""

import heapq
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import (
    GEMMEvaluator,
    InfeasibleError,
    InvalidInputError,
    InvalidOptionError,
    ModelEstimate,
    UnsupportedError,
    estimate_model,
    estimate_models,
    list_models,
    load_arch,
    load_model,
    moe_layer,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import operation_costs, pipeline_us
from gemm_eval.moe import MoeLayer
from gemm_eval.transformer import Fusions, GemmWork, model_operations, with_redundant_experts

H200 = GEMMEvaluator("h200-sxm")


def estimate(model: str = "llama-3-8b", arch: Any = H200, batch: int = 16, **options: Any) -> ModelEstimate:
    return estimate_model(model, arch, batch, **{"prompt_len": 2048, "output_len": 128} | options)


@pytest.mark.parametrize(
    ("model", "arch", "dtype"),
    [("deepseek-v3", "h200-sxm", None), ("llama-3-8b", "b200", "nvfp4"), ("llama-3-8b", "a100-sxm-80gb", "int8"),
     ("qwen3-30b-a3b", "h200-sxm", "w4a16"), ("llama-3-8b", "sg2260e", "fp8")],
)  # fmt: skip
def test_gemms_of_a_batch_cost_what_each_costs_by_itself(model: str, arch: str, dtype: str | None) -> None:
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    operations = model_operations(
        load_model(model), phase="decode", batch_size=16, seq_len=300, dtype=dtype, experts_as_layer=False
    )
    for cost in operation_costs(evaluator, operations):
        work = cost.operation.work
        if not isinstance(work, GemmWork):
            continue
        price = alone = evaluator.evaluate_problem(work.problem)
        latency_us = alone.latency_us
        if work.quantize_from is not None and evaluator.arch.type == "gpu":
            behind = evaluator.evaluate_problem(work.problem, quantize_from=str(work.quantize_from))
            if not work.is_quantized:
                price, latency_us = behind, behind.latency_us
            elif behind.source == "corrected" != alone.source:
                own_us = sum(behind.breakdown.get(term, 0.0) for term in ("quantize_us", "cast_us"))
                latency_us = behind.latency_us - own_us
        assert cost.latency_us == latency_us + evaluator.switch_us(work.problem.rows)
        assert cost.bound == price.bound


def test_experts_are_those_of_moe_layer() -> None:
    found = estimate("qwen3-30b-a3b", batch=64)
    (cost,) = (cost for cost in found.decode.costs if isinstance(cost.operation.work, MoeLayer))
    assert isinstance(cost.operation.work, MoeLayer)
    layer = cost.operation.work
    alone = moe_layer(
        H200, layer.num_tokens, layer.hidden, layer.inter, layer.num_experts, layer.topk,
        distribution=layer.distribution, dtype=layer.dtype,
    )  # fmt: skip
    assert cost.latency_us == pytest.approx(alone.latency_us)
    assert cost.operation.num_layers == 48


def test_more_work_takes_longer_and_narrower_weights_less() -> None:
    batches = [estimate(batch=batch).tpot_us for batch in (1, 16, 64)]
    assert batches == sorted(batches)
    prompts = [estimate(prompt_len=size).ttft_us for size in (128, 1024, 8192)]
    assert prompts == sorted(prompts)
    assert estimate(batch=1, dtype="w4a16").tpot_us < 0.6 * estimate(batch=1).tpot_us
    assert estimate(batch=32, prompt_len=16384, kv_dtype="fp8").tpot_us < estimate(batch=32, prompt_len=16384).tpot_us
    assert estimate(fusions=Fusions(residual_norm=False, gated_activation=False)).tpot_us > estimate().tpot_us


def test_chunks_follow_each_other() -> None:
    whole, cut = estimate(prompt_len=8192, chunk_tokens=8192), estimate(prompt_len=8192, chunk_tokens=2048)
    assert cut.prefill.new_tokens == 2048
    assert cut.prefill.seq_len == 8192
    assert whole.ttft_us < cut.ttft_us < 1.5 * whole.ttft_us


def test_speculation_gives_more_tokens_for_a_longer_step() -> None:
    plain, guessed = estimate(batch=1), estimate(batch=1, speculative_tokens=3, acceptance=0.8)
    assert guessed.tokens_per_step == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert guessed.decode.new_tokens == 4
    assert guessed.decode.latency_us == pytest.approx(plain.decode.latency_us, rel=0.2)  # weights are read once
    assert guessed.tpot_us < plain.tpot_us / 2
    assert estimate(batch=1, speculative_tokens=3, acceptance=0.0).tokens_per_step == 1


@pytest.mark.parametrize("name", list_models())
def test_every_model_is_estimated_on_a_gpu(name: str) -> None:
    found = estimate(name, batch=4, prompt_len=300, ignore_memory=True)
    assert 0 < found.tpot_us < found.ttft_us * 3
    names = [cost.operation.name for cost in found.prefill.costs]
    assert "attention" in names
    assert "lm_head" in names
    assert json.loads(json.dumps(found.to_dict()))["model_name"] == name


def test_a_multicore_chip_has_estimates_without_a_limit() -> None:
    found = estimate("llama-3-8b", "demo-8core", 1, prompt_len=128)
    assert (found.memory_limit_bytes, found.fits, found.largest_batch) == (None, None, None)
    assert "whether that fits is not checked, as demo-8core does not say its dram_bytes" in found.explain()
    with pytest.raises(UnsupportedError):
        estimate("llama-3-8b", "demo-8core", 1, tensor_parallel=2)


def test_what_does_not_fit_is_refused_with_what_would_help() -> None:
    with pytest.raises(InfeasibleError, match=r"would fit with: pipeline_parallel=64 \(16.5 GB a device\)$"):
        estimate("llama-3.1-405b", "rtx-4090")  # whose link joins no 64 GPUs
    with pytest.raises(InfeasibleError, match=r"does not fit into 0\.5 of the DRAM"):
        estimate("llama-3-70b", "b200", memory_frac=0.5)
    assert not estimate("llama-3-70b", "h200-sxm", ignore_memory=True).fits


def test_stages_beyond_a_node_send_over_the_network() -> None:
    inside, beyond = estimate(pipeline_parallel=8), estimate(pipeline_parallel=16)
    assert inside.assumptions == ()
    (sentence,) = beyond.assumptions
    assert sentence.startswith("16 devices lie in nodes of 8: collectives between nodes use the network")
    assert sentence in beyond.explain()
    assert beyond.to_dict()["assumptions"] == [sentence]
    sends = [cost for cost in beyond.decode.costs if cost.operation.name == "stage_send"]
    assert [cost.bound for cost in sends] == ["link"] * 7 + ["network"] + ["link"] * 7
    assert sends[7].latency_us > max(cost.latency_us for cost in sends[:7])
    with pytest.raises(UnsupportedError, match=r"the pcie4 of l4 joins at most 8 GPUs, .* interconnect.network"):
        estimate("llama-3-8b", "l4", 1, pipeline_parallel=16)


def test_experts_over_a_rack_and_over_nodes() -> None:
    def exchanges(arch: str, model: Any, ranks: int, batch: int) -> list[tuple[str, str]]:
        found = estimate(model, arch, batch, prompt_len=512, expert_parallel=ranks)
        assert found.num_devices == ranks
        costs = [cost for cost in found.decode.costs if cost.operation.name in ("dispatch", "combine")]
        return [(cost.bound, cost.how.partition(",")[0]) for cost in costs]

    assert exchanges("gb200", "deepseek-v3", 64, 64) == [("link", "send/receive")] * 2
    assert exchanges("h200-sxm", "deepseek-v3", 16, 64) == [("network", "direct to experts")] * 2
    more = with_redundant_experts(load_model("deepseek-v3"), 32)
    assert exchanges("gb200", more, 144, 512) == [("network", "once to each node")] * 2


def test_chunks_fill_run_through_and_drain_the_stages() -> None:
    options: dict[str, Any] = {"batch": 1, "pipeline_parallel": 4, "chunk_tokens": 1024, "output_len": 8}
    at_most, beyond, three = (estimate(prompt_len=size, **options).ttft_us for size in (1024, 1025, 3000))
    assert at_most < beyond < three
    alone = estimate(prompt_len=3000, **options | {"pipeline_parallel": 1})
    assert alone.ttft_us / 4 < three < alone.ttft_us
    found = estimate(prompt_len=3000, **options)
    assert sum(found.prompt_stage_us) == pytest.approx(alone.ttft_us, rel=0.1)  # and what stages send
    rates = [
        estimate(prompt_len=3000, **options | {"pipeline_parallel": num}).tokens_per_s_per_device for num in (1, 4)
    ]
    assert rates[1] < rates[0]


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block", "int8"])
def test_the_kernel_before_quantizes(dtype: str) -> None:
    fused, apart = (
        estimate("llama-3-70b", batch=64, tensor_parallel=4, dtype=dtype, fusions=Fusions(quantization=value))
        for value in (True, False)
    )
    names = {cost.operation.name for cost in fused.decode.costs if cost.bound == "quantize"}
    assert names <= ({"o_proj"} if dtype == "int8" else set())  # one scale a token, which heads share
    for step in (fused.prefill, fused.decode):
        other = apart.prefill if step is fused.prefill else apart.decode
        assert step.us_by_kind["gemm"] < other.us_by_kind["gemm"]
        assert step.us_by_kind["memory"] < other.us_by_kind["memory"]
    before = "qkv_proj, gate_up_proj, down_proj" if dtype != "fp8" else "qkv_proj, o_proj, gate_up_proj, down_proj"
    own = "." if dtype == "fp8" else ", by kernels of their own for o_proj."
    assert f"Activations are quantized by the kernel before for {before}{own}" in fused.explain()
    assert fused.options["separate_quantization"] is False
    assert apart.options["separate_quantization"] is True


def test_workers_give_the_same_in_the_same_order() -> None:
    options: dict[str, Any] = {"output_len": 8, "ignore_memory": True}
    alone = list(estimate_models(["llama-3-8b"], ["h200-sxm", "a100-sxm-80gb"], [1, 7], [64, 65], **options))
    shared = estimate_models(["llama-3-8b"], ["h200-sxm", "a100-sxm-80gb"], [1, 7], [64, 65], num_workers=2, **options)
    assert [item.to_dict() for item in shared] == [item.to_dict() for item in alone]


def test_an_estimate_explains_itself() -> None:
    found = estimate(load_model("gpt-oss-20b"), load_arch("h100-sxm", GpuSpec))  # type: ignore[arg-type]
    text = found.explain()
    assert "gpt-oss-20b on 1 x h100-sxm, 16 sequences of 2,048 + 128 tokens" in text
    assert "the largest batch that fits is" in text
    assert "decode: gemm " in text
    assert repr(found).startswith("<ModelEstimate gpt-oss-20b on 1 x h100-sxm: TTFT")
    assert pickle.loads(pickle.dumps(found)).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch must be"),
        ({"prompt_len": 1.5}, "prompt_len must be an integer"),
        ({"speculative_tokens": 65}, "speculative_tokens must be"),
        ({"acceptance": 1.1}, "acceptance must be in 0..1"),
        ({"ignore_memory": 1}, "ignore_memory must be True or False"),
        ({"expert_parallel": 2}, "expert_parallel is for models with experts"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        estimate(**options)


def test_an_arch_is_one_or_named() -> None:
    with pytest.raises(InvalidInputError, match="arch must be"):
        estimate(arch=3)


def test_the_server_of_cards_over_pcie_is_an_option() -> None:
    options = {"tensor_parallel": 4, "output_len": 8}
    near, far = (
        estimate_model("llama-3-8b", "rtx-pro-6000-server", **options, interconnect=box)  # type: ignore[arg-type]
        for box in (None, "pcie-two-sockets")
    )
    assert near.options["interconnect"] == "pcie-one-socket"
    assert "4 x rtx-pro-6000-server (pcie-two-sockets)" in far.explain()
    assert far.prefill.us_by_kind["collective"] > 2 * near.prefill.us_by_kind["collective"]
    assert far.prefill.us_by_kind["gemm"] == near.prefill.us_by_kind["gemm"]
    nvlink = estimate_model("llama-3-8b", "h200-sxm", **options, interconnect="pcie-two-sockets")  # type: ignore[arg-type]
    assert nvlink.options["interconnect"] is None
    with pytest.raises(InvalidOptionError, match="interconnect must be one of"):
        estimate_model("llama-3-8b", "h200-sxm", interconnect="pcie")


TIMES = st.integers(1, 8).flatmap(
    lambda stages: st.lists(st.lists(st.floats(0.0, 1e6), min_size=stages, max_size=stages), min_size=1, max_size=9)
)


def simulate(chunk_us: list[list[float]]) -> float:
    """Run chunks through queues before each stage, event by event."""
    num_stages, now = len(chunk_us[0]), 0.0
    queues: list[list[int]] = [[] for _ in range(num_stages)]
    queues[0] = list(range(len(chunk_us)))
    busy = [False] * num_stages
    events: list[tuple[float, int, int]] = []
    while True:
        for stage in range(num_stages):
            if queues[stage] and not busy[stage]:
                chunk = queues[stage].pop(0)
                busy[stage] = True
                heapq.heappush(events, (now + chunk_us[chunk][stage], stage, chunk))
        if not events:
            return now
        now, stage, chunk = heapq.heappop(events)
        busy[stage] = False
        if stage + 1 < num_stages:
            queues[stage + 1].append(chunk)


@given(TIMES)
def test_the_recurrence_is_the_simulation(chunk_us: list[list[float]]) -> None:
    found = pipeline_us(chunk_us)
    assert found == pytest.approx(simulate(chunk_us))
    stage_us = [sum(column) for column in zip(*chunk_us, strict=True)]
    assert max(*stage_us, *map(sum, chunk_us)) <= found * (1 + 1e-12) + 1e-9
    assert found <= sum(stage_us) * (1 + 1e-12) + 1e-9
    assert pipeline_us(chunk_us[:-1] or chunk_us) <= found * (1 + 1e-12)


def test_equal_chunks_take_one_stage_more_each() -> None:
    assert pipeline_us([[2.0, 3.0, 1.0]] * 5) == 2.0 + 3.0 + 1.0 + 4 * 3.0


def test_a_chip_has_memory_a_link_and_a_host() -> None:
    link = {"topology": "ring", "gb_per_s": 100.0, "latency_us": 2.0, "num_chips": 4}
    pod = load_arch("demo-8core").with_(dram_bytes="16 GB", interconnect=link)
    with pytest.raises(InfeasibleError, match="tensor_parallel=2") as error:
        estimate_model("llama-3-8b", pod, dtype="bf16")
    assert "tensor_parallel=8" not in str(error.value)
    asked = {"prompt_len": 16, "output_len": 2, "tensor_parallel": 2, "dtype": "bf16"}
    e, later = (estimate_model("llama-3-8b", pod.with_(host_us=us), **asked) for us in (0.0, 500.0))
    assert e.memory_limit_bytes == 14_400_000_000
    assert e.basis.libraries == {"gemm": None, "attention": None, "collective": "link", "expert": None}
    assert later.tpot_us == pytest.approx(e.tpot_us + 500.0)
