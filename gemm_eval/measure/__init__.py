"""Measuring GEMMs on a real GPU: which shapes, whose kernels, how they are timed, and the data sets that result.

>>> from gemm_eval.measure import read_timings
>>> read_timings("arch/measured/h200-sxm/cublas/fp16.parquet")  # doctest: +SKIP
"""

from gemm_eval.measure._campaign import Campaign, estimate_seconds, file_stem, shuffle_shapes
from gemm_eval.measure._cublaslt_candidates import CandidateRunner
from gemm_eval.measure._data_set import CANDIDATE_COLUMNS, COLUMNS, dataset_hash, read_timings, write_timings
from gemm_eval.measure._gpu_state import gpu_slug
from gemm_eval.measure._kernel_trace import KernelLaunch, parse_trace
from gemm_eval.measure._protocol import Timing, TimingProtocol, measure_shape
from gemm_eval.measure._runner import OperandLayout, Runner
from gemm_eval.measure._runners import RUNNERS, make_runner
from gemm_eval.measure._shapes import SHAPE_SETS, Candidate, GemmItem, GemmShape, list_shapes

__all__ = [
    "CANDIDATE_COLUMNS",
    "COLUMNS",
    "RUNNERS",
    "SHAPE_SETS",
    "Campaign",
    "Candidate",
    "CandidateRunner",
    "GemmItem",
    "GemmShape",
    "KernelLaunch",
    "OperandLayout",
    "Runner",
    "Timing",
    "TimingProtocol",
    "dataset_hash",
    "estimate_seconds",
    "file_stem",
    "gpu_slug",
    "list_shapes",
    "make_runner",
    "measure_shape",
    "parse_trace",
    "read_timings",
    "shuffle_shapes",
    "write_timings",
]
