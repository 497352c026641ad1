"""Bandwidth of this machine's memories: how fast working sets of growing size are read, and copied."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from gemm_eval.measure.host.facts import HostFacts

__all__ = ["BandwidthPoint", "Kind", "measure_bandwidth", "stream_gb_per_s", "working_sets"]

Kind = Literal["read", "copy"]
_WORD_BYTES = 8
_SMALLEST_BYTES = 16 << 10
_LARGEST_BYTES = 2 << 30
_MEMORY_SHARE = 8  # no more than this part of memory, twice for a copy
_SAMPLE_S = 0.01
_NUM_SAMPLES = 5


class BandwidthPoint(NamedTuple):
    """How fast a working set was streamed, again and again.

    Attributes:
        kind: read, or copy, which reads one half and writes the other.
        num_threads: each with a part of its own.
        working_set_bytes: of all threads together.
        gb_per_s: 1e9 bytes/s, read and written, of all threads together; of the fastest sample, as STREAM has it.
        spread_frac: interquartile range of the samples over their median.
    """

    kind: Kind
    num_threads: int
    working_set_bytes: int
    gb_per_s: float
    spread_frac: float


def working_sets(facts: HostFacts, num_threads: int) -> list[int]:
    """Return sizes (bytes, of all threads together) from within the nearest cache to beyond the last, as memory allows.

    They are powers of two a thread; beyond the last cache means four times its size.
    """
    least = _SMALLEST_BYTES * num_threads
    beyond = 4 * max(facts.last_cache_bytes, 32 << 20)
    most = max(least, min(beyond, _LARGEST_BYTES, facts.memory_bytes // _MEMORY_SHARE))
    return [least << step for step in range(int(math.log2(most / least)) + 1)]


def measure_bandwidth(
    sizes: Sequence[int], num_threads: int, cpus: Sequence[int], kinds: Sequence[Kind] = ("read", "copy"),
    stop_at: float | None = None,
) -> list[BandwidthPoint]:  # fmt: skip
    """Stream working sets with threads of their own.

    Args:
        sizes: bytes of all threads together.
        num_threads: how many.
        cpus: logical CPUs for them, one each; empty: they are not pinned.
        kinds: read and copy.
        stop_at: of `time.monotonic`; sizes that are not begun by then are left out. None: no limit.
    """
    points: list[BandwidthPoint] = []
    for size in sizes:
        for kind in kinds:
            if stop_at is not None and time.monotonic() > stop_at:
                return points
            points.append(_measure(kind, size, num_threads, cpus))
    return points


def _measure(kind: Kind, size: int, num_threads: int, cpus: Sequence[int]) -> BandwidthPoint:
    import numpy as np

    barrier = threading.Barrier(num_threads)
    spans: list[list[tuple[float, float]]] = [[] for _ in range(num_threads)]
    num_bytes = [0] * num_threads
    num_rounds = [1] * num_threads
    failures: list[BaseException] = []

    def work(place: int) -> None:
        try:
            if cpus and hasattr(os, "sched_setaffinity"):
                with suppress(OSError):
                    os.sched_setaffinity(0, {cpus[place]})  # 0: this thread
            stream, num_bytes[place] = _make_stream(kind, size // num_threads)
            stream(1)  # compiles, and touches every page
            barrier.wait()
            begin = time.perf_counter()
            stream(1)
            num_rounds[place] = max(1, math.ceil(_SAMPLE_S / max(time.perf_counter() - begin, 1e-7)))
            barrier.wait()
            rounds = min(num_rounds)
            for _ in range(_NUM_SAMPLES):
                barrier.wait()
                begin = time.perf_counter()
                stream(rounds)
                spans[place].append((begin, time.perf_counter()))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # whatever it is, the others must not wait for this thread
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(num_threads)]
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
    """What streams a working set of `size` bytes so many times, and the bytes of it."""
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
    """Return the measured point whose working set is nearest to a size, by their ratio.

    Raises:
        ValueError: nothing was measured with so many threads.
    """
    fitting = [point for point in points if (point.kind, point.num_threads) == (kind, num_threads)]
    if not fitting:
        raise ValueError(f"no bandwidth of kind {kind} with {num_threads} threads was measured")
    return min(fitting, key=lambda point: abs(math.log(point.working_set_bytes / working_set_bytes)))
