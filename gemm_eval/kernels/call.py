"""Operands of calls, checked and found in memory, room to work in, and a kernel that gathers columns of A.

The kernel is for weights that were sorted by group (act-order). Its text is in gather.cu, which is no source of a
family: tables of kernels do not depend on it.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy

from gemm_eval.arch import DeviceLimits
from gemm_eval.device import (
    CompiledKernel,
    DeviceArray,
    Rows,
    as_device_array,
    as_rows,
    check_dtype,
    compile_text,
    overlaps,
    runtime,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families import ceil_div
from gemm_eval.kernels.plan import LARGEST_SIZE, Plan

_ENTRY = "gemm_eval_gather"
_THREADS = 256
_CTAS_PER_SM = 4  # each with 64 registers a thread, which leaves room for loads in flight
_ELEM_BYTES = 2
_ROWS = 2  # that a CTA gathers at once
_VECTOR_ELEMS = 8
GATHER_ALIGNMENT_BYTES = 256
"""Where gathered activations begin in a workspace, and how long they are: multiples of this."""

_MAX_GRID_Y = 65_535


class GatherLaunch(NamedTuple):
    """The launch that gathers columns: its grid, and shared memory of a CTA; 0 where rows are not staged."""

    grid: tuple[int, int, int]
    smem_bytes: int


def gather_bytes(M: int, K: int) -> int:
    """Memory of gathered activations [M, K] of 16 bits, rounded up so that what follows is aligned."""
    return ceil_div(M * K * _ELEM_BYTES, GATHER_ALIGNMENT_BYTES) * GATHER_ALIGNMENT_BYTES


def gather_launch(M: int, K: int, limits: DeviceLimits) -> GatherLaunch:
    """Return how to gather [M, K]: CTAs fill the GPU once, and few rows are cut into parts of their columns."""
    row_bytes = _ROWS * _ELEM_BYTES * K
    smem_bytes = row_bytes if row_bytes <= limits.smem_per_cta_bytes else 0
    by_smem = limits.smem_per_sm_bytes // (smem_bytes + limits.smem_reserved_bytes) if smem_bytes else _CTAS_PER_SM
    room = limits.num_sms * max(1, min(by_smem, _CTAS_PER_SM))
    pairs = ceil_div(M, _ROWS)
    parts = min(ceil_div(K, _VECTOR_ELEMS * _THREADS), max(1, limits.num_sms // pairs))
    return GatherLaunch((parts, min(pairs, room, _MAX_GRID_Y), 1), smem_bytes)


def compile_gather(limits: DeviceLimits, *, is_staged: bool) -> CompiledKernel:
    """Compile the kernel for a GPU, or take it from the cache. Needs no GPU."""
    major, minor = limits.compute_capability
    macros = {"THREADS": _THREADS, "MIN_CTAS": _CTAS_PER_SM, "STAGED": int(is_staged)}
    return compile_text(_text(), _ENTRY, f"sm_{major}{minor}", macros)


def gather_columns(a: Rows, permutation: int, out: int, device: int, stream: int) -> Rows:
    """Queue out[m, j] = a[m, permutation[j]] on the current GPU, and return the rows of `out`.

    `permutation` and `out` are addresses at multiples of 16 bytes, of int32 [K] and of `gather_bytes`.
    """
    limits = runtime.limits_of_device(device)
    launch = gather_launch(a.num_rows, a.num_columns, limits)
    compiled = compile_gather(limits, is_staged=launch.smem_bytes > 0)
    # One function for all sizes: shared memory beyond 48 KiB is asked for once.
    most = limits.smem_per_cta_bytes if launch.smem_bytes else 0
    function = runtime.load_function(compiled, device, most, stream)
    arguments = (
        numpy.uint64(a.address), numpy.uint64(permutation), numpy.uint64(out),
        numpy.int32(a.num_rows), numpy.int32(a.num_columns), numpy.int64(a.stride),
    )  # fmt: skip
    function(launch.grid, (_THREADS, 1, 1), arguments, launch.smem_bytes, runtime.StreamHandle(stream))
    return Rows(out, a.num_rows, a.num_columns, a.num_columns)


@cache
def _text() -> str:
    return Path(__file__).with_name("gather.cu").read_text("utf-8")


T = TypeVar("T")

ALIGNMENT_BYTES = 16
WHY_THAT_TYPE = "the type that the weights were packed for"


class Scratch(NamedTuple):
    """Addresses of memory that a call uses beside its operands."""

    partial_sums: int
    counters: int
    gathered: int


def on_device_array(x: Any, what: str, device: int, stream: int) -> DeviceArray:
    """Return an array on the GPU where the weights are."""
    array = as_device_array(x, what, stream)
    if array.device != device:
        raise InvalidProblemError(f"{what} must be on GPU {device}, where the weights are, got GPU {array.device}")
    return array


def matrix(x: Any, what: str, num_columns: int, activation: DType, device: int, stream: int) -> Rows:
    """Rows of the type of the activations."""
    array = on_device_array(x, what, device, stream)
    check_dtype(array, what, activation, WHY_THAT_TYPE)
    rows = as_rows(array, what, num_columns)
    if rows.stride > LARGEST_SIZE:
        raise InvalidProblemError(f"{what} must have at most {LARGEST_SIZE:,} elements from row to row")
    return rows


def new_output(A: Any, activation: DType, num_columns: int, stream: int) -> Any:
    """Return a CuPy array of the shape of A with other columns."""
    runtime.refuse_capture(stream, "give out")
    dtype = "float16" if activation is DType.FP16 else "uint16"
    if isinstance(A, runtime.import_cupy().ndarray):
        dtype = A.dtype
    return runtime.allocate((*A.shape[:-1], num_columns), dtype, stream)


def output_rows(out: Any, num_rows: int, num_columns: int, activation: DType, device: int, stream: int) -> Rows:
    """Return the memory of a result: contiguous rows, as many as A has."""
    c = matrix(out, "out", num_columns, activation, device, stream)
    if c.num_rows != num_rows or (c.stride != num_columns and c.num_rows > 1):
        raise InvalidProblemError(
            f"out must be contiguous with {num_rows} rows, as A has, got {c.num_rows} rows at {c.stride} elements"
        )
    return c


def launch_plan(plan: Plan[T], operands: T, device: int, stream: int) -> None:
    """Queue a kernel."""
    launch = plan.launch
    function = runtime.load_function(plan.compiled, device, launch.smem_bytes, stream)
    function(
        launch.grid, (launch.num_threads, 1, 1), plan.arguments(operands), launch.smem_bytes,
        runtime.StreamHandle(stream),
    )  # fmt: skip


def gathered_at(plan: Plan[Any]) -> int:
    """Return the offset of gathered activations in a workspace, behind the kernel's own part, in bytes."""
    return ceil_div(plan.workspace_bytes, GATHER_ALIGNMENT_BYTES) * GATHER_ALIGNMENT_BYTES


def take_scratch(
    plan: Plan[Any], gathered_bytes: int, workspace: Any, device: int, stream: int, others: list[tuple[int, int]]
) -> Scratch:
    """Addresses in the workspace, or in memory of the stream; the counters are 0."""
    need = gathered_at(plan) + gathered_bytes if gathered_bytes else plan.workspace_bytes
    if workspace is None:
        if not need:
            return Scratch(0, 0, 0)
        scratch = runtime.scratch_of(device, stream, need - plan.counter_bytes, plan.launch.num_counters)
        return Scratch(scratch.workspace, scratch.counters, scratch.workspace + gathered_at(plan) - plan.counter_bytes)
    array = as_device_array(workspace, "workspace", stream)
    have = math.prod(array.shape) * array.itemsize
    if array.device != device or array.itemsize != 1 or array.strides not in {None, (1,)}:
        raise InvalidOptionError(
            f"workspace must be a contiguous array of uint8 on GPU {device}, got {array.dtype} "
            f"{list(array.shape)} on GPU {array.device}"
        )
    if have < need or array.address % ALIGNMENT_BYTES:
        raise InvalidOptionError(
            f"workspace must have at least {need:,} bytes and start at a multiple of {ALIGNMENT_BYTES}, "
            f"got {have:,} bytes at {array.address:#x}"
        )
    if any(overlaps((array.address, have), memory) for memory in others):
        raise InvalidOptionError("workspace must not share memory with A, the weights, bias or out")
    if plan.launch.num_counters:  # whatever was in there, or a kernel that was cut short
        runtime.clear_bytes(array.address, plan.counter_bytes, stream)
    return Scratch(array.address + plan.counter_bytes, array.address, array.address + gathered_at(plan))
