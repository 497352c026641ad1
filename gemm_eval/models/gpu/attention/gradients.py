"""Times of the kernels for gradients of attention: FlashAttention's five products over tiles of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.attention.rows import HEAD_DIMS, AttentionRows, all_tile_counts
from gemm_eval.models.gpu.attention.streams import exp_us, moved_us, padded_head_dim, products_us
from gemm_eval.models.gpu.memory_bound import side_by_side
from gemm_eval.units import bytes_per_us, cycles_per_us

Floats = npt.NDArray[np.float64]

BACKWARD_TERMS = {
    "fixed_us": "start and end of its kernels",
    "around_us": "kernels around it: sums of outputs times their gradients, casts of sums in fp32, sums over a group",
    "compute_us": "five products and the exponentials, and sums into gradients of queries in L2",
    "tail_us": "the longest CTA, which the others wait for",
}
"""Terms of the time, and what it goes to; they add up to it."""

_SUM_BYTES = 4  # of an element of the gradients of queries, which CTAs of all keys add to


class BackwardKernel(NamedTuple):
    """The way in which a library cuts such work: a CTA has a tile of keys, and goes over tiles of queries."""

    q_tiles: Mapping[int, int]  # queries of a step by padded head_dim
    key_tiles: Mapping[int, int]  # keys of a CTA
    computes_padded: bool = False  # products are of padded heads; else of heads as they are
    has_short_values: bool = False  # causal kernels of values shorter than keys reach the rate of heads as short


CUDNN_BACKWARD = BackwardKernel(
    dict.fromkeys(HEAD_DIMS, 64), dict.fromkeys(HEAD_DIMS, 64), computes_padded=True, has_short_values=True
)
"""cuDNN's on wgmma, by the names of its kernels and their times."""

FLASH_BACKWARD = BackwardKernel({64: 128, 128: 64, 192: 64, 256: 64}, {64: 128, 128: 128, 192: 64, 256: 64})
"""FlashAttention 2.7, flash_bwd_launch_template.h, with over 144 KB of shared memory."""


def backward_terms(
    arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows, kernel: BackwardKernel
) -> dict[str, Floats]:
    """Return the time of each of `BACKWARD_TERMS`, [rows], in microseconds; MODEL.md, "Attention", says what enters."""
    per_us = cycles_per_us(arch.max_clock_ghz)
    head_dim, value_dim = (_compiled_sizes(sizes) for sizes in (rows.head_dim, rows.value_dim))
    size = np.maximum(head_dim, value_dim)
    q_tile, k_tile = (_looked_up(tiles, size) for tiles in (kernel.q_tiles, kernel.key_tiles))
    visits = np.empty(len(rows))
    for tile in np.unique(q_tile).tolist():
        mask = q_tile == tile
        visits[mask] = all_tile_counts(rows.take(mask), int(tile), tuple(k_tile[mask].astype(int).tolist()))[1]
    rate_size = np.where((rows.is_causal > 0) & kernel.has_short_values, value_dim, size)
    rate_frac = _looked_up({dim: c[f"matrix16_frac_{dim}"] for dim in HEAD_DIMS}, rate_size)
    if not kernel.computes_padded:
        head_dim, value_dim = rows.head_dim, rows.value_dim
    macs = q_tile * k_tile * (3.0 * head_dim + 2.0 * value_dim)
    step_us = np.hypot(products_us(arch, 16, macs) / rate_frac, exp_us(arch, c, q_tile * k_tile))
    step_us += c["step_cycles"] / per_us
    cta_us = c["cta_cycles"] / per_us
    heads, ctas = rows.batch * rows.num_heads, np.ceil(rows.keys / k_tile)
    longest = np.ceil(np.minimum(rows.q_len, rows.window + k_tile) / q_tile) * step_us + cta_us
    compute = np.maximum(heads * (visits * step_us + ctas * cta_us) / arch.num_sms, longest)
    summed = heads * visits * q_tile * rows.head_dim * _SUM_BYTES
    compute = side_by_side(compute, summed / (bytes_per_us(arch.l2_gb_per_s) * c["atomic_frac"]))
    around = _around_bytes(rows)
    return {
        "fixed_us": np.full(len(rows), c["fixed_us"]),
        "around_us": moved_us(arch, c, around, around),
        "compute_us": compute,
        "tail_us": c["tail_frac"] * longest * np.maximum(0.0, 1.0 - arch.num_sms / (heads * ctas)),
    }


def _compiled_sizes(sizes: Floats) -> Floats:
    """Return the sizes of heads that kernels are compiled for."""
    return np.array([min(padded_head_dim(size), HEAD_DIMS[-1]) for size in sizes.tolist()], np.float64)


def _looked_up(table: Mapping[int, float], sizes: Floats) -> Floats:
    return np.array([table[int(size)] for size in sizes.tolist()], np.float64)


def _around_bytes(rows: AttentionRows) -> Floats:
    """Return outputs and their gradients, the queries' in fp32, set, read and cast, and the sums over a group."""
    queries = rows.batch * rows.q_len * rows.num_heads
    keys = rows.batch * rows.keys * (rows.head_dim + rows.value_dim)
    own = rows.q_bits / 8.0
    num = queries * (2.0 * rows.value_dim * own + rows.head_dim * (2 * _SUM_BYTES + own))
    shared: Floats = np.where(rows.group > 1.0, keys * (rows.num_heads + rows.num_kv_heads) * own, 0.0)
    return num + shared
