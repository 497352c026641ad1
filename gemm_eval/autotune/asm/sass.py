"""Machine code: the kernels of a text, the kernels of a cubin, and what each instruction is.

A cubin is an ELF file. Attributes of a kernel lie in its section ``.nv.info.<name>``, those of all in ``.nv.info``.
NVIDIA does not document them; their numbers are those that `cuobjdump -elf` prints by name, and agree with ptxas.
"""

import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.autotune.asm.card import ScoreCard, check_instructions, check_kernels, check_name
from gemm_eval.device import INSTRUCTION_BYTES, Instruction, class_of
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import MmaCount
from gemm_eval.words import one_line

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
        "cp_async": ("LDGSTS",), "tma": ("UTMALDG", "UBLKCP", "UBLKPF", "UTMAPF"),
        "store_global": ("STG", "ST", "UTMASTG"),
        "atomic": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDAS", "UTMAREDG", "UBLKRED"), "load_local": ("LDL",),
        "store_local": ("STL",), "barrier": ("BAR", "SYNCS", "ARRIVES", "UCGABAR_WAIT", "UCGABAR_ARV"),
        "wait": ("UTMACMDFLUSH", "UTMACCTL"),
        "integer": ("VIADDMNMX", "VIMNMX3", "FLO", "POPC", "BREV", "UIADDMNMX"), "special": ("MUFU",),
    }.items()
    for name in names
}  # fmt: skip
_NEVER = "@!PT"

_SHAPE = re.compile(r"\.(?:(\d{1,4})x(\d{1,4})x(\d{1,4})|(16|8)8(\d{1,4}))\b")  # 64x128x16; 16816 is 16x8x16
_BITS = {"HGMMA": 16, "HMMA": 16, "IGMMA": 8, "IMMA": 8, "QGMMA": 8, "QMMA": 8, "BGMMA": 1, "BMMA": 1, "DMMA": 64}
_WIDTHS = {"U8": 1, "S8": 1, "8": 1, "U16": 2, "S16": 2, "16": 2, "32": 4, "64": 8, "128": 16, "256": 32}
_MATRIX_WIDTHS = {"2": 8, "4": 16}
_DEFAULT_BYTES = 4


def split_sass(text: str) -> Iterator[tuple[ScoreCard, str]]:
    """Yield cards without counts, and the text, of each kernel of a listing; functions that they call are left out."""
    marks = _KERNEL.finditer(text)
    mark = next(marks, None)
    entries = {match["kernel"] for match in _ENTRY.finditer(text) if "STO_CUDA_ENTRY" in match["flags"]}
    target = _target_of(text[: mark.start()] if mark else text)
    if mark is None:
        yield ScoreCard(_NAMELESS, target, "sass", None, None, None, None, None), text
    while mark is not None:
        following = next(marks, None)
        end = following.start() if following else len(text)
        name, part = mark["section"] or mark["function"], text[mark.start() : end]
        if not entries or name in entries:
            match = _REGISTERS.search(part)
            registers = int(match[1]) if match else None
            card = ScoreCard(check_name(name), target or _target_of(part), "sass", None, registers, None, None, None)
            yield card, part
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
    """Return whether it waits until all wgmma before are done."""
    return instruction.opcode.startswith("WARPGROUP.DEPBAR") and instruction.operands.endswith("0x0")


def is_copy_wait(instruction: Instruction) -> bool:
    """Return whether it waits for cp.async."""
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


_MACHINE_CUDA = 190
_ABI_OF_CUDA_13 = 8  # has the compute capability in the second byte of its flags; before it was the first
_IS_ACCELERATED = 0x800  # "sm_90a", before CUDA 13
_TARGET_NOTE = re.compile(rb"-arch[ =](sm_\d{2,3}[af]?)\b")
_IS_ENTRY = 0x10  # STO_CUDA_ENTRY
_RESERVED_SYMBOL = b".nv.reservedSmem.offset0\0"
_RESERVED_SMEM_BYTES = 1024  # since sm_90 the system's part of shared memory counts as the kernel's

_ATTRIBUTE_MAX_THREADS = 0x05
_ATTRIBUTE_REQNTID = 0x10
_ATTRIBUTE_FRAME_SIZE = 0x11
_ATTRIBUTE_MAXREG_COUNT = 0x1B
_ATTRIBUTE_REGCOUNT = 0x2F
_FORMAT_WITH_PAYLOAD = 4
_MAX_REGISTERS = 255  # of a thread; as a limit it is none
_SECTION_HEADER_BYTES = 64
_MAX_READ_PER_BYTE = 4


class _Section(NamedTuple):
    name: str
    offset: int
    size: int
    link: int


class _Bytes:
    """A cubin whose parts may together not be several times as long: tables must not make gigabytes of a small file."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._left = _MAX_READ_PER_BYTE * len(content)

    def part(self, start: int, size: int) -> bytes:
        self._left -= size
        if start + size > len(self._content) or self._left < 0:
            raise ValueError("a part is not there, or was read too often")
        return self._content[start : start + size]

    def name(self, start: int) -> str:
        return self.part(start, self._content.index(0, start) - start).decode()

    def begins(self, start: int, text: bytes) -> bool:
        return self._content.startswith(text, start)


def read_cubin(cubin: bytes) -> tuple[tuple[ScoreCard, bytes], ...]:
    """Return cards without counts, and the code, of a cubin, in time and memory in proportion to its length."""
    if cubin[:5] != b"\x7fELF\x02" or int.from_bytes(cubin[18:20], "little") != _MACHINE_CUDA:
        raise InvalidInputError("not a cubin: no 64-bit ELF file for CUDA")
    try:
        kernels = tuple(_kernels(_Bytes(cubin + b"\0")))  # CuPy drops a last byte of 0
    except InvalidInputError:
        raise
    except (struct.error, IndexError, ValueError, KeyError):
        raise InvalidInputError("this cubin is damaged, or not all of it is there") from None
    if not kernels:
        raise InvalidInputError("this cubin has no kernels")
    check_instructions(sum(len(code) for _, code in kernels) // INSTRUCTION_BYTES)
    return kernels


def _kernels(cubin: _Bytes) -> Iterator[tuple[ScoreCard, bytes]]:
    sections = _sections(cubin)
    by_name = {section.name: section for section in sections}
    table = by_name[".symtab"]
    names_at = sections[table.link].offset
    symbols = list(struct.iter_unpack("<IBBHQQ", cubin.part(table.offset, table.size)))
    entries = [number for number, (_, _, other, *_) in enumerate(symbols) if other & _IS_ENTRY]
    check_kernels(len(entries))
    has_reserved = any(cubin.begins(names_at + name, _RESERVED_SYMBOL) for name, *_ in symbols)
    of_all = {  # by number and symbol
        (number, symbol): value
        for number, payload in _attributes(cubin, by_name[".nv.info"])
        if number in {_ATTRIBUTE_REGCOUNT, _ATTRIBUTE_FRAME_SIZE}
        for symbol, value in [struct.unpack("<II", payload)]
    }
    target = _cubin_target(cubin, by_name.get(".note.nv.tkinfo"))
    for number in entries:
        name, section = check_name(cubin.name(names_at + symbols[number][0])), sections[symbols[number][3]]
        smem = by_name.get(f".nv.shared.{name}")
        smem_bytes = 0 if smem is None else smem.size
        if has_reserved and smem_bytes:
            smem_bytes -= _RESERVED_SMEM_BYTES
        own = dict(_attributes(cubin, by_name[f".nv.info.{name}"]))
        threads = own.get(_ATTRIBUTE_REQNTID) or own.get(_ATTRIBUTE_MAX_THREADS)
        num_threads = math.prod(struct.unpack("<3I", threads)) if threads else None
        limit = int.from_bytes(own.get(_ATTRIBUTE_MAXREG_COUNT, b"\xff"), "little")
        registers = of_all[_ATTRIBUTE_REGCOUNT, number]
        code = cubin.part(section.offset, section.size)
        check_instructions(len(code) // INSTRUCTION_BYTES, name)
        if not code or len(code) % INSTRUCTION_BYTES or smem_bytes < 0 or num_threads == 0:
            raise ValueError("no kernel is like this")
        if not 0 < registers <= _MAX_REGISTERS:
            raise ValueError("no kernel has so many registers")
        card = ScoreCard(
            name, target, "cubin", num_threads, registers, limit if limit < _MAX_REGISTERS else None,
            of_all.get((_ATTRIBUTE_FRAME_SIZE, number), 0), smem_bytes,
        )  # fmt: skip
        yield card, code


def _sections(cubin: _Bytes) -> list[_Section]:
    (start,) = struct.unpack("<Q", cubin.part(0x28, 8))
    size, count, names = struct.unpack("<HHH", cubin.part(0x3A, 6))
    if size != _SECTION_HEADER_BYTES:
        raise ValueError("section headers of another size")
    headers = list(struct.iter_unpack("<IIQQQQIIQQ", cubin.part(start, size * count)))
    names_at = headers[names][4]
    return [_Section(cubin.name(names_at + h[0]), h[4], h[5], h[6]) for h in headers]


def _attributes(cubin: _Bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """Yield (number, value) of each attribute."""
    content, at = cubin.part(section.offset, section.size), 0
    while at < len(content):
        form, number, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _FORMAT_WITH_PAYLOAD:
            yield number, content[at : at + value]
            at += value
        else:
            yield number, value.to_bytes(4, "little")


def _cubin_target(cubin: _Bytes, notes: _Section | None) -> str:
    (flags,) = struct.unpack("<I", cubin.part(0x30, 4))
    (abi,) = cubin.part(8, 1)
    if abi < _ABI_OF_CUDA_13:
        return f"sm_{flags & 0xFF}" + ("a" if flags & _IS_ACCELERATED else "")
    match = _TARGET_NOTE.search(cubin.part(notes.offset, notes.size)) if notes else None
    return match[1].decode() if match else f"sm_{flags >> 8 & 0xFF}"
