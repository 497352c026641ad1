"""Engines on the same GEMMs, in one process and in turns, and how many times as fast as the others our kernels are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.compare.engines import (
    Bound,
    CublasEngine,
    Engine,
    OneLaunchEngine,
    OurEngine,
    OurGroupedEngine,
    TinygemmEngine,
)
from benchmarks.compare.fp8 import HummingFp8Engine, OurFp8Engine, ScaledMmEngine, W4A16Engine
from benchmarks.compare.humming import HummingEngine
from benchmarks.compare.operands import Gemm, Grid, Layer, Operands, Weights, random_experts
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
from gemm_eval.measure.runner import MAX_ERRORS
from gemm_eval.measure.torch_gemms import TorchDevice
from gemm_eval.progress import progress_bar
from gemm_eval.words import shown

Engines = Mapping[str, type[Engine[Any]]]
ENGINES: Engines = {engine.name: engine for engine in (OurEngine, HummingEngine, CublasEngine, TinygemmEngine)}
"""Engines of dense GEMMs by name, ours first, in the order in which they are timed."""
GROUPED_ENGINES: Engines = {engine.name: engine for engine in (OurGroupedEngine, HummingEngine, OneLaunchEngine)}
"""Engines of grouped GEMMs, likewise."""
FP8_ENGINES: Engines = {engine.name: engine for engine in (OurFp8Engine, HummingFp8Engine, ScaledMmEngine, W4A16Engine)}
"""Engines of dense GEMMs with tokens in e4m3, likewise."""
PROTOCOL = TimingProtocol(num_replays=7, max_short_rows=0)
"""Every replay after a pause, also of few rows: engines that take turns are to find the GPU alike."""
REGIMES: Mapping[str, tuple[int, int]] = {
    "M <= 16": (1, 16),
    "M 17-64": (17, 64),
    "M 65-512": (65, 512),
    "M > 512": (513, 1 << 40),
}
"""Least and largest M by name."""
_OURS = "ours"
_PUBLISHED = ("humming", "cublas")  # engines for any number of rows: "better" is the faster one of these


class EngineTiming(NamedTuple):
    """An engine on a GEMM.

    Attributes:
        N, K, M: sizes; of grouped GEMMs M are the tokens.
        engine: its name.
        latency_us, min_us, spread_frac, num_replays, calls_per_replay, num_weight_copies: as in `Timing`.
        relative_error: of a sample of its output against float64.
        config: the kernel's config, in short; empty: the engine does not tell.
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


@dataclass
class SideBySide:
    """The timings of a comparison.

    Attributes:
        grid: the GEMMs that were asked for.
        gpu: name of the GPU.
        engines: library and version by engine.
        timings: one for each engine and GEMM.
        failures: why some are missing.
    """

    grid: Grid
    gpu: str
    engines: dict[str, str]
    timings: list[EngineTiming] = field(default_factory=list)
    failures: list[EngineFailure] = field(default_factory=list)


def choose_engines(
    names: Sequence[str] = (), *, is_grouped: bool = False, is_fp8: bool = False
) -> tuple[list[type[Engine[Any]]], dict[str, str]]:
    """Return the engines that are there, ours first, and why others are not.

    Args:
        names: of engines to compare ours with; none: all.
        is_grouped: engines of grouped GEMMs.
        is_fp8: engines of tokens in e4m3.

    Raises:
        InvalidOptionError: no such engine.
    """
    known = FP8_ENGINES if is_fp8 else GROUPED_ENGINES if is_grouped else ENGINES
    if unknown := [name for name in names if name not in known]:
        condition = " with --fp8" if is_fp8 else " with --grouped" if is_grouped else ""
        raise InvalidOptionError(f"--engine must be one of {', '.join(known)}{condition}, got {shown(unknown[0])}")
    wanted = [engine for name, engine in known.items() if name == _OURS or not names or name in names]
    missing = {engine.name: reason for engine in wanted if (reason := engine.why_missing()) is not None}
    return [engine for engine in wanted if engine.name not in missing], missing


def make_device(engines: Iterable[type[Engine[Any]]]) -> BenchDevice:
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
    on_layer: Callable[[SideBySide], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> SideBySide:
    """Time engines on a grid of GEMMs; what fails is left out and told.

    Args:
        device: a GPU for itself.
        engines: classes of the engines; the first is compared with the others.
        grid: the GEMMs.
        protocol: how they are timed.
        progress: show a progress bar on stderr; None: if stderr is a terminal.
        on_layer: called after each layer, with all timings so far.
        sleep: pauses that many seconds (for tests).

    Raises:
        GemmEvalError: our kernels do not run on this GPU.
    """
    gemms = [gemm for layer in grid.layers for gemm in grid.gemms(layer)]
    activation = DType(grid.dtype)
    largest = max(gemm.rows * gemm.layer.K for gemm in gemms), max(gemm.rows * gemm.layer.N for gemm in gemms)
    with device.stream:
        operands = Operands(device, activation, *largest)
        ready = [engine(device, operands, protocol) for engine in engines]
        result = SideBySide(grid, device.gpu_name, {engine.name: engine.describe() for engine in ready})
        for engine in ready:
            engine.prepare(gemms)
        floor_us = measure_floor_us(device)
        with progress_bar(len(gemms), "GEMMs", progress) as advance:
            for layer in grid.layers:
                of_layer = grid.gemms(layer)
                experts = random_experts(device, of_layer[0])
                loaded = list(_loaded(ready, experts, layer, result))
                for gemm in of_layer:
                    _time_gemm(device, loaded, gemm, experts, protocol, floor_us, result, sleep)
                    advance(1)
                for engine in ready:
                    engine.unload()
                del experts
                device.free_unused()
                if on_layer is not None:
                    on_layer(result)
    return result


def _loaded(
    engines: Sequence[Engine[Any]], experts: Sequence[Weights], layer: Layer, result: SideBySide
) -> Iterator[Engine[Any]]:
    for engine in engines:
        try:
            engine.load(experts)
        except Exception as error:  # whatever a library says of these sizes: the others may take them
            engine.unload()
            result.failures.append(EngineFailure(layer.N, layer.K, None, engine.name, _told(error)))
        else:
            yield engine


class _Ready(NamedTuple):
    """A GEMM of an engine, captured."""

    graph: TimedGraph
    bound: Bound
    relative_error: float


def _time_gemm(
    device: BenchDevice,
    engines: Sequence[Engine[Any]],
    gemm: Gemm,
    experts: Sequence[Weights],
    protocol: TimingProtocol,
    floor_us: float,
    result: SideBySide,
    sleep: Callable[[float], None],
) -> None:
    """Time the engines that take so many rows in turns on one GEMM."""
    sizes = gemm.layer.N, gemm.layer.K, gemm.tokens
    ready: dict[str, _Ready] = {}
    errors: dict[str, Exception] = {}
    for engine in engines:
        if engine.largest_rows is not None and engine.largest_rows < gemm.rows:
            continue
        try:
            bound = engine.bind(gemm)
            relative_error = _check(device, engine, bound, experts)
            graph = capture_calls(device, bound.calls, protocol, floor_us=floor_us)
            ready[engine.name] = _Ready(graph, bound, relative_error)
        except Exception as error:  # whatever a library says of these sizes: the others may take them
            errors[engine.name] = error
    graphs = {name: one.graph for name, one in ready.items()}
    samples = time_in_turns(device, graphs, gemm.tokens, protocol, floor_us=floor_us, sleep=sleep, failures=errors)
    result.failures += [EngineFailure(*sizes, name, _told(error)) for name, error in errors.items()]
    for name, times in samples.items():
        if name not in errors:
            graph, bound, relative_error = ready[name]
            copies = min(len(bound.calls), graph.num_calls)
            timing = summarize(times, calls_per_replay=graph.num_calls, num_weight_copies=copies)
            result.timings.append(
                EngineTiming(
                    *sizes, name, timing.latency_us, timing.min_us, timing.spread_frac, timing.num_replays,
                    timing.calls_per_replay, timing.num_weight_copies, relative_error, bound.config,
                )
            )  # fmt: skip


def _check(device: BenchDevice, engine: Engine[Any], bound: Bound, experts: Sequence[Weights]) -> float:
    """Run every call once, which is then ready to be captured; return the larger error of the first and the last.

    Raises:
        GemmEvalError: a result is wrong.
    """
    errors = []
    for index, (call, offsets) in enumerate(zip(bound.calls, bound.routings, strict=True)):
        is_checked = index in (0, len(bound.calls) - 1)
        if is_checked:
            engine.operands.poison()
        call()
        device.synchronize()
        if is_checked:
            errors.append(engine.operands.sample_error(experts, offsets, bound.read(), bound.dtype))
    if not all(error < (engine.max_error or MAX_ERRORS[bound.dtype]) for error in errors):  # NaN does not pass
        raise GemmEvalError(f"its result is wrong: relative error {max(errors):.2g}")
    return max(errors)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class Case(NamedTuple):
    """A GEMM on our engine and others.

    Attributes:
        N, K, M: sizes.
        ours: our timing.
        others: timings of other engines by name.
    """

    N: int
    K: int
    M: int
    ours: EngineTiming
    others: Mapping[str, EngineTiming]

    def ratio(self, engine: str) -> float | None:
        """Return the other's time over ours; "better": of the faster one; None: not timed."""
        if engine == "better":
            times_us = [self.others[name].latency_us for name in _PUBLISHED if name in self.others]
            return min(times_us) / self.ours.latency_us if times_us else None
        return self.others[engine].latency_us / self.ours.latency_us if engine in self.others else None


class Standing(NamedTuple):
    """Ratios to one engine over some cases: their geometric mean, the least one, and whose that is."""

    mean: float
    worst: float
    worst_case: Case
    num_cases: int


def list_cases(timings: Iterable[EngineTiming]) -> list[Case]:
    """Return the GEMMs that ours was timed on, as they were timed."""
    gemms: dict[tuple[int, int, int], dict[str, EngineTiming]] = {}
    for timing in timings:
        gemms.setdefault((timing.N, timing.K, timing.M), {})[timing.engine] = timing
    return [
        Case(*sizes, of_gemm[_OURS], {name: timing for name, timing in of_gemm.items() if name != _OURS})
        for sizes, of_gemm in gemms.items()
        if _OURS in of_gemm
    ]


def stand(cases: Iterable[Case], engine: str) -> Standing | None:
    """Return where we stand against an engine; None: it was timed on none of the cases."""
    ratios = [(ratio, case) for case in cases if (ratio := case.ratio(engine)) is not None]
    if not ratios:
        return None
    worst, worst_case = min(ratios, key=lambda pair: pair[0])
    return Standing(geometric_mean([ratio for ratio, _ in ratios]), worst, worst_case, len(ratios))


def by_rows(cases: Sequence[Case]) -> dict[int, list[Case]]:
    """Return cases by M."""
    return {m: [case for case in cases if m == case.M] for m in sorted({case.M for case in cases})}


def by_regime(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """Return cases by the name of their regime, and all of them; empty regimes are left out."""
    regimes = {name: [case for case in cases if low <= case.M <= high] for name, (low, high) in REGIMES.items()}
    return {name: of_regime for name, of_regime in (regimes | {"all": list(cases)}).items() if of_regime}


def losses(cases: Iterable[Case], engines: Sequence[str], limit: float) -> list[tuple[float, str, Case]]:
    """Return cases where an engine takes less than `limit` times our time, the worst first."""
    behind = [
        (ratio, engine, case)
        for case in cases
        for engine in engines
        if (ratio := case.ratio(engine)) is not None and ratio < limit
    ]
    return sorted(behind, key=lambda loss: loss[0])
