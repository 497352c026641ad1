"""Attention of many queries: a CTA for each tile of queries of a head, which walks through its tiles of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.attention.coefficients import EXPS_PER_CYCLE, HEAD_DIMS
from gemm_eval.models.gpu.attention.memory import moved_us, side_by_side
from gemm_eval.models.gpu.attention.rows import AttentionRows, all_tile_counts
from gemm_eval.units import FLOP_PER_MAC, cycles_per_us, us_at_peak

__all__ = [
    "CONTEXT_TERMS",
    "ContextKernel",
    "computes_in_8_bits",
    "context_terms",
    "matrix_rate_name",
    "padded_head_dim",
]

Floats = npt.NDArray[np.float64]

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
    """How a library cuts such work.

    Attributes:
        q_tile: queries of a CTA.
        key_tiles: keys of a step by padded head_dim; None: as TensorRT-LLM has them for the generation and type.
        has_positions: positions are turned and the cache is written in the same call.
    """

    q_tile: int = 64
    key_tiles: Mapping[int, int] | None = None
    has_positions: bool = True


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
    """Return the time of each of `CONTEXT_TERMS`, [rows], in microseconds; MODEL.md, "Attention", says what enters.

    Args:
        arch: the GPU.
        c: coefficients of the family.
        rows: the problems.
        kernel: its tiles.
    """
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
    """A tile of keys of an SM: products and exponentials side by side, and what stands around them."""
    dtype = (
        DType.FP8 if bits == _NARROW_BITS else DType.BF16 if DType.BF16 in arch.tensor_flop_per_cycle else DType.FP16
    )
    computed = max(elements, 2.0 * padded)
    frac = c[matrix_rate_name(c, bits, padded)]
    matrix_us = us_at_peak(FLOP_PER_MAC * pairs * computed, arch.peak_tflop_per_s(dtype) / arch.num_sms * frac)
    exp_us = pairs * c["exp_frac"] / EXPS_PER_CYCLE / cycles_per_us(arch.max_clock_ghz)
    return float(np.hypot(matrix_us, exp_us)) + c["step_cycles"] / cycles_per_us(arch.max_clock_ghz)


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
    """Queries, keys, values and outputs, [rows], twice: all of them differ."""
    elements = rows.batch * rows.q_len * rows.num_heads * (rows.head_dim + rows.value_dim)
    num: Floats = elements * rows.q_bits / 8.0 + rows.kv_bytes
    return num, num
