"""Kernels of a trace go to the call whose marker stands before them."""

from __future__ import annotations

from typing import Any

from gemm_eval.measure.runner import KernelLaunch, parse_trace


def kernel(ts: float, name: str, grid: tuple[int, int, int], dur: float = 1.0) -> dict[str, Any]:
    args = {"grid": list(grid), "block": [384, 1, 1], "registers per thread": 168, "shared memory": 213_000}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


EVENTS = [
    {"ph": "M", "name": "process_name"},
    kernel(0.0, "stray", (1, 1, 1)),
    kernel(5.0, "splitKreduce_kernel", (64, 1, 1), dur=2.0),
    kernel(1.0, "gemm_eval_marker", (1, 1, 1)),
    kernel(2.0, "nvjet_hsh_64x8", (132, 1, 2), dur=3.0),
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 4.5, "dur": 0.5, "args": {}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2.5, "dur": 9.0, "args": {}},
    kernel(8.0, "gemm_eval_marker", (3, 1, 1)),
    kernel(9.0, "nvjet_hsh_128x256", (132, 1, 1)),
    kernel(11.0, "gemm_eval_marker", (4, 1, 1)),
]


def test_calls_are_told_apart() -> None:
    """The second call's marker is lost, and with it only that call; the last has no kernel."""
    assert parse_trace(EVENTS) == {
        0: KernelLaunch("nvjet_hsh_64x8", 2, 132, 1, 2, 384, 168, 213_000),
        2: KernelLaunch("nvjet_hsh_128x256", 1, 132, 1, 1, 384, 168, 213_000),
    }
    assert parse_trace([]) == {}
