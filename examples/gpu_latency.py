"""For inference engineers: what a model costs on GPUs that you need not own.

python examples/gpu_latency.py [GPU ...]
"""

from __future__ import annotations

import sys
from typing import Literal

from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, load_model, transformer_gemms

GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm")
BATCH_SIZE, SEQ_LEN = 16, 4096


def pass_ms(evaluator: GEMMEvaluator, phase: Literal["prefill", "decode"], batch_size: int, dtype: str) -> float:
    """Return the time that the GEMMs of one pass take on one of four GPUs, in ms."""
    config = load_model("llama-3-70b")
    gemms = transformer_gemms(
        config, phase=phase, batch_size=batch_size, seq_len=SEQ_LEN, tensor_parallel=4, dtype=dtype
    )
    return sum(evaluator.evaluate_problem(gemm.problem).latency_us * gemm.total_count for gemm in gemms) / 1e3


def main() -> None:
    """Print prefill and decode of Llama 3 70B on four GPUs of each kind, in fp16 and with 4-bit weights."""
    console = Console(width=80, highlight=False)
    table = Table(title=f"Llama 3 70B on four GPUs, {SEQ_LEN:,} tokens: GEMMs only", title_justify="left")
    for name in ("GPU", "weights", "prefill of 1\nms", f"step of {BATCH_SIZE}\nms", "\ntokens/s", "source"):
        table.add_column(name, justify="left" if name in ("GPU", "weights", "source") else "right", no_wrap=True)
    for name in sys.argv[1:] or GPUS:
        evaluator = GEMMEvaluator(name)
        for weights, dtype in (("fp16", "fp16"), ("int4", "w4a16")):
            prefill_ms = pass_ms(evaluator, "prefill", 1, dtype)
            decode_ms = pass_ms(evaluator, "decode", BATCH_SIZE, dtype)
            source = evaluator.evaluate(1, BATCH_SIZE, 8192, 8192, dtype=dtype).source
            rate = f"{1e3 * BATCH_SIZE / decode_ms:,.0f}"
            table.add_row(name, weights, f"{prefill_ms:,.0f}", f"{decode_ms:.1f}", rate, source)
    console.print(table)
    console.print("calibrated: fitted on timings of this GPU; analytic: on none of it")


if __name__ == "__main__":
    main()
