"""Multi-head latent attention (MLA): context with expanded heads, and generation over a cache of latents.

In context, heads have keys of another size than values (192 and 128 in DeepSeek's models). In generation the
projections are absorbed: queries have the size of a cached latent (576), and values are its first elements (512).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GFX_ARCHS, GpuSpec, check_carried
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.attention.rows import AttentionRows, all_tile_counts, fitted
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.memory_bound import missed_frac, side_by_side
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us

Floats = npt.NDArray[np.float64]

LATENT_CONTEXT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "positions, the cache's new entries, and queries, keys and values made as narrow as they are read",
    "compute_us": "both products and the exponentials, and what the kernel reads and writes, whichever takes longer",
}
LATENT_TERMS = {
    "fixed_us": "start and end of its kernels",
    "prepare_us": "queries and outputs, with positions, on their way through DRAM, where they are not in compute_us",
    "compute_us": "CTAs one after the other, both products, and the bytes of the cache, whichever takes longer",
    "sum_us": "the sum of the parts where keys are cut",
}
"""Terms of the times, and what they go to; they add up to them."""

LATENT_CONTEXT = (
    fitted("fixed_us", "us", 2.0, 30.0, 10.5, FREE, "start and end of the kernels, and the latency of the first tile"),
    fitted("narrow_us", "us", 0.0, 10.0, 3.8, FREE, "kernels that quantize queries, keys and values, where they do"),
    fitted("dram_frac", "1", 0.3, 1.0, 0.75, SPEC, "share of the DRAM bandwidth"),
    fitted("l2_frac", "1", 0.05, 1.0, 0.85, SPEC, "share of the L2 bandwidth"),
    fitted("hold_frac", "1", 0.2, 1.5, 0.75, FREE, "of L2: what its tensors may fill before they go to DRAM"),
    fitted("cta_us", "us", 0.0, 15.0, 1.0, FREE, "a CTA besides its tiles of keys"),
    fitted("matrix16_frac", "1", 0.1, 1.0, 0.65, SPEC, "share of the rate of 16-bit products"),
    fitted("matrix8_frac", "1", 0.1, 1.0, 0.48, SPEC, "share of the rate of 8-bit products"),
    fitted("tail_frac", "1", 0.0, 3.0, 0.95, FREE, "of the longest CTA, which the others wait for at the end"),
)
_GENERATION = (
    fitted("fixed_us", "us", 2.0, 30.0, 8.0, FREE, "start and end of the kernels"),
    fitted("cta_us", "us", 0.0, 30.0, 2.5, FREE, "a tile of query heads of a sequence besides its keys"),
    fitted("matrix16_frac", "1", 0.05, 1.0, 0.43, SPEC, "share of the rate of 16-bit products"),
    fitted("matrix8_frac", "1", 0.05, 1.0, 0.4, SPEC, "share of the rate of 8-bit products"),
    fitted("dram_frac", "1", 0.6, 1.0, 0.92, SPEC, "share of the DRAM bandwidth"),
    fitted("hold_frac", "1", 0.2, 1.5, 0.6, FREE, "of L2: what the latents of all sequences may fill"),
)
WHOLE_LATENTS = (
    *_GENERATION,
    fitted("late_frac", "1", 0.0, 0.5, 0.07, FREE, "time that a key takes more where it comes from DRAM"),
    fitted("crowd_frac", "1", 1.0, 3.0, 1.45, SPEC, "time of a CTA that shares its SM, over that of a lone one"),
)
_TILE_RATE = (
    "16 bits: FlashMLA's README, 580 TFLOP/s of 128 heads on an H800, of 989; 8 bits: FlashInfer's issue 4390, where "
    "TensorRT-LLM on a B200 takes 12.0 ns a key and tile of heads, 0.38 of the rate, if tiles share what they read"
)
SPLIT_LATENTS = (
    *(item for item in _GENERATION if not item.name.startswith("matrix")),
    Coefficient("matrix16_frac", "1", 0.05, 1.0, 0.58, SPEC, "share of the rate of 16-bit products", _TILE_RATE),
    Coefficient("matrix8_frac", "1", 0.05, 0.55, 0.38, SPEC, "share of the rate of 8-bit products", _TILE_RATE),
    fitted("cta8_us", "us", 0.0, 30.0, 3.7, FREE, "cta_us where the cache has 8 bits"),
    fitted("vector_frac", "1", 0.05, 1.0, 0.4, NO_LIMIT, "share of the DRAM bandwidth of queries and outputs"),
    fitted("sum_us", "us", 0.0, 10.0, 1.6, FREE, "sum of the parts where keys are cut"),
    fitted("part_us", "us", 0.0, 1.0, 0.05, FREE, "likewise, for each part"),
    fitted("part_frac", "1", 0.6, 1.0, 0.75, NO_LIMIT, "share of the L2 bandwidth of the parts' outputs"),
)
CLUSTER_LATENTS = (
    fitted("fixed_us", "us", 2.0, 30.0, 4.4, FREE, "start and end of the kernels"),
    fitted("cta_us", "us", 0.0, 30.0, 1.6, FREE, "a sequence besides its keys"),
    fitted("matrix8_frac", "1", 0.05, 1.0, 0.95, SPEC, "share of the rate of 8-bit products; assumed"),
    fitted("dram_frac", "1", 0.6, 1.0, 0.92, SPEC, "share of the DRAM bandwidth"),
)
"""No row tells of these kernels: start and end are those of `WHOLE_LATENTS` on the same GPU."""

_STEEP = 4.0  # of the passage from L2 to DRAM
_NORM = 4.0  # of what runs side by side
_EVEN_NORM = 8.0  # likewise, of warp-specialized kernels that fill every SM
_EXPOSED_EXPS = 0.5  # of the exponentials, what is not hidden; assumed
_ROW_TILE, _KEY_TILE = 64, 64  # query heads x tokens of a CTA, and keys of a step, in generation
_ROPE, _LATENT = 64, 576  # elements of a cached entry with positions, and all of it: DeepSeek's models
_NARROW_BITS = 8.0
_SUM_BYTES = 2.0 * 4.0  # of an element of a part's output, in fp32, written and read
_SWAPPED_HEADS, _FEW_SWAPPED_HEADS, _MOST_SWAPPED_HEADS = 16, 8, 32  # of a tile; of its smaller form; for all lengths
_SWAPPED_STEP, _SWAPPED_KEYS = 256, 1024  # keys of a step, and most of a CTA, for which more heads are swapped too
_CLUSTER_CTAS, _CLUSTER_HEADS = 4, 128


class LatentKernel(NamedTuple):
    """Kernels that a generation of SMs runs; inferred from where measured times step, or from TensorRT-LLM 1.x.

    Schedule ``even``: all keys of all sequences are spread evenly over the CTAs (FlashMLA); ``parts``: each sequence is
    cut into as many parts as fill the SMs (trtllm-gen); ``whole``: keys are never cut.
    """

    q_tile: int = 128  # of context
    k_tile: int = 128
    has_narrow: bool = True  # an 8-bit cache is computed in 8 bits; else as 16-bit ones
    schedule: Literal["even", "parts", "whole"] = "whole"
    part_keys: int = 64  # fewest keys of a part, whose time is in `fixed_us`
    most_parts: float = np.inf  # of a sequence, where all CTAs share the keys evenly
    swaps_heads: bool = False  # few heads stand in the columns of the product, 8 or 16 a CTA, instead of 64 in its rows
    has_positions: bool = True  # a kernel of the call turns positions and writes the cache
    columns: tuple[int, int] = (1, 1)  # CTAs that share a tile of heads, each with some of a value: 16 and 8 bits
    ctas_per_sm: tuple[int, int] = (2, 2)  # that run at once, likewise


_TCGEN05 = LatentKernel(schedule="parts", part_keys=256, swaps_heads=True)
_KERNELS = {
    "sm_80": LatentKernel(64, has_narrow=False, columns=(2, 2)),
    "sm_89": LatentKernel(64, has_narrow=False, columns=(4, 4), ctas_per_sm=(4, 4)),
    "sm_90": LatentKernel(schedule="even"),
    "sm_100": _TCGEN05,
    "sm_103": _TCGEN05,
    "sm_120": LatentKernel(64, columns=(4, 2), ctas_per_sm=(4, 1)),
    # aiter's mla_decode_fwd: CUs share all keys, a sequence in 16 parts at most (`get_meta_param` of aiter/mla.py)
    **dict.fromkeys(GFX_ARCHS[1:], LatentKernel(schedule="even", most_parts=16)),
}
FLASHINFER_LATENTS = LatentKernel(schedule="even", has_positions=False)
"""FlashInfer 0.5, `batch_mla` for Hopper: the same tiles and schedule as FlashMLA's."""


def latent_kernel(arch: GpuSpec) -> LatentKernel:
    """Return the kernels of a GPU; of generations of NVIDIA that none was timed on, those of sm_80.

    Raises:
        UnsupportedError: aiter's kernels do not run on this generation of AMD.
    """
    check_carried(arch, "attention on latents")
    if arch.sm_arch in GFX_ARCHS and arch.sm_arch not in _KERNELS:
        known = ", ".join(GFX_ARCHS[1:])
        raise UnsupportedError(
            f"attention on latents: aiter has kernels for {known}, and {arch.name} is {arch.sm_arch}"
        )
    return _KERNELS.get(arch.sm_arch, _KERNELS["sm_80"])


def latent_context_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `LATENT_CONTEXT_TERMS`, [rows], in microseconds; OPERATIONS.md, "Attention"."""
    kernel = latent_kernel(arch)
    narrow = _is_narrow(arch, kernel, rows)
    moved, streamed, different = _context_bytes(rows, narrow)
    missed = missed_frac(different, c["hold_frac"] * arch.l2_bytes, _STEEP)
    us_per_byte = missed / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"]) + (1.0 - missed) / (
        bytes_per_us(arch.l2_gb_per_s) * c["l2_frac"]
    )
    ctas, visits, most = all_tile_counts(rows, kernel.q_tile, (kernel.k_tile,) * len(rows))
    pairs = kernel.q_tile * kernel.k_tile
    matrix_us = FLOP_PER_MAC * pairs * (rows.head_dim + rows.value_dim) / _rate(arch, c, narrow)
    step_us = np.hypot(matrix_us, _EXPOSED_EXPS * pairs / arch.exps_per_cycle / cycles_per_us(arch.boost_clock_ghz))
    work_us = rows.batch * rows.num_heads * (visits * step_us + ctas * c["cta_us"]) / arch.num_sms
    tail_us = c["tail_frac"] * (most * step_us + c["cta_us"])
    return {
        "fixed_us": c["fixed_us"] + np.where(narrow, c["narrow_us"], 0.0),
        "prepare_us": moved * us_per_byte,
        "compute_us": np.hypot(streamed * us_per_byte, work_us + tail_us),
    }


def has_cluster_kernel(arch: GpuSpec, rows: AttentionRows) -> npt.NDArray[np.bool_]:
    """Return for which problems clusters of CTAs share a sequence: XQA's kernel for 128 heads and fp8 on sm_120."""
    fits = (rows.num_heads == _CLUSTER_HEADS) & (rows.kv_bits <= _NARROW_BITS)
    return fits if arch.sm_arch == "sm_120" else np.zeros(len(rows), np.bool_)


def cluster_latent_terms(arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows) -> dict[str, Floats]:
    """Return the time of each of `LATENT_TERMS`, [rows], in microseconds, of XQA's kernel for MLA (mla_sm120.cu).

    A cluster has two CTAs that multiply queries and keys, tile by tile in turns, and two with half of the values each.
    TensorRT-LLM never cuts the keys of a sequence among clusters.
    """
    rate = arch.peak_tflop_per_s(DType.FP8) * c["matrix8_frac"] * 1e6 / arch.num_sms
    keys = np.ceil(rows.keys / _KEY_TILE) * _KEY_TILE
    key_us = FLOP_PER_MAC * rows.num_heads * np.maximum(rows.head_dim, rows.value_dim) / 2.0 / rate
    waves = np.ceil(rows.batch * rows.q_len / (arch.num_sms // _CLUSTER_CTAS))
    vectors = rows.batch * rows.num_heads * rows.q_len * (rows.head_dim + rows.value_dim) * 2.0
    latents = rows.batch * keys * rows.head_dim * rows.kv_bits / 8.0
    memory_us = (latents + vectors) / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"])
    zero = np.zeros(len(rows))
    return {
        "fixed_us": zero + c["fixed_us"],
        "prepare_us": zero,
        "compute_us": side_by_side(waves * (c["cta_us"] + key_us * keys), memory_us),
        "sum_us": zero,
    }


def latent_terms(
    arch: GpuSpec, c: Mapping[str, float], rows: AttentionRows, kernel: LatentKernel | None = None
) -> dict[str, Floats]:
    """Return the time of each of `LATENT_TERMS`, [rows], in us; `kernel` None: TensorRT-LLM's on this GPU."""
    kernel = latent_kernel(arch) if kernel is None else kernel
    narrow = _is_narrow(arch, kernel, rows)
    keys = np.ceil(rows.keys / _KEY_TILE) * _KEY_TILE
    heads = rows.num_heads * rows.q_len
    bits = np.where(narrow, rows.kv_bits, np.maximum(rows.kv_bits, 16.0))
    latents = rows.batch * keys * rows.head_dim * bits / 8.0
    vectors = rows.batch * heads * (rows.head_dim + rows.value_dim) * 2.0
    missed = missed_frac(latents, c["hold_frac"] * arch.l2_bytes, _STEEP)
    dram = bytes_per_us(arch.dram_gb_per_s)
    prepare_us = sum_us = np.zeros(len(rows))
    columns = np.where(narrow, *kernel.columns[::-1])
    key_us = FLOP_PER_MAC * _ROW_TILE * (rows.head_dim + rows.value_dim / columns) / _rate(arch, c, narrow)
    if kernel.schedule == "whole":
        memory_us = (latents * missed + vectors) / (dram * c["dram_frac"])
        per_sm = np.where(narrow, *kernel.ctas_per_sm[::-1])
        alone = c["cta_us"] + key_us * keys * (1.0 + c["late_frac"] * missed)
        row_tiles = rows.batch * np.ceil(heads / _ROW_TILE)
        waves, rest = np.divmod(row_tiles * columns, per_sm * arch.num_sms)
        full = np.where(per_sm > 1, c["crowd_frac"], 1.0)
        last = np.where(rest > arch.num_sms, c["crowd_frac"], np.where(rest > 0, 1.0, 0.0))
        busy_us, norm = alone * (waves * full + last), _NORM
    else:
        memory_us = latents * missed / (dram * c["dram_frac"])
        prepare_us = (vectors + _prologue_bytes(rows, kernel, narrow)) / (dram * c["vector_frac"])
        cta_us = np.where(narrow, c["cta8_us"], c["cta_us"])
        schedule = _even if kernel.schedule == "even" else _in_parts
        busy_us, parts = schedule(arch, kernel, rows, keys, key_us, cta_us)
        norm = _EVEN_NORM if kernel.schedule == "even" else _NORM
        part_bytes = rows.batch * heads * parts * rows.value_dim * _SUM_BYTES
        parts_us = part_bytes / (bytes_per_us(arch.l2_gb_per_s) * c["part_frac"])
        sum_us = np.where(parts > 1.0, c["sum_us"] + c["part_us"] * parts + parts_us, 0.0)
    return {
        "fixed_us": np.full(len(rows), c["fixed_us"]),
        "prepare_us": prepare_us,
        "compute_us": (memory_us**norm + busy_us**norm) ** (1.0 / norm),
        "sum_us": sum_us,
    }


def _even(
    arch: GpuSpec, kernel: LatentKernel, rows: AttentionRows, keys: Floats, key_us: Floats, cta_us: Floats
) -> tuple[Floats, Floats]:
    """Return the time of a CTA and the parts of a sequence, [rows]: FlashMLA, `get_mla_metadata`.

    A CTA an SM; each tile of 64 query heads has an equal share of the SMs, which share all tiles of keys evenly.
    """
    ctas = np.maximum(np.floor(arch.num_sms / np.ceil(rows.num_heads * rows.q_len / _ROW_TILE)), 1.0)
    ctas = np.minimum(ctas, kernel.most_parts * rows.batch)
    tiles = np.maximum(np.ceil(rows.batch * keys / _KEY_TILE / ctas), 1.0)
    sequences = np.maximum(np.ceil(rows.batch / ctas), 1.0)
    row_tiles = np.maximum(np.ceil(rows.num_heads * rows.q_len / _ROW_TILE) / arch.num_sms, 1.0)
    parts = np.clip(ctas / rows.batch, 1.0, keys / _KEY_TILE)
    return row_tiles * (tiles * _KEY_TILE * key_us + sequences * cta_us), parts


def _in_parts(
    arch: GpuSpec, kernel: LatentKernel, rows: AttentionRows, keys: Floats, key_us: Floats, cta_us: Floats
) -> tuple[Floats, Floats]:
    """Return the time of all CTAs and the parts of a sequence, [rows]: trtllm-gen, `selectMlaGenerationKernel`.

    The time of a CTA hides behind keys of another one on the same SM.
    """
    slots = kernel.ctas_per_sm[0] * arch.num_sms
    row_tiles = rows.batch * rows.q_len * np.ceil(rows.num_heads / _heads_of_tile(arch, kernel, rows))
    parts = np.clip(np.floor(slots / row_tiles), 1.0, np.ceil(keys / kernel.part_keys))
    chain = key_us * np.maximum(np.ceil(keys / parts / _KEY_TILE) * _KEY_TILE - kernel.part_keys, 0.0)
    work, fixed = row_tiles * key_us * keys / arch.num_sms, row_tiles * cta_us / arch.num_sms
    return (work**_NORM + fixed**_NORM + chain**_NORM) ** (1.0 / _NORM), parts


def _heads_of_tile(arch: GpuSpec, kernel: LatentKernel, rows: AttentionRows) -> Floats:
    """Return the query heads that a CTA computes.

    Up to 32 heads stand in the columns of the product, 8 or 16 a CTA; more of them do where a CTA has few keys then.
    """
    few = np.where(rows.num_heads <= _FEW_SWAPPED_HEADS, _FEW_SWAPPED_HEADS, _SWAPPED_HEADS)
    if not kernel.swaps_heads:
        return np.full(len(rows), float(_ROW_TILE))
    ctas = rows.batch * rows.q_len * np.ceil(rows.num_heads / _SWAPPED_HEADS)
    parts = np.minimum(np.ceil(rows.keys / _SWAPPED_STEP), np.maximum(np.floor(arch.num_sms / ctas), 1.0))
    has_few_keys = (rows.keys / parts <= _SWAPPED_KEYS) & (ctas <= arch.num_sms)
    return np.where((rows.num_heads <= _MOST_SWAPPED_HEADS) | has_few_keys, few, float(_ROW_TILE))


def _prologue_bytes(rows: AttentionRows, kernel: LatentKernel, narrow: npt.NDArray[np.bool_]) -> Floats:
    """Return the bytes of the kernel that turns positions of queries, and makes all of them narrow for 8 bits."""
    elements = rows.batch * rows.q_len * rows.num_heads
    return elements * np.where(narrow, rows.head_dim * 3.0, _ROPE * 2.0 * 2.0) * kernel.has_positions


def _is_narrow(arch: GpuSpec, kernel: LatentKernel, rows: AttentionRows) -> npt.NDArray[np.bool_]:
    has_rate = kernel.has_narrow and DType.FP8 in arch.tensor_flop_per_cycle
    return (rows.kv_bits <= _NARROW_BITS) & has_rate


def _rate(arch: GpuSpec, c: Mapping[str, float], narrow: npt.NDArray[np.bool_]) -> Floats:
    """FLOP of an SM in a microsecond, in the loop over keys."""
    wide = DType.BF16 if DType.BF16 in arch.tensor_flop_per_cycle else DType.FP16
    rate16 = arch.peak_tflop_per_s(wide) * c["matrix16_frac"]
    rate8 = arch.peak_tflop_per_s(DType.FP8) * c["matrix8_frac"] if narrow.any() else rate16
    return np.where(narrow, rate8, rate16) * 1e6 / arch.num_sms


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
