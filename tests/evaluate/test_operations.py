"""Attention, collectives and memory-bound kernels: what users ask, what they get, and what is refused."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import (
    AttentionProblem,
    GEMMEvaluator,
    InfeasibleError,
    InvalidOptionError,
    InvalidProblemError,
    UnsupportedError,
    load_arch,
)
from gemm_eval.arch import GpuSpec, list_archs
from gemm_eval.errors import ArchValidationError
from gemm_eval.models.gpu.collective import collective_coefficients

ROUNDING = 1e-12
NVIDIA = [name for name in list_archs() if getattr(load_arch(name), "sm_arch", "").startswith("sm_")]
CHIPS = [name for name in list_archs() if name in NVIDIA or load_arch(name).type == "multicore"]
"""Those for which memory-bound kernels are modelled."""

# ---- attention -------------------------------------------------------------------------------------------------------


HEADS = {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8}


def test_an_answer_says_why() -> None:
    result = GEMMEvaluator("h200-sxm").evaluate_attention(**HEADS, dtype="bf16", kv_dtype="fp8")
    assert (result.arch_name, result.source, result.is_fused, result.has_positions) == (
        "h200-sxm", "corrected", True, True,
    )  # fmt: skip
    assert result.flop == 2 * 8 * 32 * 4096 * 256
    assert result.tflop_per_s == pytest.approx(result.flop / result.latency_us / 1e6)
    text = result.explain()
    assert "batch=8 q=1 kv=4096 32/8 heads x 128 causal bf16, KV fp8 on h200-sxm" in text
    assert "packed_wgmma" in text
    assert "fitted on timings of h200-sxm" in text
    assert repr(result).startswith("<AttentionResult batch=8")
    document = json.loads(json.dumps(result.to_dict()))
    assert sum(document["breakdown"].values()) == pytest.approx(document["latency_us"])
    assert document["problem"]["kv_dtype"] == "fp8"
    assert pickle.loads(pickle.dumps(result)) == result


def test_answers_are_kept_and_shared() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    first = evaluator.evaluate_attention(**HEADS, dtype="bf16")
    assert evaluator.evaluate_attention(**HEADS, dtype="bfloat16", kv_dtype="bf16") is first
    problem = AttentionProblem(8, 1, 4096, 32, 8, 128, "bf16")  # type: ignore[arg-type]
    assert evaluator.evaluate_attention_problems([problem, problem]) == [first, first]
    assert evaluator.evaluate_attention_problems([]) == []


@pytest.mark.parametrize("arch", ["h200-sxm", "demo-8core"])
def test_unfused_is_two_gemms_and_a_softmax(arch: str) -> None:
    evaluator = GEMMEvaluator(arch)
    result = evaluator.evaluate_attention(batch=2, q_len=256, kv_len=256, num_heads=8, num_kv_heads=2, fused=False)
    scores = evaluator.evaluate(4, 1024, 128, 256)
    values = evaluator.evaluate(4, 1024, 256, 128)
    assert result.breakdown["scores_us"] == scores.latency_us
    assert result.breakdown["values_us"] == values.latency_us
    assert result.breakdown["softmax_us"] > 0
    assert (result.is_fused, result.has_positions, result.kernel) == (False, False, "unfused")
    assert "unfused" in result.explain()


def test_multicore_chips_say_their_mapping() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate_attention(batch=1, q_len=4096, kv_len=4096, num_heads=32, num_kv_heads=8)
    assert result.is_fused
    assert result.mapping is not None
    assert result.mapping.is_folded
    assert result.kernel == f"fused {result.mapping}"
    assert result.dram_bytes is not None
    assert result.dram_bytes >= result.problem.num_bytes
    assert result.bound == "vector"
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
    assert max(result.roofs.values()) <= result.latency_us
    assert "hidden" in result.explain()
    assert set(result.term_meanings) == set(result.breakdown)
    document = json.loads(json.dumps(result.to_dict()))
    assert document["mapping"]["tile_q"] == result.mapping.tile.tile_q
    assert pickle.loads(pickle.dumps(result)) == result
    apart = evaluator.evaluate_attention(
        batch=1, q_len=4096, kv_len=4096, num_heads=32, num_kv_heads=8, fused=False
    )  # fmt: skip
    assert 3 * result.latency_us < apart.latency_us


def test_multicore_chips_that_cannot_fuse_fall_back() -> None:
    demo = load_arch("demo-8core")
    no_vector = demo.with_(vector_ops_per_cycle=None, dequant="none", reduction="none")
    for arch, error, words in (
        (no_vector, UnsupportedError, "no vector unit for the softmax"),
        (demo.with_(sram_bytes=16384), InfeasibleError, "no tiles of fused attention.* sram_bytes >= 73,182"),
    ):
        evaluator = GEMMEvaluator(arch)
        sizes = {"batch": 1, "q_len": 64, "kv_len": 64, "num_heads": 4, "head_dim": 256}
        with pytest.raises(error, match=words):
            evaluator.evaluate_attention(**sizes, fused=True)  # type: ignore[arg-type]
        assert evaluator.evaluate_attention(**sizes).kernel == "unfused"  # type: ignore[arg-type]


def test_kernels_that_pytorch_calls() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    prompt = {"batch": 1, "q_len": 8192, "kv_len": 8192, "num_heads": 32, "num_kv_heads": 8, "dtype": "bf16"}
    found = {name: evaluator.evaluate_attention(**prompt, library=name) for name in ("cudnn", "flash")}  # type: ignore[arg-type]
    assert [item.kernel for item in found.values()] == ["cudnn_context", "flash_context"]
    assert not any(item.has_positions for item in found.values())
    assert found["cudnn"].latency_us < 0.7 * found["flash"].latency_us  # wgmma against mma.sync
    assert found["cudnn"].source == "corrected"
    assert found["cudnn"].breakdown["prepare_us"] == 0
    carried = GEMMEvaluator("h100-sxm").evaluate_attention(**prompt, library="cudnn")  # type: ignore[arg-type]
    assert (carried.source, carried.origin) == (
        "analytic", "carried over from cudnn kernels on h200-sxm, not fitted on this GPU",
    )  # fmt: skip


CUDNN = {"dtype": "bf16", "library": "cudnn"}


@pytest.mark.parametrize(
    ("arch", "more", "error", "words"),
    [
        ("a100-sxm-80gb", {"num_heads": 12}, InvalidProblemError, "num_kv_heads must divide"),
        ("a100-sxm-80gb", {"fused": "yes"}, InvalidOptionError, "fused must be True or False"),
        ("a100-sxm-80gb", {"dtype": "fp8"}, UnsupportedError, "no tensor cores for fp8 attention"),
        ("h200-sxm", {"fused": False, "library": "cudnn"}, InvalidOptionError, "fused attention on GPUs"),
        ("h200-sxm", {"library": "xformers"}, InvalidOptionError, "library"),
        ("h200-sxm", CUDNN | {"kv_dtype": "fp8"}, UnsupportedError, "types of 8 bits.*cudnn"),
        ("h200-sxm", CUDNN | {"window": 128}, UnsupportedError, "windows.*cudnn"),
        ("h200-sxm", CUDNN | {"head_dim": 512}, UnsupportedError, "heads of more than 256.*cudnn"),
        ("h200-sxm", CUDNN | {"v_head_dim": 64}, UnsupportedError, "values of another size.*cudnn"),
        ("h200-sxm", CUDNN | {"has_sinks": True}, UnsupportedError, "attention sinks.*cudnn"),
        ("h200-sxm", CUDNN | {"q_len": 16}, UnsupportedError, "chunks of a prompt.*cudnn"),
    ],
)
def test_refused_attention(arch: str, more: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GEMMEvaluator(arch).evaluate_attention(**HEADS | more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["demo-8core", "trainium1", "tpu-v5e"])
def test_a_narrow_cache_costs_whole_prompts_nothing(name: str) -> None:
    """Keys of a prompt are read as the projection leaves them; those of a cache are widened at every visit."""
    evaluator = GEMMEvaluator(name)
    sizes = {"batch": 1, "q_len": 1024, "kv_len": 1024, "num_heads": 8, "num_kv_heads": 8, "dtype": "bf16"}
    wide, narrow = (evaluator.evaluate_attention(**sizes, kv_dtype=dtype) for dtype in ("bf16", "fp8"))  # type: ignore[arg-type]
    assert narrow.latency_us == wide.latency_us
    assert narrow.roofs == wide.roofs
    chunk = evaluator.evaluate_attention(**sizes | {"kv_len": 4096}, kv_dtype="fp8")  # type: ignore[arg-type]
    assert chunk.breakdown["dram_kv_us"] > 0


# ---- collectives -----------------------------------------------------------------------------------------------------


GOLDEN = [
    ("h200-sxm", "all_reduce", 16 << 10, 8, "trtllm", "one-shot", 3.6),
    ("h200-sxm", "all_reduce", 16 << 10, 8, "nccl", "ring, LL", 18.3),
    ("h200-sxm", "all_reduce", 512 << 20, 8, "nccl", "NVLS", 2040.0),
    ("b200", "all_gather", 32 << 20, 8, "nccl", "ring, Simple", 393.0),
    ("a100-sxm-80gb", "reduce_scatter", 256 << 20, 4, "nccl", "ring, Simple", 1035.0),
    ("h200-sxm", "all_to_all", 64 << 20, 8, "nccl", "send/receive, Simple", 219.0),
    ("l40s", "all_reduce", 64 << 20, 4, "nccl", "ring, Simple", 19700.0),
]
"""Measured latencies (arch/measured), to be met within 10%."""


@pytest.mark.parametrize(("arch", "what", "size", "ranks", "library", "algorithm", "us"), GOLDEN)
def test_golden_figures(arch: str, what: str, size: int, ranks: int, library: str, algorithm: str, us: float) -> None:
    result = GEMMEvaluator(arch).evaluate_collective(what, size, ranks, library=library)
    assert result.latency_us == pytest.approx(us, rel=0.10)
    source = "corrected" if "correction_us" in result.breakdown else "calibrated"
    assert (result.algorithm, result.source, result.library) == (algorithm, source, library)
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
    assert result.low_us < result.latency_us < result.high_us
    assert "80% of measured times are expected within" in result.explain()
    assert result.bus_gb_per_s == pytest.approx(result.problem.wire_bytes / result.latency_us / 1e3)
    text = result.explain()
    assert algorithm in text
    assert "fitted on timings of" in text
    assert result.to_dict()["problem"]["message_bytes"] == size


@pytest.mark.parametrize("name", NVIDIA)
def test_every_gpu_says_its_link_and_answers(name: str) -> None:
    arch = load_arch(name, GpuSpec)
    assert arch.interconnect is not None
    for field in ("gb_per_s", "num_gpus"):
        assert arch.provenance[f"interconnect.{field}"].source
    result = GEMMEvaluator(arch).evaluate_collective("all_reduce", 1 << 20, 2)
    assert 0.0 < result.latency_us < 1000.0
    one = GEMMEvaluator(arch).evaluate_collective("all_reduce", 1 << 20, 1)
    assert (one.latency_us, one.low_us, one.high_us, one.bus_gb_per_s) == (0.0, 0.0, 0.0, 0.0)
    assert (one.algorithm, one.bound) == ("none", "none")


@pytest.mark.parametrize(
    ("name", "gpu", "words"),
    [
        ("h100-sxm", "h200-sxm", "of the same link"),
        ("gb300", "b200", "of the same link"),
        ("a100-sxm-40gb", "a100-sxm-80gb", "of the same link"),
        ("v100", "a100-sxm-80gb", "of another link (nvlink3, this is nvlink2)"),
        ("l4", "l40s", "of the same link"),
        ("rtx-pro-6000-server", "l40s", "of another link (pcie4, this is pcie5)"),
    ],
)
def test_what_carries_over(name: str, gpu: str, words: str) -> None:
    origin = collective_coefficients(load_arch(name, GpuSpec))[1]
    assert (origin.is_calibrated, origin.gpu) == (False, gpu)
    assert words in origin.text
    assert GEMMEvaluator(name).evaluate_collective("all_gather", 1 << 20, 2).source == "analytic"


def test_rates_scale_with_the_link() -> None:
    arch = load_arch("h200-sxm", GpuSpec)
    link = arch.interconnect
    assert link is not None
    slow = arch.with_(interconnect=link.model_copy(update={"gb_per_s": 225.0}))
    fast, half = (GEMMEvaluator(of).evaluate_collective("all_gather", 64 << 20, 8) for of in (arch, slow))
    assert half.breakdown["link_us"] == pytest.approx(2 * fast.breakdown["link_us"])
    assert half.breakdown["hops_us"] == fast.breakdown["hops_us"]
    assert (half.source, "whose link was changed" in half.origin) == ("analytic", True)
    # and GEMMs of one GPU know nothing of it
    same = [GEMMEvaluator(of, disk_cache=False).evaluate(1, 64, 512, 512) for of in (arch, slow)]
    assert same[0].latency_us == same[1].latency_us
    assert [item.source for item in same] == [same[0].source] * 2


def test_the_server_is_an_option_and_is_said() -> None:
    """Eight cards on one socket keep the rate of two; a preset that was not timed is not of a server of two sockets."""
    evaluator = GEMMEvaluator("rtx-pro-6000-server")
    result = evaluator.evaluate_collective("all_reduce", 32 << 20, 8)
    assert result.interconnect == "pcie-one-socket"
    assert "pcie-one-socket" in result.explain()
    assert result.to_dict()["interconnect"] == "pcie-one-socket"
    pair = evaluator.evaluate_collective("all_reduce", 32 << 20, 2)
    assert result.bus_gb_per_s > 0.9 * pair.bus_gb_per_s
    across = evaluator.evaluate_collective("all_reduce", 32 << 20, 8, interconnect="pcie-two-sockets")
    assert across.latency_us > 8 * result.latency_us
    timed = GEMMEvaluator("l40s").evaluate_collective("all_reduce", 32 << 20, 8)
    assert (timed.interconnect, timed.source) == ("pcie-two-sockets", "calibrated")
    other = GEMMEvaluator("l40s").evaluate_collective("all_reduce", 32 << 20, 8, interconnect="pcie-one-socket")
    assert other.source == "analytic"
    assert "whose link was changed" in other.origin
    # rates are shares of the link: the same server with half of it
    assert other.breakdown["link_us"] == pytest.approx(2 * result.breakdown["link_us"])


def test_an_engine_across_sockets_is_as_its_own_rows_say() -> None:
    """TensorRT-LLM's all-reduce of 32 MiB on eight L40S takes 26.0 ms (arch/measured), nccl-tests' 38.9."""
    evaluator = GEMMEvaluator("l40s")
    engine, alone = (
        evaluator.evaluate_collective("all_reduce", 32 << 20, 8, library=library).latency_us
        for library in (None, "nccl")
    )
    assert engine == pytest.approx(26_000, rel=0.092)  # the error that its calibration publishes
    assert alone == pytest.approx(38_900, rel=0.15)
    # less than NCCL's chunks hold takes no longer than all that they hold
    assert evaluator.evaluate_collective("all_reduce", 30 << 20, 8).latency_us == pytest.approx(engine, rel=1e-6)
    assert evaluator.evaluate_collective("all_reduce", 8 << 20, 8).latency_us < 0.5 * engine


def test_a_correction_is_of_the_timed_link_alone() -> None:
    """H100 has the H200's link and SMs; a changed rate, another topology and a send were not timed."""
    asked = "all_gather", 1 << 20, 8
    h200 = load_arch("h200-sxm", GpuSpec)
    link = h200.interconnect
    assert link is not None
    own = GEMMEvaluator(h200).evaluate_collective(*asked)
    sibling = GEMMEvaluator("h100-sxm").evaluate_collective(*asked)
    assert (own.source, sibling.source) == ("corrected", "analytic")
    assert sibling.breakdown == own.breakdown
    assert sibling.high_us - sibling.low_us > own.high_us - own.low_us
    slow = h200.with_(interconnect=link.model_copy(update={"gb_per_s": 400.0}))
    others = [
        GEMMEvaluator(slow).evaluate_collective(*asked),
        GEMMEvaluator("l40s").evaluate_collective(*asked, interconnect="pcie-one-socket"),
        GEMMEvaluator(h200).evaluate_collective("send", 1 << 20, 2),
    ]
    for result in others:
        assert (result.source, "correction_us" in result.breakdown) == ("analytic", False)
        assert result.high_us / result.low_us > own.high_us / own.low_us
    carried = GEMMEvaluator("gb300").evaluate_collective(*asked).breakdown["correction_us"]
    whole = GEMMEvaluator("b200").evaluate_collective(*asked).breakdown["correction_us"]
    assert abs(carried) < abs(whole)


@given(
    st.sampled_from(["a100-sxm-80gb", "b200", "h100-sxm", "h200-sxm", "l40s"]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), st.integers(3, 8),
    st.integers(0, 34),
)  # fmt: skip
def test_more_ranks_save_no_more_than_by_the_terms(name: str, what: str, ranks: int, log2_bytes: int) -> None:
    evaluator = GEMMEvaluator(name)
    few, many = (evaluator.evaluate_collective(what, 1 << log2_bytes, num) for num in (ranks - 1, ranks))
    few_us, many_us = (item.latency_us - item.breakdown.get("correction_us", 0.0) for item in (few, many))
    assert many.latency_us >= few.latency_us * min(1.0, many_us / few_us) * (1.0 - ROUNDING)


@pytest.mark.parametrize(
    ("arch", "asked", "options", "error", "words"),
    [
        ("h200-sxm", ("broadcast", 64, 2), {}, InvalidProblemError, "what must be one of"),
        ("h200-sxm", ("all_reduce", [64], 2), {}, InvalidProblemError, "message_bytes must be an integer"),
        ("h200-sxm", ("all_reduce", 64, 2), {"library": "rccl"}, InvalidOptionError, "library must be one of"),
        ("l4", ("all_reduce", 64, 2), {"interconnect": "pcie"}, InvalidOptionError, "must be one of pcie-one-socket"),
        ("h200-sxm", ("all_reduce", 64, 2), {"interconnect": "pcie-one-socket"}, UnsupportedError, "joined by nvlink4"),
        ("l4", ("all_reduce", 64, 16), {}, UnsupportedError, "at most 8 GPUs, got 16 ranks: give its YAML an intercon"),
        ("l4", ("send", 64, 2), {"ranks_per_node": 1}, UnsupportedError, "got 2 ranks in nodes of 1: give its YAML"),
        ("b200", ("all_reduce", 64, 17), {}, UnsupportedError, "17 ranks do not lie equally in 3 nodes of at most 8"),
        ("b200", ("all_reduce", 64, 32), {"ranks_per_node": 16}, UnsupportedError, "8 GPUs, got ranks_per_node 16"),
        ("demo-8core", ("all_reduce", 64, 2), {}, UnsupportedError, "demo-8core does not say what joins it to other"),
    ],
)
def test_refused_collective(arch: str, asked: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GEMMEvaluator(arch).evaluate_collective(*asked, **options)


def test_refusal_without_a_link() -> None:
    alone = load_arch("h200-sxm", GpuSpec).with_(interconnect=None)
    with pytest.raises(UnsupportedError, match="does not say what joins it to other GPUs: give its YAML"):
        GEMMEvaluator(alone).evaluate_collective("all_reduce", 64, 2)
    with pytest.raises(ArchValidationError, match=r"interconnect\.link"):
        alone.with_(interconnect={"link": "ethernet", "topology": "pcie-one-socket", "gb_per_s": 12.5, "num_gpus": 8})


# ---- memory-bound kernels --------------------------------------------------------------------------------------------


SIZES = st.integers(0, 1 << 34)


@given(st.sampled_from(CHIPS), SIZES, SIZES, st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_terms_add_up_and_more_bytes_take_longer(name: str, read: int, written: int, row: int, num_rows: int) -> None:
    evaluator = GEMMEvaluator(name)
    found, more = (evaluator.evaluate_memory_bound(read, size, row, num_rows) for size in (written, 2 * written + 1))
    assert found.latency_us == pytest.approx(sum(found.breakdown.values()))
    assert min(us for name, us in found.breakdown.items() if name != "correction_us") >= 0.0
    assert found.latency_us <= more.latency_us * (1.0 + ROUNDING)
    arch = evaluator.arch
    if isinstance(arch, GpuSpec):  # what L2 cannot hold comes no faster than from DRAM
        assert found.num_bytes - arch.l2_bytes <= found.latency_us * arch.dram_gb_per_s * 1e3 * (1.0 + ROUNDING)


def test_few_rows_leave_sms_idle_and_sums_take_time() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    size = 1 << 18

    def row_us(what: str, num_rows: int) -> float:
        return evaluator.evaluate_memory_bound(size, size, size // 2 // num_rows, num_rows, what).breakdown["row_us"]

    assert row_us("rms_norm", 1) > 5 * row_us("rms_norm", 128)
    assert row_us("cast", 1) == pytest.approx(row_us("cast", 128))  # its elements are dealt to all SMs
    assert row_us("top_k", 128) > row_us("gather", 128)  # one choice after the other
    norm = evaluator.evaluate_memory_bound(size, size, 8192, 16, "rms_norm")
    assert norm.latency_us > evaluator.evaluate_memory_bound(size, size, 8192, 16, "act").latency_us
    assert sum(norm.breakdown.values()) == pytest.approx(norm.latency_us)


def test_only_the_gpu_that_was_timed_is_calibrated() -> None:
    sources = {name: GEMMEvaluator(name).evaluate_memory_bound(1e6, 1e6).source for name in CHIPS}
    assert [name for name, source in sources.items() if source == "corrected"] == ["h200-sxm"]
    changed = load_arch("h200-sxm", GpuSpec).model_copy(update={"num_sms": 100})
    assert GEMMEvaluator(changed).evaluate_memory_bound(1e6, 1e6).source == "analytic"


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((-1, 0), InvalidProblemError), (("a", 1), InvalidProblemError), ((1, 1, -1), InvalidOptionError),
        ((1, 1, 0, -1), InvalidOptionError),
    ],
)  # fmt: skip
def test_refused_sizes(sizes: tuple[int, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        GEMMEvaluator("h200-sxm").evaluate_memory_bound(*sizes)


@pytest.mark.parametrize("topology", ["ring", "switch"])
def test_chips_exchange_over_the_link_of_their_spec(topology: str) -> None:
    link = {"topology": topology, "gb_per_s": 100.0, "latency_us": 2.0, "num_chips": 8}
    pod = GEMMEvaluator(load_arch("demo-8core").with_(interconnect=link))
    for what in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        r = pod.evaluate_collective(what, 1 << 20, 8)
        hops = (2 if what == "all_reduce" else 1) * {"ring": 7, "switch": 3}[topology]
        detour = 2.0 if (what, topology) == ("all_to_all", "ring") else 1.0
        assert r.breakdown["hops_us"] == 2.0 * hops
        assert r.breakdown["link_us"] == pytest.approx(r.problem.wire_bytes / 100e3 * detour)
        assert (r.source, r.library, r.algorithm) == ("analytic", "link", topology)
        assert r.low_us < r.latency_us == sum(r.breakdown.values()) < r.high_us
    assert pod.evaluate_collective("all_reduce", 1 << 20, 1).latency_us == 0.0
    for ranks, per_node in ((16, None), (8, 4)):
        with pytest.raises(UnsupportedError, match="joins at most 8 chips, and no network is modelled"):
            pod.evaluate_collective("all_reduce", 1 << 20, ranks, ranks_per_node=per_node)
