"""The BLAS that numpy calls: which it is, and how many threads on which cores it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra

__all__ = ["BlasInfo", "blas_info", "pinned_blas"]

_THREADS = Path("/proc/self/task")
_UNCONTROLLED = 0


class BlasInfo(NamedTuple):
    """The library behind ``numpy.matmul``.

    Attributes:
        name: such as openblas or mkl.
        version: of it, as far as it says one.
        kernels: which cores it takes its kernels for, such as SkylakeX; empty: it does not say.
        numpy_version: of numpy.
        max_threads: that it would run now; 0: it does not let itself be asked, nor limited.
    """

    name: str
    version: str
    kernels: str
    numpy_version: str
    max_threads: int

    def __str__(self) -> str:
        kernels = f" ({self.kernels} kernels)" if self.kernels else ""
        return f"numpy {self.numpy_version}, {self.name} {self.version}{kernels}"


def blas_info() -> BlasInfo:
    """Return what there is to know of numpy's BLAS.

    Raises:
        GemmEvalError: threadpoolctl is not installed.
    """
    with needs_extra("measuring this machine", "host"):
        from threadpoolctl import threadpool_info
    import numpy as np

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)  # it may be loaded at its first use
    loaded = [info for info in threadpool_info() if info.get("user_api") == "blas"]
    # another package may bring a BLAS of its own
    own = [info for info in loaded if "numpy" in Path(info["filepath"]).parent.name] or loaded
    if own:
        info = own[0]
        version = info.get("version") or "of unknown version"
        return BlasInfo(
            info["internal_api"], version, info.get("architecture") or "", np.__version__, info["num_threads"]
        )
    built: object = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {}) if isinstance(built, dict) else {}
    return BlasInfo(blas.get("name", "unknown"), blas.get("version", ""), "", np.__version__, _UNCONTROLLED)


@contextmanager
def pinned_blas(num_threads: int, cpus: Sequence[int]) -> Iterator[None]:
    """Limit BLAS to so many threads, and all threads of this process to these CPUs; as it was, afterwards.

    Args:
        num_threads: of BLAS.
        cpus: logical CPUs, one of each core, at least as many as threads; empty: the system cannot pin.

    Raises:
        InvalidOptionError: BLAS does not run so many threads, or does not let them be limited.
    """
    with needs_extra("measuring this machine", "host"):
        from threadpoolctl import threadpool_limits

    info = blas_info()
    if info.max_threads == _UNCONTROLLED:
        if cpus and num_threads < len(cpus):
            raise InvalidOptionError(
                f"numpy's BLAS here ({info.name}) cannot be limited to {num_threads} threads: leave out --threads"
            )
        yield
        return
    with threadpool_limits(limits=num_threads, user_api="blas"):
        if (running := blas_info().max_threads) < num_threads:
            raise InvalidOptionError(
                f"numpy's BLAS runs at most {running} threads here, got --threads {num_threads}: "
                "see its environment variables, such as OPENBLAS_NUM_THREADS"
            )
        before = _masks()
        try:
            _pin(set(before), set(cpus[:num_threads]))
            yield
        finally:
            for thread, mask in before.items():
                _pin({thread}, mask)


def _masks() -> dict[int, set[int]]:
    """CPUs that each thread of this process may run on; empty where threads cannot be pinned."""
    if not (hasattr(os, "sched_getaffinity") and _THREADS.is_dir()):
        return {}
    found = {}
    for thread in map(int, os.listdir(_THREADS)):  # noqa: PTH208  names are all that is needed
        with suppress(OSError):  # it has ended
            found[thread] = os.sched_getaffinity(thread)
    return found


def _pin(threads: set[int], cpus: set[int]) -> None:
    for thread in threads if cpus else ():
        with suppress(OSError):
            os.sched_setaffinity(thread, cpus)
