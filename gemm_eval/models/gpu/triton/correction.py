"""Learned corrections of Triton kernels, config by config, and the intervals of their predicted times.

Kernels whose machine code is known have a correction of their own, and those whose code is estimated another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.calibration import Origin
from gemm_eval.models.gpu.learned import Features, answers_for
from gemm_eval.models.gpu.triton.code import KernelCode, TritonConfig
from gemm_eval.models.gpu.triton.model import (
    Array,
    Launches,
    LaunchTimes,
    checked_launches,
    launch_times,
    triton_coefficients,
)
from gemm_eval.workload import GemmProblem, GemmTypes

TRITON, TRITON_VERSION = "triton", "triton-1"
"""Name of the subject in files, and version of its terms."""

_SIZES = ("G", "M", "N", "K")
_OF_CONFIG = ("block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "b_elem_bytes")
_SHARES = ("sm_us", "l2_us", "dram_us", "reduction_us")
_STEP_SHARES = ("tensor_cycles", "issue_cycles", "shared_cycles", "chain_cycles", "round_trip_cycles")


class TritonTimes(NamedTuple):
    """Predicted times of configs, [num_configs] each, in us; infinite where a config cannot be launched.

    80% of measured times are expected within `low_us` to `high_us`; `physics_us` is by the terms of the model alone.
    """

    latency_us: Array
    low_us: Array
    high_us: Array
    physics_us: Array
    origin: Origin


def triton_group(types: GemmTypes, *, is_compiled: bool) -> str:
    """Return the name of the kernels that a correction is learned of."""
    inputs = "f16" if types.a.dtype in (DType.FP16, DType.BF16) else str(types.a.dtype)
    weights = "" if types.a.dtype == types.b.dtype else f"-{types.b.dtype}"
    return f"{inputs}{weights}" if is_compiled else f"{inputs}{weights}-estimated"


def triton_features(arch: GpuSpec, launches: Launches, times: LaunchTimes, latency_us: Array) -> Features:
    """Return what a correction knows of launches: sizes, configs, and shares of the terms."""
    x, log2 = launches, np.log2
    us = np.where(np.isfinite(latency_us), latency_us, 1.0)
    tiles = x.G * np.ceil(x.M / x.block_m) * np.ceil(x.N / x.block_n)
    term_us = np.where(np.isfinite(times.latency_us), times.latency_us, 1.0)
    others = {
        "latency": log2(us), "MN": log2(x.M * x.N), "NK": log2(x.N * x.K), "tiles": log2(tiles),
        "waves": tiles * x.split_k / (arch.num_sms * np.maximum(x.ctas_per_sm, 1.0)),
        "steps": log2(np.ceil(x.K / x.block_k / x.split_k)), "num_stages": x.num_stages, "ctas_per_sm": x.ctas_per_sm,
        **{name: log2(getattr(x, name)) for name in _OF_CONFIG},
        **{f"{name}_share": getattr(times, name) / term_us for name in _SHARES},
        **{f"{name}_share": getattr(times, name) / times.step_cycles for name in _STEP_SHARES},
    }  # fmt: skip
    return Features({name: log2(getattr(x, name)) for name in _SIZES}, others)


def triton_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> TritonTimes:
    """Return the predicted times of configs, as corrected by what timings showed; see `triton_costs`."""
    coefficients, origin = triton_coefficients(arch)
    launches = checked_launches(arch, problem, configs, codes)
    times = launch_times(arch, launches, coefficients)
    features = triton_features(arch, launches, times, times.latency_us)
    compiled = np.array([code.is_compiled for code in codes], bool)
    latency_us, low_us, high_us = (times.latency_us.copy() for _ in range(3))
    for is_compiled in (False, True):
        rows = compiled == is_compiled
        if rows.any():
            some = Features(*({name: column[rows] for name, column in part.items()} for part in features))
            group, us = triton_group(problem.types, is_compiled=is_compiled), times.latency_us[rows]
            answers = answers_for(arch, TRITON, group, origin, coefficients, TRITON_VERSION, some, us)
            latency_us[rows] = us * answers.factor
            low_us[rows], high_us[rows] = answers.ends_us(latency_us[rows])
    return TritonTimes(latency_us, low_us, high_us, times.latency_us, origin)


def triton_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> Array:
    """Return the predicted time of each config in us, infinite if it cannot be launched; see `triton_times`."""
    return triton_times(arch, problem, configs, codes).latency_us
