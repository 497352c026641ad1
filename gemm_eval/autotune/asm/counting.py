"""From instructions to counts: of the whole kernel, and of its main loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gemm_eval.autotune.asm import ptx, sass
from gemm_eval.autotune.asm.card import Access, LoopCard, OpCounts
from gemm_eval.device import Instruction, find_main_loop
from gemm_eval.errors import GemmEvalError
from gemm_eval.models.gpu.triton import MmaCount

__all__ = ["PTX", "SASS", "Language", "count_kernel"]

_ACCESSES = (
    "cp_async", "tma", "load_global", "store_global", "ldmatrix", "load_shared", "store_shared", "load_local",
    "store_local",
)  # fmt: skip
_WORK = (("tensor",), ("half", "single"), ("imad",))
"""What marks the main loop; the first that a kernel has."""


class Language(NamedTuple):
    """How to tell what an instruction is.

    Attributes:
        kind_of: field of `OpCounts` that counts it.
        width_of: bytes of one lane of a load or store, or None.
        mma_of: shape of a tensor-core instruction, or None.
        is_mma_wait: whether it waits until all wgmma before are done.
        is_copy_wait: whether it waits for cp.async.
    """

    kind_of: Callable[[Instruction], str]
    width_of: Callable[[Instruction], int | None]
    mma_of: Callable[[Instruction], MmaCount | None]
    is_mma_wait: Callable[[Instruction], bool]
    is_copy_wait: Callable[[Instruction], bool]


SASS = Language(sass.kind_of, sass.width_of, sass.mma_of, sass.is_mma_wait, sass.is_copy_wait)
PTX = Language(ptx.kind_of, ptx.width_of, ptx.mma_of, ptx.is_mma_wait, ptx.is_copy_wait)


def count_kernel(instructions: Sequence[Instruction], language: Language) -> tuple[OpCounts, LoopCard]:
    """Count what a kernel and its main loop issue, by class.

    The main loop is the innermost one with the most tensor-core instructions; in a kernel without any, with the most
    arithmetic. Where no loop does such work, the whole kernel stands for it.
    """
    used = _without_padding(instructions)
    kinds = {one.address: language.kind_of(one) for one in used}
    num = Counter(kinds.values())
    work = next((work for work in _WORK if any(num[kind] for kind in work)), ())
    try:
        loop: Sequence[Instruction] = find_main_loop(used, lambda one: kinds[one.address] in work)
        is_loop = True
    except GemmEvalError:
        loop, is_loop = used, False
    return OpCounts(**num), _loop_card(loop, kinds, language, is_loop=is_loop)


def _without_padding(instructions: Sequence[Instruction]) -> Sequence[Instruction]:
    """All but the end of a kernel, which is never come to: a branch to itself, and NOPs."""
    come_to = {one.target for one in instructions if one.target != one.address}
    end = len(instructions)
    while (
        end > 1
        and (last := instructions[end - 1]).address not in come_to
        and (last.name == "NOP" or last.target == last.address)
    ):
        end -= 1
    return instructions[:end]


def _loop_card(loop: Sequence[Instruction], kinds: dict[int, str], language: Language, *, is_loop: bool) -> LoopCard:
    num: Counter[str] = Counter()
    mma: Counter[MmaCount] = Counter()
    accesses: Counter[tuple[str, int | None]] = Counter()
    for one in loop:
        kind = kinds[one.address]
        num[kind] += 1
        if kind == "tensor" and (shape := language.mma_of(one)):
            mma[shape] += 1
        elif kind in _ACCESSES:
            accesses[kind, language.width_of(one)] += 1
    order = sorted(accesses, key=lambda access: (_ACCESSES.index(access[0]), -(access[1] or 0)))
    return LoopCard(
        is_loop,
        OpCounts(**num),
        tuple(shape._replace(num=count) for shape, count in sorted(mma.items())),
        tuple(Access(*access, accesses[access]) for access in order),
        sum(map(language.is_mma_wait, loop)),
        sum(map(language.is_copy_wait, loop)),
    )
