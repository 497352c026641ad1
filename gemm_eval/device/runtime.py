"""A GPU of this machine: its limits, loaded kernels, streams, and memory for each stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from gemm_eval.arch import DeviceLimits
from gemm_eval.device.nvrtc import CompiledKernel, compiler_version
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.words import install_command, needs_extra

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
