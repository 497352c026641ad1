"""Runs modules of torch forward on a GPU, and sets what `gemm_eval.torch` predicts beside it, operation by operation.

    python -m benchmarks.measure_modules --out FOLDER     # a GPU, PyTorch, torchvision, transformers; one minute
    python -m benchmarks.measure_modules --out FOLDER --compiled --modules resnet50 vit      # half a minute each
    python -m benchmarks.measure_modules --out arch/measured/h200-sxm/torch --show     # errors of today's predictions

Eight architectures, in bf16 with random weights, as eager code and as a CUDA graph of it. Nothing is fitted on them.
Writes FOLDER/modules.csv and FOLDER/operations.csv as they grow; with `--compiled` FOLDER/compiled.csv, of what
torch.compile makes of them, in a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torchvision
import transformers

from benchmarks.measure_torch_kernels import graph_us
from gemm_eval.arch import read_yaml
from gemm_eval.torch import compare, predict_module

_PAUSE_S = 0.03  # as `compare` has it
_NAME = 60
"""Characters of the name of a kernel that are kept."""
Case = tuple[Any, dict[str, torch.Tensor]]


def hugging_face(device: str, config: Any, **inputs: torch.Tensor) -> Case:
    """Return a model of transformers, and its inputs."""
    with torch.device(device):
        module = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    return module.eval(), {name: value.to(device) for name, value in inputs.items()}


def vision(device: str, name: str, batch: int) -> Case:
    """Return a model of torchvision, with images of 224 x 224."""
    with torch.device(device):
        module = getattr(torchvision.models, name)().bfloat16().eval()
        return module, {"x": torch.randn(batch, 3, 224, 224, dtype=torch.bfloat16)}


def tokens(batch: int, length: int) -> torch.Tensor:
    """Ids that every vocabulary has."""
    return torch.randint(0, 1000, (batch, length))


def llama(device: str) -> Case:
    """Four layers of the size of Llama 3 8B."""
    config = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8
    )
    return hugging_face(device, config, input_ids=tokens(1, 4096))


def bert(device: str) -> Case:
    """Eight layers of the size of BERT large."""
    config = transformers.BertConfig(
        num_hidden_layers=8, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    )
    return hugging_face(device, config, input_ids=tokens(16, 512))


def gpt2(device: str) -> Case:
    """Six layers of the size of GPT-2 XL."""
    return hugging_face(device, transformers.GPT2Config(n_layer=6, n_embd=1600, n_head=25), input_ids=tokens(8, 1024))


def qwen3(device: str) -> Case:
    """Six layers of the size of Qwen3 4B."""
    config = transformers.Qwen3Config(
        num_hidden_layers=6, hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8
    )
    return hugging_face(device, config, input_ids=tokens(2, 2048))


MODULES: dict[str, Callable[[str], Case]] = {
    "llama": llama, "bert": bert, "gpt2": gpt2, "qwen3": qwen3, "vit": lambda device: vision(device, "vit_l_16", 32),
    "resnet50": lambda device: vision(device, "resnet50", 64),
    "convnext": lambda device: vision(device, "convnext_base", 32),
    "swin": lambda device: vision(device, "swin_v2_b", 16),
}  # fmt: skip


def compiled(names: list[str], folder: Path, arch: str | None) -> None:
    """Time what torch.compile makes of modules, and write the table."""
    rows = []
    for name in names:
        module, inputs = MODULES[name]("cuda")
        with torch.no_grad():
            predicted_us = predict_module(module, inputs, arch or "h200-sxm").latency_us
            run = torch.compile(module, dynamic=False)
            for _ in range(3):
                run(**inputs)
            replay = graph_us(lambda run=run, inputs=inputs: run(**inputs), num_calls=1, pause_s=_PAUSE_S)  # type: ignore[misc]
            measured_us = statistics.median(replay() for _ in range(9))
        rows.append({"module": name, "predicted_us": predicted_us, "graph_us": measured_us,
                     "error_frac": predicted_us / measured_us - 1})  # fmt: skip
        pd.DataFrame(rows).round(4).to_csv(folder / "compiled.csv", index=False)
        print(*rows[-1].values(), flush=True)


def predicted_now(folder: Path, arch: str) -> dict[str, Any]:
    """Return what is predicted today beside what was measured, of both tables; without a GPU."""
    rows = []
    for table, fusion in (("modules.csv", "eager"), ("compiled.csv", "inductor")):
        for name, measured_us in pd.read_csv(folder / table, index_col="module")["graph_us"].to_dict().items():
            module, inputs = MODULES[str(name)]("meta")
            with torch.no_grad():
                predicted_us = predict_module(module, inputs, arch, fusion=fusion).latency_us
            rows.append(
                {
                    "module": name, "fusion": fusion, "predicted_us": predicted_us, "measured_us": measured_us,
                    "error_frac": predicted_us / measured_us - 1,
                }
            )  # fmt: skip
    measured = read_yaml(folder / "compiled.meta.yaml")["versions"]["transformers"]
    return {"transformers": transformers.__version__, "measured_transformers": measured, "modules": rows}


def show(found: dict[str, Any]) -> None:
    """Print what `predicted_now` returns."""
    if found["transformers"] != found["measured_transformers"]:
        print(
            f"transformers {found['transformers']} may write out other masks than {found['measured_transformers']}, "
            "which was measured"
        )
    print("module     fusion    predicted us  measured us   error")
    for fusion in ("eager", "inductor"):
        rows = [row for row in found["modules"] if row["fusion"] == fusion]
        for row in rows:
            print(
                f"{row['module']:10s} {fusion:10s} {row['predicted_us']:11,.0f} {row['measured_us']:12,.0f} "
                f"{row['error_frac']:+7.1%}"
            )
        sizes = [abs(row["error_frac"]) for row in rows]
        print(f"{len(sizes)} modules   {fusion:10s} mean {statistics.mean(sizes):.1%}, at most {max(sizes):.1%}")


def main() -> None:
    """Run all modules, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--arch", default=None, help="what to predict for; default: the GPU that is here")
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES), metavar="NAME")
    parser.add_argument("--compiled", action="store_true", help="what torch.compile makes of them instead")
    parser.add_argument("--show", action="store_true", help="only print errors of predictions of what is there")
    parser.add_argument("--json", action="store_true", help="with --show: as JSON")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if options.show:
        shown = predicted_now(options.out, options.arch or "h200-sxm")
        if options.json:
            print(json.dumps(shown, indent=2))
        else:
            show(shown)
        return
    if options.compiled:
        compiled(options.modules, options.out, options.arch)
        return
    modules: list[dict[str, Any]] = []
    operations: list[dict[str, Any]] = []
    for name in options.modules:
        begun = time.monotonic()
        module, inputs = MODULES[name]("cuda")
        found = compare(module, inputs, options.arch, repeats=5)
        assert found.graph_us is not None
        modules.append(
            {
                "module": name, "predicted_us": found.predicted_us, "profiled_us": found.measured_us,
                "graph_us": found.graph_us, "error_frac": found.predicted_us / found.graph_us - 1,
            }
        )  # fmt: skip
        for row in found.to_dicts():
            row["kernels"] = [kernel[:_NAME] for kernel in row["kernels"]]
            operations.append({"module": name} | row)
        pd.DataFrame(modules).round(4).to_csv(options.out / "modules.csv", index=False)
        pd.DataFrame(operations).to_csv(options.out / "operations.csv", index=False)
        print(*modules[-1].values(), f"{time.monotonic() - begun:.1f} s", flush=True)
        del module, inputs
        torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "transformers", transformers.__version__)


if __name__ == "__main__":
    main()
