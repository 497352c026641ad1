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
ARCHS = ("sg2260", "tpu-v5e", "h100-sxm")


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


def cell(result: GEMMResult) -> str:
    """Latency, share of peak and bound of a result, with its mapping in a second line."""
    split = "·".join(
        f"{axis}{count}" for axis, count in zip("GMNK", result.mapping.partition, strict=True) if count > 1
    )
    tile = "x".join(map(str, result.mapping.tile))
    return (
        f"{result.latency_us:,.1f} us, {result.utilization_frac:.0%}, {result.bound}\n"
        f"[dim]{split or 'one core'}, {tile} {result.mapping.loop_order.name.lower()}[/dim]"
    )


def print_phase(console: Console, title: str, gemms: list[Gemm], evaluators: list[GEMMEvaluator]) -> None:
    """Print a table of one row for each GEMM and one column for each chip, with the sums of the layer."""
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("GEMM\nG·M·K·N")
    for evaluator in evaluators:
        arch = evaluator.arch
        coarse = " (coarse)" if arch.is_coarse else ""
        table.add_column(
            f"{arch.name}{coarse}, {arch.num_cores} core{'s' * (arch.num_cores > 1)}\n"
            f"{arch.default_dtype} {arch.peak_tflop_per_s():,.0f} TFLOP/s, {arch.dram_gb_per_s:,.0f} GB/s"
        )
    sums_us = [0.0] * len(evaluators)
    for gemm in gemms:
        results = [evaluator.evaluate(*gemm[1:]) for evaluator in evaluators]
        sums_us = [total + result.latency_us for total, result in zip(sums_us, results, strict=True)]
        table.add_row(f"{gemm.name}\n[dim]{'·'.join(map(str, gemm[1:]))}[/dim]", *map(cell, results))
    table.add_row(
        f"one layer\nall {LAYERS} layers",
        *(f"{us:,.0f} us\n{us * LAYERS / 1e3:,.1f} ms" for us in sums_us),
        style="bold",
    )
    console.print(table)


def main() -> None:
    """Print prefill of one prompt of 2,048 tokens, and one decode step of 16 sequences at that context."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    evaluators = [GEMMEvaluator(load_arch(name)) for name in sys.argv[1:] or ARCHS]
    console.print("[bold]Llama-3-8B, the GEMMs of one layer[/bold]: latency, share of peak and bound of each,")
    console.print("and its best mapping: split over cores, tile m x n x k, loop order\n")
    print_phase(console, "Prefill: 1 sequence x 2,048 tokens", layer_gemms(1, 2048, 2048), evaluators)
    print_phase(console, "Decode: 16 sequences x 1 token, context 2,048", layer_gemms(16, 1, 2048), evaluators)
    example = evaluators[0].evaluate(1, 16, HIDDEN, 2 * INTERMEDIATE)
    console.print("\n[bold]Why?[/bold] result.explain() of gate_up_proj in decode:")
    console.print(example.explain())


if __name__ == "__main__":
    main()
