"""Machine code: its kernels in a text, and what each instruction is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.autotune.asm.limits import check_name
from gemm_eval.device import Instruction, class_of
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import MmaCount
from gemm_eval.words import one_line

__all__ = ["SassText", "is_copy_wait", "is_mma_wait", "kind_of", "mma_of", "split_sass", "width_of"]

# Each of a line, and possessive, so that every line is gone through once.
_KERNEL = re.compile(
    r"^[ \t]*+(?:\.section[ \t]++\.text\.(?P<section>[^,\s]++),.*|Function[ \t]*+:[ \t]*+(?P<function>\S++)\s*?)$", re.M
)
_ENTRY = re.compile(r'^[ \t]*+\.other[ \t]++(?P<kernel>[^\s,]++),@"(?P<flags>[^"\n]*+)', re.M)
_TARGET = re.compile(r"^[ \t]*+(?:code for|\.target)[ \t]++(sm_\w++)", re.M)
_FLAGS = re.compile(r"EF_CUDA_VIRTUAL_SM\(EF_CUDA_SM(\d{1,4})\)")
_REGISTERS = re.compile(r"SHI_REGISTERS=(\d{1,3})\b")
_NAMELESS = "kernel"

# By classes of `device.sass`, and where those are coarser, by name.
_KINDS = {"load_matrix": "ldmatrix", "control": "branch", "copy": "load_global", "synchronisation": "wait"}
_KIND_OF_NAME = {
    name: kind
    for kind, names in {
        "cp_async": ("LDGSTS",),
        "tma": ("UTMALDG", "UBLKCP", "UBLKPF", "UTMAPF"),
        "store_global": ("STG", "ST", "UTMASTG"),
        "atomic": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDAS", "UTMAREDG", "UBLKRED"),
        "load_local": ("LDL",),
        "store_local": ("STL",),
        "barrier": ("BAR", "SYNCS", "ARRIVES", "UCGABAR_WAIT", "UCGABAR_ARV"),
        "wait": ("UTMACMDFLUSH", "UTMACCTL"),
        "integer": ("VIADDMNMX", "VIMNMX3", "FLO", "POPC", "BREV", "UIADDMNMX"),
        "special": ("MUFU",),
    }.items()
    for name in names
}
_NEVER = "@!PT"

_SHAPE = re.compile(r"\.(?:(\d{1,4})x(\d{1,4})x(\d{1,4})|(16|8)8(\d{1,4}))\b")  # 64x128x16; 16816 is 16x8x16
_BITS = {"HGMMA": 16, "HMMA": 16, "IGMMA": 8, "IMMA": 8, "QGMMA": 8, "QMMA": 8, "BGMMA": 1, "BMMA": 1, "DMMA": 64}
_WIDTHS = {"U8": 1, "S8": 1, "8": 1, "U16": 2, "S16": 2, "16": 2, "32": 4, "64": 8, "128": 16, "256": 32}
_MATRIX_WIDTHS = {"2": 8, "4": 16}
_DEFAULT_BYTES = 4


class SassText(NamedTuple):
    """One kernel in a text.

    Attributes:
        kernel: its name.
        target: such as "sm_90a", or None.
        registers: of a thread, or None.
        text: its lines.
        is_from_triton: whether Triton wrote them.
    """

    kernel: str
    target: str | None
    registers: int | None
    text: str
    is_from_triton: bool


def split_sass(text: str) -> Iterator[SassText]:
    """Yield the kernels of a text as nvdisasm, cuobjdump or Triton writes it; functions that they call are left out."""
    marks = _KERNEL.finditer(text)
    mark = next(marks, None)
    entries = {match["kernel"] for match in _ENTRY.finditer(text) if "STO_CUDA_ENTRY" in match["flags"]}
    target = _target_of(text[: mark.start()] if mark else text)
    if mark is None:
        yield SassText(_NAMELESS, target, None, text, is_from_triton=False)
    while mark is not None:
        following = next(marks, None)
        end = following.start() if following else len(text)
        name, part = mark["section"] or mark["function"], text[mark.start() : end]
        if not entries or name in entries:
            registers = _REGISTERS.search(part)
            yield SassText(
                check_name(name), target or _target_of(part), int(registers[1]) if registers else None, part,
                is_from_triton=part.startswith("Function:"),
            )  # fmt: skip
        target = _target_of(part) if "code for" in part else target  # of the next one, in a file for several GPUs
        mark = following


def _target_of(text: str) -> str | None:
    if match := _TARGET.search(text):
        return match[1]
    match = _FLAGS.search(text)
    return f"sm_{match[1]}" + ("a" if "EF_CUDA_ACCELERATORS" in text else "") if match else None


def kind_of(instruction: Instruction) -> str:
    """Return the field of `OpCounts` that counts it."""
    name = instruction.name
    if instruction.guard == _NEVER:
        return "other"
    if name.endswith("MMA"):
        return "tensor"
    if name == "UBLKCP" and ".G.S" in instruction.opcode:
        return "store_global"
    if kind := _KIND_OF_NAME.get(name):
        return kind
    kind = class_of(instruction)
    return _KINDS.get(kind, kind)


def width_of(instruction: Instruction) -> int | None:
    """Return bytes that one lane loads or stores, or None for a bulk copy."""
    name, *modifiers = instruction.opcode.split(".")
    if name.startswith("U"):
        return None
    if name in {"LDSM", "STSM"}:
        return next((_MATRIX_WIDTHS[word] for word in modifiers if word in _MATRIX_WIDTHS), _DEFAULT_BYTES)
    return next((_WIDTHS[word] for word in modifiers if word in _WIDTHS), _DEFAULT_BYTES)


def is_mma_wait(instruction: Instruction) -> bool:
    """Whether it waits until all wgmma before are done."""
    return instruction.opcode.startswith("WARPGROUP.DEPBAR") and instruction.operands.endswith("0x0")


def is_copy_wait(instruction: Instruction) -> bool:
    """Whether it waits for cp.async."""
    return instruction.opcode.startswith("DEPBAR.LE") and instruction.operands.startswith("SB0")


def mma_of(instruction: Instruction) -> MmaCount | None:
    """Return a tensor-core instruction's shape; None where only a descriptor says it."""
    shape, name = _SHAPE.search(instruction.opcode), instruction.name
    if shape is None or name not in _BITS:
        return None
    bits = _BITS[name]
    modifiers = instruction.opcode.split(".")
    if "TF32" in modifiers:
        bits = 32
    elif modifiers[-1] in {"S4", "U4"}:
        bits = 4
    if shape[1]:
        _, comma, source = instruction.operands.partition(",")
        if not comma:
            raise InvalidInputError(f"{one_line(instruction.opcode)} at 0x{instruction.address:x} has no operand A")
        has_a_in_registers = source.lstrip().startswith("R")
        return MmaCount(int(shape[1]), int(shape[2]), int(shape[3]), bits, has_a_in_registers, 1)
    return MmaCount(int(shape[4]), 8, int(shape[5]), bits, True, 1)
