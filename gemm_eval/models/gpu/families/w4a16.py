"""Our own kernels for 4-bit weights (kernels/KERNELS.md): their tiles and rasters stand in a table."""

from __future__ import annotations

from dataclasses import replace

from gemm_eval.dtypes import DType, parse_scheme
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.families.family import Family
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

FP4_SCHEMES = {mode: parse_scheme(f"w4a16_{mode}") for mode in ("mxfp4", "nvfp4")}
"""Formats of 4-bit floats as weights, by the names that our kernels have for them."""

_GROUP_SIZES = (None, 32, 64, 128)  # of int4 weights, along K; None: a scale a column

W4A16_TARGETS = {
    "sm_80": "sm_80", "sm_89": "sm_89", "sm_90": "sm_90a", "sm_100": "sm_100", "sm_103": "sm_100", "sm_120": "sm_120",
}  # fmt: skip
"""Generation of SMs -> what kernels that run there are compiled for: machine code of 10.0 runs on 10.3 too."""

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
