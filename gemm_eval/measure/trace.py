"""Which kernels a library chose: one pass under a profiler, calls told apart by a marker kernel."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.device import MARKER_NAME, Call
from gemm_eval.extras import needs_extra
from gemm_eval.measure.runners import OperandLayout, Runner
from gemm_eval.measure.shapes import GemmItem

__all__ = ["KernelLaunch", "parse_trace", "trace_kernels"]

_CHUNK_SHAPES = 150


class KernelLaunch(NamedTuple):
    """The longest kernel of a GEMM, and how many kernels it took.

    Attributes:
        kernel: name.
        num_kernels: kernels of the whole GEMM; 2 for a split K with a reduction of its own.
        grid_x, grid_y, grid_z: blocks; block_x: threads of a block along x.
        registers: of a thread; smem_bytes: static and dynamic shared memory of a block.
    """

    kernel: str
    num_kernels: int
    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    registers: int
    smem_bytes: int


def parse_trace(events: Iterable[Mapping[str, Any]]) -> dict[int, KernelLaunch]:
    """Return the launch of each call by the index of the marker before it, from the events of a Chrome trace."""
    kernels = [event for event in events if event.get("ph") == "X" and str(event.get("cat", "")).lower() == "kernel"]
    kernels.sort(key=lambda event: float(event["ts"]))
    calls: dict[int, list[Mapping[str, Any]]] = {}
    current: list[Mapping[str, Any]] | None = None
    for event in kernels:
        if MARKER_NAME in event["name"]:
            current = calls.setdefault(int(event["args"]["grid"][0]) - 1, [])
        elif current is not None:
            current.append(event)
    return {index: _launch(group) for index, group in calls.items() if group}


def _launch(group: Sequence[Mapping[str, Any]]) -> KernelLaunch:
    main = max(group, key=lambda event: float(event["dur"]))
    args = main["args"]
    grid, block = args["grid"], args["block"]
    return KernelLaunch(
        str(main["name"]),
        len(group),
        int(grid[0]),
        int(grid[1]),
        int(grid[2]),
        int(block[0]),
        int(args.get("registers per thread", 0)),
        int(args.get("shared memory", 0)),
    )


def trace_kernels(runner: Runner, shapes: Sequence[GemmItem]) -> Iterator[tuple[GemmItem, KernelLaunch]]:
    """Run each shape once under PyTorch's profiler, which sees the kernels of the whole process, and yield its launch.

    Raises:
        GemmEvalError: PyTorch is missing.
        Exception: whatever the profiler or the runner raises; what was yielded before stands.
    """
    with needs_extra("naming kernels", "torch"):
        import torch

    torch.cuda.init()
    _traced_launches(runner, [])  # the first session only starts the profiler
    for start in range(0, len(shapes), _CHUNK_SHAPES):
        chunk = shapes[start : start + _CHUNK_SHAPES]
        calls = [runner.bind(shape, OperandLayout(0, (0,), 0))[0] for shape in chunk]
        launches = _traced_launches(runner, calls)
        for index, shape in enumerate(chunk):
            if index in launches:
                yield shape, launches[index]


def _traced_launches(runner: Runner, calls: Sequence[Call]) -> dict[int, KernelLaunch]:
    from torch.profiler import ProfilerActivity, profile

    runner.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for index, call in enumerate(calls):
            runner.mark(index)
            call()
        runner.mark(len(calls))
        runner.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return parse_trace(document["traceEvents"])
