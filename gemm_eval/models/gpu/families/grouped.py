"""Kernels of grouped GEMMs: one launch for all experts of a layer.

Tiles are what the libraries' sources say; rules by which they choose one stand in `models.gpu.moe`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import MOE_LAYER, TRITON_OWN, Coefficient, with_ranges
from gemm_eval.models.gpu.families.cublas import MMA_FP8, MMA_SYNC, TCGEN05, WGMMA
from gemm_eval.models.gpu.families.family import (
    BLACKWELL_SIZES,
    PAIRS,
    SINGLE,
    Family,
    TileChoice,
    fixed_tiles,
    no_tiles,
    since,
)
from gemm_eval.models.gpu.moe_tiles import TritonTile, known_tiles
from gemm_eval.workload import GemmTypes

_COOP, _PP, _MS = Schedule.COOPERATIVE, Schedule.PINGPONG, Schedule.MULTISTAGE
_16_BITS = (DType.FP16, DType.BF16)


def _is_16_bit(types: GemmTypes) -> bool:
    return types.a.dtype in _16_BITS and types.b.dtype is types.a.dtype


def _is_fp8(types: GemmTypes) -> bool:
    return types.a.dtype is DType.FP8 and types.b.dtype is DType.FP8 and not types.is_block_scaled


def _is_fp8_block(types: GemmTypes) -> bool:
    return types.a.dtype is DType.FP8 and types.is_block_scaled


def _is_fp4_block(types: GemmTypes) -> bool:
    return types.a.dtype is DType.FP4 and types.is_block_scaled


def _is_weight_only(types: GemmTypes) -> bool:
    return types.a.dtype in _16_BITS and types.is_weight_quantized


def _is_fp4_weights(types: GemmTypes) -> bool:
    return types.a.dtype in _16_BITS and types.b.dtype is DType.FP4


def _is_4_bit_weights(types: GemmTypes) -> bool:
    return types.a.dtype in _16_BITS and types.b.dtype in (DType.INT4, DType.FP4)


def _coefficients(
    of: Sequence[Coefficient], *, has_layer: bool = True, fused: Collection[str] = (),
    **ranges: tuple[float, float, float],
) -> tuple[Coefficient, ...]:  # fmt: skip
    """Return the coefficients of a family, with room for what schedulers of groups wait, and those of a layer."""
    own = {
        "kernel_us": (0.2, 12.0, 2.0), "step_cycles": (0.0, 3000.0, 100.0), "coop_step_cycles": (0.0, 3000.0, 150.0),
        "tile_cycles": (0.0, 12000.0, 500.0), "coop_tile_cycles": (0.0, 12000.0, 500.0),
        "pingpong_cycles": (0.0, 8000.0, 1000.0), "dram_frac": (0.3, 1.1, 0.95), "matrix_frac": (0.2, 1.0, 0.95),
        "l2_frac": (0.5, 3.0, 1.4), "choice_loss": (0.0, 0.12, 0.0),
    } | ranges  # fmt: skip
    layer = tuple(item for item in MOE_LAYER if has_layer and item.name not in fused)
    return with_ranges((*of, *layer), **own)


# GEMM 1 reads rows of tokens where they lie, and computes the activation before it stores; GEMM 2 adds up tokens
_GATHERED, _ACTIVATED, _FINALIZED = "moe_token_frac", "moe_activation_frac", "moe_finalize_frac"


# PyTorch 2.11's grouped_mm on Hopper (aten/src/ATen/native/cuda/GroupMM.cu): 64 rows where groups have at most 128 in
# the mean, else 128; both seen in the kernels' names (arch/measured/h200-sxm/grouped)
def _torch_tiles(*_: object) -> Iterator[TileChoice]:
    yield TileChoice("sm90_grouped", 64, 128, 8, _PP, ((2, 1),), step_bytes=256, num_stages=4)
    yield TileChoice("sm90_grouped", 128, 256, 8, _COOP, ((2, 1),), num_stages=4)


_TRITON_STEPS = (16, 32, 64, 128, 256, 512)


def _triton_tiles(table: str, few_rows: str, many_rows: str) -> Callable[[str, DType], Iterator[TileChoice]]:
    """Tiles of Triton's fused_moe on a generation; below 64 rows, or with few warps, Hopper's kernels use mma.sync."""

    def tiles(sm_arch: str, dtype: DType) -> Iterator[TileChoice]:
        for tile in known_tiles(table, sm_arch):
            has_wgmma = sm_arch == "sm_90" and tile.num_warps >= 4 and _uses_wgmma(table, tile)
            yield TileChoice(
                many_rows if has_wgmma else few_rows, tile.block_m, tile.block_n, tile.num_warps, _MS, SINGLE,
                step_bytes=tile.block_k * dtype.bits // 8, num_stages=max(2, tile.num_stages),
            )  # fmt: skip

    return tiles


def _uses_wgmma(table: str, tile: TritonTile) -> bool:
    """Return True if one of a tile's sides has the 64 rows of wgmma; fp8 kernels swap their operands for that."""
    return tile.block_m >= 64 or (table == "fp8_block" and tile.block_n >= 64)


_TRITON_WARPS = (1, 2, 4, 8, 16)
_TRITON_RANGES = {
    "matrix_frac": (0.2, 1.0, 0.97), "dram_frac": (0.3, 1.1, 0.96), "sm_l2_frac": (0.4, 1.5, 1.2),
    "step_cycles": (0.0, 3000.0, 0.0), "tile_cycles": (0.0, 12000.0, 2000.0),
    "epilogue_bytes_per_cycle": (4.0, 256.0, 35.0), "ramp_us": (0.0, 6.0, 1.5), "line_waste": (0.0, 1.0, 0.0),
    "unaligned_frac": (0.02, 1.0, 1.0), "l2_frac": (0.5, 4.0, 2.0), "moe_token_ns": (0.0, 60.0, 0.0),
    "moe_token_expert_ps": (0.0, 400.0, 0.0), "moe_row_ns": (0.0, 60.0, 0.0), "moe_active_ns": (0.0, 800.0, 0.0),
}  # fmt: skip
# a choice, which no timings here hold out: the same code, which the same releases compile for both and for Hopper
_AS_HOPPER = {"sm_89": ("sm_90",), "sm_120": ("sm_90",)}
_TRITON = replace(
    MMA_SYNC, own_of=(), max_registers=255, num_warps=_TRITON_WARPS, more_step_bytes=_TRITON_STEPS, is_compiled=True,
    carries_from=_AS_HOPPER, has_tensor_memory=True,
    coefficients=_coefficients(
        (*MMA_SYNC.coefficients, *TRITON_OWN), has_layer=True, fused=[_GATHERED], **_TRITON_RANGES,
    ),
)  # fmt: skip
_QUANTIZED = _coefficients(
    (*MMA_SYNC.coefficients, *TRITON_OWN), has_layer=True, fused=(), **_TRITON_RANGES
)  # a kernel quantizes the tokens
_TRITON_WGMMA = replace(
    WGMMA, own_of=(), schedules=(_MS,), is_warp_specialized=False, has_clusters=False, max_registers=255,
    coefficients=_TRITON.coefficients, num_warps=_TRITON_WARPS, more_step_bytes=_TRITON_STEPS, is_compiled=True,
)  # fmt: skip
# Marlin's kernels of experts (SGLang 0.5.10, jit_kernel/csrc/gemm/marlin_moe): rows of one of five sizes, and for up to
# 16 of them, where K is long, wider k-steps; of these as many CTAs an SM as fit, up to four, share the work. Weights of
# int4, int8, mxfp4 and nvfp4 are one kernel, which differs in how it unpacks them; timings are of int4
_MARLIN_FEW_ROWS, _MARLIN_ROWS = (8, 16), (32, 48, 64)


def _marlin_ctas(cta_m: int) -> int:
    return 4 if cta_m <= max(_MARLIN_FEW_ROWS) else 1


def _marlin_tiles(*_: object) -> Iterator[TileChoice]:
    for m in _MARLIN_FEW_ROWS:
        yield TileChoice("marlin_moe", m, 128, 8, _MS, SINGLE, step_bytes=256, num_stages=4)
        yield TileChoice("marlin_moe", m, 128, 4, _MS, SINGLE, num_stages=4)
    for m in _MARLIN_ROWS:
        yield TileChoice("marlin_moe", m, 256, 8, _MS, SINGLE, num_stages=4)
        yield TileChoice("marlin_moe", m, 128, 4, _MS, SINGLE, num_stages=4)


_GEN_SIZES = tuple((m, 128) for m in (8, 16, 32, 64, 128))
# DeepGEMM on Hopper (csrc/jit_kernels/heuristics/sm90.hpp): its masked layout takes 64 or 128 rows, the contiguous one
# 128, to which the rows of each group are padded; columns in steps of 16, as few as its sums in fp32 leave room for
_DEEPGEMM_SM90 = tuple((m, n) for m in (64, 128) for n in range(16, 161, 16))

# TensorRT-LLM's CUTLASS kernels of experts (cutlass_heuristic.cpp), of which its tuner takes the fastest
_CUTLASS_SM80 = ((16, 128), (32, 128), (64, 128), (128, 128))
_CUTLASS_SM90 = (*((m, 128) for m in (16, 32, 64, 128, 256)), (128, 256))
_CUTLASS_SM100 = tuple((m, n) for n in (64, 128, 256) for m in (32, 64, 128, 256) if m * n <= 128 * 256)
# on RTX Blackwell, whose shared memory is that of Ada, block-scaled kernels have one tile (cutlass_heuristic.cpp)
_CUTLASS_SM120 = ((128, 128),)


def _cutlass(
    of: Family, name: str, number: int, for_types: Callable[[GemmTypes], bool], *, fused: Collection[str] = (),
    ranges: Mapping[str, tuple[float, float, float]] = MappingProxyType({}), **more: Any,
) -> Family:  # fmt: skip
    sizes, warps, schedule, clusters = {
        "sm80_mma": (_CUTLASS_SM80, 4, _MS, SINGLE),
        "sm89_mma_fp8": (_CUTLASS_SM80, 4, _MS, SINGLE),
        "sm120_block": (_CUTLASS_SM120, 8, _COOP, SINGLE),
        "sm90_wgmma": (_CUTLASS_SM90, 8, _COOP, PAIRS),
        "sm100_tcgen05": (_CUTLASS_SM100, 8, _PP, PAIRS),
    }[of.name]
    return replace(
        of, name=name, number=number, own_of=(), for_types=for_types,
        dense_tiles=fixed_tiles(name, sizes, warps, schedule, clusters),
        coefficients=_coefficients(of.coefficients, has_layer=True, fused=fused, **ranges), **more,
    )  # fmt: skip


# GEMMs of Ada and RTX Blackwell, of which no layers were timed: round, within what plain ones of the same types gave
# on an L40S and an RTX PRO 6000 (arch/calibration); rows beyond a group are those of the next
_SM89_FP8 = {
    "matrix_frac": (0.2, 1.0, 0.9), "step_cycles": (0.0, 3000.0, 75.0), "tile_cycles": (0.0, 12000.0, 1100.0),
    "epilogue_bytes_per_cycle": (4.0, 256.0, 18.0), "sm_l2_frac": (0.4, 1.5, 1.4),
}  # fmt: skip
_SM120 = {
    "coop_step_cycles": (0.0, 3000.0, 45.0), "coop_tile_cycles": (0.0, 12000.0, 1300.0),
    "epilogue_bytes_per_cycle": (4.0, 256.0, 30.0), "outside_rows_per_cycle": (0.1, 50.0, 50.0),
}  # fmt: skip
_SM120_BLOCK = replace(
    MMA_SYNC, name="sm120_block", sm_archs=("sm_120",), schedules=(_COOP,), is_warp_specialized=True,
    weight_only_tiles=no_tiles,
)  # fmt: skip

# round, within what fits of TensorRT-LLM's layers gave (arch/calibration), where a search begins
_SM90 = {
    "step_cycles": (0.0, 3000.0, 600.0), "coop_tile_cycles": (0.0, 12000.0, 1800.0), "l2_first": (0.0, 4.0, 1.0),
    "l2_hold_frac": (0.05, 1.0, 0.3), "moe_fixed_us": (0.5, 80.0, 13.0), "moe_expert_ns": (0.0, 800.0, 10.0),
    "moe_row_ns": (0.0, 60.0, 3.0), "moe_token_frac": (0.02, 1.0, 0.35),
}  # fmt: skip
_SM90_FP8_BLOCK = _SM90 | {
    "coop_step_cycles": (0.0, 3000.0, 40.0), "matrix_frac": (0.2, 1.0, 0.7), "moe_expert_ns": (0.0, 800.0, 220.0),
    "moe_row_ns": (0.0, 60.0, 18.0), "moe_finalize_frac": (0.02, 1.0, 0.3),
}  # fmt: skip
_SM100 = {
    "pingpong_cycles": (0.0, 8000.0, 5000.0), "step_cycles": (0.0, 3000.0, 20.0), "tile_cycles": (0.0, 12000.0, 50.0),
    "sm_l2_frac": (0.4, 1.5, 1.4), "l2_first": (0.0, 4.0, 1.3), "moe_fixed_us": (0.5, 80.0, 18.0),
    "moe_expert_ns": (0.0, 800.0, 15.0), "moe_row_ns": (0.0, 60.0, 4.0), "moe_token_frac": (0.02, 1.0, 0.25),
}  # fmt: skip

GROUPED: tuple[Family, ...] = (
    _cutlass(
        MMA_SYNC, "cutlass_moe_sm80", 51, _is_16_bit, sm_archs=("sm_80", "sm_86", "sm_89", "sm_120"),
        weight_only_tiles=no_tiles,
    ),
    _cutlass(
        MMA_FP8, "cutlass_moe_sm89_fp8", 73, _is_fp8, sm_archs=("sm_89", "sm_120"), weight_only_tiles=no_tiles,
        other_dtypes=(), ranges=_SM89_FP8,
    ),
    _cutlass(_SM120_BLOCK, "cutlass_moe_sm120_fp8_block", 71, _is_fp8_block, block_scaled=DType.FP8, ranges=_SM120),
    _cutlass(
        _SM120_BLOCK, "cutlass_moe_sm120_fp4", 72, _is_fp4_block, block_scaled=DType.FP4, step_bytes=64, ranges=_SM120
    ),
    _cutlass(WGMMA, "cutlass_moe_sm90", 52, _is_16_bit, ranges=_SM90),
    _cutlass(WGMMA, "cutlass_moe_sm90_fp8", 53, _is_fp8, ranges=_SM90),
    _cutlass(WGMMA, "cutlass_moe_sm90_fp8_block", 54, _is_fp8_block, block_scaled=DType.FP8, ranges=_SM90_FP8_BLOCK),
    # Blackwell's add up tokens in GEMM 2 (use_fused_finalize, the default); timings of Hopper's show a step of its own
    _cutlass(TCGEN05, "cutlass_moe_sm100", 55, _is_16_bit, fused=[_FINALIZED], ranges=_SM100),
    _cutlass(TCGEN05, "cutlass_moe_sm100_fp8", 56, _is_fp8, fused=[_FINALIZED], ranges=_SM100),
    _cutlass(
        TCGEN05, "cutlass_moe_sm100_fp4", 57, _is_fp4_block, block_scaled=DType.FP4, fused=[_FINALIZED], ranges=_SM100
    ),
    replace(
        MMA_SYNC, name="marlin_moe", number=50, own_of=(), more_step_bytes=(256,), for_types=_is_weight_only,
        carries_from=_AS_HOPPER, min_stream_steps=2, stream_ctas=_marlin_ctas, dense_tiles=_marlin_tiles,
        weight_only_tiles=no_tiles,
        coefficients=_coefficients(
            MMA_SYNC.coefficients, fused=[_GATHERED], sm_l2_frac=(0.1, 1.5, 0.35), dequant=(0.3, 12.0, 2.8),
            dequant_exposed=(0.0, 1.0, 0.0), tile_cycles=(0.0, 9000.0, 2000.0), matrix_frac=(0.2, 1.0, 0.55),
            step_cycles=(0.0, 3000.0, 0.0), epilogue_bytes_per_cycle=(2.0, 256.0, 6.0), dram_frac=(0.3, 1.1, 0.96),
            l2_frac=(0.5, 4.0, 3.0),
        ),
    ),
    replace(
        WGMMA, name="sm90_grouped", number=40, own_of=(), more_step_bytes=(256,), for_types=_is_16_bit,
        dense_tiles=_torch_tiles, coefficients=_coefficients(WGMMA.coefficients, has_layer=False),
    ),
    replace(
        _TRITON, name="triton_moe", number=41, for_types=_is_16_bit,
        dense_tiles=_triton_tiles("16bit", "triton_moe", "triton_moe_wgmma"),
    ),
    replace(_TRITON_WGMMA, name="triton_moe_wgmma", number=42, for_types=_is_16_bit),
    replace(
        _TRITON, name="triton_moe_fp8", number=43, sm_archs=since("sm_89"), block_scaled=DType.FP8,
        coefficients=_QUANTIZED,
        for_types=_is_fp8_block, dense_tiles=_triton_tiles("fp8_block", "triton_moe_fp8", "triton_moe_fp8_wgmma"),
    ),
    replace(  # of triton_kernels: tiles are what steps of the timings show (arch/measured/h200-sxm, w4a16_mxfp4)
        _TRITON_WGMMA, name="triton_moe_mxfp4", number=60, for_types=_is_fp4_weights,
        dense_tiles=fixed_tiles("triton_moe_mxfp4", ((16, 128), (128, 128)), 8, _MS, step_bytes=128),
        coefficients=with_ranges(_TRITON.coefficients, dequant=(0.3, 60.0, 17.0), dequant_exposed=(0.0, 1.0, 0.0)),
    ),
    replace(
        _TRITON_WGMMA, name="triton_moe_fp8_wgmma", number=44, block_scaled=DType.FP8, for_types=_is_fp8_block,
        coefficients=_QUANTIZED,
    ),
    replace(
        TCGEN05, name="gen_moe", number=45, own_of=(), for_types=_is_16_bit,
        dense_tiles=fixed_tiles("gen_moe", _GEN_SIZES, 8, _PP),
        coefficients=_coefficients(TCGEN05.coefficients, fused=[_ACTIVATED]),
    ),
    replace(
        TCGEN05, name="gen_moe_fp8", number=46, own_of=(), block_scaled=DType.FP8, for_types=_is_fp8_block,
        dense_tiles=fixed_tiles("gen_moe_fp8", _GEN_SIZES, 8, _PP), coefficients=_coefficients(TCGEN05.coefficients),
        fills_across_groups=True,
    ),
    replace(
        TCGEN05, name="gen_moe_fp4", number=47, own_of=(), block_scaled=DType.FP4, for_types=_is_fp4_block,
        dense_tiles=fixed_tiles("gen_moe_fp4", (*_GEN_SIZES, (256, 128)), 8, _PP), fills_across_groups=True,
        coefficients=_coefficients(TCGEN05.coefficients, fused=[_ACTIVATED]),
    ),
    replace(
        TCGEN05, name="gen_moe_mxfp4", number=59, own_of=(), fills_across_groups=True, for_types=_is_4_bit_weights,
        dense_tiles=fixed_tiles("gen_moe_mxfp4", _GEN_SIZES[:4], 8, _PP),
        coefficients=_coefficients(TCGEN05.coefficients, fused=[_ACTIVATED]),
    ),
    replace(  # as DeepGEMM's kernels of plain GEMMs on an H200: no timings are known; rows beyond a group are in A
        WGMMA, name="sm90_deepgemm_moe", number=58, own_of=(), block_scaled=DType.FP8, for_types=_is_fp8_block,
        dense_tiles=fixed_tiles("sm90_deepgemm_moe", _DEEPGEMM_SM90, 8, _COOP, PAIRS),
        coefficients=_coefficients(
            WGMMA.coefficients, matrix_frac=(0.2, 1.0, 1.0), coop_step_cycles=(0.0, 3000.0, 180.0),
            coop_tile_cycles=(0.0, 12000.0, 35.0), epilogue_bytes_per_cycle=(4.0, 256.0, 8.2),
            sm_l2_frac=(0.4, 1.5, 0.68), dram_frac=(0.3, 1.1, 0.89), l2_hold_frac=(0.05, 1.0, 0.14),
            cluster_loss=(0.0, 0.15, 0.01), outside_rows_per_cycle=(0.1, 50.0, 50.0),
        ),
    ),
    replace(
        TCGEN05, name="sm100_deepgemm_moe", number=48, own_of=(), block_scaled=DType.FP8, for_types=_is_fp8_block,
        dense_tiles=fixed_tiles("sm100_deepgemm_moe", BLACKWELL_SIZES, 8, _PP, PAIRS),
        coefficients=_coefficients(TCGEN05.coefficients),
    ),
)  # fmt: skip
"""Families of grouped kernels, beside those of plain GEMMs that a library runs on groups too."""
