"""Score cards of compiled kernels, without a GPU: what PTX and machine code say about speed before anything runs.

>>> from gemm_eval.autotune.asm import score_file
>>> score_file("kernel.cubin").loop.issue_per_mma  # doctest: +SKIP
11.5
"""

from gemm_eval.autotune.asm.card import (
    Access,
    LoopCard,
    LoopCycles,
    OpCounts,
    ScoreCard,
    cycles_of_loop,
    kernel_code,
    loop_k,
    occupancy_of_card,
)
from gemm_eval.autotune.asm.score import score_cubin, score_cubins, score_file, score_ptx, score_sass

__all__ = [
    "Access", "LoopCard", "LoopCycles", "OpCounts", "ScoreCard", "cycles_of_loop", "kernel_code", "loop_k",
    "occupancy_of_card", "score_cubin", "score_cubins", "score_file", "score_ptx", "score_sass",
]  # fmt: skip
