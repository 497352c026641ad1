"""Times layers of a decode step beside their operations alone: what a kernel takes more because others ran before it.

    python -m benchmarks.measure_switches --out FOLDER     # a GPU, PyTorch, CuPy, pandas; a minute

Kernels are timed, and models of them are fitted, in graphs of one kernel again and again: its code is in the caches of
instructions. In a step it is not, as other kernels ran since. Layers of sizes that no model here has (norm, QKV,
positions, attention of cuDNN, O, norm, gate and up, activation, down) run in one CUDA graph with data that flows, six
layers with weights and caches of their own; their time is that of four more layers. Each operation also runs in a
graph of its own, which goes in turn through copies of its weights or cache (200 MB in all); its time is that of 32 more
calls. Writes FOLDER/layers.csv.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.engine_kernels import Kernels
from benchmarks.graph_replays import replay_us
from benchmarks.measure_stacks import kernels_of
from benchmarks.stack_model import BF16, gains, normal, packed
from gemm_eval.kernels import w4a16_gemm

HEAD_DIM = 128
COLD_BYTES, MOST_COPIES = 200e6, 48
SHORT, LONG = 16, 48
FEW_LAYERS, MANY_LAYERS = 2, 6
REPLAYS = 9


class Sizes(NamedTuple):
    """Of a layer: channels, heads, heads of keys and values, channels of its network."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int


LAYERS = (
    Sizes(2048, 16, 16, 5632), Sizes(2560, 32, 8, 9728), Sizes(3072, 24, 8, 8192), Sizes(3584, 28, 4, 18944),
    Sizes(5120, 40, 8, 13824),
)  # fmt: skip
STEPS, TYPES = ((1, 2048), (16, 1024), (64, 512)), ("bf16", "w4a16")
Call = Callable[[int], object]


class Graphs:
    """Times graphs on a stream of its own."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    def more_us(self, few: Callable[[], None], many: Callable[[], None]) -> float:
        """Return how much longer `many` takes than `few`, the median of several replays of both."""
        graphs = [self._capture(call) for call in (few, many)]
        times = [replay_us(graphs[1], self.stream) - replay_us(graphs[0], self.stream) for _ in range(REPLAYS)]
        return float(statistics.median(times[1:]))

    def _capture(self, call: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            call()
            self.stream.synchronize()
            graph.capture_begin()
            call()
            graph.capture_end()
        return graph


class Layers:
    """Layers of a decode step."""

    def __init__(self, run: Kernels, sizes: Sizes, dtype: str) -> None:
        self.run, self.sizes = run, sizes
        self.width = (sizes.heads + 2 * sizes.kv_heads) * HEAD_DIM
        hidden, inner = sizes.hidden, sizes.inner
        self.shapes = ((self.width, hidden), (hidden, sizes.heads * HEAD_DIM), (2 * inner, hidden), (hidden, inner))
        self.weights = [copies_of(packed(*shape) if dtype == "w4a16" else normal(*shape)) for shape in self.shapes]
        self.gain = gains(hidden)
        self.batch = self.context = 0

    def prepare(self, batch: int, context: int) -> None:
        """Make what is of a step: `context` positions, the last of them new, of each of `batch` sequences."""
        self.batch, self.context = batch, context
        turns = torch.randn(context, HEAD_DIM // 2, device="cuda")
        self.angles = torch.stack((turns.cos(), turns.sin()), -1).contiguous()
        self.x, self.residual = (torch.randn(batch, self.sizes.hidden, device="cuda", dtype=BF16) for _ in range(2))
        cache_bytes = 4 * batch * context * self.sizes.kv_heads * HEAD_DIM
        self.caches = [self._cache() for _ in range(_copies(cache_bytes))]

    def _cache(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.batch, self.context, self.sizes.kv_heads, HEAD_DIM
        return torch.randn(shape, device="cuda", dtype=BF16), torch.randn(shape, device="cuda", dtype=BF16)

    def all(self, num: int) -> None:
        """Run so many layers, the output of one the input of the next."""
        x = self.x
        for place in range(num):
            qkv_weight, o_weight, up, down = (copies[place % len(copies)] for copies in self.weights)
            cache = self.caches[place % len(self.caches)]
            qkv = linear(self.run.norm(x, self.gain, self.residual), qkv_weight)
            self._turn(qkv, cache)
            x = linear(self._attend(qkv, cache), o_weight)
            both = linear(self.run.norm(x, self.gain, self.residual), up)
            x = linear(self.run.silu_mul(both), down)

    def operations(self) -> Iterator[tuple[str, Call, int]]:
        """Yield name, call and how often a layer has it, of each operation alone; a call takes its number."""
        for name, shape, copies in zip(("qkv", "o", "gate_up", "down"), self.shapes, self.weights, strict=True):
            x = torch.randn(self.batch, shape[1], device="cuda", dtype=BF16)
            yield name, partial(_in_turn, x, copies), 1
        qkv = torch.randn(self.batch, self.width, device="cuda", dtype=BF16)
        both = torch.randn(self.batch, 2 * self.sizes.inner, device="cuda", dtype=BF16)
        yield "attention", lambda place: self._attend(qkv, self.caches[place % len(self.caches)]), 1
        yield "rotary_kv_write", lambda place: self._turn(qkv, self.caches[place % len(self.caches)]), 1
        yield "add_rms_norm", lambda _: self.run.norm(self.x, self.gain, self.residual), 2
        yield "act_mul", lambda _: self.run.silu_mul(both), 1

    def _turn(self, qkv: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.run.rotary_kv_write(qkv, self.angles, cache, self.sizes.heads, 1)

    def _attend(self, qkv: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        heads = qkv.view(self.batch, 1, -1, HEAD_DIM)
        q, k, v = (tensor.transpose(1, 2) for tensor in (heads[:, :, : self.sizes.heads], *cache))
        is_grouped = self.sizes.heads > self.sizes.kv_heads
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found = functional.scaled_dot_product_attention(q, k, v, enable_gqa=is_grouped)
        return found.transpose(1, 2).reshape(self.batch, -1)


def linear(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """x [rows, K] times a matrix [N, K]."""
    if isinstance(weight, torch.Tensor):
        return functional.linear(x, weight)
    out = torch.empty(x.shape[0], weight.N, device=x.device, dtype=x.dtype)
    w4a16_gemm(x, weight, out=out, stream=int(torch.cuda.current_stream().cuda_stream))
    return out


def _in_turn(x: torch.Tensor, copies: list[Any], place: int) -> torch.Tensor:
    return linear(x, copies[place % len(copies)])


def _copies(num_bytes: int) -> int:
    return min(MOST_COPIES, max(MANY_LAYERS, int(COLD_BYTES // num_bytes) + 1))


def copies_of(weight: Any) -> list[Any]:
    """Return a matrix and copies of it, in memory of their own."""
    if isinstance(weight, torch.Tensor):
        return [weight] + [weight.clone() for _ in range(_copies(2 * weight.numel()) - 1)]
    others = range(_copies(weight.nbytes) - 1)
    return [weight] + [replace(weight, qweight=weight.qweight.copy(), scales=weight.scales.copy()) for _ in others]


def measure(graphs: Graphs, layers: Layers) -> dict[str, Any]:
    """Return what was timed of a step: microseconds of a layer, and of its operations alone."""
    layer_us = graphs.more_us(partial(layers.all, FEW_LAYERS), partial(layers.all, MANY_LAYERS))
    num_kernels = len(kernels_of(partial(layers.all, MANY_LAYERS))) / MANY_LAYERS
    alone: dict[str, float] = {}
    for name, call, often in layers.operations():
        us = graphs.more_us(partial(_repeat, call, SHORT), partial(_repeat, call, LONG))
        alone[name] = often * us / (LONG - SHORT)
    return {
        "kernels": num_kernels, "layer_us": layer_us / (MANY_LAYERS - FEW_LAYERS), "alone_us": sum(alone.values()),
        **{f"{name}_us": us for name, us in alone.items()},
    }  # fmt: skip


def _repeat(call: Call, num: int) -> None:
    for place in range(num):
        call(place)


def main() -> None:
    """Time all layers, and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    run, graphs, rows = Kernels(), Graphs(), []
    with torch.no_grad():
        for sizes, dtype in product(LAYERS, TYPES):
            layers = Layers(run, sizes, dtype)
            for batch, context in STEPS:
                layers.prepare(batch, context)
                found = measure(graphs, layers)
                rows.append({**sizes._asdict(), "dtype": dtype, "batch": batch, "context": context} | found)
                pd.DataFrame(rows).round(3).to_csv(options.out / "layers.csv", index=False)
                more_us = (found["layer_us"] - found["alone_us"]) / found["kernels"]
                print(*rows[-1].values(), f"{more_us:.3f} us a kernel", flush=True)
            del layers
            torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)


if __name__ == "__main__":
    main()
