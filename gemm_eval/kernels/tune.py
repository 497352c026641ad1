"""Timing a few configs of one GEMM: on the caller's operands, but never on the caller's stream or into its output.

A config is timed as data sets are (`gemm_eval.device.timing`), by a shorter protocol: all graphs are made first, and
replayed in turns.

`time_configs` decides all of that; what it asks of a GPU is a `TuneDevice`, for which `gemm_eval.kernels.tune_device`
has CuPy's.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from gemm_eval.device import Call, Timer, TimingProtocol, capture_calls, measure_floor_us, time_in_turns
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels.families import Operands, Sizes
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.mapping import KernelConfig

__all__ = ["TimedConfig", "TuneDevice", "Tuning", "num_copies", "protocol_of", "time_configs", "tune"]

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
    """What came of timing.

    Attributes:
        timed: fastest first.
        skipped: configs that could not be built or launched, and why.
    """

    timed: tuple[TimedConfig, ...]
    skipped: tuple[tuple[KernelConfig, str], ...]


class TuneDevice(Timer, Protocol):
    """One GEMM on one GPU, with a stream, an output and scratch memory of its own.

    Attributes:
        weight_bytes: of one copy of the packed weights.
    """

    weight_bytes: int

    def check_idle(self) -> None:
        """Refuse while a graph is captured: memory is allocated, and the host waits."""

    def plan(self, config: KernelConfig) -> None:
        """Choose, check and compile a config; any exception skips it."""

    def room_bytes(self) -> int:
        """Memory that is free, after the scratch memory of the configs that were planned."""

    def allocate(self, num_copies: int) -> None:
        """Make so many copies of the weights (the caller's count as one), and scratch for what was planned."""

    def bind(self, config: KernelConfig) -> Sequence[Call]:
        """Return a call on each copy; any exception skips the config."""

    def release(self) -> None:
        """Wait for all that was queued, and free all memory."""


def tune(
    configs: Sequence[KernelConfig],
    sizes: Sizes,
    packed: PackedW4,
    operands: Operands,
    device: int,
    stream: int,
    l2: str = "cold",
) -> Tuning:
    """Time configs of one GEMM on a GPU, and return them with the fastest first. The host waits for the end.

    Args:
        configs: to be timed; each is compiled if it is not in the cache of compiled kernels.
        sizes: M, K and N, in elements.
        packed: the weights, on that GPU.
        operands: as for a launch; `c`, `workspace` and `counters` are neither read nor written.
        device: number of the GPU.
        stream: handle of the stream on which the operands were written: the first kernel waits for it.
        l2: "cold": weights come from DRAM; "warm": one copy, as the call before leaves it.

    Raises:
        InvalidOptionError: no configs, `l2`, or a CUDA graph is being captured.
        GemmEvalError: none of the configs could be timed, or there is no memory for the output.
    """
    from gemm_eval.kernels.tune_device import CupyTuneDevice

    return time_configs(CupyTuneDevice(sizes, packed, operands, device, stream), configs, sizes.M, l2)


def protocol_of(l2: str) -> TimingProtocol:
    """Return how configs are timed: replays of a millisecond, five of each config.

    Raises:
        InvalidOptionError: `l2` is neither "cold" nor "warm".
    """
    return TimingProtocol.quick(l2=l2, num_replays=_NUM_REPLAYS, num_short_replays=_NUM_REPLAYS)


def num_copies(weight_bytes: int, l2_bytes: int, room_bytes: int, protocol: TimingProtocol) -> int:
    """Return how many copies of the weights calls go round, the caller's included: what memory allows, at most."""
    most = 1 + min(MAX_COPIES_BYTES, room_bytes // 2) // weight_bytes
    return protocol.num_weight_copies(weight_bytes, l2_bytes, most)


def time_configs(
    device: TuneDevice,
    configs: Sequence[KernelConfig],
    M: int,
    l2: str = "cold",
    sleep: Callable[[float], None] = time.sleep,
) -> Tuning:
    """`tune` on a device; `sleep` pauses for so many seconds.

    Raises:
        InvalidOptionError, GemmEvalError: as `tune`.
    """
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
    return Tuning(tuple(sorted(timed, key=lambda one: one.latency_us)), tuple(skipped.items()))


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
