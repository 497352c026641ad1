"""Engines on the same GEMMs, in one process and in turns: what each takes with cold weights at boost clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from gemm_eval.device import (
    BenchDevice,
    TimedGraph,
    TimingProtocol,
    capture_calls,
    measure_floor_us,
    summarize,
    time_in_turns,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.evaluate import progress_bar
from gemm_eval.measure.engines.base import Bound, Engine
from gemm_eval.measure.engines.experts import ExpertGrid
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.engines.registry import ENGINES
from gemm_eval.measure.runners.checks import MAX_ERRORS
from gemm_eval.measure.runners.torch_device import TorchDevice
from gemm_eval.words import shown

__all__ = [
    "DEFAULT_PAIRS",
    "DEFAULT_ROWS",
    "PROTOCOL",
    "EngineFailure",
    "EngineTiming",
    "Grid",
    "NeedsTorch",
    "SideBySide",
    "choose_engines",
    "compare_engines",
    "largest_error",
    "make_device",
    "time_engines",
    "told",
]

DEFAULT_PAIRS = (
    (1280, 8192), (1536, 7168), (2560, 9728), (3584, 18944), (4096, 4096), (4096, 14336), (6144, 4096), (8192, 28672),
    (10240, 8192), (12288, 4096), (28672, 8192), (43008, 5376),
)  # fmt: skip
"""(N, K) of layers of models with 4 to 70 billion parameters, whole and on several GPUs."""

DEFAULT_ROWS = (1, 4, 12, 24, 40, 64, 100, 192, 320, 512, 768, 1200, 2048, 3500)
"""M of every regime, few of them powers of 2."""

PROTOCOL = TimingProtocol(num_replays=7, max_short_rows=0)
"""Every replay after a pause, also of few rows: engines that take turns are to find the GPU alike."""

_OURS = next(iter(ENGINES))


class EngineTiming(NamedTuple):
    """One engine on one GEMM.

    Attributes:
        N, K, M: sizes.
        engine: its name.
        latency_us, min_us, spread_frac, num_replays, calls_per_replay, num_weight_copies: as in `Timing`.
        relative_error: of a sample of its output against float64.
        config: what it ran, in short; empty: it does not tell.
    """

    N: int
    K: int
    M: int
    engine: str
    latency_us: float
    min_us: float
    spread_frac: float
    num_replays: int
    calls_per_replay: int
    num_weight_copies: int
    relative_error: float
    config: str


class EngineFailure(NamedTuple):
    """An engine that could not run, or computed something else; M is None where no M could be timed."""

    N: int
    K: int
    M: int | None
    engine: str
    error: str


@dataclass(frozen=True)
class Grid:
    """Which GEMMs are compared: every M on every pair.

    Attributes:
        pairs: (N, K), in elements; multiples of 8 and, K, of the group size.
        rows: values of M.
        group_size: weights along K that share a scale: 32, 64 or 128.
        dtype: "fp16" or "bf16", of A, C and the scales.

    Raises:
        InvalidOptionError: a value that cannot be.
    """

    pairs: Sequence[tuple[int, int]] = DEFAULT_PAIRS
    rows: Sequence[int] = DEFAULT_ROWS
    group_size: int = 128
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        if self.dtype not in MAX_ERRORS:
            raise InvalidOptionError(f"--activation must be one of {', '.join(MAX_ERRORS)}, got {shown(self.dtype)}")
        if self.group_size not in (32, 64, 128):
            raise InvalidOptionError(f"--group-size must be 32, 64 or 128, got {self.group_size}")
        for n, k in self.pairs:
            if n < 1 or k < 1 or n % 8 or k % self.group_size:
                raise InvalidOptionError(
                    f"--pair must be K,N with K a multiple of {self.group_size} and N of 8, got {k},{n}"
                )
        if not self.pairs or not self.rows or min(self.rows) < 1:
            raise InvalidOptionError(f"--rows must be integers >= 1, got {', '.join(map(str, self.rows)) or 'none'}")

    def gemms(self, pair: tuple[int, int]) -> list[DenseGemm]:
        """Return the GEMMs of a pair, by M."""
        n, k = pair
        return [DenseGemm(m, k, n, self.group_size, DType(self.dtype)) for m in sorted(set(self.rows))]


@dataclass
class SideBySide:
    """What was measured.

    Attributes:
        grid: what was asked for.
        gpu: name of the GPU.
        engines: library and version by engine.
        timings: one for each engine and GEMM.
        failures: why some are missing.
    """

    grid: Grid | ExpertGrid
    gpu: str
    engines: dict[str, str]
    timings: list[EngineTiming] = field(default_factory=list)
    failures: list[EngineFailure] = field(default_factory=list)


class NeedsTorch(Protocol):
    """A class of engines, as far as it says on whose stream it runs."""

    needs_torch: bool


def choose_engines(names: Sequence[str] = ()) -> tuple[list[type[Engine[Any]]], dict[str, str]]:
    """Return the engines that are there, ours first, and why others are not.

    Args:
        names: of engines to compare ours with; none: all.

    Raises:
        InvalidOptionError: no such engine.
    """
    if unknown := [name for name in names if name not in ENGINES]:
        raise InvalidOptionError(f"--engine must be one of {', '.join(ENGINES)}, got {shown(unknown[0])}")
    wanted = [engine for name, engine in ENGINES.items() if name == _OURS or not names or name in names]
    missing = {engine.name: reason for engine in wanted if (reason := engine.why_missing()) is not None}
    return [engine for engine in wanted if engine.name not in missing], missing


def make_device(engines: Iterable[NeedsTorch]) -> BenchDevice:
    """Return a device whose stream all of them can use: PyTorch's, where one of them is PyTorch's.

    Raises:
        GemmEvalError: there is no GPU.
    """
    return TorchDevice() if any(engine.needs_torch for engine in engines) else BenchDevice()


def compare_engines(
    device: BenchDevice,
    engines: Sequence[type[Engine[Any]]],
    grid: Grid,
    *,
    protocol: TimingProtocol = PROTOCOL,
    progress: bool | None = None,
    on_pair: Callable[[SideBySide], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> SideBySide:
    """Time engines on a grid of GEMMs; what fails is left out and told.

    Args:
        device: a GPU for itself.
        engines: classes of the engines; the first is compared with the others.
        grid: which GEMMs.
        protocol: how they are timed.
        progress: show a progress bar on stderr; None: if stderr is a terminal.
        on_pair: called with all there is so far after each pair (N, K).
        sleep: pauses that many seconds (for tests).

    Raises:
        GemmEvalError: our kernels do not run on this GPU.
    """
    gemms = [gemm for pair in grid.pairs for gemm in grid.gemms(pair)]
    activation = DType(grid.dtype)
    largest = max(gemm.M * gemm.K for gemm in gemms), max(gemm.M * gemm.N for gemm in gemms)
    with device.stream:
        operands = Operands(device, activation, *largest)
        ready = [engine(device, operands, protocol) for engine in engines]
        found = SideBySide(grid, device.gpu_name, {engine.name: engine.describe() for engine in ready})
        for engine in ready:
            engine.prepare(gemms)
        floor_us = measure_floor_us(device)
        with progress_bar(len(gemms), "GEMMs", progress) as advance:
            for n, k in grid.pairs:
                weights = Weights.random(device, n, k, grid.group_size, activation)
                loaded = list(_loaded(ready, weights, found))
                del weights
                for gemm in grid.gemms((n, k)):
                    found.timings += _time_gemm(device, loaded, gemm, protocol, floor_us, found, sleep)
                    advance(1)
                for engine in ready:
                    engine.unload()
                device.free_unused()
                if on_pair is not None:
                    on_pair(found)
    return found


def _loaded(engines: Sequence[Engine[Any]], weights: Weights, found: SideBySide) -> Iterator[Engine[Any]]:
    for engine in engines:
        try:
            engine.load(weights)
        except Exception as error:  # whatever a library says of these sizes: the others may take them
            engine.unload()
            found.failures.append(EngineFailure(weights.N, weights.K, None, engine.name, told(error)))
        else:
            yield engine


class _Ready(NamedTuple):
    """A GEMM of an engine, captured."""

    graph: TimedGraph
    bound: Bound
    relative_error: float


def time_engines(
    device: BenchDevice,
    make: Mapping[str, Callable[[], tuple[Bound, float]]],
    sizes: tuple[int, int, int],
    protocol: TimingProtocol,
    floor_us: float,
    sleep: Callable[[float], None],
) -> tuple[list[EngineTiming], list[EngineFailure]]:
    """Time engines in turns on one GEMM.

    Args:
        device: where they run.
        make: by engine, binds the GEMM, checks the result and returns its relative error.
        sizes: N, K and M, as they stand in timings.
        protocol: how they are timed.
        floor_us: what `measure_floor_us` returned.
        sleep: pauses that many seconds.
    """
    ready: dict[str, _Ready] = {}
    errors: dict[str, Exception] = {}
    for name, bind in make.items():
        try:
            bound, error = bind()
            ready[name] = _Ready(capture_calls(device, bound.calls, protocol, floor_us=floor_us), bound, error)
        except Exception as error:  # whatever a library says of these sizes: the others may take them
            errors[name] = error
    graphs = {name: one.graph for name, one in ready.items()}
    samples = time_in_turns(device, graphs, sizes[2], protocol, floor_us=floor_us, sleep=sleep, failures=errors)
    failures = [EngineFailure(*sizes, name, told(error)) for name, error in errors.items()]
    return [_timing(sizes, name, ready[name], one) for name, one in samples.items() if name not in errors], failures


def _time_gemm(
    device: BenchDevice,
    engines: Sequence[Engine[Any]],
    gemm: DenseGemm,
    protocol: TimingProtocol,
    floor_us: float,
    found: SideBySide,
    sleep: Callable[[float], None],
) -> list[EngineTiming]:
    able = [engine for engine in engines if engine.largest_rows is None or engine.largest_rows >= gemm.M]
    timings, failures = time_engines(
        device, {engine.name: partial(_bound, device, engine, gemm) for engine in able}, (gemm.N, gemm.K, gemm.M),
        protocol, floor_us, sleep,
    )  # fmt: skip
    found.failures += failures
    return timings


def _bound(device: BenchDevice, engine: Engine[Any], gemm: DenseGemm) -> tuple[Bound, float]:
    bound = engine.bind(gemm)
    return bound, _checked(device, engine, gemm, bound)


def _checked(device: BenchDevice, engine: Engine[Any], gemm: DenseGemm, bound: Bound) -> float:
    """Run the first and the last copy; returns the larger relative error.

    Raises:
        GemmEvalError: a result is wrong.
    """
    assert engine.weights is not None
    errors = []
    for call in dict.fromkeys((bound.calls[0], bound.calls[-1])):
        engine.operands.poison()
        call()
        device.synchronize()
        errors.append(engine.operands.sample_error(gemm.M, engine.weights, bound.read(), bound.dtype))
    return largest_error(errors, bound.dtype)


def largest_error(errors: Sequence[float], dtype: str) -> float:
    """Return the largest of some relative errors.

    Raises:
        GemmEvalError: one says that a result is wrong.
    """
    if not all(error < MAX_ERRORS[dtype] for error in errors):  # NaN does not pass
        raise GemmEvalError(f"its result is wrong: relative error {max(errors):.2g}")
    return max(errors)


def _timing(sizes: tuple[int, int, int], name: str, ready: _Ready, samples: Sequence[float]) -> EngineTiming:
    copies = min(len(ready.bound.calls), ready.graph.num_calls)
    timing = summarize(samples, calls_per_replay=ready.graph.num_calls, num_weight_copies=copies)
    return EngineTiming(
        *sizes, name, timing.latency_us, timing.min_us, timing.spread_frac, timing.num_replays,
        timing.calls_per_replay, timing.num_weight_copies, ready.relative_error, ready.bound.config,
    )  # fmt: skip


def told(error: Exception) -> str:
    """Return an error on one line, for a report."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
