"""Families of kernels for narrow weights: those that TensorRT-LLM runs, what quantizes A, and our own (KERNELS.md)."""

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.dtypes import DType, parse_scheme
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import QUANTIZATION, TRTLLM_OWN, Coefficient, after_quantization, with_defaults
from gemm_eval.models.gpu.families.cublas import MMA_SYNC, TCGEN05, VECTOR_FAMILY, WGMMA
from gemm_eval.models.gpu.families.family import (
    BLACKWELL_SIZES,
    PAIRS,
    SINGLE,
    Family,
    TileChoice,
    any_rows,
    fixed_tiles,
    no_tiles,
    since,
)
from gemm_eval.models.gpu.w4a16.coefficients import w4a16_coefficients_of
from gemm_eval.models.gpu.w4a16.family_kernels import (
    GEMV,
    GEMV_MMA,
    GEMV_MMA_GROUPED,
    SM80,
    SM80_GROUPED,
    SM90,
    SM90_CLUSTER,
    SM90_FP8,
    SM90_GROUPED,
)
from gemm_eval.workload import GemmTypes

QUANTIZE = Family(
    name="quantize", number=16, sm_archs=since("sm_70"), schedules=(), mma_m=1, mma_n_step=1, num_warps=(),
    max_registers=255, operands="vector", is_quantization=True, coefficients=QUANTIZATION,
)  # fmt: skip


_SM_ARCHS = ("sm_80", "sm_86", "sm_89")
_MOST_WEIGHT_ONLY_ROWS = 15  # of C, of kernels without tensor cores, which are timed beside the others
_MOST_INT8_ROWS = 4  # they take all GEMMs of so few rows, and no others
_MOST_FP8_ROWS = 8  # likewise
# a pass over K of their 128 threads, 16 bytes of weights each: 1,024 fp16 (4 columns of int4, or 2 of int8, lie side by
# side) or 2,048 int8
_PASS_BYTES = 2048


def _weight_only_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_WEIGHT_ONLY_ROWS + 1):
        yield TileChoice("weight_only_gemv", m, 32, 4, Schedule.VECTOR, SINGLE)
    for m, n in ((16, 128), (16, 256), (32, 128), (64, 128), (128, 128)):  # all four warps along N
        yield TileChoice("sm80_weight_only", m, n, 4, Schedule.MULTISTAGE, SINGLE)


def _int8_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_INT8_ROWS + 1):
        yield TileChoice("int8_gemv", m, 2, 4, Schedule.VECTOR, SINGLE)
    # what is called 128x64 there is 128x128
    for m, n, warps in ((32, 128, 4), (64, 128, 4), (64, 64, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8)):
        yield TileChoice("sm80_int8", m, n, warps, Schedule.MULTISTAGE, SINGLE)


def _fp8_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_FP8_ROWS + 1):
        yield TileChoice("fp8_gemv", m, 2, 4, Schedule.VECTOR, SINGLE)


# parts of K are added one after another, a CTA waiting for the next; the kernels without tensor cores load, wait,
# multiply, and load again
_HIGHEST = {"reduce_us": 12.0, "tile_cycles": 8000.0, "step_cycles": 1500.0, "vector_step_cycles": 3000.0}


def _coefficients(**defaults: float) -> tuple[Coefficient, ...]:
    own = (*with_defaults(**(MMA_SYNC.defaults | defaults)), *TRTLLM_OWN)
    return tuple(item._replace(high=_HIGHEST.get(item.name, item.high)) for item in own)


_TENSOR = replace(MMA_SYNC, sm_archs=_SM_ARCHS, rate_frac={}, dense_tiles=no_tiles, weight_only_tiles=no_tiles)
_VECTOR = replace(
    VECTOR_FAMILY, sm_archs=_SM_ARCHS, step_bytes=_PASS_BYTES, max_stages=2, weight_only_tiles=no_tiles,
)  # fmt: skip

TRTLLM_FAMILIES: tuple[Family, ...] = (
    replace(
        _TENSOR, name="sm80_weight_only", number=21, max_stages=4, weight_only_tiles=_weight_only_tiles,
        coefficients=_coefficients(step_cycles=400.0, vector_step_cycles=1500.0),
    ),
    replace(
        _TENSOR, name="sm80_int8", number=17, max_stages=6, step_bytes=64, min_rows=_MOST_INT8_ROWS + 1,
        dense_tiles=_int8_tiles, coefficients=_coefficients(),
    ),
    replace(_VECTOR, name="weight_only_gemv", number=18),
    replace(_VECTOR, name="int8_gemv", number=19),
    # every thread converts 16 weights and the tokens' 16 to fp32, once for each row and column of the tile
    replace(
        _VECTOR, name="fp8_gemv", number=70, sm_archs=("sm_89", "sm_120"), most_rows=_MOST_FP8_ROWS,
        dense_tiles=_fp8_tiles, coefficients=_coefficients(vector_frac=0.1),
    ),
)  # fmt: skip
"""Those of tensor cores have coefficients for those without, which come from the same timings."""


_COOP, _PP, _MS = Schedule.COOPERATIVE, Schedule.PINGPONG, Schedule.MULTISTAGE

# DeepGEMM on Hopper: 64 or 128 rows of either operand, the other side in steps of 16; sums of a k-step are added to
# fp32 sums by ordinary cores, which take as many registers again, so that tiles stay small
_HOPPER_TOKENS_ON_COLUMNS = tuple((m, n) for n in (64, 128) for m in (16, 32, 48, 64))
_HOPPER_TOKENS_ON_ROWS = tuple((128, n) for n in (16, 32, 48, 64, 80, 96, 112, 128, 144, 160))


def _coefficients_like(family: Family) -> tuple[Coefficient, ...]:
    """Return a family's coefficients, with room for longer waits than cuBLAS's; A takes one kernel, not two."""
    highest = {"step_cycles": 3000.0, "coop_step_cycles": 3000.0, "kernel_us": 12.0}
    return after_quantization(family.coefficients, highest, quantize_us=2.0)


def _rows_of_hopper(cta_m: int) -> int:
    """Tokens that lie on columns are those of one tile."""
    return cta_m if cta_m < 128 else any_rows(cta_m)


def _rows_of_rtx_blackwell(cta_m: int) -> int:
    return 64 if cta_m < 64 else any_rows(cta_m)


_FP4_TILE_COST = 1.9
"""Cost of a tile outside its main loop on sm_103 over that on sm_100: 1.6 to 2.2 by timings, the middle is assumed.

TensorRT-LLM's kernels differ there (nvfp4_nvfp4_gemm_template_sm100.h): a tile of K is three times as long, 768, of
which the last may be empty in part, and the epilogue stores from registers, where sm_100's stages C in shared memory
beside the next tile (`NoSmemWarpSpecialized2Sm`, `TmaWarpSpecialized2Sm`).
"""

BLOCK_SCALED = (
    replace(
        WGMMA, name="sm90_block_fp8", number=10, block_scaled=DType.FP8, max_rows=_rows_of_hopper,
        dense_tiles=fixed_tiles("sm90_block_fp8", _HOPPER_TOKENS_ON_COLUMNS + _HOPPER_TOKENS_ON_ROWS, 8, _COOP, PAIRS),
        coefficients=_coefficients_like(WGMMA),
    ),
    replace(
        TCGEN05, name="sm100_block_fp8", number=11, block_scaled=DType.FP8,
        dense_tiles=fixed_tiles("sm100_block_fp8", BLACKWELL_SIZES, 8, _PP, PAIRS),
        coefficients=_coefficients_like(TCGEN05),
    ),
    replace(
        TCGEN05, name="sm100_block_fp4", number=12, block_scaled=DType.FP4,
        dense_tiles=fixed_tiles("sm100_block_fp4", ((128, 256),), 8, _PP, ((2, 1),)),
        coefficients=_coefficients_like(TCGEN05), tile_cost={"sm_103": _FP4_TILE_COST},
    ),
    replace(
        MMA_SYNC, name="sm89_block_fp8", number=13, sm_archs=("sm_89",), own_of=("sm_89",), block_scaled=DType.FP8,
        dense_tiles=fixed_tiles("sm89_block_fp8", ((32, 128),), 4, _MS), coefficients=_coefficients_like(MMA_SYNC),
    ),
    replace(
        MMA_SYNC, name="sm120_block_fp8", number=14, sm_archs=("sm_120",), own_of=("sm_120",), block_scaled=DType.FP8,
        max_rows=_rows_of_rtx_blackwell, dense_tiles=fixed_tiles("sm120_block_fp8", ((32, 128), (64, 128)), 8, _MS),
        coefficients=_coefficients_like(MMA_SYNC),
    ),
    replace(
        MMA_SYNC, name="sm120_block_fp4", number=15, sm_archs=("sm_120",), own_of=("sm_120",), schedules=(_COOP,),
        is_warp_specialized=True, block_scaled=DType.FP4, step_bytes=64,
        dense_tiles=fixed_tiles("sm120_block_fp4", ((128, 128),), 8, _COOP), coefficients=_coefficients_like(MMA_SYNC),
    ),
)  # fmt: skip


FP4_SCHEMES = {mode: parse_scheme(f"w4a16_{mode}") for mode in ("mxfp4", "nvfp4")}
"""Formats of 4-bit floats as weights, by the names that our kernels have for them."""

_GROUP_SIZES = (None, 32, 64, 128)  # of int4 weights, along K; None: a scale a column

W4A16_TARGETS = {
    "sm_80": "sm_80", "sm_86": "sm_80", "sm_89": "sm_89", "sm_90": "sm_90a", "sm_100": "sm_100", "sm_103": "sm_100",
    "sm_120": "sm_120",
}  # fmt: skip
"""Generation of SMs -> what kernels that run there are compiled for: code of 8.0 runs on 8.6 too, of 10.0 on 10.3."""

_AMPERE_ON = tuple(W4A16_TARGETS)

FP8_ON = ("sm_90",)
"""Generations of SMs whose kernels of ours take tokens in e4m3."""

_OF_ONE_GEMM = (
    Family(
        name="w4a16_gemv", number=GEMV, sm_archs=_AMPERE_ON, schedules=(Schedule.VECTOR,), mma_m=1, mma_n_step=1,
        num_warps=(4, 8, 16), max_registers=255, operands="vector", is_ours=True,
        coefficients=w4a16_coefficients_of("w4a16_gemv"),
    ),
    Family(
        name="w4a16_gemv_mma", number=GEMV_MMA, sm_archs=_AMPERE_ON, schedules=(Schedule.MULTISTAGE,), mma_m=16,
        mma_n_step=8, num_warps=(4, 8, 16), max_registers=255, operands="registers", is_ours=True,
        coefficients=w4a16_coefficients_of("w4a16_gemv_mma"),
    ),
    Family(
        name="w4a16_sm80", number=SM80, sm_archs=_AMPERE_ON, schedules=(Schedule.MULTISTAGE,), mma_m=16, mma_n_step=8,
        num_warps=(4, 8), max_registers=255, operands="registers", is_ours=True,
        coefficients=w4a16_coefficients_of("w4a16_sm80"),
    ),
    Family(
        name="w4a16_sm90", number=SM90, sm_archs=("sm_90",), schedules=(Schedule.PINGPONG, Schedule.COOPERATIVE),
        mma_m=64, mma_n_step=8, num_warps=(8, 12), max_registers=216, operands="registers", has_clusters=True,
        is_warp_specialized=True, is_ours=True,
        coefficients=w4a16_coefficients_of("w4a16_sm90"),
    ),
    Family(
        name="w4a16_sm90_cluster", number=SM90_CLUSTER, sm_archs=("sm_90",), schedules=(Schedule.COOPERATIVE,),
        mma_m=64, mma_n_step=8, num_warps=(8, 12), max_registers=216, operands="registers", has_clusters=True,
        is_warp_specialized=True, is_ours=True,
        coefficients=w4a16_coefficients_of("w4a16_sm90_cluster"),
    ),
    Family(
        name="w4a8_sm90", number=SM90_FP8, sm_archs=FP8_ON, schedules=(Schedule.COOPERATIVE,), mma_m=64, mma_n_step=8,
        num_warps=(8, 12), max_registers=232, operands="registers", has_clusters=True, is_warp_specialized=True,
        is_ours=True, coefficients=w4a16_coefficients_of("w4a8_sm90"),
    ),
)  # fmt: skip

_BASE = {family.name: family for family in _OF_ONE_GEMM}
OUR_FAMILIES = (
    *_OF_ONE_GEMM,
    replace(
        _BASE["w4a16_gemv_mma"],
        name="w4a16_gemv_mma_grouped",
        number=GEMV_MMA_GROUPED,
        coefficients=w4a16_coefficients_of("w4a16_gemv_mma_grouped"),
    ),
    # on Hopper it is never chosen: nobody has timed it beside those with wgmma
    replace(
        _BASE["w4a16_sm80"],
        name="w4a16_sm80_grouped",
        number=SM80_GROUPED,
        sm_archs=tuple(name for name in _AMPERE_ON if name != "sm_90"),
    ),
    replace(
        _BASE["w4a16_sm90"],
        name="w4a16_sm90_grouped",
        number=SM90_GROUPED,
        coefficients=w4a16_coefficients_of("w4a16_sm90_grouped"),
    ),
)


def has_w4a16_format(types: GemmTypes) -> bool:
    """Return whether 4-bit weights have a format that published checkpoints have, and that our kernels read.

    These are int4 with a scale of the inputs' type for 32, 64 or 128 weights along K or for a column (AWQ, GPTQ), and
    MXFP4 and NVFP4; inputs and outputs are both fp16 or both bf16.
    """
    activation, weight, scale = types.a.dtype, types.b.dtype, types.b.scale
    if scale is None or scale.group_n != 1 or activation not in (DType.FP16, DType.BF16) or types.c is not activation:
        return False
    if weight is DType.FP4:
        schemes = {(scheme.group_size, scheme.scale_dtype) for scheme in FP4_SCHEMES.values()}
        return (scale.group_size, scale.dtype) in schemes and scale.zero_dtype is None
    has_zero_points = scale.zero_dtype is DType.INT4 and scale.group_size is not None
    return (
        weight is DType.INT4
        and scale.group_size in _GROUP_SIZES
        and scale.dtype is activation
        and (scale.zero_dtype is None or has_zero_points)
    )


def has_w4a8_format(types: GemmTypes) -> bool:
    """Return whether our kernels with tokens in e4m3 read a format: int4 weights without zero points, 16-bit outputs.

    Scales of weights have 16 bits, for 32, 64 or 128 weights along K or a column; a scale for each token is no traffic.
    """
    scale, halves = types.b.scale, (DType.FP16, DType.BF16)
    return (
        types.a.dtype is DType.FP8
        and types.b.dtype is DType.INT4
        and types.c in halves
        and scale is not None
        and scale.group_n == 1
        and scale.group_size in _GROUP_SIZES
        and scale.dtype in halves
        and scale.zero_dtype is None
    )
