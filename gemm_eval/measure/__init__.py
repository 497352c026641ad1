"""Measuring GEMMs on a real GPU: which shapes, whose kernels, how they are timed, and the data sets that result.

>>> from gemm_eval.measure import read_timings
>>> read_timings("arch/measured/h200-sxm/cublas/fp16.parquet")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.device import Timing, TimingProtocol
    from gemm_eval.measure.campaign import RUNNERS, Campaign, estimate_seconds, file_stem, make_runner, shuffle_shapes
    from gemm_eval.measure.cublas import CandidateRunner
    from gemm_eval.measure.data_set import (
        CANDIDATE_COLUMNS,
        COLUMNS,
        GROUPED_COLUMNS,
        KERNEL_COLUMNS,
        dataset_hash,
        meta_path,
        read_timings,
        write_timings,
    )
    from gemm_eval.measure.profile import ComparedGemm, Profile, ProfiledKernel, compare_kernels, profile_kernels
    from gemm_eval.measure.runner import BuiltKernel, KernelLaunch, Runner, measure_shape, parse_trace
    from gemm_eval.measure.shapes import (
        GROUPED_SETS,
        KERNEL_SETS,
        SHAPE_SETS,
        Candidate,
        Choice,
        GemmItem,
        GemmShape,
        GroupedShape,
        KernelItem,
        QuantShape,
        list_grouped_shapes,
        list_items,
        list_quant_shapes,
        list_shapes,
    )
    from gemm_eval.measure.w4a16 import W4A16Runner

__all__ = [
    "CANDIDATE_COLUMNS", "COLUMNS", "GROUPED_COLUMNS", "GROUPED_SETS", "KERNEL_COLUMNS", "KERNEL_SETS", "RUNNERS",
    "SHAPE_SETS", "BuiltKernel", "Campaign", "Candidate", "CandidateRunner", "Choice", "ComparedGemm", "GemmItem",
    "GemmShape", "GroupedShape", "KernelItem", "KernelLaunch", "Profile", "ProfiledKernel", "QuantShape", "Runner",
    "Timing", "TimingProtocol", "W4A16Runner", "compare_kernels", "dataset_hash", "estimate_seconds", "file_stem",
    "list_grouped_shapes", "list_items", "list_quant_shapes", "list_shapes", "make_runner", "measure_shape",
    "meta_path", "parse_trace", "profile_kernels", "read_timings", "shuffle_shapes", "write_timings",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gemm_eval.device": ("Timing", "TimingProtocol"),
        ".campaign": ("RUNNERS", "Campaign", "estimate_seconds", "file_stem", "make_runner", "shuffle_shapes"),
        ".cublas": ("CandidateRunner",),
        ".data_set": (
            "CANDIDATE_COLUMNS", "COLUMNS", "GROUPED_COLUMNS", "KERNEL_COLUMNS", "dataset_hash", "meta_path",
            "read_timings", "write_timings",
        ),
        ".profile": ("ComparedGemm", "Profile", "ProfiledKernel", "compare_kernels", "profile_kernels"),
        ".runner": ("BuiltKernel", "KernelLaunch", "Runner", "measure_shape", "parse_trace"),
        ".shapes": (
            "GROUPED_SETS", "KERNEL_SETS", "SHAPE_SETS", "Candidate", "Choice", "GemmItem", "GemmShape",
            "GroupedShape", "KernelItem", "QuantShape", "list_grouped_shapes", "list_items", "list_quant_shapes",
            "list_shapes",
        ),
        ".w4a16": ("W4A16Runner",),
    },
)  # fmt: skip
