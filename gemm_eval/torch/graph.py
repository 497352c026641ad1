"""What a trace is: the operations that ran, in order, with what they read and wrote. Plain data, without torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from gemm_eval.torch.work import Work

__all__ = ["Access", "Call", "Domain", "Role", "Trace"]


class Role(enum.Enum):
    """What an operation is for a compiler that fuses.

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
    """Memory that an operation reads or writes.

    Attributes:
        buffer: number of the storage.
        num_bytes: of the elements it sees, each once: dimensions that are expanded count as one.
    """

    buffer: int
    num_bytes: int


class Domain(NamedTuple):
    """What a kernel iterates over.

    Attributes:
        num_elements: all of them.
        rows: of a reduction: how many sums there are; None: there is no reduction.
        is_inner: what is summed up lies side by side in memory (a row), not in steps (a column).
    """

    num_elements: int
    rows: int | None = None
    is_inner: bool = True

    @property
    def num_rows(self) -> int:
        """Sums; 0: there is no reduction."""
        return self.rows or 0

    @property
    def width(self) -> int:
        """Elements of a row; 0: there are no rows."""
        return self.num_elements // self.rows if self.rows else 0


@dataclass(slots=True)
class Call:
    """An operation of torch that ran.

    Attributes:
        name: as torch has it: ``"aten.mm"``.
        path: of the module that called it; empty: the outermost.
        phase: ``"forward"``, ``"backward"`` or ``"optimizer"``.
        role: what it is for a compiler that fuses.
        domain: what its kernel iterates over.
        reads, writes: memory.
        works: of an `EXTERN` operation: what it is for the models; else empty.
        eager: the kernels that eager mode runs for it; empty: as `works`, or one of its bytes.
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


@dataclass(slots=True)
class Trace:
    """All operations of a run.

    Attributes:
        calls: in the order they ran.
        kept: buffers that were there before, or that somebody holds after the run: what is written there must be.
        modules: class of each module by its path, in the order of definition.
    """

    calls: list[Call] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)
