"""Compiling many kernels at once, before a measurement: one process a core, for NVRTC keeps Python's lock."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from gemm_eval.arch import DeviceLimits
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import progress_bar
from gemm_eval.kernels import Variant, compile_for
from gemm_eval.storage import cache_dir

__all__ = ["build_all"]

_FEW = 4  # starting processes takes longer


def build_all(variants: Sequence[Variant], limits: DeviceLimits) -> None:
    """Compile kernels for a GPU into the cache on disk; without that, each is compiled when it is first used."""
    if cache_dir() is None:
        return
    workers = min(os.cpu_count() or 1, len(variants))
    with progress_bar(len(variants), "compiling kernels", None) as advance:
        if workers == 1 or len(variants) <= _FEW:
            for variant in variants:
                _compile(variant, limits)
                advance(1)
            return
        context = multiprocessing.get_context("spawn")  # a fork would inherit a driver that does not survive it
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            for future in as_completed([pool.submit(_compile, variant, limits) for variant in variants]):
                future.result()
                advance(1)


def _compile(variant: Variant, limits: DeviceLimits) -> None:
    with contextlib.suppress(GemmEvalError):  # said again when the kernel is bound
        compile_for(variant, limits)
