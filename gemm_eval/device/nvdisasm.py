"""Running nvdisasm: machine code in, text out, both bounded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from threading import Thread, Timer
from typing import IO

from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import install_command
from gemm_eval.words import one_line

__all__ = ["disassemble", "disassemble_code", "nvdisasm_version"]

_PACKAGE = "nvidia-cuda-nvdisasm"
_PROGRAM_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0
_MIN_OUTPUT_BYTES = 1 << 20
_OUTPUT_PER_CODE = 64  # bytes of text for a byte of code: 5 are usual, a line of 80 for 16
_MAX_ERROR_BYTES = 256
_ELF_HEADER_BYTES = 64


@cache
def _nvdisasm() -> Path:
    """Where the disassembler is: in its package, on the PATH, or in Triton's package."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(str(file.locate())) for file in files if file.name in _PROGRAM_NAMES]
    if found := shutil.which("nvdisasm"):
        places.append(Path(found))
    if (triton := importlib.util.find_spec("triton")) and triton.origin:  # which does not import it
        folder = Path(triton.origin).parent / "backends" / "nvidia" / "bin"
        places += [folder / name for name in _PROGRAM_NAMES]
    for place in places:
        if place.is_file():
            return place
    raise GemmEvalError(f"reading machine code needs nvdisasm: {install_command('asm')}")


@cache
def nvdisasm_version() -> str:
    """Version of the disassembler, such as "13.5.37".

    Raises:
        GemmEvalError: there is none.
    """
    text = _run("--version")
    match = re.search(r"\bV(\d+[\d.]*)", text)
    return match[1] if match else text.strip().splitlines()[-1]


def disassemble(cubin: bytes) -> str:
    """Return what nvdisasm writes about the code of a cubin.

    Raises:
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(_whole(cubin))
        return _run(
            "-c", "-ndf", str(file), num_code_bytes=len(cubin)
        )  # without data flow: the same text, a third sooner


def disassemble_code(code: bytes, target: str) -> str:
    """Return what nvdisasm writes about instructions without the file around them.

    It takes a third of a second to start, whatever it reads: put the code of many kernels one after the other.

    Args:
        code: instructions.
        target: what they are for, such as "sm_90a".

    Raises:
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.bin"
        file.write_bytes(code)
        return _run("-b", target.replace("sm_", "SM"), "-ndf", str(file), num_code_bytes=len(code))


def _run(*arguments: str, num_code_bytes: int = 0) -> str:
    """What nvdisasm prints; it is killed where it prints too much of it, or takes too long."""
    max_bytes = _MIN_OUTPUT_BYTES + _OUTPUT_PER_CODE * num_code_bytes
    errors: list[bytes] = []
    try:
        process = subprocess.Popen(
            [str(_nvdisasm()), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise GemmEvalError(f"nvdisasm does not run: {error}") from None
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        timer = Timer(_TIMEOUT_S, process.kill)
        reader = Thread(target=_drain, args=(process.stderr, errors))
        timer.start()
        reader.start()
        try:
            output = process.stdout.read(max_bytes + 1)
            if len(output) <= max_bytes:
                process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            process.kill()
            reader.join()
    if len(output) > max_bytes:
        raise GemmEvalError(f"nvdisasm prints more than {max_bytes:,} bytes: this is no code that it understands")
    if is_late:
        raise GemmEvalError(f"nvdisasm does not finish within {_TIMEOUT_S:.0f} s")
    if process.returncode:
        said = one_line((errors[0] or output[:_MAX_ERROR_BYTES]).decode(errors="replace"), _MAX_ERROR_BYTES)
        raise GemmEvalError(f"nvdisasm fails: {said or f'exit code {process.returncode}'}")
    return output.decode(errors="replace")


def _drain(stream: IO[bytes], kept: list[bytes]) -> None:
    """Keep the begin of what comes, and let the rest go: it would wait with a full pipe."""
    kept.append(stream.read(_MAX_ERROR_BYTES))
    while stream.read(_MIN_OUTPUT_BYTES):
        pass


def _whole(cubin: bytes) -> bytes:
    """The cubin up to the end of its program headers: CuPy drops a last byte of 0, which nvdisasm insists on."""
    if cubin[:5] != b"\x7fELF\x02" or len(cubin) < _ELF_HEADER_BYTES:
        raise GemmEvalError("not a cubin: no 64-bit ELF file")
    program_headers, section_headers = struct.unpack_from("<QQ", cubin, 0x20)
    size_p, num_p, size_s, num_s = struct.unpack_from("<HHHH", cubin, 0x36)
    num_missing = max(program_headers + size_p * num_p, section_headers + size_s * num_s) - len(cubin)
    if num_missing > 1:
        raise GemmEvalError(f"not all of this cubin is there: its headers end {num_missing:,} bytes behind its end")
    return cubin + bytes(max(0, num_missing))
