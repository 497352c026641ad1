"""Scoring: of cubins, of SASS and of PTX, and of files with any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gemm_eval.autotune.asm.card import ScoreCard
from gemm_eval.autotune.asm.counting import PTX, SASS, count_kernel
from gemm_eval.autotune.asm.cubin import CubinKernel, read_cubin
from gemm_eval.autotune.asm.ptx import split_ptx
from gemm_eval.autotune.asm.sass import split_sass
from gemm_eval.autotune.asm.store import load_cards, save_cards
from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.kernels._sass import INSTRUCTION_BYTES, Instruction, disassemble_code, parse_sass

__all__ = ["score_cubin", "score_cubins", "score_file", "score_ptx", "score_sass"]

Cards = tuple[ScoreCard, ...]

_ELF = b"\x7fELF"
_FATBIN = bytes.fromhex("50ed55ba")
_PTX = re.compile(r"^\s*\.version\s+\d", re.M)
_NUM_IN_TRITON_SASS = 4096  # Triton reads addresses of four digits only, and stops there


def score_cubin(cubin: bytes, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel of a cubin, from the cache if it was scored before.

    Args:
        cubin: the file, such as Triton's ``CompiledKernel.asm["cubin"]``.
        kernel: its name; may be left out where there is one only.

    Raises:
        InvalidInputError: it is no cubin, or has no such kernel.
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    return _choose(_cards_of_cubins([cubin])[0], kernel)


def score_cubins(cubins: Sequence[bytes]) -> Cards:
    """Return the score cards of cubins with one kernel each.

    nvdisasm is started once for all that are not in the cache: that takes a third of a second, reading a kernel some
    20 ms.

    Raises:
        InvalidInputError: one of them is no cubin, or has several kernels.
        GemmEvalError: there is no nvdisasm, or it does not read these.
    """
    return tuple(_choose(cards, None) for cards in _cards_of_cubins(cubins))


def score_sass(text: str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel in what nvdisasm, cuobjdump or Triton writes about machine code.

    Raises:
        InvalidInputError: it has no such kernel, or is not complete.
    """
    return _choose(_cards_of_text(text, "sass"), kernel)


def score_ptx(text: str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel of a PTX module.

    Raises:
        InvalidInputError: it is not complete, or has no such kernel.
    """
    return _choose(_cards_of_text(text, "ptx"), kernel)


def score_file(path: Path | str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel in a file with PTX, a cubin, or SASS as text.

    Raises:
        InvalidInputError: the file cannot be read, is none of these, or has no such kernel.
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        return _choose(_cards_of_content(content), kernel)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _cards_of_content(content: bytes) -> Cards:
    if content.startswith(_ELF):
        return _cards_of_cubins([content])[0]
    if content.startswith(_FATBIN):
        raise InvalidInputError("a fatbin: take the cubins out of it, with cuobjdump -xelf all")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError("neither PTX nor a cubin nor SASS") from None
    return _cards_of_text(text, "ptx" if _PTX.search(text) else "sass")


def _choose(cards: Cards, kernel: str | None) -> ScoreCard:
    names = ", ".join(card.kernel for card in cards)
    if kernel is None:
        if len(cards) > 1:
            raise InvalidInputError(f"there are {len(cards)} kernels, say which: {names}")
        return cards[0]
    for card in cards:
        if card.kernel == kernel:
            return card
    raise InvalidInputError(f"there is no kernel {kernel!r}, only {names}")


def _cards_of_cubins(cubins: Sequence[bytes]) -> list[Cards]:
    known = [load_cards(cubin) for cubin in cubins]
    fresh = {cubin: read_cubin(cubin) for cubin, cards in zip(cubins, known, strict=True) if cards is None}
    code = _instructions_of([kernel for kernels in fresh.values() for kernel in kernels])
    made = {}
    for cubin, kernels in fresh.items():
        made[cubin] = tuple(_card_of_cubin(kernel, code[kernel.target, kernel.code]) for kernel in kernels)
        save_cards(cubin, made[cubin])
    return [made[cubin] if cards is None else cards for cubin, cards in zip(cubins, known, strict=True)]


def _instructions_of(kernels: Iterable[CubinKernel]) -> dict[tuple[str, bytes], tuple[Instruction, ...]]:
    """Instructions by target and code; each target takes one call of nvdisasm."""
    by_target: dict[str, dict[bytes, None]] = {}
    for kernel in kernels:
        by_target.setdefault(kernel.target, {})[kernel.code] = None
    found = {}
    for target, codes in by_target.items():
        all_of_it = parse_sass(disassemble_code(b"".join(codes), target))
        start = 0
        for code in codes:
            end = start + len(code) // INSTRUCTION_BYTES
            found[target, code] = tuple(_inside(all_of_it[start:end]))
            start = end
    return found


def _inside(instructions: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """A kernel's instructions; a branch out of it, which the loader would set, goes nowhere."""
    first, last = instructions[0].address, instructions[-1].address
    for one in instructions:
        yield one if one.target is None or first <= one.target <= last else one._replace(target=None)


def _card_of_cubin(kernel: CubinKernel, instructions: tuple[Instruction, ...]) -> ScoreCard:
    ops, loop = count_kernel(instructions, SASS)
    return ScoreCard(
        kernel.kernel, kernel.target, "cubin", kernel.num_threads, kernel.registers, kernel.max_registers,
        kernel.stack_bytes, kernel.static_smem_bytes, ops, loop,
    )  # fmt: skip


def _cards_of_text(text: str, language: str) -> Cards:
    code = f"{language}\n{text}".encode()
    cards = load_cards(code)
    if cards is None:
        cards = tuple(_cards_of_ptx(text) if language == "ptx" else _cards_of_sass(text))
        save_cards(code, cards)
    return cards


def _cards_of_ptx(text: str) -> Iterator[ScoreCard]:
    kernels = list(split_ptx(text))
    if not kernels:
        raise InvalidInputError("this PTX has no kernels")
    for kernel in kernels:
        ops, loop = count_kernel(kernel.instructions, PTX)
        yield ScoreCard(
            kernel.kernel, kernel.target, "ptx", kernel.num_threads, None, kernel.max_registers,
            kernel.stack_bytes, kernel.static_smem_bytes, ops, loop,
        )  # fmt: skip


def _cards_of_sass(text: str) -> Iterator[ScoreCard]:
    for kernel in split_sass(text):
        if kernel.is_from_triton and kernel.text.count(";\n") >= _NUM_IN_TRITON_SASS:
            raise InvalidInputError(
                f"Triton writes the first {_NUM_IN_TRITON_SASS:,} instructions of {kernel.kernel} only: score its cubin"
            )
        try:
            instructions = parse_sass(kernel.text)
        except GemmEvalError as error:
            raise InvalidInputError(f"neither PTX nor a cubin, and as SASS: {error}") from None
        ops, loop = count_kernel(instructions, SASS)
        yield ScoreCard(kernel.kernel, kernel.target, "sass", None, kernel.registers, None, None, None, ops, loop)
