"""Threads for batches of searches: the kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

_WORKERS = os.cpu_count() or 1
_CHUNKS_PER_WORKER = 8
_MIN_CHUNK, _MAX_CHUNK = 8, 256  # handing one to a thread takes as long as two searches


def run_in_chunks(
    work: Callable[[int, int], object], num: int, on_progress: Callable[[int], None] | None = None
) -> None:
    """Call `work(start, stop)` for chunks of 0..num on all cores; `on_progress`, in this thread, gets what is done."""
    chunk = max(_MIN_CHUNK, min(_MAX_CHUNK, num // (_CHUNKS_PER_WORKER * _WORKERS)))

    def run(start: int) -> int:
        stop = min(start + chunk, num)
        work(start, stop)
        return stop - start

    starts = range(0, num, chunk)
    done = map(run, starts) if num <= chunk else _pool().map(run, starts)
    for num_done in done:
        if on_progress is not None:
            on_progress(num_done)


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads of all batches of this process; they wait for work at no cost."""
    return ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="gemm_eval")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
