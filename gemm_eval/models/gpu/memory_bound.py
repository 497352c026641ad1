"""Kernels whose time is that of their bytes, convolutions, and what kernels take more in a step.

MODEL.md, "Memory-bound" and "In a step"; TORCH.md, "Convolutions".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.calibration import Origin, SingleCalibration, cached_by_arch, transferred
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.learned import Features, Learned, features_of, learned_for, stacked
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us
from gemm_eval.workload import ENGINES, memory_kernel

Floats = npt.NDArray[np.float64]

_STEEP = 2  # of the way from all held to nothing held
_NORM = 4.0  # of what runs side by side: the longest with a little of the others


def missed_frac(held_bytes: Any, room_bytes: float, steep: float = _STEEP) -> Floats:
    """Return the share of bytes [rows] that L2 has lost when they are read again: a half where they fill the room.

    `steep` is of the edge between all and nothing, a power.
    """
    return 1.0 / (1.0 + (room_bytes / np.maximum(held_bytes, 1.0)) ** steep)


def l2_and_dram_us(
    arch: GpuSpec, num_bytes: Any, held_bytes: Any, *, hold_frac: float, l2_frac: float, dram_frac: float
) -> tuple[Floats, Floats]:
    """Return the times that L2 and DRAM take for bytes that SMs read and write, [rows] each.

    There must be room in `hold_frac` of L2 for `held_bytes`, the different ones; `l2_frac` and `dram_frac` are shares
    of the rates.
    """
    missed = missed_frac(held_bytes, hold_frac * arch.l2_bytes)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * l2_frac)
    dram_us = missed * np.minimum(held_bytes, num_bytes) / (bytes_per_us(arch.dram_gb_per_s) * dram_frac)
    return l2_us, dram_us


def in_turns(l2_us: Any, dram_us: Any) -> Floats:
    """Return the time of bytes that L2 and DRAM move in turns, [rows]: between the longer one and the sum."""
    return np.hypot(l2_us, dram_us)


def side_by_side(a: Any, b: Any) -> Floats:
    """Return the time of two things that overlap, [rows]: hardly more than the longer one, unless they are alike."""
    return (a**_NORM + b**_NORM) ** (1.0 / _NORM)


_SOURCE = "round, within what fits of an H200's timings gave (arch/calibration/h200-sxm/memory-bound.yaml)"


_item = partial(Coefficient, source=_SOURCE)

MEMORY_BOUND_COEFFICIENTS = (
    _item("start_us", "us", 0.0, 3.0, 0.1, FREE, "start and end of a kernel, beyond a node of a graph"),
    _item("trip_us", "us", 0.0, 3.0, 0.36, FREE, "a way to memory and back, of a row alone"),
    _item("warp_cycles", "cycles", 0.0, 400.0, 40.0, FREE, "to begin one more warp of a CTA"),
    _item("wave_us", "us", 0.1, 10.0, 2.4, FREE, "likewise, of threads that fill all SMs"),
    _item("sm_frac", "1", 0.05, 1.0, 0.47, NO_LIMIT, "share of 64 B a cycle that an SM reads and writes"),
    _item("l2_frac", "1", 0.1, 1.0, 0.5, NO_LIMIT, "share of the L2 bandwidth"),
    _item("dram_frac", "1", 0.5, 1.0, 0.88, SPEC, "share of the DRAM bandwidth"),
    _item("hold_frac", "1", 0.02, 2.0, 0.2, SPEC, "share of L2 in which a tensor outlives the kernel that wrote it"),
    _item("far_frac", "1", 0.0, 2.0, 0.0, FREE, "how much longer a way to memory of a row alone is where L2 missed"),
)
"""All of them, in the order of files."""

MEMORY_BOUND_VERSION = "memory-bound-5"


class MemoryBoundCalibration(SingleCalibration):
    """Coefficients of memory-bound kernels, as `gemm-eval calibrate memory-bound` writes them."""

    command: ClassVar[str] = "gemm-eval calibrate memory-bound"
    known: ClassVar[Sequence[Coefficient]] = MEMORY_BOUND_COEFFICIENTS
    model_version: str = Field(description="version of the model")


def memory_bound_calibration_path(gpu: str, library: str = ENGINES) -> Path:
    """Return where the calibration of a library's memory-bound kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / _file_name(library)


def _file_name(library: str) -> str:
    return "memory-bound.yaml" if library == ENGINES else f"memory-bound-{library}.yaml"


def memory_bound_coefficients(arch: GpuSpec, library: str = ENGINES) -> tuple[dict[str, float], Origin]:
    """Return all coefficients of a library's kernels on a GPU, and where they come from; see `transferred`."""
    return transferred(MemoryBoundCalibration, arch, _file_name(library))


MEMORY_BOUND_TERMS = {
    "launch_us": "start and end of the kernel in a CUDA graph",
    "row_us": "what rows, one after the other on an SM, and their ways to memory take beyond the bytes",
    "bytes_us": "bytes through L2, and through DRAM as far as L2 does not hold them from before",
}
"""Terms of the time, and what it goes to; they add up to it."""

_SM_BYTES_PER_CYCLE = 64  # between an SM and L2
_WARP_THREADS = 32
_LOAD_BYTES, _LOAD_ELEMENTS = 16, 8  # of a thread: the widest load, and 16-bit elements in it


class MemoryBoundRows(NamedTuple):
    """Kernels, as columns [rows]; each may also be one number."""

    read_bytes: Any  # each tensor once
    write_bytes: Any
    num_rows: Any  # that it works on, each by one CTA; 0: all SMs have as many bytes
    threads: Any  # of all its CTAs
    trips: Any  # as of a `MemoryKernel`, those of a thread's elements included
    loads: Any

    def take(self, mask: npt.NDArray[np.bool_]) -> MemoryBoundRows:
        """Return some of the kernels, of columns."""
        return MemoryBoundRows(*(column[mask] for column in self))


def memory_bound_row(
    what: str, read_bytes: float, write_bytes: float, num_rows: int, row_elements: int, *, is_dealt: bool | None = None
) -> MemoryBoundRows:
    """Return one kernel of so many rows, with so many elements in one tensor; 0: not known.

    `is_dealt`: elements are dealt to all SMs; None: as engines have such a kernel.
    """
    kernel = memory_kernel(what)
    dealt = kernel.is_dealt if is_dealt is None else is_dealt
    row_threads = kernel.row_threads or row_elements / _LOAD_ELEMENTS
    threads = num_rows * row_threads if num_rows and row_threads else max(read_bytes, write_bytes) / _LOAD_BYTES
    elements = row_elements / row_threads if row_threads else 0.0
    trips = kernel.trips + elements * kernel.element_trips
    loads = kernel.loads + elements * kernel.element_loads
    return MemoryBoundRows(read_bytes, write_bytes, 0 if dealt else num_rows, threads, trips, loads)


def memory_bound_terms(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> dict[str, Floats]:
    """Return the time of each of `MEMORY_BOUND_TERMS`, [rows], in microseconds."""
    num_bytes = np.asarray(rows.read_bytes, np.float64) + rows.write_bytes
    num_rows = np.where(np.asarray(rows.num_rows) > 0, rows.num_rows, arch.num_sms)
    per_us = cycles_per_us(arch.boost_clock_ghz)
    sm_rate = _SM_BYTES_PER_CYCLE * per_us * c["sm_frac"]
    fracs = {name: c[name] for name in ("hold_frac", "l2_frac", "dram_frac")}
    bytes_us = np.maximum(*l2_and_dram_us(arch, num_bytes, num_bytes, **fracs))
    threads = np.asarray(rows.threads, np.float64)
    warps_us = threads / num_rows / _WARP_THREADS * (c["warp_cycles"] / per_us)
    trips = np.asarray(rows.trips, np.float64)
    missed = missed_frac(num_bytes, c["hold_frac"] * arch.l2_bytes)
    trip_us = c["trip_us"] * (1.0 + c.get("far_frac", 0.0) * missed)
    row_us = np.maximum(trips, 0.0) * trip_us + warps_us + num_bytes / num_rows / sm_rate
    waves = threads / (arch.max_threads_per_sm * arch.num_sms)
    main_us = side_by_side(side_by_side(row_us, bytes_us), waves * rows.loads * c["wave_us"])
    return {
        "launch_us": arch.graph_node_us + c["start_us"] + np.minimum(trips, 0.0) * c["trip_us"],
        "row_us": main_us - bytes_us,
        "bytes_us": bytes_us,
    }


MEMORY_BOUND = "memory-bound"
"""Name of the subject, in files of what was learned of it."""

_LEAST = 1e-3  # of what a logarithm is taken of
_FEATURES = (*MemoryBoundRows._fields, "row_threads", "row_bytes", "latency")
_NUM_SIZES = 3  # bytes read and written, rows


def memory_bound_columns(rows: MemoryBoundRows, latency_us: Floats) -> Floats:
    """Return `memory_bound_features` side by side, with one more column: `stacked`."""
    num_rows = np.maximum(rows.num_rows, 1.0)
    x = stacked([*rows, rows.threads / num_rows, (rows.read_bytes + rows.write_bytes) / num_rows, latency_us])
    x[:, :-1] = np.log2(np.maximum(x[:, :-1], _LEAST))
    return x


def memory_bound_features(rows: MemoryBoundRows, latency_us: Floats) -> Features:
    """Return what a correction knows of kernels [rows]: their sizes, kind, and latencies by the terms."""
    return features_of(_FEATURES, _NUM_SIZES, memory_bound_columns(rows, latency_us))


@cached_by_arch
def memory_bound_model(arch: GpuSpec, library: str) -> tuple[dict[str, float], Origin, Learned]:
    """Return the coefficients of a library's kernels on a GPU, where they come from, and what was learned of them."""
    coefficients, origin = memory_bound_coefficients(arch, library)
    learned = learned_for(arch, MEMORY_BOUND, library, origin, coefficients, MEMORY_BOUND_VERSION, _FEATURES)
    return coefficients, origin, learned


def memory_bound_us(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> Floats:
    """Return the times of kernels, [rows], in microseconds; arguments as of `memory_bound_terms`."""
    return np.sum(list(memory_bound_terms(arch, c, rows).values()), axis=0)


_START_CYCLES, _WAVE_CYCLES = 5800.0, 7600.0
"""Of an implicit GEMM: before its first tile, and around the reduction of a tile of 128 x 128."""
_RATE_FRAC = 0.97
_STEP_BYTES, _BITS_PER_BYTE = 128, 8
_TILES = ((256, 128, 1.6, 0.95), (128, 128, 1.0, 1.0), (128, 64, 0.7, 1.2), (64, 64, 0.5, 1.5))
"""Rows and columns of C, time around the reduction, and time of a step for each FLOP, both over those of 128 x 128."""

_FEW_TILE_M, _FEW_CTAS = 128, 2
_FEW_CYCLES = {64: 630.0, 128: 1100.0}
"""Of a place of the window, by columns of a tile: a load of 16 bytes holds all channels of one place."""
_FEW_ALONE_CYCLES, _FEW_ALONE_FRAC = 570.0, 2 / 3
"""Likewise, where tiles are at most this share of the SMs: 0.55 of them were timed so, and 0.82 were not."""
_MAX_CUDA_CORE_K, _MAX_CUDA_CORE_M, _MAX_CUDA_CORE_N = 64, 1 << 14, 256
"""Of larger K, CUDA cores take channels first alone, of no more positions and filters than these."""
_CUDA_CORE_TILE = 32
_CUDA_CORE_START_CYCLES, _CUDA_CORE_TILE_CYCLES, _CUDA_CORE_K_CYCLES, _CUDA_CORE_ALONE_CYCLES = (
    1800.0,
    460.0,
    25.0,
    145.0,
)
"""Before the first tile; of an SM for each tile, and for each place and channel of it; of a CTA alone for these."""

_BUILT_WINDOWS = (1, 9, 25)
_FIRST_CYCLES, _FIRST_TAP_CYCLES, _GENERIC_TAP_CYCLES = 1.2, 0.12, 0.175
_LAST_CYCLES, _LAST_TAP_CYCLES = 3700.0, 0.046
_TILED_CYCLES = 0.8
"""Of an SM, for each output of a depthwise convolution and each place of its window."""


def implicit_gemm_us(arch: GpuSpec, M: int, N: int, window: int, channels: int, dtype: DType) -> float:
    """Return the time of a convolution on tensor cores whose channels lie side by side, in microseconds.

    Waves of tiles, each a reduction over the places of the window and 128 bytes of channels; the best tile counts. M
    are positions of the output in all images, N filters.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    flop_per_us = arch.peak_tflop_per_s(dtype) * 1e6 / arch.num_sms * _RATE_FRAC
    item_bytes = math.ceil(dtype.bits / _BITS_PER_BYTE)
    steps, step_elements = window * math.ceil(channels * item_bytes / _STEP_BYTES), _STEP_BYTES / item_bytes
    times = []
    for tile_m, tile_n, around, slower in _TILES:
        waves = math.ceil(math.ceil(M / tile_m) * math.ceil(N / tile_n) / arch.num_sms)
        step_us = FLOP_PER_MAC * tile_m * tile_n * step_elements / flop_per_us * slower
        times.append(waves * (around * _WAVE_CYCLES / per_us + steps * step_us))
    return arch.graph_node_us + _START_CYCLES / per_us + min(times)


def has_few_channels_on_cuda_cores(M: int, N: int, K: int, *, is_channels_first: bool) -> bool:
    """Say whether cuDNN takes no tensor cores for a first layer, of K = window x channels."""
    return K <= _MAX_CUDA_CORE_K or (is_channels_first and M <= _MAX_CUDA_CORE_M and N <= _MAX_CUDA_CORE_N)


def few_channels_us(arch: GpuSpec, M: int, N: int, K: int, window: int, *, is_channels_first: bool) -> float:
    """Return the time of a first layer, whose channels are less than 16 bytes, in microseconds."""
    per_us = cycles_per_us(arch.boost_clock_ghz)
    if has_few_channels_on_cuda_cores(M, N, K, is_channels_first=is_channels_first):
        tiles = math.ceil(M / _CUDA_CORE_TILE) * math.ceil(N / _CUDA_CORE_TILE)
        busy = tiles / arch.num_sms * (_CUDA_CORE_TILE_CYCLES + K * _CUDA_CORE_K_CYCLES)
        cycles = _CUDA_CORE_START_CYCLES + max(busy, K * _CUDA_CORE_ALONE_CYCLES)
        return arch.graph_node_us + cycles / per_us
    tile_n = min(_FEW_CYCLES) if min(_FEW_CYCLES) >= N else max(_FEW_CYCLES)
    tiles = math.ceil(M / _FEW_TILE_M) * math.ceil(N / tile_n)
    step_cycles = max(_FEW_ALONE_CYCLES, tiles / (_FEW_CTAS * arch.num_sms) * _FEW_CYCLES[tile_n])
    if tiles > arch.num_sms * _FEW_ALONE_FRAC:
        step_cycles = max(step_cycles, _FEW_CYCLES[tile_n])
    return arch.graph_node_us + window * step_cycles / per_us


def depthwise_us(
    arch: GpuSpec, num_outputs: int, window: int, *, is_channels_first: bool, is_tiled: bool = False
) -> float:
    """Return the time of a depthwise convolution, in microseconds.

    With channels first it is a kernel of PyTorch's, a thread for each output, or cuDNN's that keeps planes in shared
    memory (`is_tiled`); else cuDNN's for channels side by side.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    if is_tiled:
        return arch.graph_node_us + num_outputs * _TILED_CYCLES / arch.num_sms / per_us
    if not is_channels_first:
        cycles = _LAST_CYCLES + num_outputs * window * _LAST_TAP_CYCLES / arch.num_sms
    elif window in _BUILT_WINDOWS:
        cycles = num_outputs * (_FIRST_CYCLES + window * _FIRST_TAP_CYCLES) / arch.num_sms
    else:
        cycles = num_outputs * window * _GENERIC_TAP_CYCLES / arch.num_sms
    return arch.graph_node_us + cycles / per_us


_SWITCH_SOURCE = (
    "round, of what a fit of 30 layers of an H200 gives (arch/measured/h200-sxm/switches; `validate stacks`)"
)

_switch = partial(Coefficient, source=_SWITCH_SOURCE)

SWITCH_COEFFICIENTS = (
    _switch("code_cycles", "cycles", 0.0, 4000.0, 394.0, FREE, "code that comes from L2, as other kernels ran since"),
    _switch("input_cycles", "cycles", 0.0, 6000.0, 2080.0, FREE, "inputs of many rows that other SMs just wrote"),
    _switch("half_rows", "1", 1.0, 200.0, 36.5, FREE, "rows that cost half of that"),
)
"""All of them."""

SWITCH_DEFAULTS = {item.name: item.default for item in SWITCH_COEFFICIENTS}

_MOST_ROWS = 64  # that were timed: more cost as many


def switch_us(arch: GpuSpec, num_rows: Any, c: Mapping[str, float] = SWITCH_DEFAULTS) -> Any:
    """Return how much longer a GEMM or attention of so many rows takes between other kernels, in microseconds."""
    rows = np.minimum(num_rows, _MOST_ROWS)
    cycles = c["code_cycles"] + c["input_cycles"] * rows / (rows + c["half_rows"])
    return cycles / cycles_per_us(arch.boost_clock_ghz)
