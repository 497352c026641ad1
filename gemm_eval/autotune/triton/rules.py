"""Rules that reject a config before anything is compiled: what the hardware or Triton cannot do, and certain waste.

Each rule is a function of the GPU, the GEMM and the config that returns None or a `Rejection`. `reject_configs` applies
all of them, and then those that compare configs with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gemm_eval.arch import THREADS_PER_WARP, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.workload import GemmProblem

__all__ = ["RULES", "Rejection", "reject_configs", "shared_bytes_bounds"]

MAX_THREADS_PER_CTA = 1024
"""Of every CUDA GPU (CUDA C++ Programming Guide, compute capabilities)."""

MIN_K_ELEMS, MIN_K_ELEMS_8BIT = 16, 32
"""Least K of `tl.dot` (triton/backends/nvidia/compiler.py: min_dot_size): that of one mma.sync or wgmma."""

MIN_MMA_M, MIN_MMA_N = 16, 8
"""The smallest tensor-core instruction, mma.sync m16n8: less than that of a warp is computed twice, or thrown away."""

MIN_OTHER_REGISTERS = 26
"""Registers that a main loop needs beside its accumulators. ptxas refuses a wgmma with fewer ("Try to compile with
register target of 154 or higher" for 128 accumulators, 90 for 64, 58 for 32, 42 for 16); on sm_80 all these spill."""

_BITS_PER_BYTE = 8
_SHARED_EXTRA_BYTES = 1024  # mbarriers, the scales of a step


class Rejection(NamedTuple):
    """Why a config falls.

    Attributes:
        rule: short name of the rule.
        reason: one line with the numbers.
        can_run: it would run, badly; else it would not compile, or not launch.
    """

    rule: str
    reason: str
    can_run: bool


Rule = Callable[[GpuSpec, GemmProblem, TritonConfig], Rejection | None]


def _blocks(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del arch, problem
    for name, value in zip(("M", "N", "K"), config[:3], strict=True):
        if not _is_power_of_two(value):
            return Rejection("blocks", f"block {name} {value} is no power of two, as Triton's tiles are", False)
    return None


def _launch(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del problem
    warps, stages, ctas = config.num_warps, config.num_stages, config.num_ctas
    if not _is_power_of_two(warps) or warps * THREADS_PER_WARP > MAX_THREADS_PER_CTA:
        most = MAX_THREADS_PER_CTA // THREADS_PER_WARP
        return Rejection("launch", f"{warps} warps: a program has a power of two of them, at most {most}", False)
    if stages < 1:
        return Rejection("launch", f"{stages} stages: there must be at least 1", False)
    if ctas > arch.max_cluster_ctas:
        return Rejection(
            "launch", f"{ctas} CTAs in a cluster: {arch.sm_arch} has at most {arch.max_cluster_ctas}", False
        )
    if config.split_k < 1 or config.group_m < 1:
        return Rejection("launch", f"split-K {config.split_k}, group {config.group_m}: both are at least 1", False)
    return None


def _k_step(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del arch
    step = MIN_K_ELEMS_8BIT if problem.input_dtype.bits == 8 else MIN_K_ELEMS
    if config.block_k % step:
        what = f"block K {config.block_k} is no multiple of {step}"
        return Rejection("k_step", f"{what}, the K of a tensor-core instruction of {problem.input_dtype}", False)
    return None


def _mma_shape(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del arch, problem
    elems, least = config.block_m * config.block_n, config.num_warps * MIN_MMA_M * MIN_MMA_N
    if elems < least:
        text = f"{elems} elements of C for {config.num_warps} warps: a tensor-core instruction m16n8 each is {least}"
        return Rejection("mma_shape", text, True)
    return None


def _registers(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del problem
    if arch.mma_accumulators_in != "registers":
        return None
    threads = config.num_warps * THREADS_PER_WARP
    limit = min(arch.max_registers_per_thread, arch.registers_per_sm // threads, config.maxnreg or 1 << 30)
    demand = config.block_m * config.block_n // threads + MIN_OTHER_REGISTERS
    if demand > limit:
        text = f"{demand - MIN_OTHER_REGISTERS} accumulators a thread + {MIN_OTHER_REGISTERS} are {demand} registers"
        return Rejection("registers", f"{text}, there are {limit}: it spills, or does not compile", True)
    return None


def _shared_memory(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    demand, limit = shared_bytes_bounds(problem, config)[0], arch.smem_per_cta_bytes
    if demand > limit:
        text = f"at least {demand:,} bytes of shared memory in {config.num_stages} stages, a CTA has {limit:,}"
        return Rejection("shared_memory", text, False)
    return None


def _split_k(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    del arch
    steps = -(-problem.K // config.block_k)
    if config.split_k > steps:
        return Rejection("split_k", f"split-K {config.split_k} of {steps} steps along K: some parts are empty", True)
    return None


RULES: tuple[Rule, ...] = (_blocks, _launch, _k_step, _mma_shape, _registers, _shared_memory, _split_k)
"""The rules that look at one config."""


def shared_bytes_bounds(problem: GemmProblem, config: TritonConfig) -> tuple[int, int]:
    """Return the least and the most shared memory that Triton may give a config, in bytes.

    Of `num_stages` steps Triton holds one less in shared memory for mma.sync, and all for wgmma; for quantized weights
    only A is sure to be there, while B may be as wide as A, once unpacked. At the end, C may pass through it. Compiled
    kernels of sm_80, sm_89, sm_90 and sm_100 in fp16, fp8 and W4A16 lie between (tests/autotune/test_triton_rules.py).
    """
    a_bytes = config.block_m * config.block_k * problem.input_dtype.bits // _BITS_PER_BYTE
    b_bytes = config.block_n * config.block_k * problem.input_dtype.bits // _BITS_PER_BYTE
    c_bytes = config.block_m * config.block_n * DType.FP32.bits // _BITS_PER_BYTE
    sure = a_bytes if problem.is_weight_quantized else a_bytes + b_bytes
    least = 0 if config.num_stages == 1 else (config.num_stages - 1) * sure
    return least, max(config.num_stages * (a_bytes + b_bytes), c_bytes) + _SHARED_EXTRA_BYTES


def reject_configs(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig]
) -> tuple[Rejection | None, ...]:
    """Return for each config why it falls, or None.

    A config that others make pointless (a tile far beyond the problem, stages beyond its steps) falls only if one of
    them stands to the end.
    """
    found = [next((no for rule in RULES if (no := rule(arch, problem, config))), None) for config in configs]
    for compare in (_oversized_m, _oversized_n, _oversized_k):
        standing = [config for config, no in zip(configs, found, strict=True) if no is None]
        found = [no or compare(arch, problem, config, standing) for config, no in zip(configs, found, strict=True)]
    return tuple(found)


def _oversized_m(
    arch: GpuSpec, problem: GemmProblem, config: TritonConfig, others: Sequence[TritonConfig]
) -> Rejection | None:
    # the rows of one instruction are no waste, be they M or, in a transposed product, N
    return _oversized("M", problem.M, arch.mma_m, config.block_m, [other.block_m for other in others])


def _oversized_n(
    arch: GpuSpec, problem: GemmProblem, config: TritonConfig, others: Sequence[TritonConfig]
) -> Rejection | None:
    return _oversized("N", problem.N, arch.mma_m, config.block_n, [other.block_n for other in others])


def _oversized_k(
    arch: GpuSpec, problem: GemmProblem, config: TritonConfig, others: Sequence[TritonConfig]
) -> Rejection | None:
    del arch
    return _oversized("K", problem.K, MIN_K_ELEMS_8BIT, config.block_k, [other.block_k for other in others])


def _oversized(name: str, size: int, least: int, block: int, others: Sequence[int]) -> Rejection | None:
    """A tile of at least twice the problem, where one is there that is not."""
    enough = max(1 << (size - 1).bit_length(), least)
    if block >= 2 * enough and any(other <= enough for other in others):
        text = f"block {name} {block} for {name} = {size}: {enough} does, and some config has no more"
        return Rejection("oversized", text, True)
    return None


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
