"""Timing this machine's CPU: memories, and numpy's matrix product on warm operands, within a budget of time."""

from __future__ import annotations

import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.measure.host import cpu
from gemm_eval.words import check_word

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class HostShape(NamedTuple):
    """C[M,N] = A[M,K] x B[K,N]."""

    M: int
    K: int
    N: int

    @property
    def num_macs(self) -> int:
        return self.M * self.K * self.N


_ROWS = ((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), (1, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536))
"""Rows, of every other pair the second set: powers of two and what lies between."""
_PAIRS = (
    (64, 64), (128, 512), (256, 256), (512, 512),  # heads of attention, small squares
    (768, 768), (768, 3072), (3072, 768),  # BERT base, GPT-2
    (1024, 1024), (1024, 4096), (4096, 1024),  # BERT large, grouped-query keys
    (2048, 256), (2048, 2048), (4096, 4096),
    (1000, 3000), (577, 1153),  # no multiples of a vector
)  # fmt: skip
"""(K, N) of layers and others."""
_SEED = 0


def pick_host_shapes(mac_per_us: float, budget_s: float, num_samples: int = 5) -> list[HostShape]:
    """Return GEMMs that can be timed within a budget, in a fixed shuffled order; too long ones are left out."""
    shapes = [HostShape(M, K, N) for index, (K, N) in enumerate(_PAIRS) for M in _ROWS[index % 2]]
    shapes.sort(key=lambda shape: shape.num_macs)
    left_s, picked = budget_s * 0.6, []  # the rest is for small GEMMs, whose time is what they are given
    for shape in shapes:
        left_s -= (num_samples + 1) * shape.num_macs / mac_per_us / 1e6
        if left_s < 0.0:
            break
        picked.append(shape)
    random.Random(_SEED).shuffle(picked)
    return picked


HOST_DTYPES = {"fp32": "float32", "fp64": "float64"}
"""Types that BLAS has and numpy too, by our name of them."""
_NUM_PASSES = 3  # over all GEMMs: what disturbs the machine for a second then spoils a third of a median
_MIN_SAMPLES = 2  # of each pass
_MAX_SAMPLES = 60
_SAMPLE_S = 2e-4  # shorter GEMMs run several times in a sample: reading the clock takes 0.1 us
_WARMUP_S = 2e-3  # and at least one run: wakes threads, fills caches
_NUM_CHECKED = 8
_PROBE = HostShape(512, 512, 512)
_MAX_TRIES = 8  # of each pass, to get as many undisturbed samples as it must have
_SWITCH_EVERY_S = 0.02  # a long sample may be interrupted that often: it hardly tells


class HostTiming(NamedTuple):
    """The time of a GEMM: median and fastest of undisturbed samples, and their interquartile range over the median."""

    shape: HostShape
    latency_us: float
    min_us: float
    spread_frac: float
    num_samples: int
    calls_per_sample: int
    num_disturbed: int


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's type for one of `HOST_DTYPES`."""
    import numpy as np

    check_word("--dtype", dtype, HOST_DTYPES)
    return np.dtype(HOST_DTYPES[dtype])


def time_host_shapes(
    shapes: Sequence[HostShape], dtype: str = "fp32", *, budget_s: float, seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[HostTiming]:  # fmt: skip
    """Time GEMMs with BLAS as it is set: pin its threads first.

    Every GEMM gets the same share of the budget, in several passes, each in an order of its own. A GEMM that takes
    longer than its share still runs twice in each pass, until the budget is spent. One that never ran undisturbed is
    left out: threads that wait for each other take forty times as long when one of them lost its core.

    Raises:
        GemmEvalError: a product is wrong.
    """
    import numpy as np

    draws, order = np.random.default_rng(seed), random.Random(seed)
    samples: dict[HostShape, list[tuple[float, bool]]] = {shape: [] for shape in shapes}
    calls: dict[HostShape, int] = {}
    end = time.perf_counter() + budget_s
    for turn in range(_NUM_PASSES):
        say(f"{len(shapes)} GEMMs, pass {turn + 1} of {_NUM_PASSES}")
        todo = list(samples)
        order.shuffle(todo)
        num_left = len(todo) * (_NUM_PASSES - turn)
        for shape in todo:
            left_s = end - time.perf_counter()
            if left_s <= 0.0:
                break
            run, A, B, C = _make_product(shape, numpy_dtype(dtype), draws)
            once = _warm_up(run)
            if shape not in calls:
                calls[shape] = once
                check_product(A, B, C, draws)
            samples[shape] += _sample(run, calls[shape], left_s / num_left)
            num_left -= 1
    timed = (shape for shape in shapes if not all(is_disturbed for _, is_disturbed in samples[shape]))
    timings = [_summary(shape, samples[shape], calls[shape]) for shape in timed]
    return sorted(timings, key=lambda timing: (timing.shape.N, timing.shape.K, timing.shape.M))


def time_launch(dtype: str = "fp32") -> HostTiming:
    """Time the least of all GEMMs, 1 x 1 x 1: what a call costs before there is anything to do."""
    import numpy as np

    shape = HostShape(1, 1, 1)
    run, *_ = _make_product(shape, numpy_dtype(dtype), np.random.default_rng(0))
    calls = _warm_up(run)
    return _summary(shape, _sample(run, calls, _MAX_SAMPLES * _SAMPLE_S), calls)


def probe_speed(dtype: str = "fp32") -> float:
    """Return how many MACs a us a large GEMM does, about."""
    import numpy as np

    run, *_ = _make_product(_PROBE, numpy_dtype(dtype), np.random.default_rng(0))
    _warm_up(run)
    return _PROBE.num_macs / min(_sample(run, 1, 0.0))[0] / 1e6


def check_product(A: npt.NDArray[Any], B: npt.NDArray[Any], C: npt.NDArray[Any], draws: np.random.Generator) -> None:
    """Compare a few elements of C = A x B with their sums in twice the precision.

    The bound is that of any order of summation: K * eps * sum |a| * |b| (Higham 2002, section 3.1).

    Raises:
        GemmEvalError: one of them is farther off.
    """
    import numpy as np

    wide = np.float64 if C.dtype.itemsize < 8 else np.longdouble
    rows, columns = (draws.integers(size, size=_NUM_CHECKED) for size in C.shape)
    for row, column in zip(rows, columns, strict=True):
        a, b = A[row].astype(wide), B[:, column].astype(wide)
        bound = (len(a) + 2) * float(np.finfo(C.dtype).eps) * float(np.abs(a) @ np.abs(b))
        if not abs(float(C[row, column] - a @ b)) <= bound:
            raise GemmEvalError(
                f"numpy's BLAS is wrong: element ({row}, {column}) of a product of {A.shape} and {B.shape} is "
                f"{C[row, column]}, and must be {a @ b}"
            )


def _make_product(
    shape: HostShape, dtype: np.dtype[Any], draws: np.random.Generator
) -> tuple[Callable[[], Any], Any, Any, Any]:
    import numpy as np

    A = draws.random((shape.M, shape.K), dtype=dtype.type) - dtype.type(0.5)
    B = draws.random((shape.K, shape.N), dtype=dtype.type) - dtype.type(0.5)
    C = np.empty((shape.M, shape.N), dtype)
    return (lambda: np.matmul(A, B, out=C)), A, B, C


def _warm_up(run: Callable[[], Any]) -> int:
    """Run until caches and threads are warm; return how many runs make a sample."""
    begin = time.perf_counter()
    shortest = float("inf")
    while (now := time.perf_counter()) < begin + _WARMUP_S or shortest == float("inf"):
        run()
        shortest = min(shortest, time.perf_counter() - now)
    return max(1, int(_SAMPLE_S / max(shortest, 1e-7)))


def _sample(run: Callable[[], Any], num_calls: int, share_s: float) -> list[tuple[float, bool]]:
    """Return samples: seconds of one run, the mean of `num_calls`, and whether it was disturbed."""
    samples: list[tuple[float, bool]] = []
    num_good = 0
    clock, calls = time.perf_counter, range(num_calls)
    end = clock() + share_s
    while (num_good < _MIN_SAMPLES and len(samples) < _MAX_TRIES) or (clock() < end and num_good < _MAX_SAMPLES):
        switches = _num_switches()
        begin = clock()
        for _ in calls:
            run()
        seconds = clock() - begin
        is_disturbed = _num_switches() - switches > int(seconds / _SWITCH_EVERY_S)
        num_good += not is_disturbed
        samples.append((seconds / num_calls, is_disturbed))
    return samples


def _num_switches() -> int:
    """Return how often the system took a core from a thread of this process; always 0 where it does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _summary(shape: HostShape, samples: Sequence[tuple[float, bool]], num_calls: int) -> HostTiming:
    import numpy as np

    good = [seconds for seconds, is_disturbed in samples if not is_disturbed]
    counted = good or [seconds for seconds, _ in samples]
    low, middle, high = np.percentile(counted, (25, 50, 75)).tolist()
    times_us = middle * 1e6, min(counted) * 1e6
    return HostTiming(shape, *times_us, (high - low) / middle, len(counted), num_calls, len(samples) - len(good))


Kind = Literal["read", "copy"]
_WORD_BYTES = 8
_SMALLEST_BYTES = 16 << 10
_LARGEST_BYTES = 2 << 30
_MEMORY_SHARE = 8  # no more than this part of memory, twice for a copy
_READ_SAMPLE_S = 0.01
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
    for size, kind in itertools.product(sizes, kinds):
        if stop_at is not None and time.monotonic() > stop_at:
            break
        points.append(_time_stream(kind, size, num_threads, cpus))
    return points


def _time_stream(kind: Kind, size: int, num_threads: int, cpus: Sequence[int]) -> BandwidthPoint:
    import numpy as np

    barrier = threading.Barrier(num_threads)
    num_bytes, num_rounds = [0] * num_threads, [1] * num_threads

    def work(thread_index: int) -> list[tuple[float, float]]:
        """Return begin and end of each sample of a thread."""
        try:
            if cpus and hasattr(os, "sched_setaffinity"):
                with suppress(OSError):
                    os.sched_setaffinity(0, {cpus[thread_index]})  # 0: this thread
            stream, num_bytes[thread_index] = _make_stream(kind, size // num_threads)
            stream(1)  # compiles, and touches every page
            barrier.wait()
            begin = time.perf_counter()
            stream(1)
            num_rounds[thread_index] = max(1, math.ceil(_READ_SAMPLE_S / max(time.perf_counter() - begin, 1e-7)))
            barrier.wait()
            spans = []
            for _ in range(_NUM_SAMPLES):
                barrier.wait()
                begin = time.perf_counter()
                stream(min(num_rounds))
                spans.append((begin, time.perf_counter()))
            return spans
        except BaseException:  # whatever it is, the others must not wait for this thread
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(work, index) for index in range(num_threads)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:  # the first cause: the others broke off at the barrier
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    turns = zip(*(future.result() for future in futures), strict=True)
    seconds = [max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in turns]
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
        raise GemmEvalError("no GEMM ran undisturbed: other processes keep the cores busy; try again later")
    return HostMeasurement(facts, blas, dtype, tuple(points), launch, tuple(timings), len(shapes) - len(timings))
