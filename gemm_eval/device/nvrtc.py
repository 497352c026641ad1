"""From CUDA text to machine code: NVRTC, and a cache on disk. Needs no GPU and no driver.

A cache file is named after a digest of text, options, compiler and the version of the file format. Processes may share
the folder: a file appears whole or not at all, and one that is damaged is compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.storage import cache_dir, read_checked, write_checked
from gemm_eval.words import install_command, needs_extra

_CACHE_FORMAT = 1
_PACKAGES = {12: "nvidia-cuda-nvrtc-cu12"}  # NVIDIA dropped the number with CUDA 13
COMPILE_OPTIONS = ("-std=c++17", "--ptxas-options=-v", "--no-cache")
"""Options of every kernel. From its own cache NVRTC takes machine code without the output of ptxas."""

_memo: dict[str, CompiledKernel] = {}


class CompiledKernel(NamedTuple):
    """Machine code of one kernel, and what ptxas said about it.

    Attributes:
        target: such as "sm_90a".
        registers: 32-bit registers of a thread at launch.
        spill_store_bytes, spill_load_bytes: registers that did not fit, written to and read from local memory.
        stack_bytes: local memory of a thread, spills included.
        static_smem_bytes: shared memory of a CTA besides the dynamic part.
        warnings: lines of the compilers that ask for attention, such as wgmma instructions that were serialized.
    """

    cubin: bytes
    entry: str
    target: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    warnings: tuple[str, ...]


def compile_text(text: str, entry: str, target: str, macros: dict[str, int]) -> CompiledKernel:
    """Compile the ``extern "C"`` kernel `entry` of CUDA C++ without headers for a target, or take it from a cache."""
    options = (*COMPILE_OPTIONS, f"-arch={target}", *(f"-D{name}={value}" for name, value in sorted(macros.items())))
    key = json.dumps([_CACHE_FORMAT, compiler_version(), entry, options, text])
    digest = hashlib.sha256(key.encode()).hexdigest()
    kernel = _memo.get(digest)
    if kernel is None:
        root = cache_dir()
        path = None if root is None else root / "cuda" / f"{digest}.kernel"
        kernel = None if path is None else _read(path)
        if kernel is None:
            kernel = _compile(text, entry, target, options)
            if path is not None:
                _write(path, kernel)
        _memo[digest] = kernel
    return kernel


@cache
def compiler_version() -> str:
    """Return the version of NVRTC, and of the package that it came in where there is one."""
    nvrtc = _nvrtc()
    try:
        major, minor = nvrtc.getVersion()
    except RuntimeError as error:  # CuPy's own errors of NVRTC, and of a library that is missing, are of this kind
        raise GemmEvalError(f"compiling kernels needs NVRTC: {install_command('gpu')} ({error})") from None
    package = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        package = importlib.metadata.version(_PACKAGES.get(major, "nvidia-cuda-nvrtc"))
    return f"{major}.{minor} {package}".strip()


def _nvrtc() -> Any:
    with needs_extra("compiling kernels", "gpu"):
        from cupy.cuda import nvrtc
    return nvrtc


def _compile(text: str, entry: str, target: str, options: tuple[str, ...]) -> CompiledKernel:
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(text, f"{entry}.cu", [], [])
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).replace("\0", "").strip()
            raise GemmEvalError(f"NVRTC {compiler_version()} refuses {entry} for {target}: {error}\n{log}") from None
        cubin, log = nvrtc.getCUBIN(program), nvrtc.getProgramLog(program).replace("\0", "")
    finally:
        nvrtc.destroyProgram(program)
    return _describe(cubin, entry, target, log)


def _describe(cubin: bytes, entry: str, target: str, log: str) -> CompiledKernel:
    """Read what ptxas says about the only kernel of a program."""

    def number(pattern: str) -> int | None:
        match = re.search(pattern, log)
        return int(match[1]) if match else None

    registers = number(r"Used (\d+) registers")
    if registers is None:
        raise GemmEvalError(f"NVRTC {compiler_version()} did not say how many registers {entry} takes:\n{log}")
    is_warning = re.compile(r"\bwarning\b|\(C\d+\)|Performance Loss").search
    return CompiledKernel(
        cubin=cubin, entry=entry, target=target, registers=registers,
        spill_store_bytes=number(r"(\d+) bytes spill stores") or 0,
        spill_load_bytes=number(r"(\d+) bytes spill loads") or 0,
        stack_bytes=number(r"(\d+) bytes stack frame") or 0, static_smem_bytes=number(r"(\d+) bytes smem") or 0,
        warnings=tuple(line.strip() for line in log.splitlines() if is_warning(line)),
    )  # fmt: skip


def _read(path: Path) -> CompiledKernel | None:
    """Return the kernel in a file of `_write`; None: no file, or not all of it."""
    content = read_checked(path)
    if content is None:
        return None
    header, _, cubin = content.partition(b"\n")
    facts = json.loads(header)
    return CompiledKernel(**(facts | {"cubin": cubin, "warnings": tuple(facts["warnings"])}))


def _write(path: Path, kernel: CompiledKernel) -> None:
    """Write a line of JSON and the machine code."""
    facts = kernel._asdict()
    cubin = facts.pop("cubin")
    write_checked(path, json.dumps(facts).encode() + b"\n" + cubin)
