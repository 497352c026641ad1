"""Ranks the configs of Inductor's Triton templates: by the Triton model, or by a roofline if it knows no such kernel.

The model was fitted on `examples/triton_gemm.py`. What Inductor's kernels do otherwise and the model can be told:

* Rows and columns outside the matrix begin anew (`rm % M`): whole tiles come from L2, where the examples' masks read
  the rows that there are.
* A persistent kernel has one CTA for each SM, however little it takes of it.
* TMA: a tile is one instruction of one thread, and rows outside are not read.
* Strides are constants, so that a copy takes half the instructions.
* Rows that do not start on 16 bytes are copied in narrower pieces, and below 4 bytes through registers, without
  cp.async: there is no pipeline then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import reject_configs
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.triton import (
    KernelCode,
    TritonConfig,
    estimate_code,
    launch_times,
    pack_launches,
    triton_coefficients,
    triton_costs,
)
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

__all__ = ["KernelTraits", "RankedTimes", "expected_code", "model_times_us", "rank_times"]

Array = npt.NDArray[np.float64]

_COPY_BYTES = 16
_LEAST_ASYNC_BYTES = 4  # of cp.async (PTX ISA: cp-size is 4, 8 or 16)
_ISSUE_PER_COPY = 3.5  # of 96 kernels of Inductor's, compiled for sm_90: strides are constants
_ISSUE_PER_COPY_ESTIMATED = 7.0  # of the examples', in gemm_eval/models/gpu/triton/code.py
_REGISTERS_BASE, _REGISTERS_PER_COPY = 21, 2.4  # beside accumulators of wgmma, of the same kernels
_ISSUE_PER_TMA = 10  # of one thread: an mbarrier's arrival and wait, the copy, its coordinates
_WGMMA_M = 64
_LANES = 32
_FLOP_PER_FMA = 2.0
_LOADED_ELEMS = 4.0  # of fp32, by a load of 16 bytes
_TIE_FRAC = 1e-3  # parts equals, and no more
_BITS_PER_BYTE = 8


class KernelTraits(NamedTuple):
    """What a config does not say of the kernel that it launches.

    Attributes:
        is_persistent: as many CTAs as SMs loop over the tiles.
        is_tma: operands come by bulk tensor copies.
        a_copy_bytes, b_copy_bytes: the widest piece of a row of an operand that is aligned, at most 16.
    """

    is_persistent: bool = False
    is_tma: bool = False
    a_copy_bytes: int = _COPY_BYTES
    b_copy_bytes: int = _COPY_BYTES


class RankedTimes(NamedTuple):
    """Predicted times of configs.

    Attributes:
        times_us: [num_configs]; infinite: it does not compile, or cannot be launched.
        ranked_by: ``"model"`` or ``"roofline"``.
        reason: why it is not the model.
    """

    times_us: Array
    ranked_by: str
    reason: str = ""


def rank_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> RankedTimes:
    """Return what configs of one template are ranked by, the least first; ties stay in their order.

    Args:
        arch: the GPU.
        problem: the GEMM; of a grouped one the groups as a batch.
        configs: at least one.
        traits: of the template's kernels.
    """
    rejected = np.array([no is not None and not no.can_run for no in reject_configs(arch, problem, configs)])
    if problem.input_dtype is DType.FP32:
        reason = "fp32 without tensor cores is not in the Triton model"
        return RankedTimes(np.where(rejected, np.inf, _roofline_us(arch, problem, configs)), "roofline", reason)
    try:
        times = model_times_us(arch, problem, configs, traits)
    except UnsupportedError as error:
        times = _roofline_us(arch, problem, configs)
        return RankedTimes(np.where(rejected, np.inf, times), "roofline", str(error))
    return RankedTimes(np.where(rejected, np.inf, times), "model")


def model_times_us(
    arch: GpuSpec,
    problem: GemmProblem,
    configs: Sequence[TritonConfig],
    traits: KernelTraits,
    coefficients: Mapping[str, float] | None = None,
) -> Array:
    """Return the Triton model's times of configs of one template.

    Args:
        arch, problem, configs, traits: as for `rank_times`.
        coefficients: None: those of the GPU, for times as tuners take them.

    Raises:
        UnsupportedError: such kernels are not in the model.
    """
    if coefficients is None:
        coefficients = triton_coefficients(arch)[0]
    codes = [expected_code(arch, problem, config, traits) for config in configs]
    if min(traits.a_copy_bytes, traits.b_copy_bytes) < _LEAST_ASYNC_BYTES:
        configs = [config._replace(num_stages=1) for config in configs]
    triton_costs(arch, problem, configs, codes, coefficients)  # refuses what is not in the model
    launches = pack_launches(arch, problem, configs, codes)
    if traits.is_persistent:
        launches = launches._replace(ctas_per_sm=np.minimum(launches.ctas_per_sm, 1.0))
    if not traits.is_tma:
        whole_m = np.ceil(launches.M / launches.block_m) * launches.block_m
        whole_n = np.ceil(launches.N / launches.block_n) * launches.block_n
        launches = launches._replace(M=whole_m, N=whole_n)
    return launch_times(arch, launches, coefficients).latency_us


def expected_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig, traits: KernelTraits) -> KernelCode:
    """Return what the model expects of the code of a config: `estimate_code`, with the copies of Inductor's kernels.

    Args:
        arch, problem, config: what is compiled for what.
        traits: of the template's kernels.

    Raises:
        UnsupportedError: kernels of these types are not in the model.
    """
    code = estimate_code(arch, problem, config)
    assert problem.weight_dtype is not None
    loop, threads = code.loop, config.num_warps * _LANES
    copies = float(loop.copy)
    for rows, bits, width in (
        (config.block_m, problem.input_dtype.bits, traits.a_copy_bytes),
        (config.block_n, problem.weight_dtype.bits, traits.b_copy_bytes),
    ):
        whole = rows * config.block_k * bits / _BITS_PER_BYTE / (_COPY_BYTES * threads)
        copies += whole * (_COPY_BYTES / width - 1)
    issue = loop.issue - _ISSUE_PER_COPY_ESTIMATED * loop.copy + _ISSUE_PER_COPY * copies
    if traits.is_tma:
        issue, copies = issue - _ISSUE_PER_COPY * copies + _ISSUE_PER_TMA, 0.0
    registers = code.registers + _REGISTERS_PER_COPY * max(0.0, copies - loop.copy)
    if any(one.m == _WGMMA_M for one in loop.mma):
        registers = config.block_m * config.block_n / threads + _REGISTERS_BASE + _REGISTERS_PER_COPY * copies
    return code._replace(
        registers=min(arch.max_registers_per_thread, round(registers)),
        loop=loop._replace(issue=round(issue), copy=max(1, round(copies))),
    )


def _roofline_us(arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig]) -> Array:
    """The least time of whole tiles, dealt to SMs: FLOP at the SM's rate, L2 and DRAM at theirs; then bytes in flight.

    Deeper pipelines with wider steps are first among equals: nothing here says what a stage is worth.
    """
    G, M, K, N = problem.sizes
    assert problem.weight_dtype is not None
    assert problem.output_dtype is not None
    a, b, c = (one.bits / _BITS_PER_BYTE for one in (problem.input_dtype, problem.weight_dtype, problem.output_dtype))
    tensor_flop = arch.tensor_flop_per_cycle.get(problem.input_dtype)
    flop_per_cycle = tensor_flop or arch.issue_slots_per_cycle * _LANES * _FLOP_PER_FMA
    flop_per_us = flop_per_cycle * cycles_per_us(arch.boost_clock_ghz)
    dram_us = G * (M * K * a + K * N * b + M * N * c) / bytes_per_us(arch.dram_achievable_gb_per_s)
    times = []
    for one in configs:
        tiles = G * math.ceil(M / one.block_m) * math.ceil(N / one.block_n)
        whole_k = math.ceil(K / one.block_k) * one.block_k
        compute_us = math.ceil(tiles / arch.num_sms) * 2.0 * one.block_m * one.block_n * whole_k / flop_per_us
        l2_us = tiles * whole_k * (one.block_m * a + one.block_n * b) / bytes_per_us(arch.l2_gb_per_s)
        if tensor_flop is None:  # a thread has a square of C, and loads both its sides for each step of K
            side = math.sqrt(one.block_m * one.block_n / (one.num_warps * _LANES))
            compute_us *= 1.0 + 2.0 / (_LOADED_ELEMS * side)
        in_flight = one.num_stages * one.block_k * (one.block_m * a + one.block_n * b)
        times.append(max(compute_us, l2_us, dram_us) * (1.0 + _TIE_FRAC * (1.0 - in_flight / arch.smem_per_cta_bytes)))
    return np.array(times)
