"""Ranks Triton configs on AMD Instinct: times are those of vendors' MFMA kernels, resources those of compiled code.

No Triton kernel was timed on these GPUs. Tiles, stages and parts of K are told apart; waves and instructions are not.
"""

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
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, TritonConfig, TritonTimes, estimate_code
from gemm_eval.workload import GemmProblem

__all__ = ["code_of_amdgcn", "estimate_code", "triton_times"]

_LEAST_STAGES = 2  # buffers of a kernel that loads one k-step while it multiplies another
_SPILL_FACTOR = 2.0  # of the time of a kernel that spills registers; assumed


def code_of_amdgcn(text: str, config: TritonConfig, smem_bytes: int) -> KernelCode:
    """Return the resources that the metadata of a compiled kernel names; VGPRs include AccVGPRs."""
    registers, spills = (
        max(map(int, re.findall(rf"\.{name}:\s+(\d+)", text))) for name in ("vgpr_count", "vgpr_spill_count")
    )
    loop = MainLoop(config.block_k, (), *[0] * 10, spill=spills, shared_wavefronts=0, mma_wait=0)  # type: ignore[misc]
    return KernelCode(config.num_warps, registers, smem_bytes, 0, 0, loop, is_compiled=True)


def triton_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> TritonTimes:
    """Return times of a vendor's kernels with these tiles, infinite where it has none such; see `TritonModel`."""
    evaluator = _evaluator(arch)
    best = evaluator.evaluate_problem(problem, correction=False).mapping
    assert isinstance(best, KernelConfig)
    bits, family = problem.input_dtype.bits, FAMILIES[best.family]
    least_bytes, most_bytes = family.step_bytes, max(family.step_bytes, *family.more_step_bytes)
    us = np.full(len(configs), np.inf)
    for index, (config, code) in enumerate(zip(configs, codes, strict=True)):
        mapping = best._replace(
            cta_m=config.block_m, cta_n=config.block_n,
            cta_k=8 * min(max(config.block_k * bits // 8, least_bytes), most_bytes) // bits,
            num_stages=min(max(config.num_stages, _LEAST_STAGES), family.max_stages), split_k=config.split_k,
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
