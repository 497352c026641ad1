"""For engineers with a torch model: what it takes on GPUs that you need not own.

python examples/predict_resnet_and_llama.py [GPU ...]
pip install 'gemm_eval[torch]' torchvision transformers   # no GPU, no weights
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torchvision
import transformers
from rich.console import Console
from rich.table import Table

from gemm_eval.torch import predict_module

GPUS = ("a100-sxm-80gb", "l40s", "h100-sxm", "h200-sxm", "b200")
LLAMA_3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}


def models() -> dict[str, tuple[Any, Any]]:
    """Return modules without weights, each with inputs."""
    with torch.device("meta"):
        resnet = torchvision.models.resnet50().bfloat16().eval()
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_3_8B)).bfloat16().eval()
    images, tokens = torch.empty(32, 3, 224, 224, dtype=torch.bfloat16), torch.zeros(1, 2048, dtype=torch.long)
    return {"ResNet-50 x 32": (resnet, images), "Llama 3 8B, 2048": (llama, {"input_ids": tokens})}


def main() -> None:
    """Print the forward pass of both on each GPU, and where the time goes on the last one."""
    console = Console(width=80, highlight=False)
    table = Table(title="A forward pass in bf16, fused as by torch.compile", title_justify="left")
    for head in ("model", "GPU", "ms", "80% within", "mostly"):
        table.add_column(head, justify="right" if head == "ms" else "left", no_wrap=True)
    for name, (module, inputs) in models().items():
        for arch in sys.argv[1:] or GPUS:
            found = predict_module(module, inputs, arch)
            low, ms, high = (f"{us / 1e3:.2f}" for us in (found.low_us, found.latency_us, found.high_us))
            table.add_row(name, arch, ms, f"{low} to {high}", next(iter(found.us_by_kind)))
    console.print(table)
    for path in ("model.layers.0.self_attn", "model.layers.0.mlp", "lm_head"):
        console.print(f"{arch}, {path:26} {found[path].latency_us:8,.1f} us, bound by {found[path].bound}")


if __name__ == "__main__":
    main()
