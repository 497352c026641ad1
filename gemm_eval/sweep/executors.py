"""Where chunks run: threads of this process, any `concurrent.futures` executor, or a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from gemm_eval.errors import GemmEvalError, InvalidOptionError

__all__ = ["Workers", "open_workers"]

_AHEAD = 2  # chunks that wait for each worker, so that none is ever idle


class Workers:
    """Runs jobs with few of them waiting, and hands over their results as they come.

    Args:
        executor: runs them.
        num_workers: how many it runs at once.
    """

    def __init__(self, executor: Executor, num_workers: int) -> None:
        self._executor = executor
        self.num_workers = num_workers

    def run(self, jobs: Iterator[tuple[int, Callable[..., Any], tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """Yield (number, result) of each job (number, function, arguments), in the order they finish.

        Raises:
            GemmEvalError: the executor has lost a worker and cannot go on.
        """
        waiting: dict[Future[Any], int] = {}
        try:
            while True:
                while len(waiting) < (1 + _AHEAD) * self.num_workers:
                    job = next(jobs, None)
                    if job is None:
                        break
                    number, function, arguments = job
                    waiting[self._executor.submit(function, *arguments)] = number
                if not waiting:
                    return
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=waiting.__getitem__):
                    number = waiting.pop(future)
                    yield number, future.result()
        except BrokenExecutor as error:
            raise GemmEvalError(
                f"a worker of the executor died ({error}); with a path, what is done is kept, and the same call goes on"
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
        num = os.cpu_count() or 1
        with ThreadPoolExecutor(num, thread_name_prefix="gemm_eval.sweep") as threads:
            yield Workers(threads, num)
    elif hasattr(executor, "get_executor") and hasattr(executor, "nthreads"):
        num = sum(executor.nthreads().values()) or 1
        yield Workers(executor.get_executor(pure=False, retries=retries), num)
    elif isinstance(executor, Executor):
        yield Workers(executor, getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
    else:
        raise InvalidOptionError(
            f"executor must be None, a concurrent.futures executor or a Dask client, got {executor!r}"
        )
