"""Multi-head latent attention (MLA): context with expanded heads, and generation over a cache of latents.

In context, heads have keys of another size than values (192 and 128 in DeepSeek's models). In generation the
projections are absorbed: queries have the size of a cached latent (576), and values are its first elements (512).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.attention.coefficients import EXPS_PER_CYCLE, coefficient
from gemm_eval.models.gpu.attention.rows import AttentionRows, tile_counts
from gemm_eval.models.gpu.coefficients import FREE, SPEC
from gemm_eval.models.gpu.traffic import missed_frac
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us

__all__ = [
    "LATENT_CONTEXT",
    "LATENT_CONTEXT_TERMS",
    "LATENT_TERMS",
    "SPLIT_LATENTS",
    "WHOLE_LATENTS",
    "LatentKernel",
    "latent_context_terms",
    "latent_kernel",
    "latent_terms",
]

Floats = npt.NDArray[np.float64]

LATENT_CONTEXT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "positions, the cache's new entries, and queries, keys and values made as narrow as they are read",
    "compute_us": "both products and the exponentials, and what the kernel reads and writes, whichever takes longer",
}
LATENT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "compute_us": "CTAs one after the other, both products, and the bytes of the cache, whichever takes longer",
    "sum_us": "the sum of the parts where keys are cut",
}
"""Terms of the times, and what they go to; they add up to them."""

LATENT_CONTEXT = (
    coefficient(
        "fixed_us", "us", 2.0, 30.0, 10.5, FREE, "start and end of the kernels, and the latency of the first tile"
    ),
    coefficient(
        "narrow_us", "us", 0.0, 10.0, 3.8, FREE, "kernels that quantize queries, keys and values, where they do"
    ),
    coefficient("dram_frac", "1", 0.3, 1.0, 0.75, SPEC, "share of the DRAM bandwidth"),
    coefficient("l2_frac", "1", 0.05, 1.0, 0.85, SPEC, "share of the L2 bandwidth"),
    coefficient("hold_frac", "1", 0.2, 1.5, 0.75, FREE, "of L2: what its tensors may fill before they go to DRAM"),
    coefficient("cta_us", "us", 0.0, 15.0, 1.0, FREE, "a CTA besides its tiles of keys"),
    coefficient("matrix16_frac", "1", 0.1, 1.0, 0.65, SPEC, "share of the rate of 16-bit products"),
    coefficient("matrix8_frac", "1", 0.1, 1.0, 0.48, SPEC, "share of the rate of 8-bit products"),
    coefficient("tail_frac", "1", 0.0, 3.0, 0.95, FREE, "of the longest CTA, which the others wait for at the end"),
)
_GENERATION = (
    coefficient("fixed_us", "us", 2.0, 30.0, 8.0, FREE, "start and end of the kernels"),
    coefficient("cta_us", "us", 0.0, 30.0, 2.5, FREE, "a tile of query heads of a sequence besides its keys"),
    coefficient("matrix16_frac", "1", 0.05, 1.0, 0.43, SPEC, "share of the rate of 16-bit products"),
    coefficient("matrix8_frac", "1", 0.05, 1.0, 0.4, SPEC, "share of the rate of 8-bit products"),
    coefficient("dram_frac", "1", 0.6, 1.0, 0.92, SPEC, "share of the DRAM bandwidth"),
    coefficient("hold_frac", "1", 0.2, 1.5, 0.6, FREE, "of L2: what the latents of all sequences may fill"),
)
WHOLE_LATENTS = (
    *_GENERATION,
    coefficient("late_frac", "1", 0.0, 0.5, 0.07, FREE, "time that a key takes more where it comes from DRAM"),
    coefficient("crowd_frac", "1", 1.0, 3.0, 1.45, SPEC, "time of a CTA that shares its SM, over that of a lone one"),
)
SPLIT_LATENTS = (
    *_GENERATION,
    coefficient("cta8_us", "us", 0.0, 30.0, 3.7, FREE, "cta_us where the cache has 8 bits"),
    coefficient("sum_us", "us", 0.0, 10.0, 1.6, FREE, "sum of the parts where keys are cut"),
    coefficient("part_us", "us", 0.0, 1.0, 0.05, FREE, "likewise, for each part"),
)

_STEEP = 4.0  # of the passage from L2 to DRAM
_NORM = 4.0  # of what runs side by side
_EXPOSED_EXPS = 0.5  # of the exponentials, what is not hidden; assumed
_ROW_TILE, _KEY_TILE = 64, 64  # query heads x tokens of a CTA, and keys of a step, in generation
_ROPE, _LATENT = 64, 576  # elements of a cached entry with positions, and all of it: DeepSeek's models
_NARROW_BITS = 8.0


class LatentKernel(NamedTuple):
    """What kernels a generation of SMs runs; inferred from where measured times step.

    Attributes:
        q_tile, k_tile: of context.
        has_narrow: an 8-bit cache is computed in 8 bits; else as 16-bit ones.
        splits_keys: generation cuts the keys of a sequence, and sums the parts.
        part_keys: fewest keys of a part, whose time is in `fixed_us`.
        hides_cta: the fixed time of a sequence hides behind keys of another on the same SM.
        columns: CTAs that share a tile of query heads, each with some of the value's elements: 16 and 8 bits.
        ctas_per_sm: that run at once, likewise.
    """

    q_tile: int
    k_tile: int
    has_narrow: bool
    splits_keys: bool
    part_keys: int = 64
    hides_cta: bool = False
    columns: tuple[int, int] = (1, 1)
    ctas_per_sm: tuple[int, int] = (2, 2)


_KERNELS = {
    "sm_80": LatentKernel(64, 128, has_narrow=False, splits_keys=False, columns=(2, 2)),
    "sm_89": LatentKernel(64, 128, has_narrow=False, splits_keys=False, columns=(4, 4), ctas_per_sm=(4, 4)),
    "sm_90": LatentKernel(128, 128, has_narrow=True, splits_keys=True),
    "sm_100": LatentKernel(128, 128, has_narrow=True, splits_keys=True, part_keys=256, hides_cta=True),
    "sm_103": LatentKernel(128, 128, has_narrow=True, splits_keys=True, part_keys=256, hides_cta=True),
    "sm_120": LatentKernel(64, 128, has_narrow=True, splits_keys=False, columns=(4, 2), ctas_per_sm=(4, 1)),
}


def latent_kernel(arch: GpuSpec) -> LatentKernel:
    """Return the kernels of a GPU; of generations that none was timed on, those of sm_80."""
    return _KERNELS.get(arch.sm_arch, _KERNELS["sm_80"])


def latent_context_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `LATENT_CONTEXT_TERMS`, [rows], in microseconds; MODEL.md, "Attention"."""
    kernel = latent_kernel(arch)
    narrow = _is_narrow(arch, kernel, rows)
    moved, streamed, different = _context_bytes(rows, narrow)
    missed = missed_frac(different, c["hold_frac"] * arch.l2_bytes, _STEEP)
    us_per_byte = missed / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"]) + (1.0 - missed) / (
        bytes_per_us(arch.l2_gb_per_s) * c["l2_frac"]
    )
    counts = np.array(
        [
            tile_counts(int(q), int(kv), int(window), bool(causal), kernel.q_tile, kernel.k_tile)
            for q, kv, window, causal in zip(rows.q_len, rows.kv_len, rows.window, rows.is_causal, strict=True)
        ],
        np.float64,
    ).reshape(-1, 3)
    ctas, visits, most = counts.T
    pairs = kernel.q_tile * kernel.k_tile
    matrix_us = FLOP_PER_MAC * pairs * (rows.head_dim + rows.value_dim) / _rate(arch, c, narrow)
    step_us = np.hypot(matrix_us, _EXPOSED_EXPS * pairs / EXPS_PER_CYCLE / cycles_per_us(arch.boost_clock_ghz))
    work_us = rows.batch * rows.num_heads * (visits * step_us + ctas * c["cta_us"]) / arch.num_sms
    tail_us = c["tail_frac"] * (most * step_us + c["cta_us"])
    return {
        "fixed_us": c["fixed_us"] + np.where(narrow, c["narrow_us"], 0.0),
        "prepare_us": moved * us_per_byte,
        "compute_us": np.hypot(streamed * us_per_byte, work_us + tail_us),
    }


def latent_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `LATENT_TERMS`, [rows], in microseconds; MODEL.md, "Attention"."""
    kernel = latent_kernel(arch)
    narrow = _is_narrow(arch, kernel, rows)
    keys = np.ceil(rows.keys / _KEY_TILE) * _KEY_TILE
    row_tiles = rows.batch * np.ceil(rows.num_heads * rows.q_len / _ROW_TILE)
    bits = np.where(narrow, rows.kv_bits, np.maximum(rows.kv_bits, 16.0))
    latents = rows.batch * keys * rows.head_dim * bits / 8.0
    vectors = rows.batch * rows.num_heads * rows.q_len * (rows.head_dim + rows.value_dim) * 2.0
    missed = missed_frac(latents, c["hold_frac"] * arch.l2_bytes, _STEEP)
    memory_us = (latents * missed + vectors) / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"])
    columns = np.where(narrow, *kernel.columns[::-1])
    per_sm = np.where(narrow, *kernel.ctas_per_sm[::-1])
    key_us = FLOP_PER_MAC * _ROW_TILE * (rows.head_dim + rows.value_dim / columns) / _rate(arch, c, narrow)
    slots = per_sm * arch.num_sms
    sum_us = np.zeros(len(rows))
    if kernel.splits_keys:
        parts = np.clip(np.floor(slots / row_tiles), 1.0, np.ceil(keys / kernel.part_keys))
        chain = key_us * np.maximum(np.ceil(keys / parts / _KEY_TILE) * _KEY_TILE - kernel.part_keys, 0.0)
        fixed = row_tiles * np.where(narrow, c["cta8_us"], c["cta_us"]) / arch.num_sms
        work = row_tiles * key_us * keys / arch.num_sms
        work = (work**_NORM + fixed**_NORM) ** (1.0 / _NORM) if kernel.hides_cta else work + fixed
        sum_us = np.where(parts > 1.0, c["sum_us"] + c["part_us"] * parts, 0.0)
    else:
        alone = c["cta_us"] + key_us * keys * (1.0 + c["late_frac"] * missed)
        waves, rest = np.divmod(row_tiles * columns, slots)
        full = np.where(per_sm > 1, c["crowd_frac"], 1.0)
        last = np.where(rest > arch.num_sms, c["crowd_frac"], np.where(rest > 0, 1.0, 0.0))
        chain, work = alone * (waves * full + last), np.zeros(len(rows))
    return {
        "fixed_us": np.full(len(rows), c["fixed_us"]),
        "compute_us": (memory_us**_NORM + work**_NORM + chain**_NORM) ** (1.0 / _NORM),
        "sum_us": sum_us,
    }


def _is_narrow(arch: GpuSpec, kernel: LatentKernel, rows: AttentionRows) -> npt.NDArray[np.bool_]:
    has_rate = kernel.has_narrow and DType.FP8 in arch.tensor_flop_per_cycle
    return (rows.kv_bits <= _NARROW_BITS) & has_rate


def _rate(arch: GpuSpec, c: Mapping[str, float], narrow: npt.NDArray[np.bool_]) -> Floats:
    """FLOP of an SM in a microsecond, in the loop over keys."""
    wide = DType.BF16 if DType.BF16 in arch.tensor_flop_per_cycle else DType.FP16
    rate16 = arch.peak_tflop_per_s(wide) * c["matrix16_frac"]
    rate8 = arch.peak_tflop_per_s(DType.FP8) * c["matrix8_frac"] if narrow.any() else rate16
    rate: Floats = np.where(narrow, rate8, rate16) * 1e6 / arch.num_sms
    return rate


def _context_bytes(rows: AttentionRows, narrow: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Bytes that are moved before the kernel, by it, and different ones; keys of before are read by it alone."""
    tokens, heads = rows.batch * rows.q_len, rows.num_heads
    width = np.where(narrow, 1.0, 2.0)
    queries, keys = tokens * heads * rows.head_dim, tokens * rows.num_kv_heads * (rows.head_dim + rows.value_dim)
    wide, out = queries + keys, tokens * heads * rows.value_dim * 2.0
    turned = heads * 3.0 * _ROPE * 2.0 * tokens  # of queries read and written, of keys written for each head
    latent = _LATENT * (2.0 + width) * tokens
    narrowed = np.where(narrow, wide * (2.0 + width), 0.0)
    cached = keys * np.maximum(0.0, rows.keys / rows.q_len - 1.0)
    different = (wide + cached) * 2.0 + np.where(narrow, wide * width, 0.0) + latent + out
    return turned + latent + narrowed, (wide + cached) * width + out, different
