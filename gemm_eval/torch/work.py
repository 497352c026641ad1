"""Kinds of work that only traced modules have, and the words of memory-bound kernels; plain data, without torch.

GEMMs, fused attention and memory-bound kernels are those of `gemm_eval.transformer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import GemmProblem

_ATTENTION_BACKWARD = 5, 2
"""Products of the backward and the forward pass: scores again, and gradients of Q, K, V and of the scores."""


@dataclass(frozen=True, slots=True)
class VectorGemmWork:
    """A GEMM, convolution or attention in fp32, without tensor cores: nothing is fitted, its peak and bytes are known.

    Attributes:
        what: in words, with sizes.
        flop: operations, a multiply-accumulate being two.
        num_bytes: operands and result, each once.
        unmasked_flop: operations without what masks leave out.
    """

    what: str
    flop: int
    num_bytes: int
    unmasked_flop: int


@dataclass(frozen=True, slots=True)
class ConvolutionWork:
    """A convolution as the implicit GEMM that it is.

    Attributes:
        problem: the GEMM: G groups, M positions of the output in all images, K window times channels, N filters.
        read_bytes, write_bytes: input and filters, output, each once: A is never stored.
        is_depthwise: each filter sees one channel: no matrix unit is of use.
        padded: the GEMM that runs, with channels filled up to what tensor cores load at once; None: `problem`.
        window: places of the filter, where a kernel of its own runs over them; 0: a plain GEMM runs.
        is_channels_first: an image of one channel follows the other, and the kernel takes it so.
    """

    problem: GemmProblem
    read_bytes: int
    write_bytes: int
    is_depthwise: bool = False
    padded: GemmProblem | None = None
    window: int = 0
    is_channels_first: bool = False


@dataclass(frozen=True, slots=True)
class UnpricedWork:
    """An operation that no model knows: it is listed, with its bytes.

    Attributes:
        reason: why.
        num_bytes: read and written.
        flop: as torch counts them; 0: it does not.
    """

    reason: str
    num_bytes: int
    flop: int = 0


Work: TypeAlias = GemmWork | VectorGemmWork | ConvolutionWork | AttentionWork | MemoryWork | UnpricedWork

DEALT = "act"
"""The memory-bound model's name of a kernel whose threads load 16 bytes of each tensor."""

VECTORS = ("torch_vector", "torch_gelu")
"""Its names of kernels of eager mode whose threads load 16 bytes of each tensor."""

ROWS = "inductor_rows"
"""Its name of a kernel of torch.compile that sums up rows."""

CTA_ELEMENTS = 1024
"""Elements of a block of a kernel that goes over its elements whatever rows they are of; Inductor has as many."""

_ELEMENT_BYTES = 2  # of what `dealt` takes the largest tensor to be made of


def dealt(what: str, read_bytes: int, write_bytes: int, tensor_bytes: int) -> MemoryWork:
    """Return a kernel that goes over its elements in blocks, whatever rows they are of.

    Args:
        what: its name for the memory-bound model.
        read_bytes, write_bytes: bytes of one run.
        tensor_bytes: of the largest tensor that it sees, which its threads are for.
    """
    rows = -(-tensor_bytes // (CTA_ELEMENTS * _ELEMENT_BYTES))
    return MemoryWork(what, read_bytes, write_bytes, rows, CTA_ELEMENTS)


def work_flop(work: Work) -> tuple[int, int]:
    """Return operations on matrices, and as many as torch's `FlopCounterMode` counts, which knows no masks."""
    if isinstance(work, GemmWork | ConvolutionWork):
        return work.problem.flop, work.problem.flop
    if isinstance(work, VectorGemmWork):
        return work.flop, work.unmasked_flop
    if isinstance(work, UnpricedWork):
        return work.flop, work.flop
    if isinstance(work, MemoryWork):
        return 0, 0
    problem = work.problem
    pairs = problem.batch * problem.num_heads * problem.q_len * problem.kv_len
    full = FLOP_PER_MAC * pairs * (problem.head_dim + problem.value_dim)
    backward, forward = _ATTENTION_BACKWARD if work.is_backward else (1, 1)
    return problem.flop * backward // forward, full * backward // forward
