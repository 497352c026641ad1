"""Rank the configs of Inductor's Triton templates by the Triton model, else by a roofline; compare them with libraries.

Nothing here imports torch. TORCH.md, "prune_inductor", says where Inductor's kernels differ from those of the model.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.autotune.triton import reject_configs
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu import triton as model
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

Array = npt.NDArray[np.float64]

COPY_BYTES = 16
_BITS_PER_BYTE = 8


class KernelTraits(NamedTuple):
    """Facts of a kernel that its config does not say.

    `is_persistent`: as many CTAs as SMs loop over the tiles; `is_tma`: operands come by bulk tensor copies. The widest
    piece of a row of an operand that is aligned has `a_copy_bytes` or `b_copy_bytes`, at most 16.
    """

    is_persistent: bool = False
    is_tma: bool = False
    a_copy_bytes: int = COPY_BYTES
    b_copy_bytes: int = COPY_BYTES


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


class RankedTimes(NamedTuple):
    """Predicted times of configs, [num_configs], by ``"model"`` or ``"roofline"``, and why not by the model.

    A time is infinite where the config does not compile, or cannot be launched.
    """

    times_us: Array
    ranked_by: str
    reason: str = ""


def rank_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> RankedTimes:
    """Return what configs (at least one) of one template are ranked by, the least first; ties stay in their order.

    The problem of a grouped GEMM has the groups as a batch.
    """
    rejected = np.array([no is not None and not no.can_run for no in reject_configs(arch, problem, configs)])
    try:
        if problem.input_dtype is DType.FP32:
            raise UnsupportedError("fp32 without tensor cores is not in the Triton model")
        coefficients = model.triton_coefficients(arch)[0]
        times, ranked_by, reason = _model_times_us(arch, problem, configs, traits, coefficients), "model", ""
    except UnsupportedError as error:
        times, ranked_by, reason = _roofline_us(arch, problem, configs), "roofline", str(error)
    return RankedTimes(np.where(rejected, np.inf, times), ranked_by, reason)


def _model_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits,
    coefficients: Mapping[str, float],
) -> Array:  # fmt: skip
    codes = [expected_code(arch, problem, config, traits) for config in configs]
    if min(traits.a_copy_bytes, traits.b_copy_bytes) < _LEAST_ASYNC_BYTES:
        configs = [config._replace(num_stages=1) for config in configs]
    model.triton_costs(arch, problem, configs, codes, coefficients)  # refuses what is not in the model
    launches = model.pack_launches(arch, problem, configs, codes)
    if traits.is_persistent:
        launches = launches._replace(ctas_per_sm=np.minimum(launches.ctas_per_sm, 1.0))
    if not traits.is_tma:
        whole_m = np.ceil(launches.M / launches.block_m) * launches.block_m
        whole_n = np.ceil(launches.N / launches.block_n) * launches.block_n
        launches = launches._replace(M=whole_m, N=whole_n)
    return model.launch_times(arch, launches, coefficients).latency_us


def expected_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig, traits: KernelTraits) -> KernelCode:
    """Return what the model expects of the code of a config: `estimate_code`, with the copies of Inductor's kernels."""
    code = model.estimate_code(arch, problem, config)
    loop, threads = code.loop, config.num_warps * _LANES
    copies = float(loop.copy)
    for rows, bits, width in (
        (config.block_m, problem.types.a.dtype.bits, traits.a_copy_bytes),
        (config.block_n, problem.types.b.dtype.bits, traits.b_copy_bytes),
    ):
        whole = rows * config.block_k * bits / _BITS_PER_BYTE / (COPY_BYTES * threads)
        copies += whole * (COPY_BYTES / width - 1)
    issue = loop.issue - _ISSUE_PER_COPY_ESTIMATED * loop.copy + _ISSUE_PER_COPY * copies
    if traits.is_tma:
        issue, copies = issue - _ISSUE_PER_COPY * copies + _ISSUE_PER_TMA, 0.0
    registers = code.registers + _REGISTERS_PER_COPY * max(0.0, copies - loop.copy)
    if any(mma.m == _WGMMA_M for mma in loop.mma):
        registers = config.block_m * config.block_n / threads + _REGISTERS_BASE + _REGISTERS_PER_COPY * copies
    return code._replace(
        registers=min(arch.max_registers_per_thread, round(registers)),
        loop=loop._replace(issue=round(issue), copy=max(1, round(copies))),
    )


def _roofline_us(arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig]) -> Array:
    """Return the least time of whole tiles dealt to SMs, by FLOP, L2 and DRAM; then bytes in flight.

    Deeper pipelines with wider steps are first among equals: nothing here says what a stage is worth.
    """
    G, M, K, N = problem.sizes
    types = problem.types
    a, b, c = (dtype.bits / _BITS_PER_BYTE for dtype in (types.a.dtype, types.b.dtype, types.c))
    tensor_flop = arch.tensor_flop_per_cycle.get(problem.input_dtype)
    flop_per_cycle = tensor_flop or arch.issue_slots_per_cycle * _LANES * _FLOP_PER_FMA
    flop_per_us = flop_per_cycle * cycles_per_us(arch.boost_clock_ghz)
    dram_us = G * (M * K * a + K * N * b + M * N * c) / bytes_per_us(arch.dram_achievable_gb_per_s)
    block_m, block_n, block_k, warps, stages = np.array([config[:5] for config in configs], float).T
    tiles = G * np.ceil(M / block_m) * np.ceil(N / block_n)
    whole_k = np.ceil(K / block_k) * block_k
    compute_us = np.ceil(tiles / arch.num_sms) * 2.0 * block_m * block_n * whole_k / flop_per_us
    if tensor_flop is None:  # a thread has a square of C, and loads both its sides for each step of K
        compute_us *= 1.0 + 2.0 / (_LOADED_ELEMS * np.sqrt(block_m * block_n / (warps * _LANES)))
    l2_us = tiles * whole_k * (block_m * a + block_n * b) / bytes_per_us(arch.l2_gb_per_s)
    in_flight = stages * block_k * (block_m * a + block_n * b)
    floor_us = np.maximum(np.maximum(compute_us, l2_us), dram_us)
    times: Array = floor_us * (1.0 + _TIE_FRAC * (1.0 - in_flight / arch.smem_per_cta_bytes))
    return times


TRITON_ERROR_FRAC = 0.19
"""Of 16-bit kernels that were held out 90% are nearer (arch/calibration/h200-sxm/triton.yaml: p90_percent)."""

_LATE_FACTOR, _TILE = 1.5, 128
"""How late cuBLAS can be where tiles of so many rows and columns are fewer than SMs: of ten such layers that were drawn
two took 1.24 and 1.47 times the upper end of their interval on an H200."""

_EVENTS_US = 2.7  # around a graph of one empty kernel (floor_us in arch/measured/h200-sxm/cublas/*.meta.yaml)
_NOT_FUSED = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_grouped_mm", "convolution")


class LibraryTime(NamedTuple):
    """The time of a GEMM without templates, in us: of the library's kernel, and with the kernel behind it.

    A template would save the latter. Nine of ten such GEMMs are faster than `latest_us`. `has_few_tiles`: fewer than
    SMs.
    """

    latency_us: float
    latest_us: float
    has_few_tiles: bool = False

    def beats(self, graph_us: float, *, is_best: bool = False) -> bool:
        """Say whether a candidate is slower even if its prediction is too long by as much as one in ten or twenty.

        The best candidate of a template may seem slower by `_LATE_FACTOR` where the library is slow at times.
        """
        factor = _LATE_FACTOR if is_best and self.has_few_tiles else 1.0
        return graph_us > self.latest_us * (1.0 + TRITON_ERROR_FRAC) * factor


class Library:
    """Predicts the library's kernels of one GPU."""

    def __init__(self, arch: GpuSpec) -> None:
        self.arch = arch
        self._evaluator = GEMMEvaluator(arch, l2="cold", disk_cache=False)

    def time(self, problem: GemmProblem, *, has_epilogue: bool) -> LibraryTime | None:
        """Return what the library takes; None: what is predicted is not sure enough to drop anything.

        `has_epilogue`: a template would also do what the next kernel does, which otherwise reads and writes C.
        """
        types = {problem.input_dtype, problem.weight_dtype, problem.output_dtype}
        if not (types <= {DType.FP16, DType.BF16} and _is_timed_generation(self.arch)):
            return None
        result = self._evaluator.evaluate_problem(problem)
        epilogue_us = 0.0
        if has_epilogue:
            c_bytes = problem.rows * problem.N * problem.types.c.bits / _BITS_PER_BYTE
            epilogue_us = self._evaluator.evaluate_memory_bound(c_bytes, c_bytes).latency_us
        num_tiles = problem.G * -(-problem.M // _TILE) * -(-problem.N // _TILE)
        return LibraryTime(result.latency_us, result.high_us + epilogue_us, num_tiles < self.arch.num_sms)


@cache
def _is_timed_generation(arch: GpuSpec) -> bool:
    timed = model.triton_coefficients(arch)[1].gpu
    if timed is None:
        return False
    try:
        spec = load_arch(timed)
    except ArchError:
        return timed == arch.name
    return isinstance(spec, GpuSpec) and spec.sm_arch == arch.sm_arch


def graph_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> Array | None:
    """Return what candidates that `rank_times` knows by the model take in a CUDA graph; None: none was timed."""
    if traits != KernelTraits():
        return None
    fitted = model.triton_coefficients(arch)[0]
    in_graph = {**fitted, "evict_frac": 0.0, "kernel_us": max(0.0, fitted["kernel_us"] - _EVENTS_US)}
    return _model_times_us(arch, problem, configs, traits, in_graph)


def has_epilogue(node: Any) -> bool:
    """Return whether a template's kernel may do more than a node of torch.fx (a GEMM, or a view) says; in doubt yes."""
    return node is None or any(_may_be_fused(user) for user in node.users if user.op != "output")


def _may_be_fused(user: Any) -> bool:
    if getattr(user.target, "is_view", False):
        return has_epilogue(user)
    name = str(user.target).partition(".")[2].partition(".")[0]  # aten.mm.default
    return name not in _NOT_FUSED and not name.startswith("_scaled_dot_product")
