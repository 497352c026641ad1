"""Kernels whose time is that of their bytes: norms, activations, positions, copies. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.models.gpu.calibration import Origin, SingleCalibration, transferred
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient, Neutral
from gemm_eval.models.gpu.traffic import missed_frac, side_by_side
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import ENGINES, memory_kernel

Floats = npt.NDArray[np.float64]

_SOURCE = "round, within what fits of an H200's timings gave (arch/calibration/h200-sxm/memory-bound.yaml)"


def _item(name: str, unit: str, low: float, high: float, default: float, neutral: Neutral, meaning: str) -> Coefficient:
    return Coefficient(name, unit, low, high, default, neutral, meaning, _SOURCE)


MEMORY_BOUND_COEFFICIENTS = (
    _item("start_us", "us", 0.0, 3.0, 0.1, FREE, "start and end of a kernel, beyond a node of a graph"),
    _item("trip_us", "us", 0.0, 3.0, 0.36, FREE, "a way to memory and back, of a row alone"),
    _item("warp_cycles", "cycles", 0.0, 400.0, 40.0, FREE, "to begin one more warp of a CTA"),
    _item("wave_us", "us", 0.1, 10.0, 2.4, FREE, "likewise, of threads that fill all SMs"),
    _item("sm_frac", "1", 0.05, 1.0, 0.47, NO_LIMIT, "share of 64 B a cycle that an SM reads and writes"),
    _item("l2_frac", "1", 0.1, 1.0, 0.5, NO_LIMIT, "share of the L2 bandwidth"),
    _item("dram_frac", "1", 0.5, 1.0, 0.88, SPEC, "share of the DRAM bandwidth"),
    _item("hold_frac", "1", 0.02, 2.0, 0.2, SPEC, "share of L2 in which a tensor outlives the kernel that wrote it"),
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
    """Kernels, as columns; each may also be one number.

    Attributes:
        read_bytes, write_bytes: [rows], of a kernel, each tensor once.
        trips, loads: [rows], as of a `MemoryKernel`, those of a thread's elements included.
    """

    read_bytes: Any
    write_bytes: Any
    num_rows: Any  # [rows], that it works on, each by one CTA; 0: all SMs have as many bytes
    threads: Any  # [rows], of all its CTAs
    trips: Any
    loads: Any

    def take(self, mask: npt.NDArray[np.bool_]) -> MemoryBoundRows:
        """Return some of the kernels, of columns."""
        return MemoryBoundRows(*(column[mask] for column in self))


def memory_bound_row(
    what: str, read_bytes: float, write_bytes: float, num_rows: int, row_elements: int, *, is_dealt: bool | None = None
) -> MemoryBoundRows:
    """Return one kernel.

    Args:
        what: its name; see `memory_kernel`.
        read_bytes, write_bytes: of it, each tensor once.
        num_rows, row_elements: rows, and elements of one in one tensor; 0: not known.
        is_dealt: elements are dealt to all SMs; None: as engines have such a kernel.
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
    """Return the time of each of `MEMORY_BOUND_TERMS`, [rows], in microseconds.

    Args:
        arch: the GPU.
        c: values of `MEMORY_BOUND_COEFFICIENTS`.
        rows: the kernels.
    """
    num_bytes = np.asarray(rows.read_bytes, np.float64) + rows.write_bytes
    num_rows = np.where(np.asarray(rows.num_rows) > 0, rows.num_rows, arch.num_sms)
    per_us = cycles_per_us(arch.boost_clock_ghz)
    sm_rate = _SM_BYTES_PER_CYCLE * per_us * c["sm_frac"]
    missed = missed_frac(num_bytes, c["hold_frac"] * arch.l2_bytes)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * c["l2_frac"])
    dram_us = missed * num_bytes / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"])
    bytes_us = np.maximum(l2_us, dram_us)
    threads = np.asarray(rows.threads, np.float64)
    warps_us = threads / num_rows / _WARP_THREADS * (c["warp_cycles"] / per_us)
    row_us = rows.trips * c["trip_us"] + warps_us + num_bytes / num_rows / sm_rate
    waves = threads / (arch.max_threads_per_sm * arch.num_sms)
    main_us = side_by_side(side_by_side(row_us, bytes_us), waves * rows.loads * c["wave_us"])
    return {
        "launch_us": np.full_like(num_bytes, arch.graph_node_us + c["start_us"]),
        "row_us": main_us - bytes_us,
        "bytes_us": bytes_us,
    }


def memory_bound_us(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> Floats:
    """Return the times of kernels, [rows], in microseconds; arguments as of `memory_bound_terms`."""
    found: Floats = np.sum(list(memory_bound_terms(arch, c, rows).values()), axis=0)
    return found
