"""The GEMMs of one Llama-3-8B layer, prefill and decode, on three accelerators: best mapping, latency and bound.

Run it with ``make demo``, or ``python examples/llama3_8b_layer.py [ARCH ...]`` for other chips.
Model sizes: config.json of Meta-Llama-3-8B (hidden_size 4096, intermediate_size 14336, 32 heads, 8 KV heads of 128).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, GEMMResult, load_arch

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4096, 14336, 32, 8, 128, 32
ARCHS = ("sg2260e", "tpu-v5e", "h100-sxm")


class Gemm(NamedTuple):
    """One kind of GEMM in a layer, C[G,M,N] = A[G,M,K] x B[G,K,N]."""

    name: str
    G: int
    M: int
    K: int
    N: int


def layer_gemms(batch_size: int, new_tokens: int, context: int) -> list[Gemm]:
    """GEMMs of a layer for `new_tokens` tokens of each of `batch_size` sequences, which attend to `context` tokens.

    The query heads that share a KV head are rows of one GEMM (grouped-query attention).
    """
    tokens = batch_size * new_tokens
    groups, rows = batch_size * KV_HEADS, new_tokens * HEADS // KV_HEADS
    return [
        Gemm("qkv_proj", 1, tokens, HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        Gemm("attn_score", groups, rows, HEAD_DIM, context),
        Gemm("attn_value", groups, rows, context, HEAD_DIM),
        Gemm("o_proj", 1, tokens, HEADS * HEAD_DIM, HIDDEN),
        Gemm("gate_up_proj", 1, tokens, HIDDEN, 2 * INTERMEDIATE),
        Gemm("down_proj", 1, tokens, INTERMEDIATE, HIDDEN),
    ]


def print_phase(console: Console, title: str, gemms: list[Gemm], arch_names: tuple[str, ...]) -> None:
    """Print one table for each chip, with the sum over the layer."""
    for name in arch_names:
        evaluator = GEMMEvaluator(load_arch(name))
        arch = evaluator.arch
        note = ", described coarsely" if arch.is_coarse else ""
        table = Table(title=f"{title} on {arch.title or name} ({arch.num_cores} cores{note})", title_justify="left")
        for column in ("GEMM", "bound", "partition G·M·N·K", "tile m·n·k", "order"):
            table.add_column(column, no_wrap=column == "GEMM")
        for column in ("G·M·K·N", "us", "share", "peak", "GB/s"):
            table.add_column(column, justify="right")
        results: list[tuple[Gemm, GEMMResult]] = [(gemm, evaluator.evaluate(*gemm[1:])) for gemm in gemms]
        total_us = sum(result.latency_us for _, result in results)
        for gemm, result in results:
            mapping = result.mapping
            table.add_row(
                gemm.name,
                result.bound,
                "·".join(map(str, mapping.partition)),
                "·".join(map(str, mapping.tile)),
                mapping.loop_order.name.lower(),
                "·".join(map(str, gemm[1:])),
                f"{result.latency_us:,.1f}",
                f"{result.latency_us / total_us:.0%}",
                f"{result.utilization_frac:.0%}",
                f"{result.dram_gb_per_s:,.0f}",
            )
        console.print(table)
        console.print(
            f"GEMMs of one layer: {total_us:,.0f} us; of {LAYERS} layers: {total_us * LAYERS / 1e3:,.2f} ms\n"
        )


def main() -> None:
    """Print prefill of one prompt of 2,048 tokens, and one decode step of 16 sequences at that context."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    arch_names = tuple(sys.argv[1:]) or ARCHS
    print_phase(console, "Prefill, 1 x 2,048 tokens,", layer_gemms(1, 2048, 2048), arch_names)
    print_phase(console, "Decode, 16 sequences at 2,048 tokens,", layer_gemms(16, 1, 2048), arch_names)
    example = GEMMEvaluator(load_arch(arch_names[0])).evaluate(1, 16, HIDDEN, 2 * INTERMEDIATE)
    console.print("Why, for gate_up_proj in decode (result.explain()):")
    console.print(example.explain(), highlight=False)


if __name__ == "__main__":
    main()
