"""The search of training layouts from nothing, in tenths of a millisecond a layout."""

from typing import Any

from gemm_eval import GEMMEvaluator, find_training_layouts

MS_PER_S = 1e3


def test_ten_thousand_layouts(benchmark: Any) -> None:
    """Layouts and plans of DeepSeek-V3 on 1,024 GPUs, as one process; nothing is cached but compiled kernels."""
    count = 1024 if benchmark.enabled else 64
    find_training_layouts("llama-3.2-1b", "h100-sxm", num_devices=1, global_batch=1, seq_len=512)

    def run() -> int:
        arch = GEMMEvaluator("h100-sxm", disk_cache=False, clock="sustained")
        return len(find_training_layouts(
            "deepseek-v3", arch, num_devices=count, global_batch=2 * count, seq_len=8192, micro_batches=(1, 2, 4),
            zeros=(1, 2, 3), dtype="fp8_block", ignore_memory=True, **({} if benchmark.enabled else {"tensor": [8]}),
        ))  # fmt: skip

    num = benchmark.pedantic(run, rounds=1)
    if benchmark.enabled:
        assert num > 10_000
        benchmark.extra_info["ms_a_layout"] = benchmark.stats.stats.min / num * MS_PER_S
