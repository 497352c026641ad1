"""Batching of requests against a simulation, and the search of deployments."""

from __future__ import annotations

import json
import random
import shlex
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, InfeasibleError, InvalidOptionError, UnsupportedError, load_model
from gemm_eval.estimate import Replica, StepSize, load_engine
from gemm_eval.serving import (
    Deployments,
    Load,
    Requests,
    SteadyState,
    StepPredictor,
    Times,
    checkpoint_of,
    engine_commands,
    estimate_serving,
    find_deployments,
    steady_state,
)
from gemm_eval.serving.batching import transfer_us
from tests.serving.simulate import simulate

# ---- batching --------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[Load, Times]:
    rng = random.Random(seed)
    num_chunks = rng.choice([1, 1, 1, 3])
    base_us, seq_us, chunk_us = rng.uniform(5e3, 2e4), rng.uniform(20.0, 200.0), rng.uniform(5e3, 1e5)
    load = Load(
        concurrency=rng.choice([1, 2, 8, 32, 64, 128]), num_steps=rng.choice([64, 256, 1024]), num_chunks=num_chunks,
        chunks_per_step=1.0 if num_chunks > 1 else rng.choice([1.0, 4.0, 8.0]), is_mixed=rng.random() < 0.5,
        max_seqs=rng.choice([1000, 1000, 40]), has_fixed_lengths=rng.random() < 0.4,
    )  # fmt: skip
    if rng.random() < 0.25:
        workers = rng.choice([1, 2, 4])
        load = load._replace(prefill_workers=workers, num_prefill_workers=workers, is_mixed=False)
        send_us = rng.choice([3e3, 5e4])
        load = load._replace(has_fixed_lengths=False, send_us=send_us, num_pieces=num_chunks, receive_us=send_us / 2)
    fixed_us = rng.choice([0.0, chunk_us]) if load.prefill_workers else 0.0
    return load, Times(lambda num: base_us + seq_us * num, lambda chunks, _: fixed_us + chunk_us * chunks)


@pytest.mark.parametrize("seed", range(24))
def test_simulation(seed: int) -> None:
    load, times = drawn(seed)
    state = steady_state(load, times)
    played = simulate(load, times, num_requests=max(150, round(10 * load.concurrency)), seed=seed)
    assert state.step_us == pytest.approx(played.tpot_us, rel=0.04)
    assert state.requests_per_us == pytest.approx(played.requests_per_us, rel=0.1)
    assert state.wait_us + state.prompt_us == pytest.approx(played.ttft_us, rel=0.25)


LOADS = st.builds(
    Load, concurrency=st.integers(1, 4096), num_steps=st.floats(1.0, 8192.0), num_chunks=st.integers(1, 8),
    chunks_per_step=st.floats(1.0, 32.0), is_mixed=st.booleans(), max_seqs=st.integers(1, 4096),
    has_fixed_lengths=st.booleans(), first_frac=st.just(0.0), prefill_workers=st.just(0.0),
    num_prefill_workers=st.just(1), send_us=st.just(0.0), receive_us=st.just(0.0), num_pieces=st.integers(1, 8),
)  # fmt: skip
COSTS = st.floats(1.0, 1e5)


def solved(load: Load, base_us: float, seq_us: float, chunk_us: float) -> SteadyState:
    return steady_state(load, Times(lambda num: base_us + seq_us * num, lambda chunks, _: chunk_us * chunks))


@given(LOADS, COSTS, COSTS, COSTS)
def test_little(load: Load, base_us: float, seq_us: float, chunk_us: float) -> None:
    """Requests in flight are the throughput times the time of one; none is lost."""
    state = solved(load, base_us, seq_us, chunk_us)
    request_us = state.wait_us + state.prompt_us + load.num_steps * state.step_us
    assert state.requests_per_us * request_us == pytest.approx(load.concurrency, rel=1e-3)
    assert state.wait_us >= -1e-6 * request_us
    assert state.num_seqs <= min(load.concurrency, load.max_seqs) * (1 + 1e-9)
    assert state.wait_p99_us >= state.wait_us


# ---- deployments -----------------------------------------------------------------------------------------------------


REQUESTS: dict[str, Any] = {"prompt_len": 2048, "output_len": 256}


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    return GEMMEvaluator("h200-sxm", disk_cache=False)


@pytest.fixture(scope="module")
def dense(evaluator: GEMMEvaluator) -> Deployments:
    return find_deployments("llama-3-8b", evaluator, (2, 4), engines="vllm", dtypes=(None, "fp8"), **REQUESTS)


def test_the_front_has_most_throughput_first_and_is_beaten_by_none(dense: Deployments) -> None:
    rates = [(point.tokens_per_s_per_device, point.tokens_per_s_per_user) for point in dense.front]
    assert rates == sorted(rates, key=lambda pair: (-pair[0], pair[1]))
    assert all(user > 1.01 * before for (_, before), (_, user) in pairwise(rates))
    assert dense.best is dense.front[0]
    assert dense.num_within == dense.num_points > 200


def test_a_deployment_is_what_estimate_serving_says(dense: Deployments, evaluator: GEMMEvaluator) -> None:
    for point in dense.front:
        options = {name: point.options[name] for name in ("tensor_parallel", "pipeline_parallel", "dtype")}
        pool: Any = point.options["prefill"] or {}
        again = estimate_serving(
            "llama-3-8b", evaluator, point.concurrency, engine="vllm", num_replicas=point.num_replicas,
            num_prefill_replicas=point.num_prefill_replicas,
            prefill={name: pool[name] for name in options if name in pool}, **REQUESTS, **options,
        )  # fmt: skip
        assert again.to_dict() == point.to_dict()
        assert again.num_devices in (2, 4)


def test_limits_are_kept_and_cost_throughput(dense: Deployments, evaluator: GEMMEvaluator) -> None:
    limits: dict[str, Any] = {"ttft_us": 1.5 * dense.best.ttft_alone_us, "tpot_us": 0.5 * dense.best.tpot_us}
    asked: dict[str, Any] = {"engines": "vllm", "dtypes": (None, "fp8"), **REQUESTS}
    kept = find_deployments("llama-3-8b", evaluator, (2, 4), **limits, **asked)
    assert kept.num_points == dense.num_points > kept.num_within > 0
    assert all(point.ttft_us <= limits["ttft_us"] and point.tpot_us <= limits["tpot_us"] for point in kept.front)
    assert kept.best.tokens_per_s_per_device < dense.best.tokens_per_s_per_device
    none = find_deployments("llama-3-8b", evaluator, 2, concurrencies=[4], tpot_us=10.0, engines="vllm", **REQUESTS)
    assert none.nearest is not None
    with pytest.raises(InfeasibleError, match=r"none of .* has TPOT within 10\.0 us") as caught:
        none.best  # noqa: B018
    assert (caught.value.resource, caught.value.limit) == ("tpot", 10)


def test_what_does_not_fit_says_by_how_much_and_what_would_do(evaluator: GEMMEvaluator) -> None:
    result = find_deployments("llama-3-70b", evaluator, 2, tensor=[1], disaggregated=False, engines="vllm", **REQUESTS)
    (left,) = [item for item in result.left_out if item.layout == "one device"]
    assert "needs 14" in left.reason
    assert "tensor_parallel=2" in left.reason
    assert "dtype=fp8" in left.reason
    nothing = find_deployments("llama-3-70b", evaluator, 1, engines="vllm", **REQUESTS)
    with pytest.raises(UnsupportedError, match=r"no deployment of llama-3-70b: needs 14.* GB a device; would do: "):
        nothing.best  # noqa: B018


def test_layouts_of_experts(evaluator: GEMMEvaluator) -> None:
    result = find_deployments(
        "qwen3-30b-a3b", evaluator, 4, engines="sglang", concurrencies=[16], disaggregated=False, tensor=[1, 2],
        pipeline=[1], **REQUESTS,
    )  # fmt: skip
    assert result.num_points == len({(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)})
    assert not result.left_out


def test_json(dense: Deployments) -> None:
    document = json.loads(json.dumps(dense.to_dict(), allow_nan=False))
    assert len(document["front"]) == len(dense.front)
    assert document["front"][0]["layout"] == dense.best.layout
    assert "decode" not in document["front"][0]


def test_idle_replicas_have_no_requests(evaluator: GEMMEvaluator) -> None:
    one, four = (estimate_serving("llama-3-8b", evaluator, 1, num_replicas=num, **REQUESTS) for num in (1, 4))
    assert four.requests_per_s == pytest.approx(one.requests_per_s)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"ttft_us": 0}, "ttft_us must be"), ({"num_devices": 0}, "num_devices"), ({"concurrencies": [0]}, "concurrency"),
     ({"prompt_len": 0}, "prompt_len"), ({"engines": "trt"}, "engine")],
)  # fmt: skip
def test_refused(evaluator: GEMMEvaluator, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        find_deployments("llama-3-8b", evaluator, **options)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 1 --data-parallel-size 4 "
         "--enable-expert-parallel --gpu-memory-utilization 0.9 --max-num-seqs 4 --max-model-len 2304 "
         "--kv-cache-dtype fp8"),
        ("sglang", "python -m sglang.launch_server --tp-size 4 --dp-size 4 --ep-size 4 --enable-dp-attention "
         "--max-running-requests 16 --mem-fraction-static 0.82 --kv-cache-dtype fp8_e4m3 "
         "--speculative-num-draft-tokens 3"),
        ("trtllm", "trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 4 --ep_size 4 --max_batch_size 4 enable_attention_dp: "
         "true free_gpu_memory_fraction: 0.9 num_nextn_predict_layers: 2"),
    ],
)  # fmt: skip
def test_commands(evaluator: GEMMEvaluator, engine: str, words: str) -> None:
    name = checkpoint_of(load_model("qwen3-30b-a3b"))
    estimate = estimate_serving(
        "qwen3-30b-a3b", evaluator, 16, engine=engine, expert_parallel=4, kv_dtype="fp8", speculative_tokens=2,
        **REQUESTS,
    )  # fmt: skip
    (text,) = engine_commands(estimate, name)
    assert set(words.split()) <= set(shlex.split(text.replace("\\\n", " ")))
    pools = estimate_serving(
        "qwen3-30b-a3b", evaluator, 16, engine=engine, tensor_parallel=2, num_prefill_replicas=2,
        prefill={"tensor_parallel": 1}, **REQUESTS,
    )  # fmt: skip
    prefill, decode, router = engine_commands(pools, name)
    assert "2 prefill servers, port 8001 to 8002" in prefill
    assert "1 decode server, port 8003" in decode
    assert router
    assert engine_commands(estimate_serving("qwen3-30b-a3b", evaluator, 2, engine="ideal", **REQUESTS), name) == ()


def test_a_predictor_prices_steps_of_any_mix(evaluator: GEMMEvaluator) -> None:
    replica = Replica("llama-3-8b", evaluator, engine="vllm")
    predictor = StepPredictor(replica)
    decode, mixed = predictor.predict([], [], [1024] * 8), predictor.predict([512], [0], [1024] * 8)
    (exact,) = replica.steps([StepSize("decode", 8, 1, 1024)])
    assert decode == pytest.approx(exact.latency_us * 1e-6)
    assert 0.0 == predictor.predict([], [], []) < decode < mixed < predictor.predict([4096], [4096], [1024] * 8)
    assert predictor.predict([], [], [1020, 1028] * 4) == decode
    wrong: list[Any] = [([512], [], []), ([0], [0], []), ([], [], [0])]
    for lens in wrong:
        with pytest.raises(InvalidOptionError):
            predictor.predict(*lens)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_command_holds_the_sequences_of_its_estimate(evaluator: GEMMEvaluator, engine: str) -> None:
    """By hand: Llama-3-8B in bf16 (config.json), 8,192 tokens a step, and what each engine's flag is a share of."""
    estimate = estimate_serving("llama-3-8b", evaluator, 4096, engine=engine, chunk_tokens=8192, **REQUESTS)
    (text,) = engine_commands(estimate, "llama")
    words = shlex.split(text.replace("\\\n", " "))
    flags = {
        "vllm": "--gpu-memory-utilization",
        "sglang": "--mem-fraction-static",
        "trtllm": "free_gpu_memory_fraction:",
    }
    num_flags = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "trtllm": "--max_batch_size"}
    frac, num = float(words[words.index(flags[engine]) + 1]), int(words[words.index(num_flags[engine]) + 1])
    assert num == estimate.max_seqs
    dram, weights = 143_771 * 2**20, 2 * 8_030_261_248
    # vLLM and SGLang hold sequences at half of their output; TensorRT-LLM reserves it
    positions, block = (2048 + 256, 32) if engine == "trtllm" else (2048 + 128, {"vllm": 16, "sglang": 1}[engine])
    sequence = -(-positions // block) * block * 32 * 2 * 8 * 128 * 2

    def cache(seqs: int) -> float:
        sampling = seqs * 128256 * (2 + (41 if engine == "vllm" else 4))
        alive = 2 * 8192 * 4096 * 2 + max(8192 * (3 * 14336 + 4096) * 2, sampling)
        usable = dram - load_engine(engine).reserve_bytes
        return {
            "vllm": frac * dram - (dram - usable) - weights - alive, "sglang": frac * usable - weights,
            "trtllm": frac * (usable - weights - alive),
        }[engine]  # fmt: skip

    assert num * sequence <= cache(num)
    assert (num + 1) * sequence > cache(num + 1)


def test_caches_go_over_the_link_in_a_node_and_by_rail_between_nodes() -> None:
    requests, evaluator = Requests(8192, 64), GEMMEvaluator("h200-sxm", disk_cache=False)
    two, four = (
        requests.times_on(Replica("llama-3-8b", evaluator, tensor_parallel=tp, engine="trtllm")) for tp in (2, 4)
    )
    on_device = 8192 * 32 * 2 * 8 * 128 * 2 / 4  # of four
    assert four.prompt_cache_bytes == on_device
    send_us, receive_us = transfer_us(two, four, 16)  # two nodes: NICs of 50 GB/s, two of which send what four receive
    assert receive_us == pytest.approx(on_device / 50e3, rel=0.1)
    assert send_us == pytest.approx(2 * on_device / 50e3, rel=0.1)
    assert max(transfer_us(two, four, 8)) < send_us / 4
    assert transfer_us(four, four, 16) == (receive_us, receive_us)
    pools: Any = {"tensor_parallel": 4, "num_replicas": 3, "num_prefill_replicas": 2, "prompt_len": 64, "output_len": 8}
    with pytest.raises(UnsupportedError, match=r"interconnect\.network"):
        estimate_serving("llama-3-8b", "l40s", 4, engine="trtllm", **pools)
    found = find_deployments("llama-3-8b", "l40s", 16, tensor=[4], pipeline=[1], prompt_len=64, concurrencies=[1])
    assert found.front
    assert not any(estimate.num_prefill_replicas for estimate in found.front)
