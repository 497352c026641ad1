"""For serving engineers: over how many GPUs, and how, to spread the experts of a model, at which batch.

python examples/serve_deepseek_v3.py [GPU ...]

Layers of experts only. Left out: attention, dense layers, the router's GEMM, and all communication between GPUs.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gemm_eval import GEMMEvaluator, GpuSpec, ModelConfig, load_model, moe_layers
from gemm_eval.transformer import model_memory, moe_layer_of

MODELS = {"deepseek-v3": ("fp8_block", 8), "qwen3-235b-a22b": ("bf16", 1)}  # type, groups of experts of the router
NUM_GPUS = (8, 32)
BATCHES = (8, 64, 512)  # tokens of a step for each GPU: in decode its sequences
SKEWED = "power_law_1.2"
FREE_FRAC = 0.2  # of DRAM, at least, for the KV cache and all else
NUMBERS = ("ms", "tokens/s", "us/token", "tax")
ALIKE_FRAC = 0.1  # choices closer than that are alike: the model is no better


class Choice(NamedTuple):
    """Experts over tp x ep GPUs: time of all their layers in one step, on the most loaded rank."""

    tp: int
    ep: int
    balanced_ms: float
    skewed_ms: float
    library: str
    source: str


def weight_gb(config: ModelConfig, dtype: str, num_gpus: int) -> float:
    """Return the weights of one GPU: its share of the experts, and all else whole, as data-parallel attention has."""
    memory = model_memory(config, batch_size=1, seq_len=1, expert_parallel=num_gpus, dtype=dtype)
    return memory.weight_bytes / 1e9


def choices(evaluator: GEMMEvaluator, name: str, num_gpus: int, batch: int) -> list[Choice]:
    """Return all ways to spread the experts over some GPUs, the fastest under skewed routing first."""
    config, (dtype, num_groups) = load_model(name), MODELS[name]
    assert config.moe is not None
    splits = [(tp, num_gpus // tp) for tp in (1, 2, 4, 8)]
    layers = [
        moe_layer_of(
            config, batch * num_gpus, tp=tp, ep=ep, dtype=dtype, num_expert_groups=num_groups, distribution=routing
        )
        for routing in ("balanced", SKEWED)
        for tp, ep in splits
    ]
    results = list(moe_layers(evaluator, layers, progress=False))
    found = []
    for (tp, ep), balanced, skewed in zip(splits, results[: len(splits)], results[len(splits) :], strict=True):
        balanced_ms, skewed_ms = (config.moe.num_layers * result.latency_us / 1e3 for result in (balanced, skewed))
        source = skewed.gemm1.source if skewed.gemm1 else "-"
        found.append(Choice(tp, ep, balanced_ms, skewed_ms, str(skewed.library).partition("/")[0], source))
    return sorted(found, key=lambda choice: choice.skewed_ms)


def main() -> None:
    """Print for each model, GPU, number of GPUs and batch the best split, and which others are as good."""
    console = Console(width=112, highlight=False)
    sources: set[str] = set()
    for name, (dtype, _) in MODELS.items():
        table = Table(title=f"{name}, {dtype}: experts' layers of one step, {SKEWED}", title_justify="left")
        for head in ("GPU", "GPUs", "GB", "batch", "tp x ep", "as good", *NUMBERS, "kernels"):
            table.add_column(head, justify="left" if head in ("GPU", "as good", "kernels") else "right", no_wrap=True)
        for gpu in sys.argv[1:] or ("h200-sxm", "b200"):
            evaluator = GEMMEvaluator(gpu)
            assert isinstance(evaluator.arch, GpuSpec)
            for num_gpus in NUM_GPUS:
                weights = weight_gb(load_model(name), dtype, num_gpus)
                if weights > (1.0 - FREE_FRAC) * evaluator.arch.dram_bytes / 1e9:
                    table.add_row(gpu, str(num_gpus), f"{weights:.0f}", "-", "does not fit")
                    continue
                for batch in BATCHES:
                    best, *others = choices(evaluator, name, num_gpus, batch)
                    limit_ms = (1.0 + ALIKE_FRAC) * best.skewed_ms
                    alike = [f"{choice.tp}x{choice.ep}" for choice in others if choice.skewed_ms < limit_ms]
                    table.add_row(
                        *(gpu, str(num_gpus), f"{weights:.0f}", str(batch), f"{best.tp}x{best.ep}", ", ".join(alike)),
                        *(f"{best.skewed_ms:.1f}", f"{1e3 * batch / best.skewed_ms:,.0f}"),
                        *(f"{1e3 * best.skewed_ms / batch:,.0f}", f"{best.skewed_ms / best.balanced_ms:.2f}"),
                        best.library,
                    )
                    sources.add(f"{best.library} on {gpu}: {best.source}")
        console.print(table)
    console.print(f"Kernels: {'; '.join(sorted(sources))}.")
    console.print(
        "GB: weights of a GPU. Batch: tokens of a step for each GPU; tokens/s, us/token: of one GPU. As good: within\n"
        "10% of the best. Tax: time over that with balanced routing. Each rank routes the tokens of all, gathered.\n"
        "Left out: attention, dense layers, the router's GEMM, communication between GPUs: no rate of a whole model."
    )


if __name__ == "__main__":
    main()
