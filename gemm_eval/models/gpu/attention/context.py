"""Attention of many queries: a CTA for each tile of queries of a head, which walks through its tiles of keys."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.attention.coefficients import EXPS_PER_CYCLE, HEAD_DIMS
from gemm_eval.models.gpu.attention.memory import moved_us
from gemm_eval.models.gpu.attention.rows import AttentionRows, tile_counts
from gemm_eval.units import FLOP_PER_MAC, cycles_per_us, us_at_peak

__all__ = ["CONTEXT_TERMS", "computes_in_8_bits", "context_terms", "matrix_rate_name", "padded_head_dim"]

Floats = npt.NDArray[np.float64]

CONTEXT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "queries, keys and values: positions, the cache written, and all that is read and written",
    "compute_us": "both products and the exponentials",
    "tail_us": "the longest CTA, which the others wait for",
}
"""Terms of the time, and what it goes to; they add up to it."""

_Q_TILE = 64
_WIDE_KEYS = {  # of a tile of keys, by padded head_dim: TensorRT-LLM 1.x, kernels for 16 and for 8 bits on wgmma
    16: {64: 256, 128: 128, 192: 64, 256: 64},
    8: {64: 256, 128: 256, 192: 128, 256: 128},
}
_FEWEST_KEYS, _MMA_KEYS = 32, 32
_WIDE_TILES = frozenset({"sm_90", "sm_100", "sm_103"})
_NARROW_BITS, _WIDE_BITS = 8.0, 16.0


def padded_head_dim(head_dim: float) -> int:
    """Return the elements of a head that kernels compute with."""
    return next((size for size in HEAD_DIMS if head_dim <= size), int(-(-head_dim // 64) * 64))


def computes_in_8_bits(arch: GpuSpec, rows: AttentionRows) -> npt.NDArray[np.bool_]:
    """Return whether products are in fp8: of fp8 queries, and on wgmma and later wherever the cache is narrow."""
    if DType.FP8 not in arch.tensor_flop_per_cycle:
        return np.zeros(len(rows), np.bool_)
    narrow = rows.q_bits <= _NARROW_BITS
    return narrow | (rows.kv_bits <= _NARROW_BITS) if arch.sm_arch in _WIDE_TILES else narrow


def matrix_rate_name(arch: GpuSpec, bits: int, head_dim: int) -> str:
    """Return the coefficient that says which share of the tensor cores' rate a kernel reaches."""
    if arch.sm_arch in ("sm_89", "sm_120"):
        return f"matrix{bits}_frac_{min(head_dim, HEAD_DIMS[-1])}"
    return f"matrix{bits}_frac"


def context_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `CONTEXT_TERMS`, [rows], in microseconds; MODEL.md, "Attention", says what enters.

    Args:
        arch: the GPU.
        c: coefficients of the family.
        rows: the problems.
    """
    is_8 = computes_in_8_bits(arch, rows)
    ctas, visits, most, step_us = (np.empty(len(rows)) for _ in range(4))
    per_us = cycles_per_us(arch.max_clock_ghz)
    for place in range(len(rows)):
        bits = 8 if is_8[place] else 16
        size = padded_head_dim(max(rows.head_dim[place], 1.0))
        k_tile = _key_tile(arch, bits, size)
        counts = tile_counts(
            int(rows.q_len[place]), int(rows.kv_len[place]), int(rows.window[place]), bool(rows.is_causal[place]),
            _Q_TILE, k_tile,
        )  # fmt: skip
        ctas[place], visits[place], most[place] = counts
        step_us[place] = _step_us(arch, c, bits, size, float(rows.head_dim[place] + rows.value_dim[place]), k_tile)
    cta_us = np.full(len(rows), c["cta_cycles"] / per_us)
    if "window8_cycles" in c:
        cta_us += is_8 * (rows.window < rows.kv_len) * c["window8_cycles"] / per_us
    heads = rows.batch * rows.num_heads
    longest = most * step_us + cta_us
    compute = np.maximum(heads * (visits * step_us + ctas * cta_us) / arch.num_sms, longest)
    tail = c["tail_frac"] * longest * np.minimum(1.0, heads * ctas / arch.num_sms)
    return {
        "fixed_us": np.full(len(rows), c["fixed_us"]),
        "prepare_us": _prepare_us(arch, c, rows),
        "compute_us": compute,
        "tail_us": tail,
    }


def _key_tile(arch: GpuSpec, bits: int, head_dim: int) -> int:
    if arch.sm_arch not in _WIDE_TILES:
        return _MMA_KEYS
    return _WIDE_KEYS[bits].get(head_dim, _FEWEST_KEYS)


def _step_us(arch: GpuSpec, c: Mapping[str, float], bits: int, padded: int, elements: float, k_tile: int) -> float:
    """A tile of keys of an SM: products and exponentials side by side, and what stands around them."""
    dtype = (
        DType.FP8 if bits == _NARROW_BITS else DType.BF16 if DType.BF16 in arch.tensor_flop_per_cycle else DType.FP16
    )
    pairs = _Q_TILE * k_tile
    computed = max(elements, 2.0 * padded)
    frac = c[matrix_rate_name(arch, bits, padded)]
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
