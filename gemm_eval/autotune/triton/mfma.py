"""Ranks Triton configs on AMD Instinct: times are those of vendors' MFMA kernels, resources those of compiled code.

No Triton kernel was timed on these GPUs. Tiles, stages and parts of K are told apart; waves and instructions are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidMappingError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models.gpu import OTHER_MAKER, Origin
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, TritonConfig, TritonTimes
from gemm_eval.workload import GemmProblem

_STEP_BYTES, _STAGES = (64, 256), (2, 4)  # least and most of the families (models/gpu/families/mfma.py)
_SPILL_FACTOR = 2.0  # of the time of a kernel that spills registers; assumed
_NUMBER = r"\.{name}:\s+(\d+)"


def estimate_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> KernelCode:
    """Return accumulators as registers, and the LDS of all stages but the one in registers."""
    threads = config.num_warps * arch.threads_per_warp
    step_bytes = (config.block_m + config.block_n) * config.block_k * problem.input_dtype.bits // 8
    smem_bytes = max(1, config.num_stages - 1) * step_bytes
    return _code(config, -(-config.block_m * config.block_n // threads), smem_bytes, 0, is_compiled=False)


def code_of_amdgcn(text: str, config: TritonConfig, smem_bytes: int) -> KernelCode:
    """Return the resources that the metadata of a compiled kernel names; VGPRs include AccVGPRs."""
    registers, spills = (
        max(map(int, re.findall(_NUMBER.format(name=name), text))) for name in ("vgpr_count", "vgpr_spill_count")
    )
    return _code(config, registers, smem_bytes, spills, is_compiled=True)


def _code(config: TritonConfig, registers: int, smem_bytes: int, spills: int, *, is_compiled: bool) -> KernelCode:
    counts = dict.fromkeys(MainLoop._fields[2:], 0)
    loop = MainLoop(**counts | {"spill": spills}, k=config.block_k, mma=())  # type: ignore[arg-type]
    return KernelCode(config.num_warps, registers, smem_bytes, 0, 0, loop, is_compiled)


def triton_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> TritonTimes:
    """Return times of a vendor's kernels with these tiles, infinite where it has none such; see `TritonModel`."""
    evaluator = _evaluator(arch)
    best = evaluator.evaluate_problem(problem, correction=False).mapping
    assert isinstance(best, KernelConfig)
    bits = problem.input_dtype.bits
    us = np.full(len(configs), np.inf)
    for index, (config, code) in enumerate(zip(configs, codes, strict=True)):
        mapping = best._replace(
            cta_m=config.block_m, cta_n=config.block_n,
            cta_k=8 * min(max(config.block_k * bits // 8, _STEP_BYTES[0]), _STEP_BYTES[1]) // bits,
            num_stages=min(max(config.num_stages, _STAGES[0]), _STAGES[1]), split_k=config.split_k,
            decomposition=Decomposition.SPLIT_K if config.split_k > 1 else Decomposition.DATA_PARALLEL,
        )  # fmt: skip
        with suppress(InvalidMappingError):
            us[index] = evaluator.evaluate_mapping(problem, mapping, correction=False).latency_us
            us[index] *= _SPILL_FACTOR if code.loop.spill else 1.0
    origin = Origin(False, None, "MFMA kernels of vendors' libraries")
    return TritonTimes(us, us * np.exp(-OTHER_MAKER), us * np.exp(OTHER_MAKER), us, origin)


@lru_cache(maxsize=4)
def _evaluator(arch: GpuSpec) -> GEMMEvaluator:
    return GEMMEvaluator(arch, disk_cache=False)
