"""Traces and kinds of work as plain data, and the kernels of a trace, fused as Inductor does; without torch.

GEMMs, attention and memory-bound kernels are kinds of work of `gemm_eval.transformer`. TORCH.md has rules of fusion.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from gemm_eval.checks import check_word
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import AttentionProblem, GemmProblem

_ATTENTION_BACKWARD = 5, 2
"""Products of the backward and the forward pass: scores again, and gradients of Q, K, V and of the scores."""


@dataclass(frozen=True, slots=True)
class EfficientAttentionWork:
    """Attention by torch's memory-efficient kernel, which fp32 runs, with tf32 or without.

    `problem` has the sizes; its type is not the one that runs. `num_bytes` are those of operands and result, each once.
    """

    problem: AttentionProblem
    num_bytes: int
    is_backward: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionWork:
    """A convolution as the implicit GEMM that it is.

    `problem` has G groups, M positions of the output in all images, K window times channels and N filters. Bytes are
    those of input and filters, and of the output, each once: A is never stored. `is_depthwise`: each filter sees one
    channel, and no matrix unit is of use. `padded` is the GEMM that runs, with channels filled up to what tensor cores
    load at once; None: `problem`. `window` places of the filter have a kernel of their own; 0: a plain GEMM runs.
    `is_tiled`: a depthwise kernel that keeps planes in shared memory.
    """

    problem: GemmProblem
    read_bytes: int
    write_bytes: int
    is_depthwise: bool = False
    padded: GemmProblem | None = None
    window: int = 0
    is_channels_first: bool = False
    is_tiled: bool = False


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

VECTORS = ("torch_vector", "torch_gelu")
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
    pairs = problem.batch * problem.num_heads * problem.q_len * problem.kv_len
    full = FLOP_PER_MAC * pairs * (problem.head_dim + problem.value_dim)
    backward, forward = _ATTENTION_BACKWARD if work.is_backward else (1, 1)
    return problem.flop * backward // forward, full * backward // forward


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

    Dimensions that are expanded count as one.
    """

    buffer: int
    num_bytes: int


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
    models. `eager` are the kernels that eager mode runs for it; empty: as `works`, or one of its bytes.
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
    """All operations of a run, in the order they ran.

    `kept` are buffers that were there before, or that somebody holds after the run: what is written there must be.
    `modules` has the class of each module by its path, in the order of definition.
    """

    calls: list[Call] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)


FUSIONS = ("inductor", "eager")
"""Who decides what runs as one kernel: `torch.compile`, or nobody."""

_FUSIBLE = (Role.ELEMENTWISE, Role.REDUCTION, Role.WINDOW, Role.CONSTANT)
_MIN_ROW, _MAX_ROW = 64, 1 << 16  # elements of a row that a CTA sums up; shorter rows share one, longer are split
_MAX_FUSED = 64  # operations of a kernel, as `torch._inductor.config.max_fusion_size` has it


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of some operations in their order, or the launches of eager mode for one operation."""

    calls: tuple[Call, ...]
    works: tuple[Work, ...]


def kernels_of(trace: Trace, fusion: str, *, is_gpu: bool = True) -> list[Kernel]:
    """Return the kernels of a trace, in an order in which they can run.

    `fusion` is ``"inductor"``: elementwise operations and reductions fuse, what nobody reads does not run; or
    ``"eager"``: each operation is a kernel, or those that torch and cuDNN have for it. On chips of another kind than
    GPUs an operation of eager mode is one kernel.
    """
    check_word("fusion", fusion, FUSIONS)
    graph = _Graph(trace)
    if fusion == "eager":
        return [
            Kernel((call,), call.eager) if is_gpu and call.eager else graph.kernel([index], is_fused=False)
            for index, call in enumerate(trace.calls)
        ]
    kernels = [graph.kernel(sorted(members), is_fused=True) for members in graph.fuse()]
    return [_vector_kernel(kernel) for kernel in kernels] if is_gpu else kernels


@dataclass(slots=True)
class _Group:
    """Calls of one kernel while it grows: first and last place, and places of calls whose results it reads."""

    num: int
    last: int
    calls: list[int]
    domain: Domain
    has_reduction: bool
    is_fusible: bool
    before: set[int]


@dataclass
class _Graph:
    """Readers and writers of each call, by places of calls, and the group that each is in."""

    trace: Trace
    groups: dict[int, _Group] = field(default_factory=dict)
    group_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = self.trace.calls
        self.writers_of: list[set[int]] = [set() for _ in self.calls]
        self.readers_of: list[set[int]] = [set() for _ in self.calls]
        last: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            for access in call.reads:
                for writer in last.get(access.buffer, ()):
                    self.writers_of[index].add(writer)
                    self.readers_of[writer].add(index)
            for access in call.writes:
                sizes[access.buffer] = max(sizes.get(access.buffer, 0), access.num_bytes)
                is_whole = access.num_bytes >= sizes[access.buffer]
                last[access.buffer] = [index] if is_whole else [*last.get(access.buffer, ()), index]
        self.is_kept = [any(access.buffer in self.trace.kept for access in call.writes) for call in self.calls]

    def fuse(self) -> list[list[int]]:
        """Return the calls of each kernel; what nobody sees is in none."""
        dead: set[int] = set()
        for index in reversed(range(len(self.calls))):
            is_seen = self.calls[index].role is Role.EXTERN or self.is_kept[index]
            if not is_seen and self.readers_of[index] <= dead:
                dead.add(index)
        readers_of_input: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            if index in dead or self._is_computed_by_readers(index, dead):
                continue
            before = {writer for writer in self.writers_of[index] if writer in self.group_of}
            self.groups[index] = _Group(
                index, index, [index], call.domain, call.role is Role.REDUCTION, call.role in _FUSIBLE, before
            )
            self.group_of[index] = index
            if call.role in _FUSIBLE:
                for other in dict.fromkeys(self._candidates(index, call, readers_of_input)):
                    first, second = self.group_of[other], self.group_of[index]
                    if first != second and self.groups[first].is_fusible:
                        self._merge_if_possible(first, second)
            for access in call.reads:
                readers_of_input.setdefault(access.buffer, []).append(index)
        return [group.calls for group in sorted(self.groups.values(), key=lambda group: group.calls[-1])]

    def _is_computed_by_readers(self, place: int, dead: set[int]) -> bool:
        """Say whether a call makes constants that kernels compute where they need them."""
        if self.calls[place].role is not Role.CONSTANT or self.is_kept[place]:
            return False
        return all(self.calls[reader].role in _FUSIBLE for reader in self.readers_of[place] - dead)

    def _candidates(self, index: int, call: Call, readers_of_input: dict[int, list[int]]) -> Iterator[int]:
        """Yield calls whose kernels it may fuse with: those whose results it reads, then those that read the same."""
        if call.role is not Role.WINDOW:
            yield from sorted(self.groups[index].before, reverse=True)
        largest = max((access.num_bytes for access in call.reads), default=0)
        for access in call.reads:
            if access.num_bytes == largest:
                yield from readers_of_input.get(access.buffer, [])[-4:][::-1]

    def _merge_if_possible(self, earlier: int, later: int) -> None:
        first, second = self.groups[earlier], self.groups[later]
        if len(first.calls) + len(second.calls) > _MAX_FUSED:
            return
        domain = self._common_domain(first, second)
        if domain is None or self._has_way_around(earlier, later) or self._has_way_around(later, earlier):
            return
        self.groups[later] = _Group(
            min(first.num, second.num), max(first.last, second.last), second.calls + first.calls, domain,
            first.has_reduction or second.has_reduction, True, first.before | second.before,
        )  # fmt: skip
        self.group_of.update(dict.fromkeys(first.calls, later))
        del self.groups[earlier]

    def _common_domain(self, first: _Group, second: _Group) -> Domain | None:
        small, large = sorted((first, second), key=lambda group: group.domain.num_elements)
        a, b = small.domain, large.domain
        if a.num_elements == b.num_elements:
            if a.rows is not None and b.rows is not None and a != b:
                return None
            return b if a.rows is None else a
        if small.has_reduction:
            return None
        if b.rows is not None and a.num_elements == b.rows:
            return b  # what is done with the sums of rows
        # a broadcast, computed where it is needed, unless others need it too
        inside = {*small.calls, *large.calls}
        is_of_large = all(self.readers_of[index] <= inside and not self.is_kept[index] for index in small.calls)
        return b if is_of_large else None

    def _has_way_around(self, earlier: int, later: int) -> bool:
        """Say whether `later` reads results of `earlier` by way of others: one kernel would wait for itself."""
        oldest = self.groups[earlier].num
        todo = [self.group_of[index] for index in self.groups[later].before]
        seen = {earlier, later}  # what is read without a way round is no matter
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            before = {self.group_of[index] for index in self.groups[number].before}
            if earlier in before:
                return True
            todo += [other for other in before - seen if self.groups[other].last >= oldest]
        return False

    def kernel(self, members: Sequence[int], *, is_fused: bool) -> Kernel:
        """Return the kernel of some calls, with the bytes that it reads and writes."""
        calls = tuple(self.calls[index] for index in members)
        if len(calls) == 1 and calls[0].role is Role.EXTERN:
            return Kernel(calls, calls[0].works)
        inside = set(members)
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for index, call in zip(members, calls, strict=True):
            for buffer, num_bytes in call.reads:
                if not (is_fused and self._is_made_inside(index, buffer, inside)):
                    read[buffer] = max(read.get(buffer, 0), num_bytes)
            outside = [self.calls[reader].reads for reader in self.readers_of[index] - inside]
            for buffer, num_bytes in call.writes:
                is_read = any(access.buffer == buffer for reads in outside for access in reads)
                if not is_fused or is_read or buffer in self.trace.kept:
                    written[buffer] = max(written.get(buffer, 0), num_bytes)
        return Kernel(calls, (_memory(calls, sum(read.values()), sum(written.values())),))

    def _is_made_inside(self, place: int, buffer: int, inside: set[int]) -> bool:
        """Say whether all that wrote a buffer before a call is of the same kernel, or constants that it computes."""
        writers = [w for w in self.writers_of[place] if any(a.buffer == buffer for a in self.calls[w].writes)]
        return bool(writers) and all(w in inside or self.calls[w].role is Role.CONSTANT for w in writers)


def _vector_kernel(kernel: Kernel) -> Kernel:
    """Return a kernel of one elementwise operation as that of eager mode, where that loads 16 bytes a thread."""
    call = kernel.calls[0]
    if len(kernel.calls) > 1 or call.role is not Role.ELEMENTWISE or len(call.eager) != 1:
        return kernel
    eager, compiled = call.eager[0], kernel.works[0]
    if not isinstance(eager, MemoryWork) or eager.what not in VECTORS or not isinstance(compiled, MemoryWork):
        return kernel
    return Kernel(kernel.calls, (replace(eager, read_bytes=compiled.read_bytes, write_bytes=compiled.write_bytes),))


def _memory(calls: Sequence[Call], read_bytes: int, write_bytes: int) -> MemoryWork:
    sums = [call for call in calls if call.role is Role.REDUCTION]
    domain = (sums or calls)[0].domain
    rows = domain.rows if sums and domain.is_inner and _MIN_ROW <= domain.width <= _MAX_ROW else None
    if rows is not None and rows > 1:
        return MemoryWork(ROWS, read_bytes, write_bytes, rows, domain.width)
    largest = max((access.num_bytes for call in calls for access in (*call.reads, *call.writes)), default=0)
    return dealt(DEALT, read_bytes, write_bytes, min(largest, max(read_bytes, write_bytes)))
