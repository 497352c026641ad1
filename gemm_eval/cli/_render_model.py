"""The table of `gemm-eval model`: one row for each kind of GEMM, with the sums of a layer and of the model."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.cli._output import format_number, format_share, make_console, make_table
from gemm_eval.evaluate import GEMMResult
from gemm_eval.transformer import LayerGemm, ModelConfig

__all__ = ["print_phase"]

_NUMBERS = ("G·M·K·N", "layers", "us", "us in all", "share", "of peak")


def print_phase(title: str, config: ModelConfig, rows: Sequence[tuple[LayerGemm, GEMMResult]], tokens: int) -> None:
    """Print one forward pass over `tokens` tokens: each kind of GEMM alone, and in all layers that have it."""
    table = make_table(["GEMM", "types", "bound", *_NUMBERS], title=title, right=_NUMBERS)
    total_us = sum(gemm.total_count * result.latency_us for gemm, result in rows)
    for gemm, result in rows:
        all_us = gemm.total_count * result.latency_us
        problem = result.problem
        types = str(problem.input_dtype)
        if problem.is_weight_quantized:
            types += f" x {problem.weight_dtype}"
        count = f"{gemm.num_layers}" if gemm.count_per_layer == 1 else f"{gemm.num_layers} x {gemm.count_per_layer}"
        table.add_row(
            gemm.name,
            types,
            result.bound,
            "·".join(map(str, problem.sizes)),
            count,
            format_number(result.latency_us),
            format_number(all_us),
            format_share(all_us, total_us),
            format_share(result.utilization_frac, 1.0),
        )
    console = make_console()
    console.print(table)
    in_layers_us = sum(gemm.total_count * result.latency_us for gemm, result in rows if gemm.name != "lm_head")
    console.print(
        f"GEMMs of a layer: {format_number(in_layers_us / config.num_layers)} us in the mean; of the model: "
        f"{format_number(total_us)} us, {format_number(total_us / tokens)} us a token\n"
    )
