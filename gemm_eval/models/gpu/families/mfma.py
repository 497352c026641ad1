"""Families of kernels that multiply with AMD's MFMA instructions: tiles of CK, CK-Tile, aiter's assembly, hipBLASLt.

Tiles are those that names of the kernels tell which win most rows (arch/measured/mi300x, arch/measured/mi355x).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gemm_eval.arch import GFX_ARCHS
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, MOE_LAYER, Coefficient, with_ranges
from gemm_eval.models.gpu.families.family import SINGLE, Family, TileChoice
from gemm_eval.workload import GemmTypes

_BUFFER_BYTES = 32768
"""A and B of one k-step, at most: what leaves 64 KiB of LDS room for two, or for two CTAs."""
_STEP_BYTES = (64, 128, 256)
_SQUARE = (128, 128)
_Sizes = tuple[int, tuple[int, ...]]


def _tiles(
    family: str, *sizes: _Sizes, of_cdna3: Sequence[_Sizes] = (), has_whole_steps: bool = False
) -> Callable[..., Iterator[TileChoice]]:
    """Return what yields tiles of four waves; `sizes`: rows, columns of each, `of_cdna3` those on gfx942.

    A tile has the longest k-step that fits. Where a K is none of whole k-steps (`least_step_bytes` of the family), also
    half of it, where it is the longest of all, and a square tile of the least.
    """

    def tiles(sm_arch: str, *_: object) -> Iterator[TileChoice]:
        for m, columns in of_cdna3 if sm_arch == GFX_ARCHS[1] and of_cdna3 else sizes:
            for n in columns:
                step = max(num for num in _STEP_BYTES if num == _STEP_BYTES[0] or (m + n) * num <= _BUFFER_BYTES)
                shorter = (step // 2,) if step == _STEP_BYTES[-1] else ()
                least = (_STEP_BYTES[0],) if (m, n) == _SQUARE else ()
                for num_bytes in dict.fromkeys((step, *shorter, *least) if has_whole_steps else (step,)):
                    yield TileChoice(family, m, n, 4, Schedule.MULTISTAGE, SINGLE, num_bytes)

    return tiles


def _is_plain(*dtypes: DType) -> Callable[[GemmTypes], bool]:
    return lambda types: types.b.dtype is types.a.dtype in dtypes and not types.is_block_scaled


def _is_scaled(dtype: DType, group_size: int, group_n: int) -> Callable[[GemmTypes], bool]:
    def takes(types: GemmTypes) -> bool:
        scale = types.b.scale
        return types.a.dtype is dtype and types.is_block_scaled and scale is not None and (
            (scale.group_size, scale.group_n) == (group_size, group_n)
        )  # fmt: skip

    return takes


# before any fit: assumed, round; a k-step waits longer than that of mma.sync, and rates are lower
_COEFFICIENTS = with_ranges(
    COEFFICIENTS, matrix_frac=(0.2, 1.0, 0.7), step_cycles=(0.0, 2000.0, 300.0), tile_cycles=(0.0, 8000.0, 1000.0),
    kernel_us=(0.2, 8.0, 1.5), dram_frac=(0.4, 1.2, 0.9), store_exposed_frac=(0.0, 1.5, 0.3),
    reduce_frac=(0.02, 1.5, 0.3), l2_frac=(0.2, 1.45, 0.7), choice_loss=(0.0, 0.12, 0.0),
)  # fmt: skip

MFMA = Family(
    name="mfma", number=90, sm_archs=GFX_ARCHS, schedules=(Schedule.MULTISTAGE,), mma_m=16, mma_n_step=16,
    num_warps=(4,), max_registers=512, operands="registers", max_stages=4, step_bytes=_STEP_BYTES[0],
    more_step_bytes=_STEP_BYTES[1:],
    coefficients=_COEFFICIENTS,
    plain_types=_is_plain(DType.BF16, DType.FP16, DType.FP32, DType.TF32, DType.INT8),
    dense_tiles=_tiles(
        "mfma", (16, (16, 32, 64, 128)), (32, (32, 64, 128)), (48, (64,)), (64, (64, 96, 128, 160)), (80, (64,)),
        (96, (64, 128, 160)), (128, (64, 96, 128, 160, 256)), (160, (160, 256)), (192, (128, 256)), (224, (256,)),
        (256, (128, 160, 192, 256)),
    ),
)  # fmt: skip
"""16 bits and more: hipBLASLt's, and what aiter's tuner tries beside them."""

_FP8_TILES = (
    (16, (16, 32, 64)), (32, (64, 128)), (48, (64,)), (64, (32, 64, 128, 192)), (80, (64, 128)), (96, (128, 256)),
    (112, (256,)), (128, (64, 96, 128, 160, 192, 256)), (160, (192,)), (192, (128, 256)), (224, (256,)),
    (256, (128, 160, 192, 224, 256)),
)  # fmt: skip


def _narrow(
    name: str, number: int, plain_types: Callable[[GemmTypes], bool], *tiles: _Sizes, of_cdna3: Sequence[_Sizes] = (),
    has_whole_steps: bool = False,
) -> Family:  # fmt: skip
    return replace(
        MFMA, name=name, number=number, sm_archs=GFX_ARCHS[1:], plain_types=plain_types,
        dense_tiles=_tiles(name, *tiles, of_cdna3=of_cdna3, has_whole_steps=has_whole_steps),
        least_step_bytes=_STEP_BYTES[0] if has_whole_steps else 0,
    )  # fmt: skip


MFMA_NARROW = (
    _narrow("mfma_fp8", 91, _is_plain(DType.FP8), *_FP8_TILES, has_whole_steps=True),
    _narrow(
        "mfma_fp8_block", 92, _is_scaled(DType.FP8, 128, 128), (16, (64, 128)), (32, (64, 128, 256)), (48, (128,)),
        (64, (64, 128, 256)), (80, (128,)), (96, (128,)), (128, (64, 128)), (192, (256,)),
        of_cdna3=((16, (64, 128)), (32, (64, 128)), (64, (64, 128)), (128, (128,))), has_whole_steps=True,
    ),
    _narrow(
        "mfma_mxfp8", 93, _is_scaled(DType.FP8, 32, 1), (32, (16, 32, 64, 128)), (64, (32, 64, 128)),
        (96, (64, 128, 256)), (128, (32, 64, 128, 256)), (192, (128,)), (224, (128,)), (256, (256,)),
    ),
    _narrow(
        "mfma_mxfp4", 94, _is_scaled(DType.FP4, 32, 1), (32, (128, 256, 512)), (64, (128, 256, 512)),
        (96, (128, 256, 384, 512)), (128, (128, 256, 384, 512)), (160, (128, 256, 384)), (192, (128, 256)),
        (224, (128, 256)), (256, (128, 256)),
    ),
    _narrow("mfma_int8", 95, _is_plain(DType.INT8), *_FP8_TILES, has_whole_steps=True),
)  # fmt: skip
"""8 bits and fewer: a scale a row and column (fp8, int8), 1 x 128 by 128 x 128 (fp8_block), 1 x 32 (mxfp8, mxfp4)."""


def _with_layer(**ranges: tuple[float, float, float]) -> tuple[Coefficient, ...]:
    """Return coefficients of grouped kernels; their first GEMM computes the activation before it stores.

    Defaults are round, within what fits of an MI355X's layers gave (arch/calibration/mi355x).
    """
    layer = (item for item in MOE_LAYER if item.name != "moe_activation_frac")
    own = {
        "kernel_us": (0.2, 12.0, 4.0), "ramp_us": (0.0, 1.5, 0.4), "step_cycles": (0.0, 2000.0, 500.0),
        "tile_cycles": (0.0, 8000.0, 2500.0), "epilogue_bytes_per_cycle": (4.0, 256.0, 30.0),
        "sm_l2_frac": (0.1, 1.5, 0.6), "dram_frac": (0.4, 1.2, 1.0), "l2_first": (0.0, 4.0, 1.8),
        "matrix_frac": (0.2, 1.0, 0.45), "l2_hold_frac": (0.05, 1.0, 0.6), "moe_finalize_frac": (0.02, 1.0, 0.5),
    }  # fmt: skip
    return with_ranges((*_COEFFICIENTS, *layer), **(own | ranges))


def _experts(
    name: str, number: int, for_types: Callable[[GemmTypes], bool], **ranges: tuple[float, float, float]
) -> Family:
    return replace(
        MFMA, name=name, number=number, sm_archs=GFX_ARCHS[1:], plain_types=None, for_types=for_types,
        dense_tiles=_tiles(name, *((rows, (64, 128, 256)) for rows in (16, 32, 64, 128))),
        coefficients=_with_layer(**ranges),
    )  # fmt: skip


def _takes_fp4_weights(*inputs: DType) -> Callable[[GemmTypes], bool]:
    return lambda types: types.a.dtype in inputs and types.is_weight_quantized and types.b.dtype.bits == 4


_16_BITS = (DType.BF16, DType.FP16)
MFMA_EXPERTS = (
    _experts("mfma_moe", 96, _is_plain(*_16_BITS)),
    _experts("mfma_moe_fp8", 97, _is_plain(DType.FP8)),
    _experts("mfma_moe_fp8_block", 98, lambda types: types.a.dtype is DType.FP8 and types.is_block_scaled),  # mxfp8 too
    _experts("mfma_moe_mxfp4", 99, _is_scaled(DType.FP4, 32, 1)),
    # the instruction of gfx950 multiplies fp8 by fp4 as they are stored: nothing is unpacked
    _experts("mfma_moe_w4a8", 100, _takes_fp4_weights(DType.FP8), dequant=(0.0, 1.0, 0.0)),
    _experts("mfma_moe_w4", 101, _takes_fp4_weights(*_16_BITS), dequant=(0.3, 12.0, 1.5)),
)  # fmt: skip
"""Two-stage kernels of layers of experts by CK, aiter's assembly and FlyDSL: groups are padded to rows of a tile."""
