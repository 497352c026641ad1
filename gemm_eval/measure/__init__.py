"""Measuring GEMMs on a real GPU: which shapes, whose kernels, how they are timed, and the data sets that result.

>>> from gemm_eval.measure import read_timings
>>> read_timings("arch/measured/h200-sxm/cublas/fp16.parquet")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.device import Timing, TimingProtocol
    from gemm_eval.measure.campaign import Campaign, estimate_seconds, file_stem, shuffle_shapes
    from gemm_eval.measure.comparison import ComparedGemm, compare_kernels
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
    from gemm_eval.measure.grouped_shapes import GROUPED_SETS, list_grouped_shapes
    from gemm_eval.measure.kernel_choice import Choice, list_items
    from gemm_eval.measure.kernel_shapes import KERNEL_SETS, QuantShape, list_quant_shapes
    from gemm_eval.measure.profile import Profile, ProfiledKernel, profile_kernels
    from gemm_eval.measure.protocol import measure_shape
    from gemm_eval.measure.runners import (
        RUNNERS,
        BuildsKernels,
        BuiltKernel,
        CandidateRunner,
        OperandLayout,
        Runner,
        W4A16Runner,
        make_runner,
    )
    from gemm_eval.measure.shapes import (
        SHAPE_SETS,
        Candidate,
        GemmItem,
        GemmShape,
        GroupedShape,
        KernelItem,
        list_shapes,
    )
    from gemm_eval.measure.trace import KernelLaunch, parse_trace

__all__ = [
    "CANDIDATE_COLUMNS",
    "COLUMNS",
    "GROUPED_COLUMNS",
    "GROUPED_SETS",
    "KERNEL_COLUMNS",
    "KERNEL_SETS",
    "RUNNERS",
    "SHAPE_SETS",
    "BuildsKernels",
    "BuiltKernel",
    "Campaign",
    "Candidate",
    "CandidateRunner",
    "Choice",
    "ComparedGemm",
    "GemmItem",
    "GemmShape",
    "GroupedShape",
    "KernelItem",
    "KernelLaunch",
    "OperandLayout",
    "Profile",
    "ProfiledKernel",
    "QuantShape",
    "Runner",
    "Timing",
    "TimingProtocol",
    "W4A16Runner",
    "compare_kernels",
    "dataset_hash",
    "estimate_seconds",
    "file_stem",
    "list_grouped_shapes",
    "list_items",
    "list_quant_shapes",
    "list_shapes",
    "make_runner",
    "measure_shape",
    "meta_path",
    "parse_trace",
    "profile_kernels",
    "read_timings",
    "shuffle_shapes",
    "write_timings",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gemm_eval.device": (
            "Timing",
            "TimingProtocol",
        ),
        ".campaign": (
            "Campaign",
            "estimate_seconds",
            "file_stem",
            "shuffle_shapes",
        ),
        ".comparison": (
            "ComparedGemm",
            "compare_kernels",
        ),
        ".data_set": (
            "CANDIDATE_COLUMNS",
            "COLUMNS",
            "GROUPED_COLUMNS",
            "KERNEL_COLUMNS",
            "dataset_hash",
            "meta_path",
            "read_timings",
            "write_timings",
        ),
        ".grouped_shapes": (
            "GROUPED_SETS",
            "list_grouped_shapes",
        ),
        ".kernel_choice": (
            "Choice",
            "list_items",
        ),
        ".kernel_shapes": (
            "KERNEL_SETS",
            "QuantShape",
            "list_quant_shapes",
        ),
        ".profile": (
            "Profile",
            "ProfiledKernel",
            "profile_kernels",
        ),
        ".protocol": ("measure_shape",),
        ".runners": (
            "RUNNERS",
            "BuildsKernels",
            "BuiltKernel",
            "CandidateRunner",
            "OperandLayout",
            "Runner",
            "W4A16Runner",
            "make_runner",
        ),
        ".shapes": (
            "SHAPE_SETS",
            "Candidate",
            "GemmItem",
            "GemmShape",
            "GroupedShape",
            "KernelItem",
            "list_shapes",
        ),
        ".trace": (
            "KernelLaunch",
            "parse_trace",
        ),
    },
)
