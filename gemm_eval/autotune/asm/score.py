"""Scoring cubins, SASS and PTX: from instructions to counts, and cards kept in the user's cache folder.

The cache has a JSON file for each code, named after a digest of the code and of the modules that count; it begins with
a checksum. Processes may share the folder: a file appears whole or not at all, and a damaged one is written anew.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from pydantic import TypeAdapter, ValidationError

from gemm_eval.autotune.asm import ptx, sass
from gemm_eval.autotune.asm.card import (
    MAX_FILE_BYTES,
    Access,
    LoopCard,
    OpCounts,
    ScoreCard,
    check_instructions,
    check_kernels,
)
from gemm_eval.autotune.asm.ptx import split_ptx
from gemm_eval.autotune.asm.sass import read_cubin, split_sass
from gemm_eval.device import INSTRUCTION_BYTES, Instruction, disassemble_code, find_main_loop, parse_sass
from gemm_eval.device import sass as device_sass
from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.models.gpu.triton import MmaCount
from gemm_eval.storage import cache_dir, read_bounded, read_checked, write_checked
from gemm_eval.words import shown

_ACCESSES = (
    "cp_async", "tma", "load_global", "store_global", "ldmatrix", "load_shared", "store_shared", "load_local",
    "store_local",
)  # fmt: skip
_WORK = (("tensor",), ("half", "single"), ("imad",))
"""Classes of instructions that mark the main loop; the first that a kernel has."""


def count_kernel(instructions: Sequence[Instruction], language: ModuleType) -> tuple[OpCounts, LoopCard]:
    """Count what a kernel and its main loop issue, by class; the module `language` knows its instructions."""
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
    """Return all but the unreachable end of a kernel: a branch to itself, and NOPs."""
    come_to = {one.target for one in instructions if one.target != one.address}
    end = len(instructions)
    while (
        end > 1
        and (last := instructions[end - 1]).address not in come_to
        and (last.name == "NOP" or last.target == last.address)
    ):
        end -= 1
    return instructions[:end]


def _loop_card(loop: Sequence[Instruction], kinds: dict[int, str], language: ModuleType, *, is_loop: bool) -> LoopCard:
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
        is_loop, OpCounts(**num), tuple(shape._replace(num=count) for shape, count in sorted(mma.items())),
        tuple(Access(*access, accesses[access]) for access in order), sum(map(language.is_mma_wait, loop)),
        sum(map(language.is_copy_wait, loop)),
    )  # fmt: skip


Cards = tuple[ScoreCard, ...]
_ADAPTER = TypeAdapter(Cards)


@cache
def _counting_version() -> bytes:
    """Return a digest of the modules that count."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(device_sass.__file__)):
        digest.update(path.read_bytes())
    return digest.digest()


def _path_of(code: bytes) -> Path | None:
    root = cache_dir()
    if root is None:
        return None
    return root / "asm" / f"{hashlib.sha256(_counting_version() + code).hexdigest()}.json"


def _load_cards(code: bytes) -> Cards | None:
    """Return the cards of all kernels of a file, or None where it was not scored before."""
    path = _path_of(code)
    content = None if path is None else read_checked(path)
    if content is None:
        return None
    try:
        return _ADAPTER.validate_json(content, strict=True)
    except ValidationError:
        return None


def _save_cards(code: bytes, cards: Cards) -> None:
    path = _path_of(code)
    if path is not None:
        write_checked(path, json.dumps(cards).encode())


_ELF = b"\x7fELF"
_FATBIN = bytes.fromhex("50ed55ba")
_PTX = re.compile(r"^[ \t]*+\.version[ \t]++\d", re.M)
_MAX_NAMES = 20
_NUM_IN_TRITON_SASS = 4096  # Triton reads addresses of four digits only, and stops there


def score_cubin(cubin: bytes, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card, cached or new, of a kernel of a cubin; `kernel` names it where there are several."""
    return _choose(_cards_of_cubins([cubin])[0], kernel)


def score_cubins(cubins: Sequence[bytes]) -> Cards:
    """Return the score cards of cubins with one kernel each; nvdisasm, slow to start, is started once for all."""
    return tuple(_choose(cards, None) for cards in _cards_of_cubins(cubins))


def score_sass(text: str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel in what nvdisasm, cuobjdump or Triton writes about machine code."""
    return _choose(_cards_of_text(text, "sass"), kernel)


def score_ptx(text: str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel of a PTX module."""
    return _choose(_cards_of_text(text, "ptx"), kernel)


def score_file(path: Path | str, *, kernel: str | None = None) -> ScoreCard:
    """Return the score card of a kernel in a file with PTX, a cubin, or SASS as text."""
    content = read_bounded(path, MAX_FILE_BYTES, "compiled kernel")
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
    names = ", ".join(card.kernel for card in cards[:_MAX_NAMES]) + (", ..." if len(cards) > _MAX_NAMES else "")
    if not cards:
        raise InvalidInputError("there are no kernels in it, only functions that kernels call")
    if kernel is None:
        if len(cards) > 1:
            raise InvalidInputError(f"there are {len(cards)} kernels, say which: {names}")
        return cards[0]
    for card in cards:
        if card.kernel == kernel:
            return card
    raise InvalidInputError(f"there is no kernel {shown(kernel)}, only {names}")


def _cards_of_cubins(cubins: Sequence[bytes]) -> list[Cards]:
    known = [_load_cards(cubin) for cubin in cubins]
    fresh = {cubin: read_cubin(cubin) for cubin, cards in zip(cubins, known, strict=True) if cards is None}
    codes = [(card.target, code) for kernels in fresh.values() for card, code in kernels]
    instructions = _instructions_of(codes)
    made = {}
    for cubin, kernels in fresh.items():
        made[cubin] = tuple(_counted(card, instructions[card.target, code], sass) for card, code in kernels)
        _save_cards(cubin, made[cubin])
    return [made[cubin] if cards is None else cards for cubin, cards in zip(cubins, known, strict=True)]


def _instructions_of(
    kernels: Iterable[tuple[str | None, bytes]],
) -> dict[tuple[str | None, bytes], tuple[Instruction, ...]]:
    """Return instructions by target and code; each target takes one call of nvdisasm."""
    by_target: dict[str | None, dict[bytes, None]] = {}
    for target, code in kernels:
        by_target.setdefault(target, {})[code] = None
    by_code = {}
    for target, codes in by_target.items():
        instructions = parse_sass(disassemble_code(b"".join(codes), str(target)))
        if len(instructions) != sum(map(len, codes)) // INSTRUCTION_BYTES:
            raise GemmEvalError(f"nvdisasm does not understand all of the code for {target}")
        start = 0
        for code in codes:
            end = start + len(code) // INSTRUCTION_BYTES
            by_code[target, code] = tuple(_inside(instructions[start:end]))
            start = end
    return by_code


def _inside(instructions: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """Yield a kernel's instructions; a branch out of it, which the loader would set, goes nowhere."""
    first, last = instructions[0].address, instructions[-1].address
    for one in instructions:
        yield one if one.target is None or first <= one.target <= last else one._replace(target=None)


def _counted(card: ScoreCard, instructions: tuple[Instruction, ...], language: ModuleType) -> ScoreCard:
    check_instructions(len(instructions), card.kernel)
    ops, loop = count_kernel(instructions, language)
    return card._replace(ops=ops, loop=loop)


def _cards_of_text(text: str, language: str) -> Cards:
    check_instructions(text.count(";"))
    code = f"{language}\n{text}".encode(errors="surrogatepass")
    cards = _load_cards(code)
    if cards is None:
        if language == "ptx":
            cards = tuple(_counted(card, instructions, ptx) for card, instructions in split_ptx(text))
        else:
            cards = tuple(_cards_of_sass(text))
        if language == "ptx" and not cards:
            raise InvalidInputError("this PTX has no kernels")
        _save_cards(code, cards)
    return cards


def _cards_of_sass(text: str) -> Iterator[ScoreCard]:
    for number, (card, part) in enumerate(split_sass(text), 1):
        check_kernels(number)
        if part.startswith("Function:") and part.count(";\n") >= _NUM_IN_TRITON_SASS:
            raise InvalidInputError(
                f"Triton writes the first {_NUM_IN_TRITON_SASS:,} instructions of {card.kernel} only: score its cubin"
            )
        try:
            instructions = parse_sass(part)
        except GemmEvalError as error:
            raise InvalidInputError(f"neither PTX nor a cubin, and as SASS: {error}") from None
        yield _counted(card, instructions, sass)
