"""Where chunks run: threads of this process, any `concurrent.futures` executor, or a Dask cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.words import shown

__all__ = ["Job", "Workers", "open_workers"]

Job = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""The number of a chunk, what is called, and with what."""

_AHEAD = 2  # chunks that wait for each worker, so that none is ever idle
_ASK_AGAIN_S = 5.0  # clusters grow and shrink


class Workers:
    """Runs jobs with few of them waiting, and hands over their results as they come.

    Args:
        executor: runs them.
        num_workers: says how many it runs at once.
        lost: errors that say that a worker is gone for good.
        more_arguments: what every job is given besides its own.
    """

    def __init__(
        self,
        executor: Executor,
        num_workers: Callable[[], int],
        *,
        lost: tuple[type[BaseException], ...] = (BrokenExecutor,),
        more_arguments: tuple[Any, ...] = (),
    ) -> None:
        self._executor = executor
        self._num_workers = num_workers
        self._lost = lost
        self._more_arguments = more_arguments

    def run(self, jobs: Iterator[Job]) -> Generator[tuple[int, Any], None, None]:
        """Yield (number, result) of each job, in the order they finish; what does not run yet is taken back at the end.

        Raises:
            GemmEvalError: the executor has lost a worker and cannot go on.
        """
        waiting: dict[Future[Any], int] = {}
        try:
            while True:
                while len(waiting) < (1 + _AHEAD) * self._num_workers():
                    job = next(jobs, None)
                    if job is None:
                        break
                    number, function, arguments = job
                    waiting[self._executor.submit(function, *arguments, *self._more_arguments)] = number
                if not waiting:
                    return
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                # what is good first: it is kept even if another has failed
                for future in sorted(done, key=lambda one: (one.exception() is not None, waiting[one])):
                    number = waiting.pop(future)
                    yield number, future.result()
        except self._lost as error:
            raise GemmEvalError(
                f"a worker of the executor died ({type(error).__name__}: {error}); what is done is kept if the sweep "
                "has a path: the same call, with an executor that works, goes on there"
            ) from error
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def open_workers(executor: Any, retries: int) -> Iterator[Workers]:
    """Yield workers of an executor; None: a thread for each core of this machine.

    Args:
        executor: a `concurrent.futures` executor, or a client of Dask, which gives work of lost workers to others.
        retries: how often Dask repeats a chunk that failed.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if executor is None:
        num, is_stopped = os.cpu_count() or 1, threading.Event()
        with ThreadPoolExecutor(num, thread_name_prefix="gemm_eval.sweep") as threads:
            try:
                yield Workers(threads, lambda: num, more_arguments=(is_stopped.is_set,))
            finally:
                is_stopped.set()
    elif hasattr(executor, "get_executor") and hasattr(executor, "nthreads"):
        with needs_extra("a Dask client", "sweep"):
            from distributed import KilledWorker

        with executor.get_executor(pure=False, retries=retries) as cluster:
            yield Workers(cluster, _NumThreads(executor), lost=(KilledWorker, BrokenExecutor))
    elif isinstance(executor, Executor):
        known = getattr(executor, "_max_workers", None)
        num = known if isinstance(known, int) else os.cpu_count() or 1
        yield Workers(executor, lambda: num)
    else:
        raise InvalidOptionError(
            f"executor must be None, a concurrent.futures executor or a Dask client, got {shown(executor)}"
        )


class _NumThreads:
    """How many threads a Dask cluster has now, asked for now and then."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._num = 0
        self._asked_s = 0.0

    def __call__(self) -> int:
        if not self._num or time.monotonic() - self._asked_s > _ASK_AGAIN_S:
            self._num = sum(self._client.nthreads().values()) or 1  # none yet: one chunk waits for the first
            self._asked_s = time.monotonic()
        return self._num
