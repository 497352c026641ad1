"""What `gemm_eval.kernels.tune` asks of a GPU, by CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gemm_eval.device import Call, StreamTimer, runtime
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.families import Operands, Sizes, ceil_div
from gemm_eval.kernels.plan import Plan, plan_on_device
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.mapping import KernelConfig

__all__ = ["CupyTuneDevice"]

_ALIGN_BYTES = 256
_BYTES_PER_COUNTER = 4
_BYTES_PER_OUTPUT = 2


class CupyTuneDevice(StreamTimer):
    """See `TuneDevice`; the arguments are those of `gemm_eval.kernels.tune.tune`.

    Memory is the driver's own, not of CuPy's pool, which would keep a gigabyte for a stream that is gone.
    """

    def __init__(self, sizes: Sizes, packed: PackedW4, operands: Operands, device: int, stream: int) -> None:
        with runtime.on_device(device):
            super().__init__(runtime.import_cupy().cuda.Stream(non_blocking=True), device)
        self._sizes, self._packed, self._operands = sizes, packed, operands
        self._user_stream = stream
        self._part_bytes = [_aligned(int(array.nbytes)) for array in (packed.qweight, packed.scales)]
        self.weight_bytes = sum(self._part_bytes)
        self._plans: dict[KernelConfig, Plan[Operands]] = {}
        self._memory: list[Any] = []
        self._copies: list[tuple[int, int]] = []
        self._scratch = self._counters = self._output = 0

    def check_idle(self) -> None:
        """See `TuneDevice`."""
        for stream in (self._user_stream, runtime.stream_handle(None)):
            runtime.refuse_capture(stream, "profile this GEMM once before the capture")

    def plan(self, config: KernelConfig) -> None:
        """See `TuneDevice`."""
        packed = self._packed
        self._plans[config] = plan_on_device(
            self._sizes, packed.activation, packed.mode, packed.group_size, config, self.device
        )

    def _scratch_bytes(self) -> tuple[int, int, int, int]:
        """Of partial sums, counters, output, and of what a flush reads."""
        launches = [plan.launch for plan in self._plans.values()]
        return (
            max((launch.workspace_bytes for launch in launches), default=0),
            max((launch.num_counters for launch in launches), default=0) * _BYTES_PER_COUNTER,
            self._sizes.M * self._sizes.N * _BYTES_PER_OUTPUT,
            self.flush_bytes,
        )

    def room_bytes(self) -> int:
        """See `TuneDevice`."""
        with runtime.on_device(self.device):
            free_bytes, _ = self.cupy.cuda.runtime.memGetInfo()
        return max(0, int(free_bytes) - sum(self._scratch_bytes()))

    def allocate(self, num_copies: int) -> None:
        """See `TuneDevice`."""
        scratch_bytes, counter_bytes, output_bytes, _ = self._scratch_bytes()
        with runtime.on_device(self.device):
            cuda, stream = self.cupy.cuda.runtime, self.stream.ptr
            runtime.wait_for_stream(stream, self._user_stream)
            self._scratch, self._output = self.new_bytes(scratch_bytes), self.new_bytes(output_bytes)
            self._counters = self.new_bytes(counter_bytes)
            if counter_bytes:
                runtime.clear_bytes(self._counters, counter_bytes, stream)
            originals = self._operands.qweight, self._operands.scales
            sizes = int(self._packed.qweight.nbytes), int(self._packed.scales.nbytes)
            self._copies = [originals]
            for _ in range(num_copies - 1):
                try:
                    words = self.new_bytes(self.weight_bytes)
                except GemmEvalError:  # others took what was free: fewer copies, for all configs
                    break
                copy = words, words + self._part_bytes[0]
                for address, original, num_bytes in zip(copy, originals, sizes, strict=True):
                    cuda.memcpyAsync(address, original, num_bytes, cuda.memcpyDeviceToDevice, stream)
                self._copies.append(copy)

    def new_bytes(self, num_bytes: int) -> int:
        """Return the address of new memory, held until `release`; 0 for none.

        Raises:
            GemmEvalError: there is not so much.
        """
        if not num_bytes:
            return 0
        try:
            memory = self.cupy.cuda.Memory(_aligned(num_bytes))
        except (MemoryError, self.cupy.cuda.runtime.CUDARuntimeError) as error:
            raise GemmEvalError(f"timing configs needs {num_bytes:,} more bytes of GPU memory: {error}") from None
        self._memory.append(memory)
        return int(memory.ptr)

    def bind(self, config: KernelConfig) -> Sequence[Call]:
        """See `TuneDevice`."""
        plan = self._plans[config]
        launch, handle = plan.launch, runtime.StreamHandle(self.stream.ptr)
        needs_scratch = plan.workspace_bytes > 0
        with runtime.on_device(self.device):
            function = runtime.load_function(plan.compiled, self.device, launch.smem_bytes, handle.ptr)
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

    def release(self) -> None:
        """See `TuneDevice`."""
        try:
            with runtime.on_device(self.device):
                self.synchronize()
        finally:
            self._memory.clear()
            self._copies.clear()


def _aligned(num_bytes: int) -> int:
    return ceil_div(num_bytes, _ALIGN_BYTES) * _ALIGN_BYTES
