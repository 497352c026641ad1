"""Kernels of a trace: each operation by itself, or fused as Inductor does. TORCH.md has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemm_eval.checks import check_word
from gemm_eval.torch.graph import DEALT, ROWS, VECTORS, Call, Domain, Role, Trace, Work, dealt
from gemm_eval.transformer import MemoryWork

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


class _Group:
    """Calls of one kernel while it grows: first and last place, and places of calls whose results it reads."""

    __slots__ = ("before", "calls", "domain", "has_reduction", "is_fusible", "last", "num")

    def __init__(self, num: int, call: Call, is_fusible: bool) -> None:
        self.num = self.last = num
        self.calls = [num]
        self.before: set[int] = set()
        self.domain = call.domain
        self.has_reduction = call.role is Role.REDUCTION
        self.is_fusible = is_fusible


class _Graph:
    """Readers and writers of each call, by places of calls."""

    def __init__(self, trace: Trace) -> None:
        self.calls = trace.calls
        self.kept = trace.kept
        self.writers_of: list[set[int]] = [set() for _ in trace.calls]
        self.readers_of: list[set[int]] = [set() for _ in trace.calls]
        last: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for index, call in enumerate(trace.calls):
            for access in call.reads:
                for writer in last.get(access.buffer, ()):
                    self.writers_of[index].add(writer)
                    self.readers_of[writer].add(index)
            for access in call.writes:
                sizes[access.buffer] = max(sizes.get(access.buffer, 0), access.num_bytes)
                is_whole = access.num_bytes >= sizes[access.buffer]
                last[access.buffer] = [index] if is_whole else [*last.get(access.buffer, ()), index]

    def is_dead(self, place: int, dead: set[int]) -> bool:
        """Say whether nobody sees the results of a call."""
        call = self.calls[place]
        if call.role is Role.EXTERN or any(access.buffer in self.kept for access in call.writes):
            return False
        return self.readers_of[place] <= dead

    def is_computed_by_readers(self, place: int, dead: set[int]) -> bool:
        """Say whether a call makes constants that kernels compute where they need them."""
        call = self.calls[place]
        if call.role is not Role.CONSTANT or any(access.buffer in self.kept for access in call.writes):
            return False
        return all(self.calls[reader].role in _FUSIBLE for reader in self.readers_of[place] - dead)

    def is_made_inside(self, place: int, buffer: int, inside: set[int]) -> bool:
        """Say whether all that wrote a buffer before a call is of the same kernel, or constants that it computes."""
        writers = [w for w in self.writers_of[place] if any(a.buffer == buffer for a in self.calls[w].writes)]
        return bool(writers) and all(w in inside or self.calls[w].role is Role.CONSTANT for w in writers)


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
            Kernel((call,), call.eager) if is_gpu and call.eager else _kernel(graph, [index], is_fused=False)
            for index, call in enumerate(trace.calls)
        ]
    kernels = [_kernel(graph, members, is_fused=True) for members in _fuse(graph)]
    return [_vector_kernel(kernel) for kernel in kernels] if is_gpu else kernels


def _fuse(graph: _Graph) -> list[list[int]]:
    dead: set[int] = set()
    for index in reversed(range(len(graph.calls))):
        if graph.is_dead(index, dead):
            dead.add(index)
    groups: dict[int, _Group] = {}
    group_of: dict[int, int] = {}
    readers_of_input: dict[int, list[int]] = {}
    for index, call in enumerate(graph.calls):
        if index in dead or graph.is_computed_by_readers(index, dead):
            continue
        own = _Group(index, call, call.role in _FUSIBLE)
        own.before = {writer for writer in graph.writers_of[index] if writer in group_of}
        groups[index] = own
        group_of[index] = index
        if own.is_fusible:
            for other in _candidates(graph, own, call, group_of, readers_of_input):
                number = group_of[other]
                if number != group_of[index] and groups[number].is_fusible:
                    _merge_if_possible(graph, groups, group_of, number, group_of[index])
        for access in call.reads:
            readers_of_input.setdefault(access.buffer, []).append(index)
    return [sorted(group.calls) for group in sorted(groups.values(), key=lambda group: group.calls[-1])]


def _candidates(
    graph: _Graph, own: _Group, call: Call, group_of: dict[int, int], readers_of_input: dict[int, list[int]]
) -> list[int]:
    """Return calls whose kernels it may fuse with: those whose results it reads, then those that read the same."""
    result: list[int] = []
    if call.role is not Role.WINDOW:
        result += sorted((writer for writer in graph.writers_of[own.num] if writer in group_of), reverse=True)
    largest = max((access.num_bytes for access in call.reads), default=0)
    for access in call.reads:
        if access.num_bytes == largest:
            result += readers_of_input.get(access.buffer, [])[-4:][::-1]
    return list(dict.fromkeys(result))


def _merge_if_possible(
    graph: _Graph, groups: dict[int, _Group], group_of: dict[int, int], earlier: int, later: int
) -> None:
    first, second = groups[earlier], groups[later]
    if len(first.calls) + len(second.calls) > _MAX_FUSED:
        return
    domain = _common_domain(graph, first, second)
    if domain is None or any(_has_way_around(groups, group_of, *ends) for ends in ((earlier, later), (later, earlier))):
        return
    second.calls += first.calls
    second.domain = domain
    second.has_reduction = first.has_reduction or second.has_reduction
    second.before |= first.before
    for index in first.calls:
        group_of[index] = later
    second.num, second.last = min(first.num, second.num), max(first.last, second.last)
    del groups[earlier]


def _common_domain(graph: _Graph, first: _Group, second: _Group) -> Domain | None:
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
    inside = set(small.calls) | set(large.calls)
    is_of_large = all(
        graph.readers_of[index] <= inside
        and not any(access.buffer in graph.kept for access in graph.calls[index].writes)
        for index in small.calls
    )
    return b if is_of_large else None


def _has_way_around(groups: dict[int, _Group], group_of: dict[int, int], earlier: int, later: int) -> bool:
    """Say whether `later` reads results of `earlier` by way of others: as one kernel they would wait for themselves."""
    oldest = groups[earlier].num
    todo = [group_of[index] for index in groups[later].before]
    seen = {earlier, later}  # what is read without a way round is no matter
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        for index in groups[number].before:
            before = group_of[index]
            if before == earlier:
                return True
            if before not in seen and groups[before].last >= oldest:
                todo.append(before)
    return False


def _kernel(graph: _Graph, members: Sequence[int], *, is_fused: bool) -> Kernel:
    calls = tuple(graph.calls[index] for index in members)
    if len(calls) == 1 and calls[0].role is Role.EXTERN:
        return Kernel(calls, calls[0].works)
    inside = set(members)
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    for index, call in zip(members, calls, strict=True):
        for buffer, num_bytes in call.reads:
            if not (is_fused and graph.is_made_inside(index, buffer, inside)):
                read[buffer] = max(read.get(buffer, 0), num_bytes)
        outside = graph.readers_of[index] - inside
        for buffer, num_bytes in call.writes:
            is_read = any(access.buffer == buffer for reader in outside for access in graph.calls[reader].reads)
            if not is_fused or is_read or buffer in graph.kept:
                written[buffer] = max(written.get(buffer, 0), num_bytes)
    return Kernel(calls, (_memory(calls, sum(read.values()), sum(written.values())),))


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
