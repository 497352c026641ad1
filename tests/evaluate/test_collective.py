"""`evaluate_collective`: golden figures, where they come from, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.arch import GpuSpec, list_archs
from gemm_eval.errors import ArchValidationError, InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.models.gpu.collective import collective_coefficients

GOLDEN = [
    ("h200-sxm", "all_reduce", 16 << 10, 8, "trtllm", "one-shot", 3.6),
    ("h200-sxm", "all_reduce", 16 << 10, 8, "nccl", "ring, LL128", 18.3),
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
    assert (result.algorithm, result.source, result.library) == (algorithm, "calibrated", library)
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
    assert result.bus_gb_per_s == pytest.approx(result.problem.wire_bytes / result.latency_us / 1e3)
    text = result.explain()
    assert algorithm in text
    assert "fitted on timings of" in text
    assert result.to_dict()["problem"]["message_bytes"] == size


@pytest.mark.parametrize("name", [name for name in list_archs() if load_arch(name).type == "gpu"])
def test_every_gpu_says_its_link_and_answers(name: str) -> None:
    arch = load_arch(name, GpuSpec)
    assert arch.interconnect is not None
    for field in ("gb_per_s", "num_gpus"):
        assert arch.provenance[f"interconnect.{field}"].source
    result = GEMMEvaluator(arch).evaluate_collective("all_reduce", 1 << 20, 2)
    assert 0.0 < result.latency_us < 1000.0
    one = GEMMEvaluator(arch).evaluate_collective("all_reduce", 1 << 20, 1)
    assert (one.latency_us, one.algorithm, one.bus_gb_per_s, one.bound) == (0.0, "none", 0.0, "none")


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


def test_a_launch_does_not_grow_with_the_message() -> None:
    """Seventy microseconds of an all-reduce of 32 MiB were said to be launches: they fill the pipeline of NVLS."""
    evaluator = GEMMEvaluator("h200-sxm")
    results = [evaluator.evaluate_collective("all_reduce", size, 8) for size in (1 << 10, 1 << 20, 32 << 20, 1 << 30)]
    assert {result.algorithm for result in results} >= {"one-shot", "NVLS"}
    (launch_us,) = {result.breakdown["launch_us"] for result in results}
    assert launch_us < 5.0
    assert results[2].breakdown["protocol_us"] > 50.0


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


def test_a_send_goes_as_one_part_of_an_exchange() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    send = evaluator.evaluate_collective("send", 32 << 20, 2)
    both = evaluator.evaluate_collective("all_to_all", 64 << 20, 2)  # half of it stays
    assert send.source == "analytic"
    assert 0.8 * both.latency_us < send.latency_us <= both.latency_us


def test_results_are_shared_and_travel() -> None:
    evaluator = GEMMEvaluator("b200")
    result = evaluator.evaluate_collective("all_reduce", 4096, 4)
    assert evaluator.evaluate_collective("all_reduce", 4096, 4) is result
    assert pickle.loads(pickle.dumps(evaluator)).evaluate_collective("all_reduce", 4096, 4) == result
    assert repr(result).startswith("<CollectiveResult all_reduce of 4,096 bytes, 4 ranks on b200: ")


@pytest.mark.parametrize(
    ("arch", "asked", "options", "error", "words"),
    [
        ("h200-sxm", ("broadcast", 64, 2), {}, InvalidProblemError, "what must be one of"),
        ("h200-sxm", ("all_reduce", [64], 2), {}, InvalidProblemError, "message_bytes must be an integer"),
        ("h200-sxm", ("all_reduce", 64, 2), {"library": "rccl"}, InvalidOptionError, "library must be one of"),
        ("l4", ("all_reduce", 64, 2), {"interconnect": "pcie"}, InvalidOptionError, "must be one of pcie-one-socket"),
        ("h200-sxm", ("all_reduce", 64, 2), {"interconnect": "pcie-one-socket"}, UnsupportedError, "joined by nvlink4"),
        ("h200-sxm", ("all_reduce", 64, 16), {}, UnsupportedError, "joins at most 8 GPUs, got 16 ranks"),
        ("demo-8core", ("all_reduce", 64, 2), {}, UnsupportedError, "demo-8core does not say what joins it to other"),
    ],
)
def test_refusal(arch: str, asked: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GEMMEvaluator(arch).evaluate_collective(*asked, **options)


def test_refusal_without_a_link() -> None:
    alone = load_arch("h200-sxm", GpuSpec).with_(interconnect=None)
    with pytest.raises(UnsupportedError, match="does not say what joins it to other GPUs: give its YAML"):
        GEMMEvaluator(alone).evaluate_collective("all_reduce", 64, 2)
    with pytest.raises(ArchValidationError, match=r"interconnect\.link"):
        alone.with_(interconnect={"link": "ethernet", "topology": "pcie-one-socket", "gb_per_s": 12.5, "num_gpus": 8})
