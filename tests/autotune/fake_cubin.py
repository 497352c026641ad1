"""Cubins as small as can be: an ELF file with the sections that `gemm_eval.autotune.asm` reads."""

import struct
from typing import NamedTuple

ABI_CUDA_12, ABI_CUDA_13 = 7, 8
FLAGS_SM_90A = {ABI_CUDA_12: 0x5A0D5A, ABI_CUDA_13: 0x6005A04}
FLAGS_SM_80 = {ABI_CUDA_12: 0x500550, ABI_CUDA_13: 0x6005004}


class FakeKernel(NamedTuple):
    """A kernel, or with `is_entry` False a function that kernels call."""

    name: str
    code: bytes = bytes(128)
    registers: int = 32
    stack_bytes: int = 0
    smem_bytes: int | None = None
    reqntid: tuple[int, int, int] | None = None
    max_threads: tuple[int, int, int] | None = None
    max_registers: int = 255
    is_entry: bool = True


def _attribute(number: int, payload: bytes) -> bytes:
    return struct.pack("<BBH", 4, number, len(payload)) + payload


def make_cubin(
    *kernels: FakeKernel, flags: int = FLAGS_SM_90A[ABI_CUDA_12], abi: int = ABI_CUDA_12, options: str | None = None
) -> bytes:
    """Return an ELF file; `options` are those of ptxas, which CUDA 13 notes."""
    has_reserved = (flags & 0xFF if abi < ABI_CUDA_13 else flags >> 8 & 0xFF) >= 90
    names, symbols, strings = ["", ".shstrtab", ".strtab", ".symtab"], [(0, 0, 0)], b"\0"
    contents: list[bytes] = [b"", b"", b"", b""]
    if has_reserved:
        symbols.append((len(strings), 0, 0))
        strings += b".nv.reservedSmem.offset0\0"
    info = b""
    if options is not None:
        names.append(".note.nv.tkinfo")
        contents.append(b"ptxas\0Cuda compilation tools\0" + options.encode() + b" \0")
    for kernel in kernels:
        number = len(symbols)
        symbols.append((len(strings), 0x10 if kernel.is_entry else 0, len(names)))
        strings += kernel.name.encode() + b"\0"
        info += _attribute(0x2F, struct.pack("<II", number, kernel.registers))
        info += _attribute(0x11, struct.pack("<II", number, kernel.stack_bytes))
        own = struct.pack("<BBH", 3, 0x1B, kernel.max_registers)
        if kernel.reqntid:
            own += _attribute(0x10, struct.pack("<3I", *kernel.reqntid))
        if kernel.max_threads:
            own += _attribute(0x05, struct.pack("<3I", *kernel.max_threads))
        names += [f".text.{kernel.name}", f".nv.info.{kernel.name}"]
        contents += [kernel.code, own]
        if kernel.smem_bytes is not None:
            names.append(f".nv.shared.{kernel.name}")
            contents.append(bytes(kernel.smem_bytes))
    names.append(".nv.info")
    contents.append(info)
    contents[1] = b"".join(name.encode() + b"\0" for name in names)
    contents[2] = strings
    contents[3] = b"".join(struct.pack("<IBBHQQ", name, 0x12, other, at, 0, 0) for name, other, at in symbols)
    return _file(names, contents, flags, abi)


def _file(names: list[str], contents: list[bytes], flags: int, abi: int) -> bytes:
    body, headers, name_at = b"", b"", 0
    for name, content in zip(names, contents, strict=True):
        link = 2 if name == ".symtab" else 0
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(body), len(content), link, 0, 1, 0)
        name_at += len(name) + 1
        body += content
    start = 64 + len(body)
    ident = b"\x7fELF\x02\x01\x01\x33" + bytes([abi]) + bytes(7)
    header = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, start, flags, 64, 56, 0, 64, len(names), 1)
    return ident + header + body + headers
