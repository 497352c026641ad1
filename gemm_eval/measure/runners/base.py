"""What the timing protocol needs from whoever runs GEMMs: a vendor's library, or our own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gemm_eval.device import Call, Timer

__all__ = ["BuildsKernels", "BuiltKernel", "OperandLayout", "Runner"]


class OperandLayout(NamedTuple):
    """Where the operands of one GEMM lie: byte offsets into the runner's buffers, multiples of 256.

    Attributes:
        input_offset: of A[G,M,K], row-major, in the input buffer.
        weight_offsets: of the copies of B in the weight pool. A dense runner stores B as W[G,N,K], K contiguous.
        output_offset: of C[G,M,N], row-major, in the output buffer.
    """

    input_offset: int
    weight_offsets: tuple[int, ...]
    output_offset: int


class Runner(Timer, Protocol):
    """Runs one kind of GEMM with one set of data types on one device, in one stream.

    A `shape` is what this runner measures: a `GemmShape`, or a `Candidate` where one GEMM can be run in several ways.

    Attributes:
        kernel: whose kernels run, a name for files: ``cublas``, ``cublaslt``, ...
        input_dtype, weight_dtype, output_dtype: as stored.
        pool_bytes: size of the pool of random weights, set by `allocate`.
    """

    kernel: str
    input_dtype: str
    weight_dtype: str
    output_dtype: str
    pool_bytes: int

    def allocate(self, shapes: Sequence[Any], pool_bytes: int) -> None:
        """Make the buffers that `shapes` need, full of random data, and a pool of `pool_bytes` for weights."""

    def weight_bytes(self, shape: Any) -> int:
        """Return the bytes of one copy of B as stored."""

    def bind(self, shape: Any, layout: OperandLayout) -> Sequence[Call]:
        """Return one call for each weight copy of `layout`; each enqueues the whole GEMM."""

    def check(self) -> Mapping[str, float]:
        """Compare small GEMMs with float64; returns relative errors by layout.

        Raises:
            GemmEvalError: a result is wrong.
        """

    def mark(self, index: int) -> None:
        """Enqueue the marker kernel with a grid of index + 1 blocks: it separates calls in a trace."""

    def describe(self) -> dict[str, Any]:
        """Return what a reader of the data must know: library, version, workspace, layouts, data."""


class BuiltKernel(NamedTuple):
    """A kernel of ours: what its compiler says, and its launch.

    Attributes:
        kernel, num_kernels, grid_x, grid_y, grid_z, block_x, registers, smem_bytes: as a trace would say.
        spill_bytes: local memory of a thread.
        ctas_per_sm: CTAs that an SM holds at once.
        kernel_hash: of the machine code.
    """

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


@runtime_checkable
class BuildsKernels(Protocol):
    """A runner that compiles its kernels itself, and so knows them without a trace."""

    def build(self, items: Sequence[Any]) -> None:
        """Compile what `items` need, before anything is timed; what cannot be compiled fails when it is bound."""

    def built(self, item: Any) -> BuiltKernel:
        """Return build and launch of the item that was bound last."""
