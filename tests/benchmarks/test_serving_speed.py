"""Served models: one estimate whose steps are known, and a search from nothing, in milliseconds a deployment."""

from typing import Any

from gemm_eval import GEMMEvaluator, find_deployments
from gemm_eval.estimate import Replica
from gemm_eval.serving import Requests, serve

MS_PER_S = 1e3


def test_one_warm_point(benchmark: Any) -> None:
    """Takes 0.2 ms."""
    requests = Requests(4096, 1024)
    times = requests.times_on(Replica("llama-3-70b", "h200-sxm", tensor_parallel=8, engine="vllm"))
    serve(times, requests, 64)
    benchmark(serve, times, requests, 64)


def test_ten_thousand_deployments(benchmark: Any) -> None:
    """Layouts, pools, types and loads of a model on two GPUs; nothing is cached but compiled kernels."""
    counts = (8, 16, 32) if benchmark.enabled else (2,)
    find_deployments("llama-3-8b", "h200-sxm", 1, concurrencies=[1])

    def run() -> int:
        archs = [GEMMEvaluator(arch, disk_cache=False) for arch in ("h200-sxm", "h100-sxm")]
        return find_deployments("llama-3-8b", archs, counts, prompt_len=4096, dtypes=(None, "fp8")).num_points

    num_points = benchmark.pedantic(run, rounds=1)
    if benchmark.enabled:
        assert num_points > 10_000
        benchmark.extra_info["ms_a_point"] = benchmark.stats.stats.min / num_points * MS_PER_S
