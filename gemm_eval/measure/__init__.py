"""Measuring GEMMs on a real GPU: which shapes, whose kernels, how they are timed, and the data sets that result.

>>> from gemm_eval.measure import read_timings
>>> read_timings("arch/measured/h200-sxm/cublas/fp16.parquet")  # doctest: +SKIP
"""

from gemm_eval.measure._campaign import Campaign, estimate_seconds, file_stem, shuffle_shapes
from gemm_eval.measure._comparison import ComparedGemm, compare_kernels
from gemm_eval.measure._cublaslt_candidates import CandidateRunner
from gemm_eval.measure._data_set import (
    CANDIDATE_COLUMNS,
    COLUMNS,
    KERNEL_COLUMNS,
    dataset_hash,
    read_timings,
    write_timings,
)
from gemm_eval.measure._kernel_choice import Choice, list_items
from gemm_eval.measure._kernel_shapes import KERNEL_SETS, QuantShape, list_quant_shapes
from gemm_eval.measure._kernel_trace import KernelLaunch, parse_trace
from gemm_eval.measure._profile import Profile, ProfiledKernel, profile_kernels
from gemm_eval.measure._protocol import Timing, TimingProtocol, measure_shape
from gemm_eval.measure._runner import BuildsKernels, BuiltKernel, OperandLayout, Runner
from gemm_eval.measure._runners import RUNNERS, make_runner
from gemm_eval.measure._shapes import SHAPE_SETS, Candidate, GemmItem, GemmShape, KernelItem, list_shapes
from gemm_eval.measure._w4a16 import W4A16Runner

__all__ = [
    "CANDIDATE_COLUMNS",
    "COLUMNS",
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
    "list_items",
    "list_quant_shapes",
    "list_shapes",
    "make_runner",
    "measure_shape",
    "parse_trace",
    "profile_kernels",
    "read_timings",
    "shuffle_shapes",
    "write_timings",
]
