"""Times whole layers of experts: `w4a16_experts` beside sequences of kernels as engines run them.

    python -m benchmarks.measure_experts --out FILE.csv     # a GPU, CuPy, PyTorch, humming-kernels, pandas; two minutes

Ours is three or four kernels, of which the first sends tokens to experts. The others are a copy of tokens to the rows
of their experts, a grouped GEMM, silu(gate) * up, a grouped GEMM and the weighted sum, with our grouped kernels or
those of humming-kernels; what sorts the choices is not in their time. All run in CUDA graphs, in turns, with cold
weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
import pandas as pd

from benchmarks.compare.engines import Engine, OurGroupedEngine, as_tensor
from benchmarks.compare.humming import HummingEngine
from benchmarks.compare.operands import EXPERT_LAYERS, Gemm, Layer, Operands, Weights, random_experts
from benchmarks.compare.side_by_side import PROTOCOL, make_device
from gemm_eval.device import BenchDevice, Call, TimedGraph, capture_calls, measure_floor_us, summarize, time_in_turns
from gemm_eval.dtypes import DType
from gemm_eval.kernels import w4a16_experts

TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
ROUTED = ("uniform", "power-law")
MOST_ERROR = 5e-3
SEED = 20_261_128
KERNEL_BY_KERNEL = "ours, kernel by kernel"
SEQUENCES: dict[str, type[Engine[Any]]] = {
    KERNEL_BY_KERNEL: OurGroupedEngine,
    "humming, kernel by kernel": HummingEngine,
}
_KERNELS = cp.RawModule(
    code=r"""
#include <cuda_fp16.h>
extern "C" __global__ void gather(const uint4* x, const int* tokens, uint4* rows, int vectors) {
  for (int i = threadIdx.x; i < vectors; i += blockDim.x)
    rows[(size_t)blockIdx.x * vectors + i] = x[(size_t)tokens[blockIdx.x] * vectors + i];
}
extern "C" __global__ void silu_mul(const half2* both, half2* out, int pairs) {
  const half2* row = both + (size_t)blockIdx.x * 2 * pairs;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const float2 g = __half22float2(row[i]), u = __half22float2(row[pairs + i]);
    out[(size_t)blockIdx.x * pairs + i] =
        __floats2half2_rn(g.x / (1.f + __expf(-g.x)) * u.x, g.y / (1.f + __expf(-g.y)) * u.y);
  }
}
extern "C" __global__ void weighted_sum(const half2* rows, const int* places, const float* weights, half2* out,
                                        int choices, int pairs) {
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    float2 sum = {0.f, 0.f};
    for (int j = 0; j < choices; j++) {
      const float2 v = __half22float2(rows[(size_t)places[blockIdx.x * choices + j] * pairs + i]);
      const float w = weights[blockIdx.x * choices + j];
      sum.x += w * v.x, sum.y += w * v.y;
    }
    out[(size_t)blockIdx.x * pairs + i] = __floats2half2_rn(sum.x, sum.y);
  }
}""",
    options=("--std=c++17",),
)


def interleaved(one: Weights) -> Weights:
    """Return gate and up, which follow each other, in turns of 8 columns as `w4a16_experts` takes them."""
    order = cp.arange(one.N).reshape(2, -1, 8).transpose(1, 0, 2).ravel()
    return replace(one, codes=one.codes[order], scales=one.scales[order])


class Choices:
    """Which experts tokens go to, at random by the loads of a routing, and the rows that they have there."""

    def __init__(self, gemm: Gemm) -> None:
        layer, rng = gemm.layer, np.random.default_rng([SEED, gemm.tokens])
        loads = np.diff(gemm.routings[0]) if gemm.routing != "uniform" else np.ones(layer.num_groups)
        keys = np.log(np.maximum(loads, 0.5)) + rng.gumbel(size=(gemm.tokens, layer.num_groups))
        ids = np.argsort(-keys, axis=1)[:, : layer.topk].astype(np.int32)
        order = np.argsort(ids.ravel(), kind="stable")
        counts = np.bincount(ids.ravel(), minlength=layer.num_groups)
        self.shape, self.ids = ids.shape, cp.asarray(ids)
        self.weights = cp.asarray(rng.random(ids.shape).astype(np.float32) / layer.topk)
        self.offsets = cp.asarray(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        self.tokens = cp.asarray((order // layer.topk).astype(np.int32))
        self.places = cp.asarray(np.argsort(order).astype(np.int32))


def sequence(
    engines: Sequence[Engine[Any]], gemms: Sequence[Gemm], packed: Sequence[Any], x: Any, to: Choices, out: Any
) -> Call:
    """Return a call that queues five kernels, the two grouped GEMMs being those of engines."""
    (num_tokens, choices), stream = to.shape, engines[0].device.stream
    num_rows, hidden, inner = num_tokens * choices, gemms[0].layer.K, gemms[1].layer.K
    rows, both, gated, products = (
        cp.empty((num_rows, columns), cp.float16) for columns in (hidden, 2 * inner, inner, hidden)
    )
    multiply: list[Call] = []
    for engine, gemm, weights, a, c in zip(engines, gemms, packed, (rows, gated), (both, products), strict=True):
        call = engine.call(gemm, weights, gemm.routings[0], to.offsets)
        assert isinstance(call, partial)
        if isinstance(engine, HummingEngine):
            multiply.append(partial(call, inputs=as_tensor(a), outputs=as_tensor(c)))
        else:
            multiply.append(partial(call.func, a, *call.args[1:], **(call.keywords | {"out": c})))
    gather, silu_mul, weighted_sum = map(_KERNELS.get_function, ("gather", "silu_mul", "weighted_sum"))
    sums = products, to.places, to.weights, out, np.int32(choices), np.int32(hidden // 2)

    def enqueue() -> None:
        with stream:
            gather((num_rows,), (256,), (x, to.tokens, rows, np.int32(hidden // 8)))
            multiply[0]()
            silu_mul((num_rows,), (256,), (both, gated, np.int32(inner // 2)))
            multiply[1]()
            weighted_sum((num_tokens,), (256,), sums)

    return enqueue


def time_layer(device: BenchDevice, layers: Sequence[Layer], floor_us: float) -> list[dict[str, Any]]:
    """Time all engines on a layer of experts, in turns."""
    gemms_of = {
        (routing, tokens): [Gemm(layer, tokens, 128, DType.FP16, routing=routing) for layer in layers]
        for routing in ROUTED
        for tokens in TOKENS
    }
    largest = gemms_of[ROUTED[0], max(TOKENS)]
    inputs = max(gemm.rows * gemm.layer.K for gemm in largest)
    operands = Operands(device, DType.FP16, inputs, max(gemm.rows * gemm.layer.N for gemm in largest))
    engines: dict[str, list[Engine[Any]]] = {
        name: [kind(device, operands, PROTOCOL) for _ in layers] for name, kind in SEQUENCES.items()
    }
    for of_name in engines.values():
        for engine, of_layer in zip(of_name, zip(*gemms_of.values(), strict=True), strict=True):
            engine.prepare(of_layer)  # of all numbers of tokens: what is prepared first is what humming-kernels knows
    experts = [random_experts(device, gemm) for gemm in largest]
    packed: dict[str, list[Any]] = {
        name: [engine.pack(of_gemm) for engine, of_gemm in zip(of_name, experts, strict=True)]
        for name, of_name in engines.items()
    }
    ours = engines[KERNEL_BY_KERNEL]
    packed["ours"] = [ours[0].pack([interleaved(one) for one in experts[0]]), packed[KERNEL_BY_KERNEL][1]]
    num_bytes = sum(ours[0].num_bytes(one) for one in packed["ours"])
    count = PROTOCOL.num_weight_copies(num_bytes, device.l2_bytes, PROTOCOL.max_calls)
    copies = {
        name: [first, *([engines.get(name, ours)[0].copy(one) for one in first] for _ in range(count - 1))]
        for name, first in packed.items()
    }
    del experts
    table = []
    for (routing, tokens), gemms in gemms_of.items():
        to = Choices(gemms[0])
        x = cp.random.standard_normal((tokens, layers[0].K), dtype=cp.float32).astype(cp.float16)
        outs = {name: cp.empty((tokens, layers[0].K), cp.float16) for name in copies}
        options = {"out": outs["ours"], "stream": device.stream}
        calls: dict[str, list[Call]] = {
            name: [sequence(of_name, gemms, one, x, to, outs[name]) for one in copies[name]]
            for name, of_name in engines.items()
        }
        calls["ours"] = [partial(w4a16_experts, x, to.ids, to.weights, *one, **options) for one in copies["ours"]]
        graphs: dict[str, TimedGraph] = {}
        failures: dict[str, Exception] = {}
        for name in reversed(calls):
            outs[name].fill(cp.nan)
            for call in calls[name]:
                call()
            device.synchronize()
            error = float(cp.linalg.norm((outs[name] - outs["ours"]).astype(cp.float32)))
            if not error <= MOST_ERROR * float(cp.linalg.norm(outs["ours"].astype(cp.float32))):
                print("differs:", layers[0].name, routing, tokens, name, error, flush=True)
                continue
            graphs[name] = capture_calls(device, calls[name], PROTOCOL, floor_us=floor_us)
        samples = time_in_turns(device, graphs, tokens, PROTOCOL, floor_us=floor_us, failures=failures)
        of_tokens = []
        for name, times in samples.items():
            timing = summarize(times, calls_per_replay=graphs[name].num_calls, num_weight_copies=count)
            row = {"layer": layers[0].name.removesuffix("-up"), "routing": routing, "tokens": tokens, "engine": name}
            of_tokens.append(row | {"latency_us": timing.latency_us, "spread_frac": timing.spread_frac})
        print(*failures.items(), *of_tokens, sep="\n", flush=True)
        table += of_tokens
    return table


def main() -> None:
    """Time all layers, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the table")
    parser.add_argument("--layer", action="append", help="such as qwen3-30b-a3b (default: it and mixtral-8x7b)")
    options = parser.parse_args()
    device, table = make_device([HummingEngine]), []
    named = {layer.name: layer for layer in EXPERT_LAYERS}
    with device.stream:
        floor_us = measure_floor_us(device)
        for name in options.layer or ("qwen3-30b-a3b", "mixtral-8x7b"):
            table += time_layer(device, [named[f"{name}-up"], named[f"{name}-down"]], floor_us)
            device.free_unused()
            pd.DataFrame(table).round(4).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
