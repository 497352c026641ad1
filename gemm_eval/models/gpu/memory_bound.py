"""Kernels whose time is that of their bytes, and what kernels take more in a step.

OPERATIONS.md, "Memory-bound" and "In a step".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.models.gpu.calibration import Origin, SingleCalibration, cached_by_arch, transferred
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.correction_kernels import MEMORY_BOUND_FEATURES, describe_memory_bound
from gemm_eval.models.gpu.learned import Features, Learned, features_of, learned_for
from gemm_eval.units import bytes_per_us, cycles_per_us
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

_NUM_SIZES = 3  # bytes read and written, rows


def memory_bound_columns(sizes: Floats, latency_us: Floats) -> Floats:
    """Return the features of kernels, given the fields of `MemoryBoundRows` [rows, 6], and a last column of -inf."""
    x = np.empty((len(sizes), len(MEMORY_BOUND_FEATURES) + 1))
    describe_memory_bound(sizes, latency_us, x)
    return x


def memory_bound_features(rows: MemoryBoundRows, latency_us: Floats) -> Features:
    """Return what a correction knows of kernels [rows]: their sizes, kind, and latencies by the terms."""
    columns = memory_bound_columns(np.stack(rows, axis=1), latency_us)
    return features_of(MEMORY_BOUND_FEATURES, _NUM_SIZES, columns)


@cached_by_arch
def memory_bound_model(arch: GpuSpec, library: str) -> tuple[dict[str, float], Origin, Learned]:
    """Return the coefficients of a library's kernels on a GPU, where they come from, and what was learned of them."""
    coefficients, origin = memory_bound_coefficients(arch, library)
    learned = learned_for(
        arch, MEMORY_BOUND, library, origin, coefficients, MEMORY_BOUND_VERSION, MEMORY_BOUND_FEATURES
    )
    return coefficients, origin, learned


def memory_bound_us(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> Floats:
    """Return the times of kernels, [rows], in microseconds; arguments as of `memory_bound_terms`."""
    return np.sum(list(memory_bound_terms(arch, c, rows).values()), axis=0)


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
