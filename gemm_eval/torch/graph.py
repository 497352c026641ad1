"""Traces and kinds of work as plain data, without torch.

GEMMs, attention and memory-bound kernels are kinds of work of `gemm_eval.transformer`.
"""

import enum
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from gemm_eval.models.gpu import ConvolutionKernel
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.workload import AttentionProblem, GemmProblem


@dataclass(frozen=True, slots=True)
class EfficientAttentionWork:
    """Attention by torch's memory-efficient kernel: in fp32, with tf32 or without, and with masks that cuDNN refuses.

    `problem` has the sizes; its type is that which runs where `is_half`. `num_bytes` are those of operands, mask and
    result, each once.
    """

    problem: AttentionProblem
    num_bytes: int
    is_half: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionWork:
    """A convolution as the implicit GEMM that it is.

    `problem` has G groups, M positions of the output in all images, K window times channels and N filters. Bytes are
    those of input and filters, and of the output, each once: A is never stored. `is_depthwise`: each filter sees one
    channel, and no matrix unit is of use. `padded` is the GEMM that runs, with channels filled up to what tensor cores
    load at once; None: `problem`. `kernel` is what GPUs have for it; None: a plain GEMM runs.
    """

    problem: GemmProblem
    read_bytes: int
    write_bytes: int
    is_depthwise: bool = False
    padded: GemmProblem | None = None
    kernel: ConvolutionKernel | None = None


@dataclass(frozen=True, slots=True)
class UnpricedWork:
    """An operation that no model knows: it is listed, with its bytes, and its operations where torch counts them."""

    reason: str
    num_bytes: int
    flop: int = 0


Work: TypeAlias = GemmWork | EfficientAttentionWork | ConvolutionWork | AttentionWork | MemoryWork | UnpricedWork

UNPRICED = "unpriced"
"""The bound of an operation that no model knows; it counts as no time."""

DEALT = "act"
"""The memory-bound model's name of a kernel whose threads load 16 bytes of each tensor."""

VECTORS = ("torch_vector", "torch_exp", "torch_gelu")
"""Its names of kernels of eager mode whose threads load 16 bytes of each tensor."""

ROWS = "inductor_rows"
"""Its name of a kernel of torch.compile that sums up rows."""

CTA_ELEMENTS = 1024
"""Elements of a block of a kernel that goes over its elements whatever rows they are of; Inductor has as many."""

_ELEMENT_BYTES = 2  # of what `dealt` takes the largest tensor to be made of


def dealt(what: str, read_bytes: int, write_bytes: int, tensor_bytes: int) -> MemoryWork:
    """Return a kernel that goes over its elements in blocks; threads are for the largest tensor, of `tensor_bytes`."""
    return blocks(what, read_bytes, write_bytes, -(-tensor_bytes // _ELEMENT_BYTES))


def blocks(what: str, read_bytes: int, write_bytes: int, num_elements: int) -> MemoryWork:
    """Return a kernel that goes over so many elements in blocks, whatever rows they are of."""
    return MemoryWork(what, read_bytes, write_bytes, -(-num_elements // CTA_ELEMENTS), CTA_ELEMENTS)


def work_flop(work: Work) -> tuple[int, int]:
    """Return operations on matrices, and as many as torch's `FlopCounterMode` counts, which knows no masks."""
    if isinstance(work, GemmWork | ConvolutionWork):
        return work.problem.flop, work.problem.flop
    if isinstance(work, UnpricedWork | MemoryWork):
        flop = 0 if isinstance(work, MemoryWork) else work.flop
        return flop, flop
    problem = work.problem
    return problem.flop, replace(problem, causal=False, window=None).flop


class Role(enum.Enum):
    """The kinds of operations that a compiler tells apart when it fuses.

    ELEMENTWISE: each output element by itself; it fuses with what is before and after.
    REDUCTION: sums of rows, and maybe what follows from them for each element: it fuses likewise, over the same rows.
    WINDOW: elementwise over its output, but its inputs must be in memory: pooling, interpolation, gathers of values
        that another kernel makes.
    CONSTANT: it reads nothing: what uses it computes it.
    ALONE: a kernel of its own: sorts, scans, scatters, random choices.
    EXTERN: of a library (GEMMs, convolutions, attention): a kernel of its own.
    """

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    WINDOW = "window"
    CONSTANT = "constant"
    ALONE = "alone"
    EXTERN = "extern"


class Access(NamedTuple):
    """Memory that an operation reads or writes: a storage by number, and the bytes of the elements it sees, each once.

    Dimensions that are expanded count as one. Elements from another `offset` on are others.
    """

    buffer: int
    num_bytes: int
    offset: int = 0


class ConvolutionLayout(NamedTuple):
    """Sizes and order in memory of a convolution that decide what torch.compile does with it.

    `window` are places of the filter, `group_channels` channels that a filter sees; `is_image`: two dimensions.
    """

    filters: int
    group_channels: int
    window: int
    is_grouped: bool
    is_image: bool
    has_bias: bool
    has_last_input: bool
    has_last_weight: bool


class Domain(NamedTuple):
    """The elements that a kernel iterates over, and of a reduction how many sums there are.

    `is_inner`: what is summed up lies side by side in memory (a row), not in steps (a column).
    """

    num_elements: int
    rows: int | None = None
    is_inner: bool = True

    @property
    def width(self) -> int:
        """Elements of a row; 0: there are no rows."""
        return self.num_elements // self.rows if self.rows else 0


@dataclass(slots=True)
class Call:
    """An operation of torch that ran, ``"aten.mm"``, in the phase ``"forward"``, ``"backward"`` or ``"optimizer"``.

    `path` is of the module that called it; empty: the outermost. `works` of an `EXTERN` operation are what it is to the
    models. `eager` are the kernels that eager mode runs for it; empty: as `works`, or one of its bytes. `layout` is of
    convolutions forward. `is_channels_last`: so lies the first tensor that it reads. `sizes` are those of its first
    result, if that is no GEMM's. `window` are places that a mean of pooling goes over.
    """

    name: str
    path: str
    phase: str
    role: Role
    domain: Domain
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    works: tuple[Work, ...] = ()
    eager: tuple[Work, ...] = ()
    layout: ConvolutionLayout | None = None
    is_channels_last: bool = False
    sizes: tuple[int, ...] = ()
    window: int = 0


@dataclass(slots=True)
class Trace:
    """All operations of a run, in the order they ran.

    `kept` are buffers that were there before, or that somebody holds after the run: what is written there must be.
    `modules` has the class of each module by its path, in the order of definition.
    """

    calls: list[Call] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)


UNROLLED_WINDOW = 25
"""Places of a window that torch.compile writes out one by one; more are a sum, or eager mode's kernel if windows
overlap (`_avg_poolnd` in lowering.py)."""

FUSIONS = ("inductor", "eager")
"""Ways to decide what runs as one kernel of a trace: by rules of `torch.compile`, or none."""

INDUCTOR_IR = "inductor-ir"
"""Value of `fusion=` for which Inductor itself decides what fuses (`inductor_ir`)."""
