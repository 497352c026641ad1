"""What `gemm_eval.kernels._tune` asks of a GPU, by CuPy."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy

from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import _device
from gemm_eval.kernels._build import CompiledKernel, compile_text
from gemm_eval.kernels._family import Operands, Sizes, ceil_div
from gemm_eval.kernels._plan import Plan, plan_on_device
from gemm_eval.kernels._tune import Call
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.mapping import KernelConfig

__all__ = ["CupyTuneDevice", "compile_filler"]

_ALIGN_BYTES = 256
_BYTES_PER_COUNTER = 4
_BYTES_PER_OUTPUT = 2
_FILL_MULTIPLE = 2  # of the L2
_FILL_THREADS = 512
_FILL_ENTRY = "gemm_eval_fill_l2"
# Reading leaves lines behind that need not be written back in the time of the next kernel.
_FILL_TEXT = f"""
extern "C" __global__ void {_FILL_ENTRY}(const uint4* data, long long count, unsigned* never) {{
  unsigned sum = 0;
  long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {{
    uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }}
  if (sum == 0x9e3779b9u) *never = sum;  // keeps the loads alive
}}
"""


class CupyTuneDevice:
    """See `TuneDevice`; the arguments are those of `gemm_eval.kernels._tune.tune`.

    Memory is the driver's own, not of CuPy's pool, which would keep a gigabyte for a stream that is gone.
    """

    def __init__(self, sizes: Sizes, packed: PackedW4, operands: Operands, device: int, stream: int) -> None:
        self._cupy = _device.import_cupy()
        self._sizes, self._packed, self._operands = sizes, packed, operands
        self._device, self._user_stream = device, stream
        self._limits = _device.limits_of_device(device)
        self._part_bytes = [_aligned(int(array.nbytes)) for array in (packed.qweight, packed.scales)]
        self.weight_bytes = sum(self._part_bytes)
        runtime = self._cupy.cuda.runtime
        self.l2_bytes = int(runtime.deviceGetAttribute(runtime.cudaDevAttrL2CacheSize, device))
        self._plans: dict[KernelConfig, Plan] = {}
        self._memory: list[Any] = []
        self._copies: list[tuple[int, int]] = []
        self._stream: Any = None
        self._events: list[Any] = []
        self._fill: Call | None = None
        self._scratch = self._counters = self._output = 0

    def check_idle(self) -> None:
        """See `TuneDevice`."""
        for stream in (self._user_stream, _device.stream_handle(None)):
            _device.refuse_capture(stream, "profile this GEMM once before the capture")

    def plan(self, config: KernelConfig) -> None:
        """See `TuneDevice`."""
        packed = self._packed
        self._plans[config] = plan_on_device(
            self._sizes, packed.activation, packed.mode, packed.group_size, config, self._device
        )

    def _scratch_bytes(self) -> tuple[int, int, int, int]:
        """Of partial sums, counters, output, and of what L2 is filled with."""
        launches = [plan.launch for plan in self._plans.values()]
        return (
            max((launch.workspace_bytes for launch in launches), default=0),
            max((launch.num_counters for launch in launches), default=0) * _BYTES_PER_COUNTER,
            self._sizes.M * self._sizes.N * _BYTES_PER_OUTPUT,
            _FILL_MULTIPLE * self.l2_bytes,
        )

    def room_bytes(self) -> int:
        """See `TuneDevice`."""
        with _device.on_device(self._device):
            free_bytes, _ = self._cupy.cuda.runtime.memGetInfo()
        return max(0, int(free_bytes) - sum(self._scratch_bytes()))

    def allocate(self, num_copies: int) -> None:
        """See `TuneDevice`."""
        scratch_bytes, counter_bytes, output_bytes, fill_bytes = self._scratch_bytes()
        with _device.on_device(self._device):
            runtime = self._cupy.cuda.runtime
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._events = [self._cupy.cuda.Event() for _ in range(2)]
            stream = self._stream.ptr
            _device.wait_for_stream(stream, self._user_stream)
            self._scratch, self._output = self._new(scratch_bytes), self._new(output_bytes)
            self._counters = self._new(counter_bytes)
            if counter_bytes:
                _device.clear_bytes(self._counters, counter_bytes, stream)
            originals = self._operands.qweight, self._operands.scales
            sizes = int(self._packed.qweight.nbytes), int(self._packed.scales.nbytes)
            self._copies = [originals]
            self._fill = self._filler(self._new(fill_bytes), fill_bytes)
            for _ in range(num_copies - 1):
                try:
                    words = self._new(self.weight_bytes)
                except GemmEvalError:  # others took what was free: fewer copies, for all configs
                    break
                copy = words, words + self._part_bytes[0]
                for address, original, num_bytes in zip(copy, originals, sizes, strict=True):
                    runtime.memcpyAsync(address, original, num_bytes, runtime.memcpyDeviceToDevice, stream)
                self._copies.append(copy)

    def _new(self, num_bytes: int) -> int:
        """Address of new memory; 0 for none."""
        if not num_bytes:
            return 0
        try:
            memory = self._cupy.cuda.Memory(_aligned(num_bytes))
        except (MemoryError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            raise GemmEvalError(f"timing configs needs {num_bytes:,} more bytes of GPU memory: {error}") from None
        self._memory.append(memory)
        return int(memory.ptr)

    def _filler(self, address: int, num_bytes: int) -> Call:
        compiled = compile_filler(self._limits.compute_capability)
        handle = _device.StreamHandle(self._stream.ptr)
        function = _device.load_function(compiled, self._device, 0, handle.ptr)
        arguments = numpy.uint64(address), numpy.int64(num_bytes // 16), numpy.uint64(address)
        grid, block = (4 * self._limits.num_sms, 1, 1), (_FILL_THREADS, 1, 1)
        return partial(function, grid, block, arguments, 0, handle)

    def bind(self, config: KernelConfig) -> Sequence[Call]:
        """See `TuneDevice`."""
        plan = self._plans[config]
        launch, handle = plan.launch, _device.StreamHandle(self._stream.ptr)
        needs_scratch = plan.workspace_bytes > 0
        with _device.on_device(self._device):
            function = _device.load_function(plan.compiled, self._device, launch.smem_bytes, handle.ptr)
            calls = []
            for qweight, scales in self._copies:
                operands = self._operands._replace(
                    qweight=qweight,
                    scales=scales,
                    c=self._output,
                    workspace=self._scratch if needs_scratch else 0,
                    counters=self._counters if needs_scratch else 0,
                )
                block, arguments = (launch.num_threads, 1, 1), plan.arguments(operands)
                calls.append(partial(function, launch.grid, block, arguments, launch.smem_bytes, handle))
        return calls

    def capture(self, enqueue: Call) -> Call:
        """See `TuneDevice`."""
        with _device.on_device(self._device), self._stream as stream:
            stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    stream.end_capture()
                raise
            graph = stream.end_capture()
            graph.upload(stream)
        return partial(graph.launch, self._stream)

    def fill_l2(self) -> None:
        """See `TuneDevice`."""
        if self._fill is not None:
            with _device.on_device(self._device):
                self._fill()

    def elapsed_us(self, call: Call) -> float:
        """See `TuneDevice`."""
        start, stop = self._events
        with _device.on_device(self._device):
            start.record(self._stream)
            call()
            stop.record(self._stream)
            stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, stop)) * 1000.0

    def release(self) -> None:
        """See `TuneDevice`."""
        try:
            if self._stream is not None:
                with _device.on_device(self._device):
                    self._stream.synchronize()
        finally:
            self._memory.clear()
            self._copies.clear()


def compile_filler(compute_capability: tuple[int, int]) -> CompiledKernel:
    """Compile the kernel that reads memory (data, number of 16 bytes, address that is never written)."""
    major, minor = compute_capability
    return compile_text(_FILL_TEXT, _FILL_ENTRY, f"sm_{major}{minor}", {})


def _aligned(num_bytes: int) -> int:
    return ceil_div(num_bytes, _ALIGN_BYTES) * _ALIGN_BYTES
