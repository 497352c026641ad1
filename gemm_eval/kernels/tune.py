"""Timing of a few configs of one GEMM, on the caller's operands, but never on the caller's stream or into its output.

A config is timed as data sets are (`gemm_eval.device.bench`), by a shorter protocol: all graphs are made first, and
replayed in turns. `time_configs` decides all of that, and asks a `CupyTuneDevice`. `profiled_config` times the model's
first choices once, and remembers the fastest.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from gemm_eval.arch import MEASURED_L2_STATES, gpu_slug
from gemm_eval.device import Call, StreamTimer, TimingProtocol, capture_calls, measure_floor_us, runtime, time_in_turns
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels.config_cache import lookup, new_record, present_versions, remember
from gemm_eval.kernels.config_records import ConfigKey
from gemm_eval.kernels.families import Operands, Sizes, ceil_div
from gemm_eval.kernels.plan import Plan, plan_on_device, rank, spec_of_device
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import check_word

T = TypeVar("T")

MAX_COPIES_BYTES = 1 << 30
"""Memory that copies of the weights take together at most; also at most half of what is free."""

_NUM_REPLAYS = 5

_log = logging.getLogger(__name__)


class TimedConfig(NamedTuple):
    """A config, and the device time of one GEMM: the median over replays, in us."""

    config: KernelConfig
    latency_us: float


class Tuning(NamedTuple):
    """The outcome of timing: times, fastest first, and configs that could not be built or launched, and why."""

    timed: tuple[TimedConfig, ...]
    skipped: tuple[tuple[KernelConfig, str], ...]


def tune(
    configs: Sequence[KernelConfig], sizes: Sizes, packed: PackedW4, operands: Operands, device: int, stream: int,
    l2: str = "cold",
) -> Tuning:  # fmt: skip
    """Time configs of one GEMM on a GPU, and return them with the fastest first. The host waits for the end.

    `c`, `workspace` and `counters` of the operands are neither read nor written; the first kernel waits for what is on
    `stream`. `l2` "cold": weights come from DRAM; "warm": one copy, as the call before leaves it.
    """
    return time_configs(CupyTuneDevice(sizes, packed, operands, device, stream), configs, sizes.M, l2)


def protocol_of(l2: str) -> TimingProtocol:
    """Return how configs are timed: replays of a millisecond, five of each config."""
    check_word("l2", l2, MEASURED_L2_STATES)
    return TimingProtocol.quick(l2=l2, num_replays=_NUM_REPLAYS, num_short_replays=_NUM_REPLAYS)


def num_copies(weight_bytes: int, l2_bytes: int, room_bytes: int, protocol: TimingProtocol) -> int:
    """Return how many copies of the weights calls go round, the caller's included: what memory allows, at most."""
    most = 1 + min(MAX_COPIES_BYTES, room_bytes // 2) // weight_bytes
    return protocol.num_weight_copies(weight_bytes, l2_bytes, most)


def time_configs(
    device: CupyTuneDevice, configs: Sequence[KernelConfig], M: int, l2: str = "cold",
    sleep: Callable[[float], None] = time.sleep,
) -> Tuning:  # fmt: skip
    """`tune` on a device; `sleep` pauses for so many seconds."""
    if not configs:
        raise InvalidOptionError("configs must hold at least one config to time")
    protocol = protocol_of(l2)
    device.check_idle()
    skipped: dict[KernelConfig, str] = {}
    try:
        planned = _each(list(dict.fromkeys(configs)), device.plan, skipped)
        if planned:
            device.allocate(num_copies(device.weight_bytes, device.l2_bytes, device.room_bytes(), protocol))
        floor_us = measure_floor_us(device) if planned else 0.0
        graphs = _each(
            planned, lambda config: capture_calls(device, device.bind(config), protocol, floor_us=floor_us), skipped
        )
        failures: dict[KernelConfig, Exception] = {}
        samples = time_in_turns(device, graphs, M, protocol, floor_us=floor_us, sleep=sleep, failures=failures)
        skipped |= {config: _reason(error) for config, error in failures.items()}
    finally:
        device.release()
    for config, reason in skipped.items():
        _log.info("not timed: %s: %s", config, reason)
    timed = [TimedConfig(c, statistics.median(times)) for c, times in samples.items() if c not in skipped]
    if not timed:
        reasons = "; ".join(f"{config}: {reason}" for config, reason in skipped.items())
        raise GemmEvalError(f"none of {len(skipped)} configs could be timed: {reasons}")
    return Tuning(tuple(sorted(timed, key=lambda timing: timing.latency_us)), tuple(skipped.items()))


def _each(
    configs: Iterable[KernelConfig], do: Callable[[KernelConfig], T], skipped: dict[KernelConfig, str]
) -> dict[KernelConfig, T]:
    """Return what `do` returns for each config; those for which it raises are skipped."""
    done = {}
    for config in configs:
        try:
            done[config] = do(config)
        except Exception as error:  # whatever a driver says: the other configs may work
            skipped[config] = _reason(error)
    return done


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_ALIGN_BYTES = 256
_BYTES_PER_COUNTER = 4
_BYTES_PER_OUTPUT = 2


class CupyTuneDevice(StreamTimer):
    """A GEMM on a GPU, with a stream, an output and scratch memory of its own; the arguments are those of `tune`.

    Memory is the driver's own, not of CuPy's pool, which would keep a gigabyte for a stream that is gone.
    `weight_bytes` is of one copy of the packed weights.
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
        """Refuse while a graph is captured: memory is allocated, and the host waits."""
        for stream in (self._user_stream, runtime.stream_handle(None)):
            runtime.refuse_capture(stream, "profile this GEMM once before the capture")

    def plan(self, config: KernelConfig) -> None:
        """Choose, check and compile a config; any exception skips it."""
        types = self._packed.activation, self._packed.mode, self._packed.group_size
        self._plans[config] = plan_on_device(self._sizes, *types, config, self.device)

    def _scratch_bytes(self) -> tuple[int, int, int, int]:
        """Return the bytes of partial sums, counters, output, and of a flush."""
        launches = [plan.launch for plan in self._plans.values()]
        return (
            max((launch.workspace_bytes for launch in launches), default=0),
            max((launch.num_counters for launch in launches), default=0) * _BYTES_PER_COUNTER,
            self._sizes.M * self._sizes.N * _BYTES_PER_OUTPUT,
            self.flush_bytes,
        )

    def room_bytes(self) -> int:
        """Return what is free of memory, after the scratch memory of the configs that were planned."""
        with runtime.on_device(self.device):
            free_bytes, _ = self.cupy.cuda.runtime.memGetInfo()
        return max(0, int(free_bytes) - sum(self._scratch_bytes()))

    def allocate(self, num_copies: int) -> None:
        """Make so many copies of the weights (the caller's count as one), and scratch for what was planned."""
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
        """Return the address of new memory, held until `release`; 0 for none."""
        if not num_bytes:
            return 0
        try:
            memory = self.cupy.cuda.Memory(_aligned(num_bytes))
        except (MemoryError, self.cupy.cuda.runtime.CUDARuntimeError) as error:
            raise GemmEvalError(f"timing configs needs {num_bytes:,} more bytes of GPU memory: {error}") from None
        self._memory.append(memory)
        return int(memory.ptr)

    def bind(self, config: KernelConfig) -> Sequence[Call]:
        """Return a call on each copy; any exception skips the config."""
        plan = self._plans[config]
        launch, handle = plan.launch, runtime.StreamHandle(self.stream.ptr)
        needs_scratch = plan.workspace_bytes > 0
        with runtime.on_device(self.device):
            function = runtime.load_function(plan.compiled, self.device, launch.smem_bytes, handle.ptr)
            calls = []
            for qweight, scales in self._copies:
                operands = self._operands._replace(
                    qweight=qweight, scales=scales, c=self._output, workspace=self._scratch if needs_scratch else 0,
                    counters=self._counters if needs_scratch else 0,
                )  # fmt: skip
                block, arguments = (launch.num_threads, 1, 1), plan.arguments(operands)
                calls.append(partial(function, launch.grid, block, arguments, launch.smem_bytes, handle))
        return calls

    def release(self) -> None:
        """Wait for all that was queued, and free all memory."""
        try:
            with runtime.on_device(self.device):
                self.synchronize()
        finally:
            self._memory.clear()
            self._copies.clear()


def _aligned(num_bytes: int) -> int:
    return ceil_div(num_bytes, _ALIGN_BYTES) * _ALIGN_BYTES


PROFILED_CONFIGS = 10
"""So many of the model's first choices are timed."""


def profiled_config(sizes: Sizes, packed: PackedW4, operands: Operands, device: int, stream: int) -> KernelConfig:
    """Return the fastest config by timings: of this process, the user's file or the library's, else taken now."""
    key = ConfigKey.of(_gpu(device), sizes, packed.activation, packed.mode, packed.group_size or None)
    if (key, device) in _known:
        return _known[key, device]
    limits = runtime.limits_of_device(device)
    record = lookup(key, limits, present_versions())
    if record is not None:
        return _known.setdefault((key, device), record.config)
    types = packed.activation, packed.mode, packed.group_size
    candidates = rank(sizes, *types, spec_of_device(device), PROFILED_CONFIGS)
    tuning = tune(candidates, sizes, packed, operands, device, stream)
    best = tuning.timed[0]
    _log.info("%s: %.2f us with %s, the best of %d", sizes, best.latency_us, best.config, len(tuning.timed))
    remember(new_record(key, best.config, best.latency_us, "top_k", len(tuning.timed), limits))
    return _known.setdefault((key, device), best.config)


_known: dict[tuple[ConfigKey, int], KernelConfig] = {}


def forget_profiled() -> None:
    """Look into the files again for every GEMM."""
    _known.clear()


@cache
def _gpu(device: int) -> str:
    return gpu_slug(runtime.name_of_device(device))
