"""Times configs of our grouped W4A16 kernels: experts of 14 models, from one to thousands of tokens.

    python -m benchmarks.measure_grouped_w4a16 --out FILE.csv     # a GPU, CuPy, pandas; six minutes

Of each layer, number of tokens and routing the configs that the model finds fastest are timed, and some others
drawn at random of the next, in turns: CUDA graphs of 2 ms, which go through copies of random weights (256 MB
together), a pause before each, the median of three. Every result is compared with that of the first config.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
import pandas as pd

from benchmarks.compare.operands import EXPERT_LAYERS, MORE_EXPERTS, ROUTINGS, Gemm, Layer, layers_of
from gemm_eval.device import (
    BenchDevice,
    TimedGraph,
    TimingProtocol,
    capture_calls,
    limits_of_device,
    measure_floor_us,
    summarize,
    time_in_turns,
)
from gemm_eval.dtypes import DType
from gemm_eval.kernels import GroupedW4, WeightMode, make_variant, pack_w4, spec_of_device, w4a16_grouped_gemm
from gemm_eval.kernels.plan import expected_groups, rank_grouped
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.measure.w4a16 import build_all

LAYERS = (*EXPERT_LAYERS, *(layer for item in MORE_EXPERTS.items() for layer in layers_of(*item)))
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
PROTOCOL = TimingProtocol(target_busy_us=2_000.0, num_replays=3, max_short_rows=0, idle_s=0.008, give_up_ratio=2.0)
NUM_BEST, NUM_OTHERS, MOST_OTHERS = 5, 4, 40
MOST_ERROR = 3e-3
SEED = 20_261_127


def routing_of(layer_index: int, tokens_index: int) -> list[str]:
    """Return the routings that are timed: at random, and every other time one of the others."""
    number = layer_index + tokens_index
    return ["uniform", *([ROUTINGS[1 + number // 2 % 2]] if number % 2 and TOKENS[tokens_index] > 1 else [])]


def configs_of(gemm: Gemm, rng: np.random.Generator) -> list[KernelConfig]:
    """Return the configs that are timed."""
    groups = expected_groups(gemm.expected_rows, gemm.layer.num_groups)
    types = gemm.activation, WeightMode.GROUP, gemm.group_size
    ranked = rank_grouped(groups, gemm.layer.K, gemm.layer.N, *types, spec_of_device(0), MOST_OTHERS)
    ranked = tuple(dict.fromkeys(one._replace(decomposition=Decomposition.STREAM_K, split_k=1) for one in ranked))
    rest = len(ranked) - NUM_BEST
    others = rng.permutation(max(0, rest))[:NUM_OTHERS].tolist()
    return [*ranked[:NUM_BEST], *(ranked[NUM_BEST + index] for index in sorted(others))]


def weights_of(device: BenchDevice, layer: Layer, group_size: int) -> list[GroupedW4]:
    """Return copies of random weights, other words in each."""
    one = pack_w4(cp.random.standard_normal((layer.K, layer.N), dtype=cp.float32), group_size).to_gpu()
    scales, units = cp.stack([one.scales] * layer.num_groups), cp.full(layer.num_groups, one.scale_unit, cp.float32)
    sizes = one.N, one.K, one.mode, one.group_size, one.activation
    shape = layer.num_groups, *one.qweight.shape
    num = PROTOCOL.num_weight_copies(layer.num_groups * one.nbytes, device.l2_bytes, PROTOCOL.max_calls)
    return [GroupedW4(cp.random.randint(0, 1 << 32, shape, dtype=cp.uint32), scales, *sizes, units) for _ in range(num)]


def time_configs(
    device: BenchDevice, copies: Sequence[GroupedW4], gemm: Gemm, configs: Sequence[KernelConfig], floor_us: float
) -> list[dict[str, Any]]:
    """Time configs on one routing, in turns."""
    layer, offsets = gemm.layer, gemm.routings[0]
    rows = int(offsets[-1])
    A = cp.random.standard_normal((rows, layer.K), dtype=cp.float32).astype(cp.float16)
    out, on_gpu = cp.empty((rows, layer.N), cp.float16), cp.asarray(offsets)
    graphs: dict[KernelConfig, TimedGraph] = {}
    failures: dict[KernelConfig, Exception] = {}
    first = None
    for config in configs:
        options = {
            "out": out,
            "config": config,
            "stream": device.stream,
            "expected_rows": min(rows, gemm.expected_rows),
        }
        calls = [partial(w4a16_grouped_gemm, A, copy, on_gpu, **options) for copy in copies]
        out.fill(cp.nan)
        calls[0]()
        device.synchronize()
        first = out.copy() if first is None else first
        if not float(cp.linalg.norm(out.astype(cp.float32) - first.astype(cp.float32))) <= MOST_ERROR * float(
            cp.linalg.norm(first.astype(cp.float32))
        ):
            print("differs:", gemm.layer.name, gemm.tokens, gemm.routing, config, flush=True)
            continue
        graphs[config] = capture_calls(device, calls, PROTOCOL, floor_us=floor_us)
    samples = time_in_turns(device, graphs, gemm.tokens, PROTOCOL, floor_us=floor_us, failures=failures)
    table = []
    for config, times in samples.items():
        timing = summarize(times, calls_per_replay=graphs[config].num_calls, num_weight_copies=len(copies))
        row: dict[str, Any] = {
            "layer": layer.name,
            "tokens": gemm.tokens,
            "routing": gemm.routing,
            "input_dtype": "fp16",
        }
        row |= {
            "rows": rows,
            "expected_rows": min(rows, gemm.expected_rows),
            "K": layer.K,
            "N": layer.N,
            "mode": "group",
        }
        row |= {"group_size": gemm.group_size, "num_groups": layer.num_groups} | config._asdict()
        for name, kind in (("schedule", Schedule), ("decomposition", Decomposition), ("raster_order", RasterOrder)):
            row[name] = kind(row[name]).name.lower()
        row |= {"latency_us": round(timing.latency_us, 4), "spread_frac": round(timing.spread_frac, 4)}
        row |= {"num_replays": timing.num_replays}
        table.append(row | {"row_groups": " ".join(map(str, np.diff(offsets).tolist()))})
    return table


def main() -> None:
    """Time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the table")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which no other layer is begun")
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="so many, drawn at random")
    options = parser.parse_args()
    started, rng = time.monotonic(), np.random.default_rng(SEED)
    order = rng.permutation(len(LAYERS))[: options.layers].tolist()
    cases: dict[Layer, list[tuple[Gemm, list[KernelConfig]]]] = {}
    for index in order:
        layer = LAYERS[index]
        for at, tokens in enumerate(TOKENS):
            for routing in routing_of(index, at):
                gemm = Gemm(layer, tokens, 128, DType.FP16, routing=routing)
                cases.setdefault(layer, []).append((gemm, configs_of(gemm, rng)))
    variants = {config for of_layer in cases.values() for _, configs in of_layer for config in configs}
    print(len(variants), "kernels,", sum(map(len, cases.values())), "cases", time.monotonic() - started, flush=True)
    build_all([make_variant(config, "fp16", WeightMode.GROUP, 128) for config in variants], limits_of_device(0))
    print("compiled", time.monotonic() - started, flush=True)
    device, table = BenchDevice(), []
    with device.stream:
        floor_us = measure_floor_us(device)
        for layer in order:
            if time.monotonic() - started > options.seconds:
                break
            copies = weights_of(device, LAYERS[layer], 128)
            for gemm, configs in cases[LAYERS[layer]]:
                table += time_configs(device, copies, gemm, configs, floor_us)
            del copies
            device.free_unused()
            pd.DataFrame(table).to_csv(options.out, index=False)
            print(LAYERS[layer].name, len(table), round(time.monotonic() - started, 1), flush=True)


if __name__ == "__main__":
    main()
