"""Datacenter Blackwell's kernels: built as Hopper's, with sums in tensor memory. None of them was timed."""

from __future__ import annotations

from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import Family
from gemm_eval.models.gpu.families.wgmma import weight_only_tiles, wgmma_tiles

__all__ = ["TCGEN05"]

TCGEN05 = Family(
    name="sm100_tcgen05",
    number=2,
    sm_archs=("sm_100", "sm_103"),
    own_of=("sm_100", "sm_103"),
    schedules=(Schedule.PINGPONG, Schedule.COOPERATIVE),
    mma_m=128,
    mma_n_step=8,
    num_warps=(8,),
    max_registers=255,
    operands="smem",
    has_clusters=True,
    is_warp_specialized=True,
    has_tensor_memory=True,
    coefficients=with_defaults(kernel_us=1.6, outside_rows_per_cycle=50.0),  # slow fill was seen on Hopper only
    dense_tiles=lambda *_: wgmma_tiles("sm100_tcgen05"),
    weight_only_tiles=lambda columns, rows: weight_only_tiles("sm100_tcgen05", columns, rows),
)
