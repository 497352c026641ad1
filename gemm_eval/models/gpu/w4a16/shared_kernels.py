"""What the numba kernels of all our W4A16 families share; cost_kernels.py says what they see."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.gpu.cost_kernels import RASTER_CODE, ConfigCost, ProblemTerms, ceil_div, loaded_time_us
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16.family_kernels import GROUPED_FAMILIES, SM90

__all__ = [
    "BLOCK",
    "CUT_UNITS",
    "GROUPS_US",
    "GROUP_TILE_CYCLES",
    "HOLD_FRAC",
    "MAX_CUT_WAVES",
    "MOST_PARTS",
    "PAIRS_OF_WARP",
    "SCHEDULERS",
    "SUM_BYTES",
    "TOKEN_ROW_BYTES",
    "UNIT_K",
    "Launch",
    "are_alike",
    "finish",
    "l2_share",
    "launch_of",
    "norm3",
    "norm4",
    "panel_rereads",
    "shared_step",
    "tiles_of_rows",
]

SCHEDULERS = 4.0  # of an SM: instruction counts are sums over the warps of a CTA
BLOCK = 64  # columns and k of a packed block
UNIT_K = 128  # `w4a16_sm80` and `w4a16_sm90` cut K in multiples of it
TOKEN_ROW_BYTES = 128.0  # 64 k
SUM_BYTES = 4.0
CUT_UNITS, MOST_PARTS, MAX_CUT_WAVES = 10, 8, 2  # grouped kernels cut K by these rules themselves (groups.cuh)
GROUPS_US = 2.5  # of grouped kernels, to count the tiles of all groups before anything is copied
GROUP_TILE_CYCLES = 900.0  # and of a tile, to find its group and to begin anew
PAIRS_OF_WARP = 64  # columns that the threads of a warp have, two each
HOLD_FRAC = 0.5  # share of L2 that keeps what will be read again, where no coefficient says


@kernel
def norm3(a: float, b: float, c: float, d: float) -> float:
    """The 3-norm: the largest of four times, and a little more where two are alike, because overlap is not perfect."""
    total = a * a * a + b * b * b + c * c * c + d * d * d
    result: float = total ** (1.0 / 3.0)
    return result


@kernel
def norm4(a: float, b: float, c: float) -> float:
    """The 4-norm: work that waits for data in places of its own hides more of them than under the 3-norm."""
    a2, b2, c2 = a * a, b * b, c * c
    result: float = np.sqrt(np.sqrt(a2 * a2 + b2 * b2 + c2 * c2))
    return result


@kernel
def _panel_bytes(tiles_m: int, tiles_n: int, in_flight: float, row: Any, a_bytes: float, w_bytes: float) -> float:
    """DRAM bytes of all waves when nothing stays in L2 between waves, under the raster of the kernel."""
    is_along_n = row["raster_order"] == 1
    across, along = (tiles_m, tiles_n) if is_along_n else (tiles_n, tiles_m)
    if row["family"] == SM90:  # its raster goes `raster_swizzle` tiles along M before it steps along N
        across, along = tiles_m, tiles_n
    width = float(min(row["raster_swizzle"], across))
    run = in_flight / width
    if run > along:  # the wave goes on in the next band
        width = min(float(across), width * np.ceil(run / along))
        run = float(along)
    m_tiles, n_tiles = (width, run) if is_along_n or row["family"] == SM90 else (run, width)
    waves = max(1.0, tiles_m * tiles_n / in_flight)
    return float(waves * (m_tiles * a_bytes / tiles_m + n_tiles * w_bytes / tiles_n))


@kernel
def tiles_of_rows(t: ProblemTerms, cta_m: int) -> int:
    """Tiles along M, of all groups."""
    num = 0
    for i in range(len(t.group_rows)):
        num += t.group_counts[i] * ceil_div(t.group_rows[i], cta_m)
    return num


class Launch(NamedTuple):
    """What one launch of a kernel does: the `ProblemTerms` that its cost reads, but for the arrays.

    To pass arrays on takes longer than all that is computed for a config that is slower than the best.
    """

    num: int  # launches
    G: int
    M: int
    K: int
    N: int
    tiles_m: int  # tiles of clusters along M, of all groups
    rows: int
    a_bytes: float
    b_bytes: float
    scale_bytes: float
    c_bytes: float
    stay_frac: float
    a_read_bytes: float
    b_read_bytes: float
    line_waste: float


@inlined_kernel
def launch_of(row: Any, t: ProblemTerms) -> Launch:
    """What each launch of a kernel does; a batch by a kernel of one GEMM is as many launches."""
    G, cluster_rows = t.G, row["cta_m"] * row["cluster_m"]
    if G == 1:
        return Launch(
            1, 1, t.M, t.K, t.N, ceil_div(t.M, cluster_rows), t.rows, t.a_bytes, t.b_bytes, t.scale_bytes, t.c_bytes,
            t.stay_frac, t.a_read_bytes, t.b_read_bytes, t.line_waste,
        )  # fmt: skip
    if row["family"] in GROUPED_FAMILIES:
        return Launch(
            1, G, t.M, t.K, t.N, tiles_of_rows(t, cluster_rows), t.rows, t.a_bytes, t.b_bytes, t.scale_bytes,
            t.c_bytes, t.stay_frac, t.a_read_bytes, t.b_read_bytes, t.line_waste,
        )  # fmt: skip
    return Launch(
        G, 1, t.M, t.K, t.N, ceil_div(t.M, cluster_rows), t.M, t.a_bytes / G, t.b_bytes / G, t.scale_bytes / G,
        t.c_bytes / G, t.stay_frac, t.a_read_bytes / G, t.b_read_bytes / G, t.line_waste,
    )  # fmt: skip


@kernel
def are_alike(tiles: int, ctas: int) -> bool:
    """Whether the CTAs of a stream-K kernel are at one or two places of K at any time: they read as others do.

    They are at ctas / gcd(tiles, ctas) places, and that is 1 or 2 where twice the tiles are a multiple of the CTAs.
    """
    return bool(2 * tiles % ctas == 0)


@kernel
def l2_share(p: Any, c: Any, active_sms: int) -> float:
    """Bytes a cycle for each SM where hardly two CTAs are at the same place of K, so that L2 answers each by itself."""
    result: float = p["l2_peak_bytes_per_us"] / p["cycles_per_us"] * c["l2_frac"] / active_sms
    return result


@kernel
def panel_rereads(row: Any, t: Launch, hold_bytes: float, tiles_m: int, tiles_n: int, in_flight: float) -> float:
    """Bytes that DRAM gives again to CTAs at the same place of K, which share panels wave by wave."""
    both = t.a_bytes + t.b_bytes + t.scale_bytes
    if hold_bytes >= both or tiles_m == 1 or tiles_n == 1 or t.G > 1:  # those of a group are done at about one time
        return 0.0
    panels = _panel_bytes(tiles_m, tiles_n, in_flight, row, t.a_bytes, t.b_bytes + t.scale_bytes)
    return max(0.0, (1.0 - hold_bytes / both) * (panels - both))


@kernel
def finish(
    p: Any, row: Any, prologue_us: float, chip_us: float, matrix_us: float, dequant_us: float,
    overhead_us: float, l2_us: float, dram_us: float, outside_us: float, store_us: float, reduction_us: float,
    main_us: float, busy_us: float, read_bytes: float, num_ctas: int, num_tiles: int, num_waves: int,
    last_wave_ctas: int, active_sms: int, moving_power: float,
) -> ConfigCost:  # fmt: skip
    """Add the clock under tensor load (`busy_us` at the highest clock) and what is in front of the main loop.

    `moving_power` is what data on their way take of power, as a share of what tensor cores do.
    """
    loaded_us = loaded_time_us(p, main_us, busy_us, 1.0 + moving_power)
    latency_us = p["launch_us"] + prologue_us + loaded_us + store_us
    matrix_us = min(matrix_us, chip_us)
    dequant_us = min(dequant_us, chip_us - matrix_us)
    overhead_us = min(overhead_us, chip_us - matrix_us - dequant_us)
    times = Times(
        p["launch_us"], prologue_us, matrix_us, dequant_us, chip_us - matrix_us - dequant_us - overhead_us, overhead_us,
        l2_us, dram_us, outside_us, store_us, reduction_us, loaded_us - main_us, 0.0,
    )  # fmt: skip
    return ConfigCost(
        latency_us, times, main_us, min(1.0, busy_us / main_us), read_bytes, num_ctas, num_tiles, num_waves,
        last_wave_ctas, active_sms, row["raster_order"] * RASTER_CODE + row["raster_swizzle"],
    )  # fmt: skip


@kernel
def shared_step(resident: float, work: float, serial: float, ingest: float) -> float:
    """Cycles of a step of a CTA that shares its SM with `resident` - 1 others: they fill each other's gaps."""
    busy, loads = resident * work, resident * ingest
    result: float = np.sqrt(busy * busy + serial * serial + loads * loads)
    return result
