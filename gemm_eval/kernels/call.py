"""What calls of the W4A16 kernels share: operands checked and found in memory, and room to work in."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

from gemm_eval.checks import plain_number
from gemm_eval.device import DeviceArray, Rows, as_device_array, as_rows, check_dtype, overlaps, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families import ceil_div
from gemm_eval.kernels.gather import GATHER_ALIGNMENT_BYTES
from gemm_eval.kernels.plan import LARGEST_SIZE, Plan
from gemm_eval.words import shown

__all__ = [
    "ALIGNMENT_BYTES",
    "WHY_THAT_TYPE",
    "Scratch",
    "finite",
    "gathered_at",
    "launch_plan",
    "matrix",
    "new_output",
    "on_device_array",
    "output_rows",
    "take_scratch",
]

T = TypeVar("T")

ALIGNMENT_BYTES = 16
WHY_THAT_TYPE = "the type that the weights were packed for"


class Scratch(NamedTuple):
    """Addresses of memory that a call uses beside its operands."""

    partial_sums: int
    counters: int
    gathered: int


def on_device_array(x: Any, what: str, device: int, stream: int) -> DeviceArray:
    """An array on the GPU where the weights are."""
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
    """A CuPy array of the shape of A with other columns."""
    runtime.refuse_capture(stream, "give out")
    dtype = "float16" if activation is DType.FP16 else "uint16"
    if isinstance(A, runtime.import_cupy().ndarray):
        dtype = A.dtype
    return runtime.allocate((*A.shape[:-1], num_columns), dtype, stream)


def output_rows(out: Any, num_rows: int, num_columns: int, activation: DType, device: int, stream: int) -> Rows:
    """Where a result goes: contiguous rows, as many as A has."""
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
    """Where gathered activations lie in a workspace: behind what the kernel itself needs, in bytes."""
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


def finite(alpha: Any) -> float:
    """A factor of the product, or a refusal."""
    number = plain_number(alpha)
    if number is None:
        raise InvalidOptionError(f"alpha must be a finite number, got {shown(alpha)}")
    return number
