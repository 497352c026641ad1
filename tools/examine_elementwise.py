"""How far norms, activations and sums are from timings of GPUs whose kernels nothing was fitted on.

    python -m tools.examine_elementwise FOLDER

FOLDER has fp16.parquet (kernels of LLM layers, PyTorch of 2024, by torch.profiler: https://github.com/microsoft/vidur)
and fp32.parquet (vector operations, softmax and layer norm of eager PyTorch, with CUDA events:
https://github.com/sitar-lab/NeuSight). All constants are an H200's, as specs carry them over. What is shorter than
twice the host's floor of the events is left out.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gemm_eval.evaluate import GEMMEvaluator

_GPUS = {
    "a100": "a100-sxm-80gb", "h100": "h100-sxm", "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100",
}  # fmt: skip
_HALF_BYTES, _WORD_BYTES = 2, 4
_LEAST_US = 50.0  # twice the floor of events on the host
_EVERY = 50  # row that is taken
_FUSED = {"input_layernorm": "rms_norm", "post_attention_layernorm": "rms_norm", "mlp_act": "act_mul"}
_READS = {"add": 2, "addu": 1, "div": 2, "divu": 1, "mul": 2, "mulu": 1, "pow": 2, "powu": 1}
_KERNELS = {"softmax": "torch_softmax", "ln": "torch_layer_norm_wide", "gelu": "torch_gelu", "tanh": "torch_exp"}
_WARP_ROW, _CHUNK_BYTES, _CTA_ELEMENTS = 2048, 2048, 1024

Answer = tuple[str, str, float, float]
"""GPU, operation, measured and predicted microseconds."""


def half_answers(rows: Any, of: Callable[[str], GEMMEvaluator]) -> Iterator[Answer]:
    """Yield answers to kernels of layers in fp16: sums of PyTorch, norms and activations of an engine."""
    for row in rows.itertuples():
        width = row.n_expanded_embd // row.tp if row.op == "mlp_act" else row.n_embd
        num_bytes = _HALF_BYTES * row.num_tokens * width
        evaluator = of(row.gpu)
        if row.op == "add":
            rows_of = -(-num_bytes // _CHUNK_BYTES)
            result = evaluator.evaluate_memory_bound(2 * num_bytes, num_bytes, _CTA_ELEMENTS, rows_of, "torch_vector")
        else:
            read = num_bytes * (2 if row.op == "mlp_act" else 1)
            result = evaluator.evaluate_memory_bound(read, num_bytes, width, row.num_tokens, _FUSED[row.op])
        yield row.gpu, row.op, row.median_us, result.latency_us


def word_answers(rows: Any, of: Callable[[str], GEMMEvaluator]) -> Iterator[Answer]:
    """Yield answers to operations of eager mode on B x H elements in fp32."""
    for row in rows.itertuples():
        num_bytes = _WORD_BYTES * row.B * row.H
        kernel = _KERNELS.get(row.op, "torch_vector")
        rows_of, width = -(-num_bytes // _CHUNK_BYTES), _CTA_ELEMENTS
        if row.op in ("softmax", "ln"):
            rows_of, width = row.B, row.H
            kernel += "_cta" * (row.op == "softmax" and row.H > _WARP_ROW)
        read = num_bytes * _READS.get(row.op, 1)
        result = of(row.device).evaluate_memory_bound(read, num_bytes, width, rows_of, kernel)
        yield row.device, row.op, row.latency_us, result.latency_us


def main() -> None:
    """Print errors by GPU and operation."""
    import pandas as pd

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of both tables")
    folder = parser.parse_args().folder
    evaluators: dict[str, GEMMEvaluator] = {}

    def of(gpu: str) -> GEMMEvaluator:
        return evaluators.setdefault(gpu, GEMMEvaluator(_GPUS[gpu]))

    half = pd.read_parquet(folder / "fp16.parquet")
    half = half[half.op.isin(["add", *_FUSED])]
    half = half.drop_duplicates(["gpu", "op", "tp", "num_tokens", "n_embd", "n_expanded_embd"]).iloc[::_EVERY]
    word = pd.read_parquet(folder / "fp32.parquet")
    word = word[(word.latency_us > _LEAST_US) & word.device.isin(list(_GPUS))].iloc[::_EVERY]
    answers = [*half_answers(half, of), *word_answers(word, of)]
    table = Table(title="kernels of other GPUs, by constants of an H200")
    for column in ("GPU", "operation", "kernels", "MAPE", "median", "p90", "bias"):
        table.add_column(column, justify="left" if column in ("GPU", "operation") else "right")
    groups = dict.fromkeys([(gpu, op) for gpu, op, *_ in answers] + [(gpu, "all") for gpu, *_ in answers])
    for gpu, op in groups:
        known = [(us, predicted) for at, name, us, predicted in answers if at == gpu and op in (name, "all")]
        errors = np.array([predicted / us - 1.0 for us, predicted in known])
        size = np.abs(errors)
        figures = size.mean(), np.median(size), np.quantile(size, 0.9), errors.mean()
        table.add_row(_GPUS[gpu], op, str(len(known)), *(f"{100 * value:.1f}%" for value in figures))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
