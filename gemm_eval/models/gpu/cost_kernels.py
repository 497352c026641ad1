"""Parts of the numba kernels of all kernel families: the records, the clock under load, and how a cost is written.

Times are in microseconds, sizes in bytes, `_cycles` at the highest SM clock; MODEL.md defines the terms.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.terms import BOUNDS, RESOURCES, SM, TERMS, Times

_INTS = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "decomposition", "split_k", "raster_order", "raster_swizzle",
    "ctas_per_sm", "active_sms", "num_ctas", "num_tiles", "num_waves", "smem_bytes", "registers",
    "dram_bytes", "dram_a_bytes", "dram_b_bytes", "dram_scale_bytes", "dram_c_bytes", "bound",
    "num_candidates", "num_bounded", "is_calibrated",
)  # fmt: skip
_TOTALS = ("latency_us", "compute_us")
_REST = ("hidden_us", "last_wave_frac", "tensor_busy_frac", "physics_us", "correction_factor", "correction_trust")

GPU_COST_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS] + [(name, np.float64) for name in (*_TOTALS, *Times._fields, *_REST)]
)
"""The cost of one kernel config. Bytes are chip totals, `smem_bytes` those of one SM; `bound` indexes `BOUNDS`.

`physics_us` is the sum of the terms. `correction_factor`, 1 where nothing is corrected, is that of the GEMM: its
corrected latency over the least by the terms, that of another config where the correction chose this one;
`correction_trust` is 1 amid the data of the correction, and falls to 0 outside. `is_calibrated` is `AS_PRESET` where
coefficients were fitted on the preset that a spec was changed from, whose correction it takes.
"""
AS_PRESET = 2

KERNEL_COST_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS]
    + [(name, np.float64) for name in _TOTALS]
    + [("times_us", np.float64, (len(Times._fields),))]
    + [(name, np.float64) for name in _REST]
)
"""The same bytes as numba kernels see them, the terms in a row."""

_BOUND_CODE = {name: code for code, name in enumerate(BOUNDS)}
_COMPUTE, _DEQUANT, _LATENCY = (_BOUND_CODE[name] for name in ("compute", "dequant", "latency"))
_NO_RESOURCE = -1
_RESOURCE_OF = tuple(
    RESOURCES.index(TERMS[name].resource) if TERMS[name].resource else _NO_RESOURCE for name in Times._fields
)
_BOUND_OF_RESOURCE = tuple(_LATENCY if name == SM else _BOUND_CODE[name] for name in RESOURCES)
_SM = RESOURCES.index(SM)

COLD, WARM, ALL_COLD = range(3)
"""What L2 holds at the start, `l2_state` of a record: all but the weights, everything, nothing; as far as it can."""

_DATA_PARALLEL, _SPLIT_K, _STREAM_K = range(3)  # as `Decomposition`
PINGPONG, COOPERATIVE, MULTISTAGE, VECTOR = range(4)
"""Codes of `Schedule`."""
STREAM_K = 0
"""Instead of a number of parts of K: k-steps are shared evenly."""
BEST_RASTER = -1
NO_RASTER = -2
"""As if L2 held all of A and B: no raster is better."""
RASTER_CODE = 100
"""A raster is coded as order * RASTER_CODE + swizzle."""
BOUND_SLACK = 1.0 - 1e-9
"""Rounding may differ between a bound and a cost."""
_BURST_US = 1e3  # of load that the burst clock is that of; timings replay short kernels for about as long
_CLOCK_FALL_US = 5e3  # time constant from there to the sustained clock: cuBLAS and our kernels on an H200, see MODEL.md
ROW_BYTES = 16
"""What rows have to start on for TMA, and for the widest loads of a thread (CUDA C++ Programming Guide, 16 bytes)."""
NARROW_BYTES = 4
"""What rows have to start on for the narrowest asynchronous copies (PTX ISA, cp.async: 4, 8 or 16 bytes)."""
ODD_COLUMNS = 8
"""In the place of such bytes: rows start on 16, but N is no multiple of the columns that a library wants."""
SM_L2_BYTES_PER_CYCLE = 64.0
"""What an SM can take in from L2 (NVIDIA, "Dissecting the Ampere GPU architecture", GTC 2021: 64 B/clk/SM)."""


class ProblemTerms(NamedTuple):
    """Demands of a problem on the chip, whatever the config.

    G GEMMs of M rows each; or groups that have rows: G of them, the largest of M, and `group_rows` tells the others.
    """

    G: int
    M: int
    K: int
    N: int
    a_bytes: float
    b_bytes: float  # packed weights without scales
    scale_bytes: float
    c_bytes: float
    stay_frac: float  # share of a buffer, used by the call before, that L2 still holds
    a_read_bytes: float  # compulsory DRAM reads of A, B (with scales)
    b_read_bytes: float
    l2_hold_frac: float  # share of A and B of one GEMM of a batch that L2 can hold
    line_waste: float  # L2 requests per line that is needed
    load_frac: float  # rate of loads over that of 16-byte ones; below 1 rows do not start on 16 bytes
    quantize_us: float  # kernels before the GEMM: they quantize A,
    cast_us: float  # and cast its scale
    rows: int  # of A and C, of all groups
    group_rows: Any  # [sizes], rows of groups, the most first
    group_counts: Any  # [sizes], how many groups have so many
    is_grouped: bool  # given as groups of rows, which kernels of groups run, also where all have as many


class ConfigCost(NamedTuple):
    """Times in us and counts of one config; see MODEL.md."""

    latency_us: float
    times: Times
    main_us: float
    tensor_busy_frac: float
    dram_read_bytes: float
    num_ctas: int
    num_tiles: int
    num_waves: int
    last_wave_ctas: int
    active_sms: int
    raster: int


class CostRules(NamedTuple):
    """Functions that a search needs of kernels; numba compiles it for them.

    `p` is a record of `GPU_PARAMS_DTYPE`, `row` of `CANDIDATE_DTYPE`, `c` of `COEFFICIENTS_DTYPE`, those of the row's
    family; `split` is a number of parts of K, or `STREAM_K`.

    Attributes:
        list_splits: (p, row, t, splits) -> how many ways to split K there are, which it writes to `splits`, the best of
            equal ones first.
        row_bounds_us: (p, c, t, columns, first, bounds), `c` those of all sets: writes to `bounds` [num] times that
            kernels from `first` on cannot beat however K is split; `columns` [columns, rows] is what was packed for it.
        is_beaten: (p, row, columns, index, c, t, split, best_us) -> whether the time is more than `best_us` for sure,
            which is cheaper to find out; `index` that of the row in `columns`.
    """

    problem_terms: Any  # (p, c, K, N, group_rows, group_counts) -> `ProblemTerms`, with the first of the coefficients
    list_splits: Any
    row_bounds_us: Any
    is_beaten: Any
    latency_below_us: Any  # (p, row, c, t, split, best_us) -> the time, or inf where it is not below `best_us`
    config_cost: Any  # (p, row, c, t, split, raster) -> `ConfigCost`


@kernel
def ceil_div(a: int, b: int) -> int:
    """ceil(a / b), faster than by integers, and exact: a <= 2**40 and b < 2**12 leave room for rounding."""
    return int(np.ceil(a / b))


@kernel
def loaded_time_us(p: Any, main_us: float, matrix_us: float, power: float) -> float:
    """Time of a main loop of `main_us` at the highest clock, `matrix_us` of it on tensor cores, which pull it down.

    `power` is what the clock yields for, in what tensor cores alone take: 1 or more.

    A kernel longer than the bursts that the burst clock was measured in has a power controller against it: the clock
    under load falls to the sustained one, exponentially. No kernel is faster than its tensor work alone at the clock
    under full load: else one that waits for memory, so that the clock yields less, could be done sooner.
    """
    clock = p["tensor_cycles_per_us"]
    if main_us > _BURST_US:
        floor = min(clock, p["sustained_cycles_per_us"])
        clock = floor + (clock - floor) * math.exp((_BURST_US - main_us) / _CLOCK_FALL_US)
    tensor_busy = min(1.0, matrix_us / main_us)
    slow = (p["cycles_per_us"] - clock) * tensor_busy * tensor_busy
    yielding_us = power * matrix_us * (slow / (p["cycles_per_us"] - slow))
    return float(max(main_us + yielding_us, matrix_us * (1.0 + power * (p["cycles_per_us"] / clock - 1.0))))


@kernel
def _bound_of(times: Times) -> int:
    """Return the resource whose terms are the longest; where it is the SMs, their largest part gives the name."""
    bound, longest = 0, -1.0
    for resource in range(len(_BOUND_OF_RESOURCE)):
        total = 0.0
        for place in range(len(times)):
            if _RESOURCE_OF[place] == resource:
                total += times[place]
        if total > longest:
            bound, longest = resource, total
    if bound == _SM:
        if times.dequant_us > max(times.matrix_us, times.step_wait_us):
            return _DEQUANT
        if times.matrix_us >= 0.5 * longest:
            return _COMPUTE
    return _BOUND_OF_RESOURCE[bound]


@kernel
def write_record(p: Any, row: Any, t: ProblemTerms, split: int, c: ConfigCost, out: Any) -> None:
    """Write a cost to a record of `KERNEL_COST_DTYPE`; the counts of a search stay as they are."""
    out["family"] = row["family"]
    out["cta_m"] = row["cta_m"]
    out["cta_n"] = row["cta_n"]
    out["cta_k"] = row["cta_k"]
    out["cluster_m"] = row["cluster_m"]
    out["cluster_n"] = row["cluster_n"]
    out["num_warps"] = row["num_warps"]
    out["num_stages"] = row["num_stages"]
    out["schedule"] = row["schedule"]
    out["decomposition"] = _STREAM_K if split == STREAM_K else (_SPLIT_K if split > 1 else _DATA_PARALLEL)
    out["split_k"] = max(1, split)
    out["raster_order"] = c.raster // RASTER_CODE
    out["raster_swizzle"] = c.raster % RASTER_CODE
    out["ctas_per_sm"] = row["ctas_per_sm"]
    out["active_sms"] = c.active_sms
    out["num_ctas"] = c.num_ctas
    out["num_tiles"] = c.num_tiles
    out["num_waves"] = c.num_waves
    out["smem_bytes"] = row["smem_bytes"] * min(row["ctas_per_sm"], ceil_div(c.num_ctas, c.active_sms))
    out["registers"] = row["registers"]
    extra = c.dram_read_bytes - t.a_read_bytes - t.b_read_bytes
    both = max(1.0, t.a_bytes + t.b_bytes + t.scale_bytes)
    scale_share = t.scale_bytes / max(1.0, t.b_bytes + t.scale_bytes)
    b_read = t.b_read_bytes + extra * (t.b_bytes + t.scale_bytes) / both
    a = int(t.a_read_bytes + extra * t.a_bytes / both + 0.5)
    scale = int(b_read * scale_share + 0.5)
    b = int(b_read + 0.5) - scale
    stored = int(t.c_bytes * (1.0 - t.stay_frac) + 0.5)
    out["dram_a_bytes"] = a
    out["dram_b_bytes"] = b
    out["dram_scale_bytes"] = scale
    out["dram_c_bytes"] = stored
    out["dram_bytes"] = a + b + scale + stored
    out["bound"] = _bound_of(c.times)
    out["is_calibrated"] = p["is_calibrated"]
    out["latency_us"] = c.latency_us
    out["compute_us"] = c.times.matrix_us + c.times.dequant_us
    shown = 0.0
    for place in range(len(c.times)):
        out["times_us"][place] = c.times[place]
        shown += c.times[place]
    out["hidden_us"] = min(0.0, c.latency_us - shown)
    out["last_wave_frac"] = c.last_wave_ctas / row["grid_cap"]
    out["tensor_busy_frac"] = c.tensor_busy_frac
    out["physics_us"] = c.latency_us
    out["correction_factor"] = 1.0
    out["correction_trust"] = 0.0
