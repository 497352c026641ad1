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

from gemm_eval.errors import InvalidInputError

__all__ = ["CubinKernel", "read_cubin"]

_MACHINE_CUDA = 190
_ABI_OF_CUDA_13 = 8  # has the compute capability in the second byte of its flags; before it was the first
_IS_ACCELERATED = 0x800  # "sm_90a", before CUDA 13
_TARGET = re.compile(rb"-arch[ =](sm_\w+)")
_IS_ENTRY = 0x10  # STO_CUDA_ENTRY
_RESERVED_SYMBOL = ".nv.reservedSmem.offset0"
_RESERVED_SMEM_BYTES = 1024  # since sm_90 the system's part of shared memory counts as the kernel's

_ATTRIBUTE_MAX_THREADS = 0x05
_ATTRIBUTE_REQNTID = 0x10
_ATTRIBUTE_FRAME_SIZE = 0x11
_ATTRIBUTE_MAXREG_COUNT = 0x1B
_ATTRIBUTE_REGCOUNT = 0x2F
_FORMAT_WITH_PAYLOAD = 4
_NO_REGISTER_LIMIT = 255


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
    info: int


class _Symbol(NamedTuple):
    name: str
    is_entry: bool
    section: int


def read_cubin(cubin: bytes) -> tuple[CubinKernel, ...]:
    """Return the kernels of a cubin.

    Raises:
        InvalidInputError: it is no cubin, not all of it, or has no kernel.
    """
    if cubin[:5] != b"\x7fELF\x02" or int.from_bytes(cubin[18:20], "little") != _MACHINE_CUDA:
        raise InvalidInputError("not a cubin: no 64-bit ELF file for CUDA")
    try:
        kernels = tuple(_kernels(cubin + b"\0"))  # CuPy drops a last byte of 0
    except (struct.error, IndexError, ValueError, KeyError):
        raise InvalidInputError("this cubin is damaged, or not all of it is there") from None
    if not kernels:
        raise InvalidInputError("this cubin has no kernels")
    return kernels


def _kernels(cubin: bytes) -> Iterator[CubinKernel]:
    sections = _sections(cubin)
    by_name = {section.name: section for section in sections}
    symbols = _symbols(cubin, by_name[".symtab"], sections)
    of_all = {  # by number and symbol
        (number, *struct.unpack("<I", payload[:4])): int.from_bytes(payload[4:], "little")
        for number, payload in _attributes(cubin, by_name[".nv.info"])
    }
    has_reserved = any(symbol.name == _RESERVED_SYMBOL for symbol in symbols)
    for number, symbol in enumerate(symbols):
        if not symbol.is_entry:
            continue
        code = sections[symbol.section]
        smem = by_name.get(f".nv.shared.{symbol.name}")
        smem_bytes = 0 if smem is None else smem.size
        if has_reserved and smem_bytes:
            smem_bytes -= _RESERVED_SMEM_BYTES
        own = dict(_attributes(cubin, by_name[f".nv.info.{symbol.name}"]))
        threads = own.get(_ATTRIBUTE_REQNTID) or own.get(_ATTRIBUTE_MAX_THREADS)
        limit = int.from_bytes(own.get(_ATTRIBUTE_MAXREG_COUNT, b"\xff"), "little")
        yield CubinKernel(
            symbol.name,
            _target(cubin, by_name.get(".note.nv.tkinfo")),
            _content(cubin, code),
            math.prod(struct.unpack("<3I", threads)) if threads else None,
            of_all[_ATTRIBUTE_REGCOUNT, number],
            limit if limit < _NO_REGISTER_LIMIT else None,
            of_all.get((_ATTRIBUTE_FRAME_SIZE, number), 0),
            smem_bytes,
        )


def _sections(cubin: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + size * i) for i in range(count)]
    names_at = headers[names][4]
    return [_Section(_string(cubin, names_at + h[0]), h[4], h[5], h[6], h[7]) for h in headers]


def _symbols(cubin: bytes, table: _Section, sections: list[_Section]) -> list[_Symbol]:
    names_at = sections[table.link].offset
    symbols = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, _, other, section = struct.unpack_from("<IBBH", cubin, at)
        symbols.append(_Symbol(_string(cubin, names_at + name), bool(other & _IS_ENTRY), section))
    return symbols


def _string(cubin: bytes, start: int) -> str:
    return cubin[start : cubin.index(0, start)].decode()


def _content(cubin: bytes, section: _Section) -> bytes:
    content = cubin[section.offset : section.offset + section.size]
    if len(content) < section.size:
        raise IndexError
    return content


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """(number, value) of each attribute."""
    content, at = _content(cubin, section), 0
    while at < len(content):
        form, number, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _FORMAT_WITH_PAYLOAD:
            yield number, content[at : at + value]
            at += value
        else:
            yield number, value.to_bytes(4, "little")


def _target(cubin: bytes, notes: _Section | None) -> str:
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    if cubin[8] < _ABI_OF_CUDA_13:
        return f"sm_{flags & 0xFF}" + ("a" if flags & _IS_ACCELERATED else "")
    said = _TARGET.search(_content(cubin, notes)) if notes else None
    return said[1].decode() if said else f"sm_{flags >> 8 & 0xFF}"
