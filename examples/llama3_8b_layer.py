"""The GEMMs of one Llama-3-8B layer, prefill and decode, on three accelerators: best mapping, latency and bound.

Run it with ``make demo``, or ``python examples/llama3_8b_layer.py [ARCH ...]`` for other chips.
Each chip runs its default data type. The model's sizes are in arch/models/llama-3-8b.yaml.
"""

from __future__ import annotations

import sys
from typing import Literal

from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, GEMMResult, GpuSpec, load_arch, load_model, transformer_gemms
from gemm_eval.mapping import KernelConfig
from gemm_eval.transformer import LayerGemm, ModelConfig

ARCHS = ("sg2260", "tpu-v5e", "h100-sxm")


def cell(result: GEMMResult) -> str:
    """Latency, share of peak and bound of a result, with its mapping in a second line."""
    head = f"{result.latency_us:,.1f} us, {result.utilization_frac:.0%}, {result.bound}\n"
    mapping = result.mapping
    if isinstance(mapping, KernelConfig):
        parts = f", split-K {mapping.split_k}" if mapping.split_k > 1 else ""
        return (
            f"{head}[dim]CTA {mapping.cta_m}x{mapping.cta_n}x{mapping.cta_k}, {mapping.num_stages} stages{parts}[/dim]"
        )
    split = "·".join(f"{axis}{count}" for axis, count in zip("GMNK", mapping.partition, strict=True) if count > 1)
    tile = "x".join(map(str, mapping.tile))
    return f"{head}[dim]{split or 'one core'}, {tile} {mapping.loop_order.name.lower()}[/dim]"


def print_phase(console: Console, title: str, gemms: list[list[LayerGemm]], evaluators: list[GEMMEvaluator]) -> None:
    """Print a table of one row for each GEMM and one column for each chip, with the sums of the layer."""
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("GEMM\nG·M·K·N")
    results = []
    for evaluator, own in zip(evaluators, gemms, strict=True):
        arch = evaluator.arch
        size = (
            f"{arch.num_sms} SMs" if isinstance(arch, GpuSpec) else f"{arch.num_cores} core{'s' * (arch.num_cores > 1)}"
        )
        table.add_column(
            f"{arch.name}, {size}\n"
            f"{arch.default_dtype} {arch.peak_tflop_per_s():,.0f} TFLOP/s, {arch.dram_gb_per_s:,.0f} GB/s"
        )
        results.append(list(evaluator.evaluate_many([gemm.problem for gemm in own])))
    for row, gemm in enumerate(gemms[0]):
        sizes = "·".join(map(str, gemm.problem.sizes))
        table.add_row(f"{gemm.name}\n[dim]{sizes}[/dim]", *(cell(column[row]) for column in results))
    sums_us = [sum(result.latency_us for result in column) for column in results]
    num_layers = gemms[0][0].num_layers
    totals = [f"{us:,.0f} us\n{us * num_layers / 1e3:,.1f} ms" for us in sums_us]
    table.add_row(f"one layer\nall {num_layers} layers", *totals, style="bold")
    console.print(table)


def layer_gemms(
    config: ModelConfig, evaluator: GEMMEvaluator, phase: Literal["prefill", "decode"], batch_size: int
) -> list[LayerGemm]:
    """GEMMs of a layer in the chip's default data type, at 2,048 tokens of prompt or context."""
    dtype = str(evaluator.arch.default_dtype)
    gemms = transformer_gemms(config, phase=phase, batch_size=batch_size, seq_len=2048, dtype=dtype)
    return [gemm for gemm in gemms if gemm.name != "lm_head"]


def main() -> None:
    """Print prefill of one prompt of 2,048 tokens, and one decode step of 16 sequences at that context."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    config = load_model("llama-3-8b")
    evaluators = [GEMMEvaluator(load_arch(name)) for name in sys.argv[1:] or ARCHS]
    prefill = [layer_gemms(config, evaluator, "prefill", 1) for evaluator in evaluators]
    decode = [layer_gemms(config, evaluator, "decode", 16) for evaluator in evaluators]
    console.print("[bold]Llama-3-8B, the GEMMs of one layer[/bold]: latency, share of peak and bound of each,")
    console.print("and its best mapping: split over cores, tile m x n x k, loop order; of a GPU its kernel config\n")
    print_phase(console, "Prefill: 1 sequence x 2,048 tokens", prefill, evaluators)
    print_phase(console, "Decode: 16 sequences x 1 token, context 2,048", decode, evaluators)
    gate_up = next(gemm for gemm in decode[0] if gemm.name == "gate_up_proj")
    console.print("\n[bold]Why?[/bold] result.explain() of gate_up_proj in decode:")
    console.print(evaluators[0].evaluate_problem(gate_up.problem).explain())


if __name__ == "__main__":
    main()
