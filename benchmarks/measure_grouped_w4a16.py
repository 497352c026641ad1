"""Times our grouped W4A16 kernels as callers get them, from one to thousands of rows a group.

    python -m benchmarks.measure_grouped_w4a16 --out FILE.csv     # a GPU, CuPy, pandas; a minute

Rows fall on groups at random. Each call is captured in a CUDA graph of several, which go in turn through copies of the
weights, 300 MB together where memory allows; the time is that of a replay over the calls, the median of six. Values are
random; that they are right is checked elsewhere (tests/gpu).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
import pandas as pd

from gemm_eval.kernels import GroupedW4, pack_w4, w4a16_grouped_gemm

SHAPES = (
    (128, 2048, 1536), (128, 768, 2048), (64, 2048, 2816), (64, 1408, 2048), (256, 7168, 512), (256, 2048, 7168),
    (8, 4096, 14336), (8, 14336, 4096), (16, 4096, 3072), (32, 2880, 5760), (128, 4096, 1536), (60, 2048, 2816),
    (128, 1536, 4096),
)  # fmt: skip
ROWS = (8, 32, 128, 256, 512, 1024, 2048, 4096, 16384, 65536, 131072)
COLD_BYTES, MOST_COPIES, MOST_BYTES = 300e6, 6, 6e9
CALLS, REPLAYS = 12, 7


def weights(num_groups: int, K: int, N: int, activation: str) -> list[GroupedW4]:
    """Return copies of random weights, other words in each."""
    one = pack_w4(cp.random.standard_normal((K, N), dtype=cp.float32), 128, activation=activation).to_gpu()
    scales, units = cp.stack([one.scales] * num_groups), cp.full(num_groups, one.scale_unit, cp.float32)
    sizes = one.N, one.K, one.mode, one.group_size, one.activation
    shape = num_groups, *one.qweight.shape
    num = min(MOST_COPIES, max(2, int(COLD_BYTES // (num_groups * one.nbytes)) + 1))
    return [GroupedW4(cp.random.randint(0, 1 << 32, shape, dtype=cp.uint32), scales, *sizes, units) for _ in range(num)]


def activations(rows: int, K: int, activation: str) -> Any:
    """Random A."""
    values = cp.random.standard_normal((rows, K), dtype=cp.float32)
    return values.astype(cp.float16) if activation == "fp16" else (values.view(cp.uint32) >> 16).astype(cp.uint16)


def time_us(copies: list[GroupedW4], A: Any, offsets: Any) -> float:
    """Return the time of one call."""
    out, stream = cp.empty((A.shape[0], copies[0].N), A.dtype), cp.cuda.Stream(non_blocking=True)
    with stream:
        w4a16_grouped_gemm(A, copies[0], offsets, out=out, stream=stream)
        stream.begin_capture()
        for call in range(CALLS):
            w4a16_grouped_gemm(A, copies[call % len(copies)], offsets, out=out, stream=stream)
        graph, times = stream.end_capture(), []
        for _ in range(REPLAYS):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(start, end) * 1e3 / CALLS)
    return float(statistics.median(times[1:]))


def main() -> None:
    """Time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the table")
    options = parser.parse_args()
    random, found = np.random.default_rng(0), []
    for activation in ("bf16", "fp16"):
        for num_groups, K, N in SHAPES:
            copies = weights(num_groups, K, N, activation)
            for rows in ROWS:
                if 2 * rows * (K + N) > MOST_BYTES:
                    continue
                counts = random.multinomial(rows, [1 / num_groups] * num_groups)
                offsets = cp.asarray(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
                latency_us = time_us(copies, activations(rows, K, activation), offsets)
                groups = " ".join(map(str, counts.tolist()))
                found.append((activation, num_groups, N, K, rows, round(latency_us, 4), groups))
            del copies
    columns = ["activation", "num_groups", "N", "K", "rows", "latency_us", "row_groups"]
    pd.DataFrame(found, columns=columns).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
