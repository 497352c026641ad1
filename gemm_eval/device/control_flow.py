"""The main loop of a kernel, in machine code or PTX: what a warp issues in one of its iterations.

Everything here takes time and memory nearly in proportion to the instructions, whatever loops they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gemm_eval.device.sass import Instruction
from gemm_eval.errors import GemmEvalError

__all__ = ["find_main_loop"]

_PER_LANE_BRANCH = "BRA.U.ANY"  # back to an instruction that takes one lane's operands at a time


def find_main_loop(
    instructions: Sequence[Instruction], is_work: Callable[[Instruction], bool]
) -> tuple[Instruction, ...]:
    """Return what a warp issues in one steady iteration of the innermost loop that does (most of) the work.

    Of ways through the loop that is the longest: copies for a later iteration are taken to be made. Code that the
    compiler moved behind the loop is left out: there a warp spins on a barrier, or collects lanes that diverged. Loops
    over lanes (`BRA.U.ANY`) are gone through once: for one lane, or lanes with the same operands.

    Raises:
        GemmEvalError: no loop does such work, or there is no straight way through it.
    """
    blocks = _Blocks(instructions)
    members = blocks.natural_loops()
    work: dict[int, int] = {}
    innermost: dict[int, bool] = {}
    for entry in members:  # inner ones first
        inner = [work[block] for block in members[entry] if block in work]
        own = (entry, *(block for block in members[entry] if block not in work))
        work[entry] = sum(inner) + sum(map(is_work, blocks.instructions_of(own)))
        innermost[entry] = work[entry] > 0 and not any(inner)
    candidates = [entry for entry in blocks.order_of_loops if innermost[entry]]
    if not candidates:
        raise GemmEvalError("no loop of this kernel does the work that was asked for")
    entry = max(candidates, key=work.__getitem__)
    return blocks.longest_way(entry, _all_blocks(entry, members))


def _all_blocks(entry: int, members: dict[int, list[int]]) -> set[int]:
    """Blocks of a loop, and of those in it."""
    found, waiting = {entry}, [entry]
    while waiting:
        inside = members.get(waiting.pop(), [])
        found.update(inside)
        waiting += inside
    return found


class _Blocks:
    """Basic blocks, numbered in the order of their addresses; the first is the entry of the kernel."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self.order_of_loops: list[int] = []
        index = {instruction.address: i for i, instruction in enumerate(instructions)}
        starts = {0, len(instructions)}
        for i, instruction in enumerate(instructions):
            if instruction.target is not None:
                starts.add(index[instruction.target])
            if instruction.is_branch or instruction.is_end:
                starts.add(i + 1)
        self._starts = sorted(starts)
        number = {start: block for block, start in enumerate(self._starts)}
        num_blocks = len(self._starts) - 1
        self._after: list[tuple[int, ...]] = []
        for block in range(num_blocks):
            last = instructions[self._starts[block + 1] - 1]
            following = {number[index[last.target]]} if last.target is not None else set()
            if last.may_fall_through and block + 1 < num_blocks:
                following.add(block + 1)
            self._after.append(tuple(sorted(following)))
        self._order: list[int] = [0] if num_blocks else []  # blocks that can be reached
        found = set(self._order)
        for block in self._order:
            fresh = [after for after in self._after[block] if after not in found]
            self._order += fresh
            found.update(fresh)
        self._before: list[list[int]] = [[] for _ in range(num_blocks)]
        for block in self._order:
            for after in self._after[block]:
                self._before[after].append(block)

    def instructions_of(self, blocks: Iterable[int]) -> list[Instruction]:
        return [self._instructions[i] for b in sorted(blocks) for i in range(self._starts[b], self._starts[b + 1])]

    def natural_loops(self) -> dict[int, list[int]]:
        """By the one block that a loop is entered at, inner loops first: blocks in it but in no loop inside it, and
        the entries of those loops.

        Two of them have no block in common, or one lies in the other, so that a block whose loop is known stands for
        all of that loop from then on.
        """
        first, last = self._dominator_tree()
        sources: dict[int, list[int]] = {}
        for block in self._order:
            if self._instructions[self._starts[block + 1] - 1].opcode == _PER_LANE_BRANCH:
                continue
            for entry in self._after[block]:
                if first[entry] <= first[block] <= last[entry]:  # it is on all ways to the block
                    sources.setdefault(entry, []).append(block)
        self.order_of_loops = list(sources)
        outer = list(range(len(self._after)))
        members: dict[int, list[int]] = {}
        for entry in sorted(sources, key=first.__getitem__, reverse=True):
            members[entry] = []
            waiting = list(sources[entry])
            while waiting:
                block = _outermost(outer, waiting.pop())
                if block != entry:
                    outer[block] = entry
                    members[entry].append(block)
                    waiting += self._before[block]
        return members

    def _dominator_tree(self) -> tuple[list[int], list[int]]:
        """First and last number of each block's part of the tree, in preorder; -1 where it cannot be reached.

        By Lengauer and Tarjan, "A fast algorithm for finding dominators in a flowgraph" (1979), with path compression
        only. Within it, blocks go by the numbers of a depth-first search.
        """
        number, parent = self._depth_first()
        block_of = sorted((block for block in self._order), key=number.__getitem__)
        size = len(block_of)
        semi, label, dominator = list(range(size)), list(range(size)), [0] * size
        ancestor = [-1] * size
        buckets: list[list[int]] = [[] for _ in range(size)]
        for w in range(size - 1, 0, -1):
            for block in self._before[block_of[w]]:
                semi[w] = min(semi[w], semi[_least(number[block], ancestor, label, semi)])
            buckets[semi[w]].append(w)
            ancestor[w] = parent[w]
            for v in buckets[parent[w]]:
                u = _least(v, ancestor, label, semi)
                dominator[v] = u if semi[u] < semi[v] else parent[w]
            buckets[parent[w]].clear()
        sizes = [1] * size
        for w in range(1, size):
            if dominator[w] != semi[w]:
                dominator[w] = dominator[dominator[w]]
        for w in range(size - 1, 0, -1):
            sizes[dominator[w]] += sizes[w]
        first, last = [-1] * len(self._after), [-2] * len(self._after)
        free = [0] * size  # where the next child of each begins
        for w in range(size):
            start = free[dominator[w]] if w else 0
            free[dominator[w]] = start + sizes[w]
            free[w] = start + 1
            first[block_of[w]], last[block_of[w]] = start, start + sizes[w] - 1
        return first, last

    def _depth_first(self) -> tuple[list[int], list[int]]:
        """The number of each block, and by number, that of the block it was come to from."""
        number = [-1] * len(self._after)
        parent: list[int] = []
        waiting = [(0, 0)] if self._after else []
        while waiting:
            block, came_from = waiting.pop()
            if number[block] < 0:
                number[block] = len(parent)
                parent.append(came_from)
                waiting += [(after, number[block]) for after in self._after[block]]
        return number, parent

    def longest_way(self, entry: int, loop: set[int]) -> tuple[Instruction, ...]:
        """From the loop's entry to the last branch back to it, forwards only."""
        last = max(block for block in loop if entry in self._after[block])
        ways = {entry: (self._size(entry), entry)}  # instructions so far, and the block before
        for block in sorted(inside for inside in loop if entry <= inside <= last):
            if block not in ways:  # it is come to from behind the loop only
                continue
            size = ways[block][0]
            for after in self._after[block]:
                if block < after and after in loop and (after not in ways or size + self._size(after) > ways[after][0]):
                    ways[after] = size + self._size(after), block
        if last not in ways:
            raise GemmEvalError("no way through the main loop goes forwards only")
        way = [last]
        while way[-1] != entry:
            way.append(ways[way[-1]][1])
        return tuple(self.instructions_of(way))

    def _size(self, block: int) -> int:
        return self._starts[block + 1] - self._starts[block]


def _outermost(outer: list[int], block: int) -> int:
    """What stands for a block; the way there is halved for the next time."""
    while outer[block] != block:
        outer[block] = outer[outer[block]]
        block = outer[block]
    return block


def _least(v: int, ancestor: list[int], label: list[int], semi: list[int]) -> int:
    """The vertex of least semidominator between `v` and the root of its tree in the forest, which is compressed."""
    way = []
    while ancestor[v] >= 0 and ancestor[ancestor[v]] >= 0:
        way.append(v)
        v = ancestor[v]
    for w in reversed(way):
        if semi[label[ancestor[w]]] < semi[label[w]]:
            label[w] = label[ancestor[w]]
        ancestor[w] = ancestor[ancestor[w]]
    return label[way[0] if way else v]
