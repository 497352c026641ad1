"""A GEMM that is ready to be timed: the interface of all that run one, the timing of one GEMM, and kernel names."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gemm_eval.device import MARKER_NAME, Call, Timer, Timing, TimingProtocol, capture_calls, summarize, time_in_turns
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.shapes import GemmItem, GemmShape, GroupedShape, rows_of
from gemm_eval.words import needs_extra


class Runner(Timer, Protocol):
    """Somebody's GEMMs on a GPU, ready to be timed: of a vendor's library, of PyTorch, or of our own kernels.

    An item (`GemmItem`) is a GEMM, a GEMM by one of several kernels, or a grouped GEMM. All items of a
    runner have the same data types, and run on one device in one stream. What has a body here is for libraries.

    Attributes:
        kernel: whose kernels run, a name for files: ``cublas``, ``cublaslt``, ...
        input_dtype, weight_dtype, output_dtype: as stored.
        gpu_name: of the device, as its driver has it.
        pool_bytes: size of the pool of random weights, set by `allocate`.
    """

    kernel: str
    input_dtype: str
    weight_dtype: str
    output_dtype: str
    gpu_name: str
    pool_bytes: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return what makes timings comparable: a work file holds rows of one state of these."""
        return {}

    def prepare(self, items: Sequence[Any]) -> None:
        """Compile the kernels of `items` before anything is timed; one that does not compile fails when it is bound."""

    def allocate(self, items: Sequence[Any], pool_bytes: int) -> None:
        """Make the buffers that `items` need, full of random data, and a pool of `pool_bytes` for weights."""

    def weight_bytes(self, item: Any) -> int:
        """Return the bytes of one copy of B as stored."""

    def bind(self, item: Any, weight_offsets: Sequence[int]) -> Sequence[Call]:
        """Return a call for each copy of B, at these byte offsets in the pool; each enqueues the whole GEMM."""

    def built(self, item: Any) -> BuiltKernel | None:  # noqa: ARG002
        """Return build and launch of the item that was bound last; None: a trace must tell."""
        return None

    def check(self) -> Mapping[str, float]:
        """Compare small GEMMs with float64, and return relative errors by layout; GemmEvalError: a result is wrong."""

    def mark(self, index: int) -> None:
        """Enqueue the marker kernel with a grid of index + 1 blocks: it separates calls in a trace."""

    def describe(self) -> dict[str, Any]:
        """Return what a reader of the data must know: library, version, workspace, layouts, data."""


class BuiltKernel(NamedTuple):
    """A kernel of ours: what a trace would say, and what its compiler says beyond; the hash is of the machine code."""

    kernel: str
    num_kernels: int
    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    registers: int
    smem_bytes: int
    spill_bytes: int
    ctas_per_sm: int
    kernel_hash: str


CHECK_SHAPES = {"2-D": GemmShape(1, 40, 144, 80), "batched": GemmShape(3, 24, 144, 48)}
"""Small GEMMs by layout; each operand has fewer than 32,768 elements."""


MAX_ERRORS = {"fp16": 2e-3, "bf16": 1e-2}
"""Largest relative error of a right result, by the type of operands and output."""


def decode(values: npt.NDArray[Any], dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return bytes of fp16, bf16 or fp32 numbers as float64, in `shape`."""
    if dtype == "bf16":
        wide = values.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64).reshape(shape)
    return values.view({"fp16": np.float16, "fp32": np.float32}[dtype]).astype(np.float64).reshape(shape)


def relative_error(out: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Return the norm of the difference over the norm of the reference; NaN if an element is NaN."""
    return float(np.linalg.norm(out - reference) / np.linalg.norm(reference))


_ALIGN_BYTES = 256


def place_copies(
    weight_bytes: int, pool_bytes: int, l2_bytes: int, protocol: TimingProtocol, *, read_bytes: int | None = None
) -> tuple[int, ...]:
    """Return offsets of the protocol's copies of B, each read up to `read_bytes`; InvalidOptionError: none fits."""
    stride = -(-weight_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    if weight_bytes > pool_bytes:
        raise InvalidOptionError(
            f"--pool-gib must hold one copy of the weights: {weight_bytes:,} bytes, got {pool_bytes:,}"
        )
    most = 1 + (pool_bytes - weight_bytes) // stride
    copies = protocol.num_weight_copies(weight_bytes if read_bytes is None else read_bytes, l2_bytes, most=most)
    return tuple(index * stride for index in range(copies))


def measure_shape(
    runner: Runner, shape: GemmItem, protocol: TimingProtocol, *, floor_us: float = 0.0, best_us: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Timing:  # fmt: skip
    """Time one GEMM.

    Args:
        floor_us: what `measure_floor_us` returned; subtracted from each replay.
        best_us: best known time of this GEMM; far above it the first short replay must do, as `num_replays` 1 says.
        sleep: pauses that many seconds (for tests).

    Raises:
        Exception: whatever the runner raises: a GEMM that its library refuses, or a device error.
    """
    weight_bytes = runner.weight_bytes(shape)
    read = weight_bytes * shape.num_active // shape.G if isinstance(shape, GroupedShape) else weight_bytes
    offsets = place_copies(weight_bytes, runner.pool_bytes, runner.l2_bytes, protocol, read_bytes=read)
    calls = runner.bind(shape, offsets)
    graph = capture_calls(runner, calls, protocol, floor_us=floor_us, best_us=best_us or math.inf)
    copies = min(len(calls), graph.num_calls)
    if graph.given_up_us is not None:
        return Timing(graph.given_up_us, graph.given_up_us, 0.0, 1, graph.num_calls, copies)
    if protocol.clock == "sustained":
        busy_us = 0.0
        while busy_us < protocol.warm_up_s * 1e6:
            busy_us += max(runner.elapsed_us(graph.launch), 1.0)
    samples = time_in_turns(runner, {shape: graph}, rows_of(shape), protocol, floor_us=floor_us, sleep=sleep)
    return summarize(samples[shape], calls_per_replay=graph.num_calls, num_weight_copies=copies)


_CHUNK_SHAPES = 150


class KernelLaunch(NamedTuple):
    """The longest of a GEMM's `num_kernels` kernels; registers of a thread, static and dynamic bytes of a block."""

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
    launches = {}
    for index, group in calls.items():
        if group:
            main = max(group, key=lambda event: float(event["dur"]))
            args = main["args"]
            sizes = (*args["grid"], args["block"][0], args.get("registers per thread", 0), args.get("shared memory", 0))
            launches[index] = KernelLaunch(str(main["name"]), len(group), *map(int, sizes))
    return launches


def trace_kernels(runner: Runner, items: Sequence[GemmItem]) -> Iterator[tuple[GemmItem, KernelLaunch]]:
    """Run each item once under PyTorch's profiler, which sees the kernels of the whole process; yield its launch."""
    with needs_extra("naming kernels", "torch"):
        import torch

    torch.cuda.init()
    _traced_launches(runner, [])  # the first session only starts the profiler
    for start in range(0, len(items), _CHUNK_SHAPES):
        chunk = items[start : start + _CHUNK_SHAPES]
        launches = _traced_launches(runner, [runner.bind(item, (0,))[0] for item in chunk])
        yield from ((item, launches[index]) for index, item in enumerate(chunk) if index in launches)


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
