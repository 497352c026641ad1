"""How far predicted training steps of stacks of layers are from measured ones, and their memory.

    python -m tools.examine_training [--arch h100-sxm] [--json]

Times are those of arch/measured/GPU/training (benchmarks/measure_training.py); predictions are what `predict_module`
says of the same modules on "meta", with gradients and AdamW, and nothing else given. Instructions of AdamW were set by
the optimizer's time of GPT-2's step; nothing else is fitted on steps.

The memory of an eager step is what its tensors take at most: it runs on "meta", where each storage counts from the
operation that makes it until nothing holds it any more. Of a compiled step it is the larger of two: what torch's own
partitioner keeps of the forward pass, which splits the graph of the step on "meta", with the gradient of the LM head
(logits become their gradients in place); and all gradients, with that of the embedding in fp32. What cuBLAS keeps is in
neither number.
"""

import argparse
import csv
import json
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.training_stacks import inputs_of, make_stack
from gemm_eval.arch import data_root
from gemm_eval.torch import predict_module

_FUSIONS = {"eager": "eager", "compiled": "inductor"}
_COPIES = 3
"""Copies of the weights that a step finds: themselves, and both states of AdamW."""

_FP32_BYTES = 4
_ROUNDED_BYTES = 512
"""To a multiple of which torch's allocator gives memory."""


class Answer(NamedTuple):
    """A step: times in microseconds, measured and predicted, by part; bytes at the peak."""

    name: str
    measured_us: dict[str, float]
    predicted_us: dict[str, float]
    measured_bytes: int
    predicted_bytes: int

    @property
    def error_frac(self) -> float:
        """Predicted time of the step over the measured one, less 1."""
        return sum(self.predicted_us.values()) / sum(self.measured_us.values()) - 1.0

    @property
    def memory_error_frac(self) -> float:
        """The same of bytes."""
        return self.predicted_bytes / self.measured_bytes - 1.0


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), before)
        return out

    def _count(self, storage: Any, before: set[int]) -> None:
        key = storage._cdata
        if key in before or key in self._known:
            return
        num_bytes = -(-storage.nbytes() // _ROUNDED_BYTES) * _ROUNDED_BYTES
        self._known.add(key)
        self.live += num_bytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, num_bytes)

    def _free(self, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self.live -= num_bytes


class RmsNorm(torch.autograd.Function):
    """An RMS norm as GPUs have it: it keeps its input, and a factor of each row in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del gradient
        return tuple(map(torch.empty_like, ctx.saved_tensors[:2]))


@contextmanager
def kernels_of_gpus(*, is_compiled: bool = False) -> Iterator[None]:
    """Run attention and RMS norms as the one kernel each that GPUs have, also on "meta".

    Compiled, a norm is what the compiler makes of it, and the loss, which "meta" has no gradient of, two operations.
    """
    attention, norm, loss = functional.scaled_dot_product_attention, functional.rms_norm, functional.cross_entropy

    def fused(q: Any, k: Any, v: Any, *, is_causal: bool, enable_gqa: bool) -> Any:
        del enable_gqa
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal)[0]

    def fused_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
        del shape, eps
        return RmsNorm.apply(x, weight)

    def picked(logits: Any, targets: Any) -> Any:
        return -logits.log_softmax(-1).gather(1, targets[:, None]).mean()

    functional.scaled_dot_product_attention = fused
    if is_compiled:
        functional.cross_entropy = picked
    else:
        functional.rms_norm = fused_norm
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.rms_norm = attention, norm
        functional.cross_entropy = loss


def peak_bytes(name: str, batch: int, tokens: int, mode: str) -> int:
    """Return the most bytes that a step has at once."""
    stack, inputs = make_stack(name, tokens, "meta"), inputs_of(name, batch, tokens, "meta")
    weights = _COPIES * _num_bytes((*stack.parameters(), *stack.buffers()))
    if mode == "compiled":
        gradients, embedding = _num_bytes(stack.parameters()), stack.embedding.weight.numel()
        kept = kept_bytes(stack, inputs) + _num_bytes([stack.head.weight])
        return int(weights + max(kept, gradients + embedding * _FP32_BYTES))
    with kernels_of_gpus(), LiveBytes() as counted:
        loss = stack(*inputs)
        loss.backward()
    return int(weights + counted.peak)


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def kept_bytes(stack: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """Return the bytes that a compiled forward pass keeps for its backward pass, as torch's partitioner decides."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    storages: dict[int, int] = {}

    def keep(graph: Any, _: Any) -> Any:
        *_, outputs = graph.graph.nodes
        values = [
            node.meta.get("val") for node in outputs.args[0] if hasattr(node, "meta") and node.op != "placeholder"
        ]
        given = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
        for value in filter(lambda value: isinstance(value, torch.Tensor), values):
            storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        for value in filter(lambda value: isinstance(value, torch.Tensor), given):
            storages.pop(value.untyped_storage()._cdata, None)
        return graph

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=lambda graph, _: graph, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip
    with kernels_of_gpus(is_compiled=True):
        torch.compile(stack, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return sum(storages.values())


def answers(arch: str) -> Iterator[Answer]:
    """Yield the answers to all steps of a GPU."""
    text = (data_root() / "measured" / arch / "training" / "steps.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        size = str(row["model"]), int(row["batch"]), int(row["tokens"])
        stack, inputs = make_stack(size[0], size[2], "meta"), inputs_of(*size, "meta")
        fusion = _FUSIONS[row["mode"]]
        prediction = predict_module(stack, inputs, arch, backward=True, optimizer="adamw", fusion=fusion)
        predicted = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        for operation in prediction.operations:
            predicted[operation.phase] += operation.latency_us
        forward_us, gradients_us, step_us = (float(row[f"{part}_us"]) for part in ("forward", "gradients", "step"))
        measured = {
            "forward": forward_us, "backward": gradients_us - forward_us, "optimizer": step_us - gradients_us,
        }  # fmt: skip
        num_bytes = peak_bytes(*size, str(row["mode"]))
        # of cuBLAS, for this stack and those before it
        others = int(row["held_bytes"]) - _COPIES * int(row["weight_bytes"])
        name = f"{size[0]} {row['mode']}, {size[1]} x {size[2]:,}"
        yield Answer(name, measured, predicted, int(row["peak_bytes"]) - others, num_bytes)


def main() -> None:
    """Print a table of steps, and mean errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="h100-sxm", help="a GPU with measured training steps")
    parser.add_argument("--json", action="store_true", help="print a document instead")
    options = parser.parse_args()
    table = Table("step", "measured", "predicted", "error", "forward", "backward", "optimizer", "peak", "error")
    every = list(answers(options.arch))
    if options.json:
        steps = [{name: getattr(of, name) for name in ("name", "error_frac", "memory_error_frac")} for of in every]
        print(json.dumps({"gpu": options.arch, "steps": steps}))
        return
    for of in every:
        parts = [f"{of.predicted_us[part] / us - 1:+.1%}" for part, us in of.measured_us.items()]
        memory = f"{of.measured_bytes / 1e9:.2f} GB", f"{of.memory_error_frac:+.1%}"
        times = (f"{sum(us.values()) / 1e3:.1f} ms" for us in (of.measured_us, of.predicted_us))
        table.add_row(of.name, *times, f"{of.error_frac:+.1%}", *parts, *memory)
    Console(width=140).print(table)
    for word, errors in (
        ("steps", [abs(of.error_frac) for of in every]),
        ("memory of steps", [abs(of.memory_error_frac) for of in every]),
    ):
        print(f"{word}: {sum(errors) / len(errors):.1%} in the mean, {max(errors):.1%} at most")


if __name__ == "__main__":
    main()
