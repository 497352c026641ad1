"""Times of attention kernels for prompts, single tokens and gradients: tiles of queries, keys cut among CTAs."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.attention.rows import HEAD_DIMS, AttentionRows, all_tile_counts
from gemm_eval.models.gpu.memory_bound import in_turns, l2_and_dram_us, side_by_side
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us, us_at_peak

Floats = npt.NDArray[np.float64]


def moved_us(
    arch: GpuSpec, c: Mapping[str, float], num_bytes: Floats, held_bytes: Floats, *, is_stream: bool = False
) -> Floats:
    """Return the time of bytes through L2, and through DRAM as far as L2 does not hold the different ones, [rows].

    `is_stream`: one kernel reads them in one long stream, so that L2 and DRAM are at work side by side.
    """
    l2_us, dram_us = l2_and_dram_us(
        arch, num_bytes, held_bytes, hold_frac=c["hold_frac"], l2_frac=c["l2_frac"], dram_frac=c["dram_frac"]
    )
    return side_by_side(l2_us, dram_us) if is_stream else in_turns(l2_us, dram_us)


CONTEXT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "all that is read and written, with positions and the write of the cache where they are in it",
    "compute_us": "both products and the exponentials",
    "tail_us": "the longest CTA, which the others wait for",
}
"""Terms of the time, and what it goes to; they add up to it."""

_WIDE_KEYS = {  # of a tile of keys, by padded head_dim: TensorRT-LLM 1.x, kernels for 16 and for 8 bits on wgmma
    16: {64: 256, 128: 128, 192: 64, 256: 64},
    8: {64: 256, 128: 256, 192: 128, 256: 128},
}
_FEWEST_KEYS, _MMA_KEYS = 32, 32
_WIDE_TILES = frozenset({"sm_90", "sm_100", "sm_103"})
_NARROW_BITS, _WIDE_BITS = 8.0, 16.0


class ContextKernel(NamedTuple):
    """The way in which a library cuts such work."""

    q_tile: int = 64  # queries of a CTA
    key_tiles: Mapping[int, int] | None = None  # keys of a step by padded head_dim; None: as TensorRT-LLM has them
    has_positions: bool = True  # positions are turned and the cache is written in the same call


def padded_head_dim(head_dim: float) -> int:
    """Return the elements of a head that kernels compute with."""
    return next((size for size in HEAD_DIMS if head_dim <= size), int(-(-head_dim // 64) * 64))


def computes_in_8_bits(arch: GpuSpec, rows: AttentionRows) -> npt.NDArray[np.bool_]:
    """Return whether products are in fp8: of fp8 queries, and on wgmma and later wherever the cache is narrow."""
    if DType.FP8 not in arch.tensor_flop_per_cycle:
        return np.zeros(len(rows), np.bool_)
    narrow = rows.q_bits <= _NARROW_BITS
    return narrow | (rows.kv_bits <= _NARROW_BITS) if arch.sm_arch in _WIDE_TILES else narrow


def matrix_rate_name(c: Mapping[str, float], bits: int, head_dim: int) -> str:
    """Return the coefficient that says which share of the tensor cores' rate a kernel reaches: one, or by head_dim."""
    name = f"matrix{bits}_frac"
    return name if name in c else f"{name}_{min(head_dim, HEAD_DIMS[-1])}"


def context_terms(
    arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows, kernel: ContextKernel
) -> dict[str, Floats]:
    """Return the time of each of `CONTEXT_TERMS`, [rows], in microseconds; OPERATIONS.md, "Attention"."""
    is_8 = computes_in_8_bits(arch, rows)
    k_tiles, step_us = np.empty(len(rows), np.int64), np.empty(len(rows))
    per_us = cycles_per_us(arch.max_clock_ghz)
    kinds, kind_of_row = np.unique(np.stack((is_8, rows.head_dim, rows.value_dim)), axis=1, return_inverse=True)
    kind_of_row = kind_of_row.reshape(-1)  # numpy 2.0.0 has it as a row
    for index, (narrow, head_dim, value_dim) in enumerate(kinds.T.tolist()):
        is_kind = kind_of_row == index
        bits, size = (8 if narrow else 16), padded_head_dim(max(head_dim, 1.0))
        k_tile = _key_tile(arch, bits, size) if kernel.key_tiles is None else kernel.key_tiles[min(size, HEAD_DIMS[-1])]
        k_tiles[is_kind] = k_tile
        step_us[is_kind] = _step_us(arch, c, bits, size, head_dim + value_dim, kernel.q_tile * k_tile)
    ctas, visits, most = all_tile_counts(rows, kernel.q_tile, tuple(k_tiles.tolist()))
    cta_us = np.full(len(rows), c["cta_cycles"] / per_us)
    if "window8_cycles" in c:
        cta_us += is_8 * (rows.window < rows.kv_len) * c["window8_cycles"] / per_us
    heads = rows.batch * rows.num_heads
    longest = most * step_us + cta_us
    compute = np.maximum(heads * (visits * step_us + ctas * cta_us) / arch.num_sms, longest)
    if not kernel.has_positions:  # nothing is written before: bytes come while it computes
        compute = side_by_side(compute, moved_us(arch, c, *_plain_bytes(rows), is_stream=True))
    tail = c["tail_frac"] * longest * np.maximum(0.0, 1.0 - arch.num_sms / (heads * ctas))
    return {
        "fixed_us": np.full(len(rows), c["fixed_us"]),
        "prepare_us": _prepare_us(arch, c, rows) if kernel.has_positions else np.zeros(len(rows)),
        "compute_us": compute,
        "tail_us": tail,
    }


def _key_tile(arch: GpuSpec, bits: int, head_dim: int) -> int:
    if arch.sm_arch not in _WIDE_TILES:
        return _MMA_KEYS
    return _WIDE_KEYS[bits].get(head_dim, _FEWEST_KEYS)


def _step_us(arch: GpuSpec, c: Mapping[str, float], bits: int, padded: int, elements: float, pairs: int) -> float:
    """Return a tile of keys of an SM: products and exponentials side by side, and what stands around them."""
    computed = max(elements, 2.0 * padded)
    matrix_us = products_us(arch, bits, pairs * computed) / c[matrix_rate_name(c, bits, padded)]
    return float(np.hypot(matrix_us, exp_us(arch, c, pairs))) + c["step_cycles"] / cycles_per_us(arch.max_clock_ghz)


def products_us(arch: GpuSpec, bits: int, macs: Any) -> Any:
    """Return the time of products of `bits` on one SM at the peak rate."""
    dtype = (
        DType.FP8 if bits == _NARROW_BITS else DType.BF16 if DType.BF16 in arch.tensor_flop_per_cycle else DType.FP16
    )
    return us_at_peak(FLOP_PER_MAC * macs, arch.peak_tflop_per_s(dtype) / arch.num_sms)


def exp_us(arch: GpuSpec, c: Mapping[str, float], pairs: Any) -> Any:
    """Return the time of the exponentials of pairs of a query and a key on one SM."""
    return pairs * c["exp_frac"] / arch.exps_per_cycle / cycles_per_us(arch.max_clock_ghz)


def _prepare_us(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> Floats:
    """Q, K and V as a projection leaves them, in 16 bits, are read, turned, and written as the kernel reads them."""
    tokens = rows.batch * rows.q_len
    elements = rows.num_heads * rows.head_dim, rows.num_kv_heads * (rows.head_dim + rows.value_dim)
    queries, keys = (tokens * num for num in elements)
    out = tokens * rows.num_heads * rows.value_dim * rows.q_bits / 8.0
    read = (queries + keys) * _WIDE_BITS / 8.0
    written = queries * rows.q_bits / 8.0 + keys * rows.kv_bits / 8.0
    narrow = np.where(rows.kv_bits <= _NARROW_BITS, c["narrow_frac"], 1.0)
    own = (read + written + queries * rows.q_bits / 8.0 + out) * narrow
    cached = rows.kv_bytes  # new keys are read again, those of before for the first time
    before = cached * np.maximum(0.0, 1.0 - rows.q_len / rows.keys)
    return moved_us(arch, c, own + cached, own + before)


def _plain_bytes(rows: AttentionRows) -> tuple[Floats, Floats]:
    """Return queries, keys, values and outputs, [rows], twice: all of them differ."""
    elements = rows.batch * rows.q_len * rows.num_heads * (rows.head_dim + rows.value_dim)
    num: Floats = elements * rows.q_bits / 8.0 + rows.kv_bytes
    return num, num


DECODE_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "the new token's queries, keys and values: positions, and the cache's new entries",
    "compute_us": "CTAs one after the other on an SM, and the bytes of the cache, whichever takes longer",
    "sum_us": "the sum of the parts where keys are cut",
}
"""Terms of the time, and what it goes to; they add up to it."""

_UNIT_KEYS, _UNIT_SIZE = 128, 128  # of step_us
_ROW_UNIT = 1024.0  # elements of head_us
_SPILL_ELEMENTS = 3072
_SMALL_HEAD = 128


class PackedKernel(NamedTuple):
    """The way in which a library cuts such work: TensorRT-LLM 1.x, XQA kernels and their launcher, and fits."""

    key_tile: int = 64  # keys of a step
    row_tile: int = 16  # query heads times tokens that a tile of the product has
    waves: float | None = 8.0  # CTAs that keys may be cut into, over the number of SMs; None: as FlashAttention cuts
    part_keys: int = 128  # fewest keys of a part, as the launcher counts
    max_parts: int = 64  # of a sequence; 1: keys are never cut
    counts_all_keys: bool = True  # the launcher cuts by the length of the sequence, also where there is a window
    padded_to: int = 0  # heads of other sizes are computed as of this one, from 129 elements on; 0: as they are
    packs_heads: bool = True  # query heads of a group stand in the rows of a tile; else each has CTAs of its own
    has_positions: bool = True  # positions are turned and the cache is written in the same call


MMA_PACKED = PackedKernel()
"""XQA on mma.sync, all GPUs before sm_100."""


def num_parts(num_sms: int, units: Floats, keys: Floats, kernel: PackedKernel) -> Floats:
    """Return into how many parts the keys of a sequence are cut, [rows]; `units` are CTAs without a cut."""
    assert kernel.waves is not None
    most = np.ceil(kernel.waves * num_sms / units)
    return np.clip(np.minimum(np.floor(keys / kernel.part_keys), most), 1.0, kernel.max_parts)


_FLASH_CTAS = 2  # of an SM; this and the rules below: FlashAttention 2.7, flash_api.cpp
_FLASH_MAX_PARTS = 128
_FULL_FRAC, _GOOD_FRAC = 0.8, 0.85


def _flash_keys(head_dim: Floats) -> Floats:
    return np.where(head_dim <= 64, 256.0, np.where(head_dim <= 128, 128.0, 64.0))


def _even_parts(num_slots: int, units: Floats, blocks: Floats) -> Floats:
    """Return into how many parts keys are cut, [rows]: the fewest whose waves are nearly as full as those of the best.

    Keys are not cut where units fill most of the slots, nor into a number of parts that are no shorter than with one
    part less.
    """
    return np.array([_even_part(num_slots, int(a), int(b)) for a, b in zip(units, blocks, strict=True)], np.float64)


@lru_cache(maxsize=1 << 12)
def _even_part(num_slots: int, units: int, blocks: int) -> int:
    if units >= _FULL_FRAC * num_slots:
        return 1
    parts = np.arange(1, min(_FLASH_MAX_PARTS, num_slots, blocks) + 1)
    lengths = -(-blocks // parts)
    shorter = np.concatenate(([True], lengths[1:] < lengths[:-1]))
    waves = units * parts / num_slots
    full = np.where(shorter, waves / np.ceil(waves), 0.0)
    return int(parts[np.argmax(full >= _GOOD_FRAC * full.max())])


def packed_heads_terms(
    arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows, kernel: PackedKernel
) -> dict[str, Floats]:
    """Return the time of each of `DECODE_TERMS`, [rows], in microseconds; OPERATIONS.md, "Attention"."""
    units = rows.batch * (rows.num_kv_heads if kernel.packs_heads else rows.num_heads)
    walked = rows.kv_len if kernel.counts_all_keys else rows.keys
    if kernel.waves is None:
        parts = _even_parts(_FLASH_CTAS * arch.num_sms, units, np.ceil(walked / _flash_keys(rows.head_dim)))
    else:
        parts = num_parts(arch.num_sms, units, walked, kernel)
    tiles_of_part = np.ceil(np.ceil(walked / kernel.key_tile) / parts)
    window_tiles = np.ceil(rows.keys / kernel.key_tile)
    if not kernel.counts_all_keys:  # a window ends at the newest key, within a tile: it begins within one too
        window_tiles = window_tiles + (rows.window < rows.kv_len)
    active = np.minimum(parts, np.minimum(np.ceil(np.ceil(walked / kernel.key_tile) / tiles_of_part), window_tiles))
    steps = np.ceil(window_tiles / active)
    row_tiles = np.ceil((rows.group if kernel.packs_heads else 1.0) * rows.q_len / kernel.row_tile)
    size = rows.head_dim
    if kernel.padded_to:
        size = np.where((size > _SMALL_HEAD) & (size < kernel.padded_to), float(kernel.padded_to), size)
    elements = row_tiles * kernel.row_tile * size
    start_us = c["cta_us"] + c["head_us"] * elements / _ROW_UNIT
    start_us = start_us * np.where(elements >= _SPILL_ELEMENTS, c["spill_frac"], 1.0)
    step_us = (
        c["step_us"] * kernel.key_tile / _UNIT_KEYS * size / _UNIT_SIZE * (1.0 + c["rows_frac"] * (row_tiles - 1.0))
    )
    cta_us = start_us + steps * step_us
    slots = arch.num_sms * c["ctas_per_sm"]
    busy_us = units * (active * cta_us + (parts - active) * c.get("idle_us", 0.0)) / slots
    memory_us = moved_us(arch, c, rows.kv_bytes, _different_bytes(rows), is_stream=not kernel.has_positions)
    if "late_frac" in c:
        memory_us = memory_us * (1.0 + c["late_frac"] * arch.num_sms / (units * active))
    prepare_us = np.zeros(len(rows))
    if kernel.has_positions:
        prepare_us += _prepare_bytes(rows) / (bytes_per_us(arch.l2_gb_per_s) * c["pre_l2_frac"])
    return {
        "fixed_us": c["fixed_us"] + np.where(rows.head_dim < _SMALL_HEAD, c["small_us"], 0.0),
        "prepare_us": prepare_us,
        "compute_us": side_by_side(memory_us, np.maximum(cta_us, busy_us)),
        "sum_us": np.where(parts > 1.0, c["sum_us"] + c["sum64_us"] * parts / 64.0, 0.0),
    }


_SINGLE_PART_KEYS = 512
_ALIASED_ROOM = 0.7  # of L2, for keys of the CTAs that run before their values are read from the same memory; fitted


def single_heads_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `DECODE_TERMS`, [rows], in microseconds, of kernels with a CTA for each query head.

    CTAs have 1,024 threads where four times the SMs are at least three times as many as heads, else 512 while they are
    more than heads, else 256; an SM runs 1, 2 or 4 of these. Where heads are fewer than SMs, keys are cut, into as many
    parts as if no window hid any.
    """
    units = rows.batch * rows.num_heads * rows.q_len
    share = np.ceil(4.0 * arch.num_sms / units)
    per_sm = np.where(share >= 4.0, 1.0, np.where(share >= 2.0, 2.0, 4.0))
    cut = np.minimum(np.ceil(arch.num_sms / units), np.floor(rows.kv_len / _SINGLE_PART_KEYS) + 1.0)
    parts = np.where(units < arch.num_sms, cut, 1.0)
    keys = np.ceil(rows.keys / parts) * rows.head_dim / _UNIT_SIZE
    ctas = units * parts
    waves = np.ceil(ctas / (arch.num_sms * per_sm))
    latency_us = waves * (c["cta_us"] + c["key_ns"] * 1e-3 * keys * per_sm / 4.0)
    busy_us = ctas * keys * c["sm_key_ns"] * 1e-3 / arch.num_sms
    all_bytes = rows.kv_bytes * rows.group  # each query head reads its own
    live = np.minimum(ctas, arch.num_sms * per_sm) * np.ceil(rows.keys / parts) * rows.head_dim * rows.kv_bits / 8.0
    again = 1.0 + rows.is_aliased / (1.0 + (_ALIASED_ROOM * arch.l2_bytes / live) ** 2)
    memory_us = moved_us(arch, c, all_bytes, _different_bytes(rows) * again)
    zero = np.zeros(len(rows))
    return {
        "fixed_us": zero + c["fixed_us"],
        "prepare_us": _prepare_bytes(rows) / bytes_per_us(arch.dram_gb_per_s),
        "compute_us": side_by_side(side_by_side(latency_us, busy_us), memory_us),
        "sum_us": np.where(parts > 1.0, c["sum_us"], 0.0),
    }


def _different_bytes(rows: AttentionRows) -> Floats:
    return rows.kv_bytes * (1.0 - 0.5 * rows.is_aliased)


def _prepare_bytes(rows: AttentionRows) -> Floats:
    """Return queries, keys and values of the new tokens, in 16 bits, read and written."""
    elements = 2.0 * rows.num_heads + 2.0 * rows.num_kv_heads
    return rows.batch * rows.q_len * elements * rows.head_dim * 2.0 * 2.0


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
    """Return the time of each of `BACKWARD_TERMS`, [rows], in microseconds; OPERATIONS.md, "Attention"."""
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
