"""Activations in the order of weights that were sorted by group (act-order): a kernel that gathers columns of A.

The text is in gather.cu, which is no source of a family: tables of kernels do not depend on it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy

from gemm_eval.arch import DeviceLimits
from gemm_eval.device import CompiledKernel, Rows, compile_text, runtime
from gemm_eval.kernels.families import ceil_div

__all__ = [
    "GATHER_ALIGNMENT_BYTES",
    "GatherLaunch",
    "compile_gather",
    "gather_bytes",
    "gather_columns",
    "gather_launch",
]

_ENTRY = "gemm_eval_gather"
_THREADS = 256
_CTAS_PER_SM = 4  # each with 64 registers a thread, which leaves room for loads in flight
_ELEM_BYTES = 2
_ROWS = 2  # that a CTA gathers at once
_VECTOR_ELEMS = 8
GATHER_ALIGNMENT_BYTES = 256
"""Where gathered activations begin in a workspace, and how long they are: multiples of this."""

_MAX_GRID_Y = 65_535


class GatherLaunch(NamedTuple):
    """How columns of a matrix are gathered on a GPU.

    Attributes:
        grid: parts of the columns, pairs of rows, 1.
        smem_bytes: of a CTA; 0: rows are not staged.
    """

    grid: tuple[int, int, int]
    smem_bytes: int


def gather_bytes(M: int, K: int) -> int:
    """Memory of gathered activations [M, K] of 16 bits, rounded up so that what follows is aligned."""
    return ceil_div(M * K * _ELEM_BYTES, GATHER_ALIGNMENT_BYTES) * GATHER_ALIGNMENT_BYTES


def gather_launch(M: int, K: int, limits: DeviceLimits) -> GatherLaunch:
    """Return how to gather [M, K]: CTAs fill the GPU once, and few rows are cut into parts of their columns."""
    row_bytes = _ROWS * _ELEM_BYTES * K
    smem_bytes = row_bytes if row_bytes <= limits.smem_per_cta_bytes else 0
    by_smem = limits.smem_per_sm_bytes // (smem_bytes + limits.smem_reserved_bytes) if smem_bytes else _CTAS_PER_SM
    room = limits.num_sms * max(1, min(by_smem, _CTAS_PER_SM))
    pairs = ceil_div(M, _ROWS)
    parts = min(ceil_div(K, _VECTOR_ELEMS * _THREADS), max(1, limits.num_sms // pairs))
    return GatherLaunch((parts, min(pairs, room, _MAX_GRID_Y), 1), smem_bytes)


def compile_gather(limits: DeviceLimits, *, is_staged: bool) -> CompiledKernel:
    """Compile the kernel for a GPU, or take it from the cache. Needs no GPU.

    Raises:
        GemmEvalError: CuPy or NVRTC is missing.
    """
    major, minor = limits.compute_capability
    macros = {"THREADS": _THREADS, "MIN_CTAS": _CTAS_PER_SM, "STAGED": int(is_staged)}
    return compile_text(_text(), _ENTRY, f"sm_{major}{minor}", macros)


def gather_columns(a: Rows, permutation: int, out: int, device: int, stream: int) -> Rows:
    """Queue out[m, j] = a[m, permutation[j]] on the current GPU, and return the rows of `out`.

    Args:
        a: matrix of 16-bit elements whose rows start at multiples of 16 bytes.
        permutation: address of 32-bit integers [K], at a multiple of 16 bytes.
        out: address of `gather_bytes`, at a multiple of 16 bytes.
        device: number of the current GPU.
        stream: handle of the stream.

    Raises:
        InvalidOptionError: the kernel is not loaded yet and a graph is captured.
        GemmEvalError: no CuPy or NVRTC, or the driver refuses the kernel.
    """
    limits = runtime.limits_of_device(device)
    launch = gather_launch(a.num_rows, a.num_columns, limits)
    compiled = compile_gather(limits, is_staged=launch.smem_bytes > 0)
    # One function for all sizes: shared memory beyond 48 KiB is asked for once.
    most = limits.smem_per_cta_bytes if launch.smem_bytes else 0
    function = runtime.load_function(compiled, device, most, stream)
    arguments = (
        numpy.uint64(a.address), numpy.uint64(permutation), numpy.uint64(out),
        numpy.int32(a.num_rows), numpy.int32(a.num_columns), numpy.int64(a.stride),
    )  # fmt: skip
    function(launch.grid, (_THREADS, 1, 1), arguments, launch.smem_bytes, runtime.StreamHandle(stream))
    return Rows(out, a.num_rows, a.num_columns, a.num_columns)


@cache
def _text() -> str:
    return Path(__file__).with_name("gather.cu").read_text("utf-8")
