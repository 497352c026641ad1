"""Measuring GEMMs on a real GPU: which shapes, whose kernels, how they are timed, and the data sets that result.

>>> from gemm_eval.measure import read_timings
>>> read_timings("arch/measured/h200-sxm/cublas/fp16.parquet")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.device import TimingProtocol
    from gemm_eval.measure.campaign import Campaign, estimate_seconds, file_stem, make_runner, shuffle_shapes
    from gemm_eval.measure.data_set import TABLE_SUFFIXES, dataset_hash, meta_path, read_frame, read_timings
    from gemm_eval.measure.profile import ComparedGemm, Profile, ProfiledKernel, compare_kernels, profile_kernels
    from gemm_eval.measure.runner import Runner, measure_shape
    from gemm_eval.measure.shapes import (
        Choice,
        DrawnShape,
        GemmItem,
        GemmShape,
        GroupedShape,
        KernelItem,
        QuantShape,
        draw_shapes,
        list_grouped_shapes,
        list_items,
        list_quant_shapes,
        list_shapes,
    )
    from gemm_eval.measure.w4a16 import W4A8Runner, W4A16Runner

__all__ = [
    "TABLE_SUFFIXES", "Campaign", "Choice", "ComparedGemm", "DrawnShape", "GemmItem", "GemmShape",
    "GroupedShape", "KernelItem", "Profile", "ProfiledKernel", "QuantShape", "Runner", "TimingProtocol", "W4A8Runner",
    "W4A16Runner", "compare_kernels", "dataset_hash", "draw_shapes", "estimate_seconds", "file_stem",
    "list_grouped_shapes", "list_items", "list_quant_shapes", "list_shapes", "make_runner", "measure_shape",
    "meta_path", "profile_kernels", "read_frame", "read_timings", "shuffle_shapes",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
