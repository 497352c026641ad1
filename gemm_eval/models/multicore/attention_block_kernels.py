"""Numba kernels of fused attention on multi-core chips: the problem, and what part of it a core has."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.jit import entry_point, inlined_kernel
from gemm_eval.models.multicore.cost_kernels import shared_share_of, write_cost_of
from gemm_eval.models.multicore.count_kernels import ceil_div

__all__ = [
    "AttentionBlock",
    "AttentionSizes",
    "attention_block_of",
    "row_tiles_of",
    "rows_of_core",
    "span_of",
    "strip_of",
]


class AttentionSizes(NamedTuple):
    """A problem as kernels see it, of which keys that no query attends to are gone."""

    units: int  # KV heads of all sequences
    rows: int  # queries of a unit: those of the heads that share its keys, by position
    keys: int
    group: int  # rows of a position
    ahead: int  # position of the first query among the keys
    window: int  # positions that a query attends to at most, `keys` where there is no window
    is_masked: int  # not every row attends to every key
    head_dim: int
    value_dim: int
    kv_width: int  # elements of a key and its value as stored


class AttentionBlock(NamedTuple):
    """The full block of a core, the effective counts of cores, and its bandwidths."""

    units: int
    strip: int  # rows of a full strip
    span: int  # keys of a full span
    E_U: int
    E_Q: int
    E_K: int
    num_strips: int  # of a unit
    is_folded: int
    active_cores: int
    dram_share: float  # bytes per us of one core
    write_cost: float  # time of a written byte in DRAM by that of a read one
    shared_share: float  # the same as `dram_share` of the memory between DRAM and SRAM


@entry_point
def attention_block_of(p: Any, s: AttentionSizes, P_U: int, P_Q: int, P_KV: int, is_folded: int) -> AttentionBlock:
    """Full block and effective counts of a partition."""
    units = ceil_div(s.units, P_U)
    strip = ceil_div(s.rows, 2 * P_Q if is_folded else P_Q)
    span = ceil_div(s.keys, P_KV)
    num_strips = ceil_div(s.rows, strip)
    E_U = ceil_div(s.units, units)
    E_Q = ceil_div(num_strips, 2) if is_folded else num_strips
    E_K = ceil_div(s.keys, span)
    active = E_U * E_Q * E_K
    share = p["dram_bytes_per_us"] / (active if p["is_fair"] else p["num_cores"])
    share = min(share, p["dram_core_limit_bytes_per_us"])
    return AttentionBlock(
        units, strip, span, E_U, E_Q, E_K, num_strips, is_folded, active,
        share, write_cost_of(p, active, share), shared_share_of(p, active),
    )  # fmt: skip


@inlined_kernel
def strip_of(s: AttentionSizes, blk: AttentionBlock, core: int, half: int) -> tuple[int, int]:
    """First row and number of rows of the first or second strip of a core; a second one only where rows are folded."""
    place = core
    if half == 1:
        place = blk.num_strips - 1 - core
        if not blk.is_folded or place <= core:
            return 0, 0
    first = place * blk.strip
    return first, min(blk.strip, s.rows - first)


@inlined_kernel
def rows_of_core(s: AttentionSizes, blk: AttentionBlock, core: int) -> int:
    """Rows of a core, of one unit."""
    return strip_of(s, blk, core, 0)[1] + strip_of(s, blk, core, 1)[1]


@inlined_kernel
def row_tiles_of(s: AttentionSizes, blk: AttentionBlock, core: int, tile_q: int) -> int:
    """Row tiles of a core, of one unit."""
    return ceil_div(strip_of(s, blk, core, 0)[1], tile_q) + ceil_div(strip_of(s, blk, core, 1)[1], tile_q)


@inlined_kernel
def span_of(s: AttentionSizes, blk: AttentionBlock, place: int) -> tuple[int, int]:
    """First key of a span, and the first behind it."""
    first = place * blk.span
    return first, min(first + blk.span, s.keys)
