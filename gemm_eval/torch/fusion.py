"""Kernels of a trace: as eager mode has them, or fused as Inductor does. TORCH.md has the rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gemm_eval.torch.compiled_mode import SCATTERS, Lowered, compiled_work, is_in_memory, lower
from gemm_eval.torch.graph import (
    DEALT,
    FUSIONS,
    ROWS,
    VECTORS,
    Call,
    Domain,
    Role,
    Trace,
    UnpricedWork,
    Work,
    dealt,
)
from gemm_eval.transformer import MemoryWork
from gemm_eval.words import check_word

NUM_SMS = 132
"""SMs of a GPU that nothing was said about: an H100's and an H200's."""

_FUSIBLE = (Role.ELEMENTWISE, Role.REDUCTION, Role.WINDOW, Role.CONSTANT)
_MIN_ROW, _MAX_ROW = 64, 1 << 16  # elements of a row that a CTA sums up; shorter rows share one, longer are split
_MAX_FUSED = 64  # operations of a kernel, as `torch._inductor.config.max_fusion_size` has it


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of some operations in their order, or the launches of eager mode for one operation."""

    calls: tuple[Call, ...]
    works: tuple[Work, ...]


def kernels_of(trace: Trace, fusion: str, *, is_gpu: bool = True, num_sms: int = NUM_SMS) -> list[Kernel]:
    """Return the kernels of a trace, in an order in which they can run.

    `fusion` is ``"inductor"``: elementwise operations and reductions fuse, what is not read does not run; or
    ``"eager"``: each operation is a kernel, or those that torch and cuDNN have for it. On chips of another kind than
    GPUs an operation of eager mode is one kernel. `num_sms` of a GPU say which sums Inductor splits.
    """
    check_word("fusion", fusion, FUSIONS)
    if fusion == "eager":
        graph = _Graph(trace, Lowered(trace, num_sms))
        return [
            Kernel((call,), call.eager) if is_gpu and call.eager else graph.kernel([index], is_fused=False)
            for index, call in enumerate(trace.calls)
        ]
    lowered = lower(trace, num_sms) if is_gpu else Lowered(trace, num_sms)
    graph = _Graph(lowered.trace, lowered)
    kernels = [graph.kernel(sorted(members), is_fused=True, is_gpu=is_gpu) for members in graph.fuse()]
    kernels = [kernel for kernel in kernels if kernel.works]  # but joins that cost nothing
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
    lowered: Lowered
    groups: dict[int, _Group] = field(default_factory=dict)
    group_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = self.trace.calls
        self.writers_of: list[set[int]] = [set() for _ in self.calls]
        self.readers_of: list[set[int]] = [set() for _ in self.calls]
        last: dict[int, list[int]] = {}
        self.sizes: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            for access in (*call.reads, *(call.writes if call.name in SCATTERS else ())):
                for writer in last.get(access.buffer, ()):
                    self.writers_of[index].add(writer)
                    self.readers_of[writer].add(index)
            for access in call.writes:
                self.sizes[access.buffer] = max(self.sizes.get(access.buffer, 0), access.num_bytes)
                is_whole = access.num_bytes >= self.sizes[access.buffer] or call.name in SCATTERS
                last[access.buffer] = [index] if is_whole else [*last.get(access.buffer, ()), index]
        self.scattered = {access.buffer for call in self.calls if call.name in SCATTERS for access in call.writes}
        self.is_kept = [any(access.buffer in self.trace.kept for access in call.writes) for call in self.calls]

    def fuse(self) -> list[list[int]]:
        """Return the calls of each kernel; what has no reader is in none."""
        dead: set[int] = set()
        for index in reversed(range(len(self.calls))):
            is_unknown = any(isinstance(work, UnpricedWork) for work in self.calls[index].works)
            is_seen = self.is_kept[index] or (is_unknown and not self.readers_of[index])
            is_seen |= is_in_memory(self.calls[index])
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
        call = self.calls[place]
        if call.role is not Role.CONSTANT or self.is_kept[place] or self._buffers([place], "writes") & self.scattered:
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
        if any(self.lowered.sums_of.get(call) in first.calls for call in second.calls):
            return  # Inductor goes over the elements of these norms in another order
        in_memory = self.scattered and self._buffers(first.calls, "writes") & self.scattered
        if in_memory and in_memory & self._buffers(second.calls, "reads", "writes"):
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

    def _buffers(self, places: Sequence[int], *kinds: str) -> set[int]:
        return {access.buffer for index in places for kind in kinds for access in getattr(self.calls[index], kind)}

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
        if all(self.readers_of[index] <= inside and not self.is_kept[index] for index in small.calls):
            return b
        # likewise what only parts are read of, one time
        is_of_small = (
            large is first
            and not large.has_reduction
            and all(self.readers_of[index] <= inside and not self.is_kept[index] for index in large.calls)
        )
        is_of_small &= not any(
            self.calls[index].role is Role.WINDOW and self.writers_of[index] & inside for index in small.calls
        )
        return a if is_of_small else None

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

    def kernel(self, members: Sequence[int], *, is_fused: bool, is_gpu: bool = False) -> Kernel:
        """Return the kernel of some calls, with the bytes that it reads and writes."""
        calls = tuple(self.calls[index] for index in members)
        if len(calls) == 1 and (calls[0].role is Role.EXTERN or (is_fused and is_in_memory(calls[0]))):
            return Kernel(calls, calls[0].works)
        if is_gpu and calls[0].role is Role.ALONE and calls[0].eager:
            return Kernel(calls, calls[0].eager)
        inside = set(members)
        read: dict[tuple[int, int], int] = {}  # by buffer and offset
        written: dict[int, int] = {}
        for index, call in zip(members, calls, strict=True):
            for buffer, num_bytes, offset in call.reads:
                if not (is_fused and self._is_made_inside(index, buffer, inside)):
                    read[buffer, offset] = max(read.get((buffer, offset), 0), num_bytes)
            outside = [self.calls[reader].reads for reader in self.readers_of[index] - inside]
            for buffer, num_bytes, _ in call.writes:
                is_read = any(access.buffer == buffer for reads in outside for access in reads)
                if not is_fused or is_read or buffer in self.trace.kept:
                    written[buffer] = max(written.get(buffer, 0), num_bytes)
        moved = self._bytes(read), sum(written.values())
        if not is_gpu:
            return Kernel(calls, (_memory(calls, *moved),))
        constants = {
            (buffer if buffer is not None else (index, None)): count
            for index in members
            for buffer, count in self.lowered.instructions_of.get(index, {}).items()
        }
        instructions = sum(constants.values())
        work = compiled_work(calls, [*read.values()], moved, self.lowered.num_sms, instructions)
        return Kernel(calls, (work,))

    def _bytes(self, read: dict[tuple[int, int], int]) -> int:
        """Return the bytes of what is read of buffers from several offsets on, no more than a buffer has."""
        parts: dict[int, list[int]] = {}
        for (buffer, _), num_bytes in read.items():
            parts.setdefault(buffer, []).append(num_bytes)
        return sum(min(sum(each), max(self.sizes.get(buffer, 0), *each, 0)) for buffer, each in parts.items())

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
