"""Everything that is measured on this machine within a budget of time: memories, then GEMMs."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.measure.host import cpu
from gemm_eval.measure.host.timing import (
    HostTiming,
    numpy_dtype,
    pick_host_shapes,
    probe_speed,
    time_host_shapes,
    time_launch,
)

Kind = Literal["read", "copy"]
_WORD_BYTES = 8
_SMALLEST_BYTES = 16 << 10
_LARGEST_BYTES = 2 << 30
_MEMORY_SHARE = 8  # no more than this part of memory, twice for a copy
_SAMPLE_S = 0.01
_NUM_SAMPLES = 5


class BandwidthPoint(NamedTuple):
    """The rate at which a working set was streamed again and again, by threads with a part of their own each.

    A copy reads one half and writes the other. The rate counts bytes read and written by all threads in the fastest
    sample, as STREAM has it; the spread is the interquartile range of the samples over their median.
    """

    kind: Kind
    num_threads: int
    working_set_bytes: int
    gb_per_s: float
    spread_frac: float


def working_sets(facts: cpu.HostFacts, num_threads: int) -> list[int]:
    """Return sizes of all threads together, powers of two a thread, up to four times the last cache if they fit."""
    least = _SMALLEST_BYTES * num_threads
    beyond = 4 * max(facts.last_cache_bytes, 32 << 20)
    most = max(least, min(beyond, _LARGEST_BYTES, facts.memory_bytes // _MEMORY_SHARE))
    return [least << step for step in range(int(math.log2(most / least)) + 1)]


def measure_bandwidth(
    sizes: Sequence[int], num_threads: int, cpus: Sequence[int], kinds: Sequence[Kind] = ("read", "copy"),
    stop_at: float | None = None,
) -> list[BandwidthPoint]:  # fmt: skip
    """Stream working sets (bytes of all threads, pinned to `cpus` if any) until `stop_at`, of `time.monotonic`."""
    points: list[BandwidthPoint] = []
    for size in sizes:
        for kind in kinds:
            if stop_at is not None and time.monotonic() > stop_at:
                return points
            points.append(_time_stream(kind, size, num_threads, cpus))
    return points


def _time_stream(kind: Kind, size: int, num_threads: int, cpus: Sequence[int]) -> BandwidthPoint:
    import numpy as np

    barrier = threading.Barrier(num_threads)
    spans: list[list[tuple[float, float]]] = [[] for _ in range(num_threads)]
    num_bytes = [0] * num_threads
    num_rounds = [1] * num_threads
    failures: list[BaseException] = []

    def work(thread_index: int) -> None:
        try:
            if cpus and hasattr(os, "sched_setaffinity"):
                with suppress(OSError):
                    os.sched_setaffinity(0, {cpus[thread_index]})  # 0: this thread
            stream, num_bytes[thread_index] = _make_stream(kind, size // num_threads)
            stream(1)  # compiles, and touches every page
            barrier.wait()
            begin = time.perf_counter()
            stream(1)
            num_rounds[thread_index] = max(1, math.ceil(_SAMPLE_S / max(time.perf_counter() - begin, 1e-7)))
            barrier.wait()
            rounds = min(num_rounds)
            for _ in range(_NUM_SAMPLES):
                barrier.wait()
                begin = time.perf_counter()
                stream(rounds)
                spans[thread_index].append((begin, time.perf_counter()))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # whatever it is, the others must not wait for this thread
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    seconds = [max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in zip(*spans, strict=True)]
    rates = np.array([sum(num_bytes) * min(num_rounds) / second / 1e9 for second in seconds])
    low, middle, high = np.percentile(rates, (25, 50, 75))
    return BandwidthPoint(kind, num_threads, sum(num_bytes), float(rates.max()), float((high - low) / middle))


def _make_stream(kind: Kind, size: int) -> tuple[Callable[[int], Any], int]:
    """Return a function that streams a working set of `size` bytes so many times, and its true number of bytes."""
    import numpy as np

    from gemm_eval.measure.host.host_kernels import copy_words, read_words

    if kind == "read":
        words = np.arange(max(1, size // _WORD_BYTES), dtype=np.int64)
        return (lambda rounds: read_words(words, rounds)), words.nbytes
    source = np.arange(max(1, size // _WORD_BYTES // 2), dtype=np.int64)
    target = np.zeros_like(source)
    return (lambda rounds: copy_words(source, target, rounds)), 2 * source.nbytes


def stream_gb_per_s(
    points: Sequence[BandwidthPoint], num_threads: int, working_set_bytes: float, kind: Kind = "read"
) -> BandwidthPoint:
    """Return the point of the nearest working set, by ratio; ValueError: none was measured with so many threads."""
    fitting = [point for point in points if (point.kind, point.num_threads) == (kind, num_threads)]
    if not fitting:
        raise ValueError(f"no bandwidth of kind {kind} with {num_threads} threads was measured")
    return min(fitting, key=lambda point: abs(math.log(point.working_set_bytes / working_set_bytes)))


_MIN_BUDGET_S = 5.0
_BANDWIDTH_SHARE = 0.15
_DEFAULT_WEIGHT_BYTES = 64 << 20
_BUSY_CORES = 0.2


@dataclass(frozen=True)
class HostMeasurement:
    """The result of `measure_host`, from which a spec of this machine is written and calibrated.

    The number of cores is that of the threads, `launch` is of the least GEMM, and `num_left_out` GEMMs never ran
    undisturbed.
    """

    facts: cpu.HostFacts
    blas: cpu.BlasInfo
    dtype: str
    bandwidth: tuple[BandwidthPoint, ...]
    launch: HostTiming
    timings: tuple[HostTiming, ...]
    num_left_out: int = 0

    @property
    def largest_weight_bytes(self) -> int:
        """Bytes of the largest B that was timed."""
        word_bytes = numpy_dtype(self.dtype).itemsize
        sizes = [word_bytes * timing.shape.K * timing.shape.N for timing in self.timings]
        return max(sizes, default=_DEFAULT_WEIGHT_BYTES)


def measure_host(
    dtype: str = "fp32", *, num_threads: int | None = None, budget_s: float = 90.0,
    say: Callable[[str], None] = lambda _: None,
) -> HostMeasurement:  # fmt: skip
    """Measure this machine: its CPU, the bandwidth of its memories, and numpy's matrix product.

    Args:
        dtype: fp32 or fp64.
        num_threads: of BLAS and of the streams, each on a core of its own. None: one for each physical core.
        budget_s: seconds for all of it, about.
        say: told what is measured now.

    Raises:
        InvalidOptionError: a type that BLAS lacks, more threads than cores, or a budget too small.
        GemmEvalError: a package of the extra `host` is missing, a product is wrong, or others left no time at all.
    """
    begin = time.monotonic()
    numpy_dtype(dtype)
    if not budget_s >= _MIN_BUDGET_S:
        raise InvalidOptionError(f"--budget-s must be at least {_MIN_BUDGET_S:g}, got {budget_s:g}")
    cpu.check_host_packages()
    facts = cpu.detect_host()
    num_cores = facts.num_cores.value
    wanted = num_cores if num_threads is None else num_threads
    if not 1 <= wanted <= num_cores:
        raise InvalidOptionError(f"--threads must be 1 to {num_cores}, the cores that it may use here, got {wanted}")
    if wanted < num_cores:
        used = cpu.Fact(wanted, ProvenanceKind.ASSUMED, f"threads that were asked for; there are {num_cores} cores")
        facts = replace(facts, num_cores=used, cpus=facts.cpus[:wanted])
    if (busy := cpu.count_busy_cores()) > _BUSY_CORES:
        say(f"warning: other processes keep {busy:.1f} cores busy: what is measured now is not what the CPU can do")
    say(f"bandwidth of {facts.title}, {wanted} threads")
    points: list[BandwidthPoint] = []
    for threads in sorted({1, wanted}):
        stop_at = time.monotonic() + _BANDWIDTH_SHARE * budget_s
        points += measure_bandwidth(working_sets(facts, threads), threads, facts.cpus, stop_at=stop_at)
    with cpu.pinned_blas(wanted, facts.cpus):
        blas = cpu.blas_info()
        launch = time_launch(dtype)
        speed = probe_speed(dtype)
        left_s = budget_s - (time.monotonic() - begin)
        shapes = pick_host_shapes(speed, left_s)
        timings = time_host_shapes(shapes, dtype, budget_s=left_s, say=say)
    if not timings:
        raise GemmEvalError(
            "no GEMM ran undisturbed: other processes keep the cores busy; try again when they are done"
        )
    return HostMeasurement(facts, blas, dtype, tuple(points), launch, tuple(timings), len(shapes) - len(timings))
