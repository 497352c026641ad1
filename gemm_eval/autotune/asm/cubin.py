"""A cubin, which is an ELF file: its kernels, their code, and what they take of an SM.

Attributes of a kernel lie in its section ``.nv.info.<name>``, those of all in ``.nv.info``. NVIDIA does not document
them; their numbers are those that `cuobjdump -elf` prints by name, and agree with what ptxas says.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.autotune.asm.limits import check_instructions, check_kernels, check_name
from gemm_eval.device import INSTRUCTION_BYTES
from gemm_eval.errors import InvalidInputError

__all__ = ["CubinKernel", "read_cubin"]

_MACHINE_CUDA = 190
_ABI_OF_CUDA_13 = 8  # has the compute capability in the second byte of its flags; before it was the first
_IS_ACCELERATED = 0x800  # "sm_90a", before CUDA 13
_TARGET = re.compile(rb"-arch[ =](sm_\d{2,3}[af]?)\b")
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


class CubinKernel(NamedTuple):
    """One kernel.

    Attributes:
        kernel: its name.
        target: what it was compiled for, such as "sm_90a".
        code: its instructions.
        num_threads: of a CTA, as required or at most, or None.
        registers: of a thread.
        max_registers: most registers that the compiler was allowed, or None.
        stack_bytes: local memory of a thread.
        static_smem_bytes: shared memory of a CTA besides the dynamic part.
    """

    kernel: str
    target: str
    code: bytes
    num_threads: int | None
    registers: int
    max_registers: int | None
    stack_bytes: int
    static_smem_bytes: int


class _Section(NamedTuple):
    name: str
    offset: int
    size: int
    link: int


class _Bytes:
    """A cubin whose every part is asked for by place and size.

    All parts together must not be several times as long as the file, where each stands once, or little more: tables
    that name the same bytes again and again cannot make gigabytes of a small file.
    """

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


def read_cubin(cubin: bytes) -> tuple[CubinKernel, ...]:
    """Return the kernels of a cubin, in time and memory in proportion to its length.

    Raises:
        InvalidInputError: it is no cubin, not all of it, or has no kernel, or more than `limits` allow.
    """
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
    check_instructions(sum(len(kernel.code) for kernel in kernels) // INSTRUCTION_BYTES)
    return kernels


def _kernels(cubin: _Bytes) -> Iterator[CubinKernel]:
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
    target = _target(cubin, by_name.get(".note.nv.tkinfo"))
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
        yield CubinKernel(
            name,
            target,
            code,
            num_threads,
            registers,
            limit if limit < _MAX_REGISTERS else None,
            of_all.get((_ATTRIBUTE_FRAME_SIZE, number), 0),
            smem_bytes,
        )


def _sections(cubin: _Bytes) -> list[_Section]:
    (start,) = struct.unpack("<Q", cubin.part(0x28, 8))
    size, count, names = struct.unpack("<HHH", cubin.part(0x3A, 6))
    if size != _SECTION_HEADER_BYTES:
        raise ValueError("section headers of another size")
    headers = list(struct.iter_unpack("<IIQQQQIIQQ", cubin.part(start, size * count)))
    names_at = headers[names][4]
    return [_Section(cubin.name(names_at + h[0]), h[4], h[5], h[6]) for h in headers]


def _attributes(cubin: _Bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """(number, value) of each attribute."""
    content, at = cubin.part(section.offset, section.size), 0
    while at < len(content):
        form, number, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _FORMAT_WITH_PAYLOAD:
            yield number, content[at : at + value]
            at += value
        else:
            yield number, value.to_bytes(4, "little")


def _target(cubin: _Bytes, notes: _Section | None) -> str:
    (flags,) = struct.unpack("<I", cubin.part(0x30, 4))
    (abi,) = cubin.part(8, 1)
    if abi < _ABI_OF_CUDA_13:
        return f"sm_{flags & 0xFF}" + ("a" if flags & _IS_ACCELERATED else "")
    said = _TARGET.search(cubin.part(notes.offset, notes.size)) if notes else None
    return said[1].decode() if said else f"sm_{flags >> 8 & 0xFF}"
