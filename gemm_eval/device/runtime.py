"""CUDA text made machine code by NVRTC, and a GPU of this machine: limits, loaded kernels, streams, and their memory.

Compiling needs no GPU and no driver. A cache file is named after a digest of text, options, compiler and the version of
the file format. Processes may share the folder: a file appears whole or not at all, and one that is damaged is compiled
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.arch import DeviceLimits
from gemm_eval.errors import GemmEvalError, InvalidOptionError
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


_SMEM_WITHOUT_OPT_IN_BYTES = 48 << 10
_BYTES_PER_COUNTER = 4
_CUDA_MAJOR = 1000  # CUDA 12.4 says 12040
_FIRST_SCRATCH_BYTES = 4 << 20
_FIRST_COUNTERS = 4096
_PER_THREAD_STREAM = 2  # cudaStreamPerThread: one handle, but a stream of its own in each thread

_functions: dict[tuple[bytes, int, int], Any] = {}
_scratch: dict[tuple[int, int, int], Scratch] = {}
_lock = threading.RLock()


class StreamHandle(NamedTuple):
    """A stream of any library, as CuPy takes it."""

    ptr: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


class Scratch(NamedTuple):
    """Memory of one stream of a GPU, with 32-bit counters at 0; `buffers` keeps what captured graphs may hold."""

    workspace: int
    workspace_bytes: int
    counters: int
    num_counters: int
    buffers: tuple[Any, ...]


@cache
def import_cupy() -> Any:
    """Return the module cupy, with a GPU behind it; a missing one of both is refused."""
    with needs_extra("working on a GPU", "gpu"):
        import cupy
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # CuPy's own errors of CUDA, and of a library that is missing, are of this kind
        raise GemmEvalError(_why_no_gpu(cupy, error)) from None
    if not count:
        raise GemmEvalError("this needs an NVIDIA GPU, found none")
    return cupy


def _why_no_gpu(cupy: Any, error: RuntimeError) -> str:
    """Return what to do where CuPy finds no driver, or one for an earlier CUDA than its own."""
    runtime = cupy.cuda.runtime
    try:
        of_driver, of_cupy = runtime.driverGetVersion() // _CUDA_MAJOR, runtime.runtimeGetVersion() // _CUDA_MAJOR
    except RuntimeError:
        of_driver = of_cupy = 0
    if not 0 < of_driver < of_cupy:  # 0: there is no driver
        return f"this needs an NVIDIA GPU and its driver: {error}"
    instead = f", or pip uninstall cupy-cuda{of_cupy}x and {install_command('gpu-cuda12')}" if of_driver == 12 else ""
    return f"this CuPy is for CUDA {of_cupy}, the driver for CUDA {of_driver}: update the driver{instead}"


def current_device() -> int:
    """Return the number of CuPy's current GPU."""
    return int(import_cupy().cuda.runtime.getDevice())


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make `device` the current GPU for a while."""
    with import_cupy().cuda.Device(device):
        yield


@cache
def limits_of_device(device: int) -> DeviceLimits:
    """Return the limits of a GPU of this machine, by its number."""
    runtime = import_cupy().cuda.runtime

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), device))

    capability = int(import_cupy().cuda.Device(device).compute_capability)
    names = (  # in the order of DeviceLimits
        "MultiProcessorCount", "MaxSharedMemoryPerBlockOptin", "MaxSharedMemoryPerMultiprocessor",
        "ReservedSharedMemoryPerBlock", "MaxRegistersPerMultiprocessor", "MaxThreadsPerMultiProcessor",
        "MaxBlocksPerMultiprocessor",
    )  # fmt: skip
    return DeviceLimits(divmod(capability, 10), *map(attribute, names))


def name_of_device(device: int) -> str:
    """Return what the driver calls a GPU of this machine, by its number."""
    name = import_cupy().cuda.runtime.getDeviceProperties(device)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream of CuPy, torch or CUDA Python on the current GPU; None: of CuPy's current one."""
    if stream is None:
        return int(import_cupy().cuda.get_current_stream().ptr)
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for name in ("ptr", "cuda_stream"):  # CuPy, torch
        if isinstance(handle := getattr(stream, name, None), int):
            of_gpu = getattr(stream, "device_id", -1)
            if of_gpu >= 0 and of_gpu != (here := current_device()):
                raise InvalidOptionError(f"stream must be one of GPU {here}, where A is, got one of GPU {of_gpu}")
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise InvalidOptionError(
        f"stream must be None, a stream of CuPy, torch or CUDA Python, or a handle, got {type(stream).__name__}"
    )


def wait_for_stream(stream: int, other: int) -> None:
    """Let work that comes to a stream wait for what is on another now, but in no graph, which replays later."""
    runtime = import_cupy().cuda.runtime
    if stream != other and not runtime.streamIsCapturing(stream):
        event = import_cupy().cuda.Event(disable_timing=True)
        runtime.eventRecord(event.ptr, other)
        runtime.streamWaitEvent(stream, event.ptr)


def refuse_capture(stream: int, remedy: str) -> None:
    """Check that no graph is captured on `stream`, as what comes next must not be; `remedy` says what to do."""
    if import_cupy().cuda.runtime.streamIsCapturing(stream):
        raise InvalidOptionError(f"a CUDA graph is being captured on this stream: {remedy}")


def allocate(shape: tuple[int, ...], dtype: Any, stream: int) -> Any:
    """Return a new CuPy array that is safe to use on `stream`, uninitialized."""
    cupy = import_cupy()
    if stream == cupy.cuda.get_current_stream().ptr:
        return cupy.empty(shape, dtype)
    with cupy.cuda.Stream.from_external(StreamHandle(stream)) if stream else cupy.cuda.Stream.null:
        return cupy.empty(shape, dtype)


def clear_bytes(address: int, num_bytes: int, stream: int) -> None:
    """Set memory to 0, in the order of `stream`; may be captured."""
    import_cupy().cuda.runtime.memsetAsync(address, 0, num_bytes, stream)


def scratch_of(device: int, stream: int, workspace_bytes: int, num_counters: int) -> Scratch:
    """Return the memory of a stream of the current GPU, grown to what is asked for, but not during a capture."""
    key = (device, stream, threading.get_ident() if stream == _PER_THREAD_STREAM else 0)
    scratch = _scratch.get(key)
    if scratch is not None and workspace_bytes <= scratch.workspace_bytes and num_counters <= scratch.num_counters:
        return scratch
    refuse_capture(stream, "run this GEMM once on the stream before the capture, or give workspace")
    with _lock:
        scratch = _scratch[key] = _grown(_scratch.get(key), stream, workspace_bytes, num_counters)
    return scratch


def _grown(old: Scratch | None, stream: int, workspace_bytes: int, num_counters: int) -> Scratch:
    """Return larger buffers, at least doubled: all that were given up are no larger than those in use."""
    old = old or Scratch(0, _FIRST_SCRATCH_BYTES // 2, 0, _FIRST_COUNTERS // 2, ())
    new = old
    if workspace_bytes > old.workspace_bytes or not old.workspace:
        size = max(workspace_bytes, 2 * old.workspace_bytes)
        buffer = allocate((size,), "uint8", stream)
        new = new._replace(workspace=buffer.data.ptr, workspace_bytes=size, buffers=(*new.buffers, buffer))
    if num_counters > old.num_counters or not old.counters:
        count = max(num_counters, 2 * old.num_counters)
        buffer = allocate((count,), "uint32", stream)
        clear_bytes(buffer.data.ptr, count * _BYTES_PER_COUNTER, stream)
        new = new._replace(counters=buffer.data.ptr, num_counters=count, buffers=(*new.buffers, buffer))
    return new


def load_function(compiled: CompiledKernel, device: int, smem_bytes: int, stream: int) -> Any:
    """Load a kernel onto the current GPU, once: a function (grid, block, arguments, shared bytes, stream).

    `smem_bytes` is the dynamic shared memory that a CTA will ask for. A kernel is not loaded while a graph is captured.
    """
    key = compiled.cubin, device, smem_bytes
    function = _functions.get(key)
    if function is not None:
        return function
    refuse_capture(stream, "run this GEMM once before the capture, so that its kernel is loaded")
    cupy = import_cupy()
    with needs_extra("working on a GPU", "gpu"):
        from cupy_backends.cuda.api import driver

    with _lock:
        if key not in _functions:
            module = cupy.cuda.function.Module()
            try:
                module.load(compiled.cubin)
                function = module.get_function(compiled.entry)
                if smem_bytes > _SMEM_WITHOUT_OPT_IN_BYTES:
                    attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    driver.funcSetAttribute(function.ptr, attribute, smem_bytes)
            except driver.CUDADriverError as error:
                raise GemmEvalError(
                    f"the driver refuses {compiled.entry}, compiled for {compiled.target}: {error}; a driver for "
                    f"CUDA {compiler_version().split('.')[0]} or later is needed"
                ) from None
            _functions[key] = function
        return _functions[key]
