"""The kernels that vLLM and SGLang call, by data types and generation of SMs, and whose timings tell their times.

No GEMM was timed through these engines, but layers of experts through SGLang. An engine's kernel has the terms of the
nearest kernel that was timed, and a wider interval where that is another kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.calibration import OTHER_SMS, Interval
from gemm_eval.models.gpu.families.family import since
from gemm_eval.models.gpu.libraries import ENGINES, LIBRARIES, TRTLLM, first_library
from gemm_eval.workload import GemmTypes

SOURCES = {
    "vllm": "vLLM in 2026: vllm/model_executor/kernels/linear/__init__.py, the first kernel of each list that runs",
    "sglang": "SGLang in 2026: sglang/srt/layers/quantization, fp8_utils.py, fp4_utils.py and marlin_utils.py",
}
_OTHER_KERNEL = 0.45
"""Logarithm by which another kernel than the timed one errs, besides: on Blackwell those of nvfp4 and fp8 were 40 to
54% off as TensorRT-LLM's."""
_ALIKE = OTHER_SMS  # of the same source, compiled by someone else


class EngineKernel(NamedTuple):
    """What an engine runs GEMMs of some types with, and the library whose timed kernels are nearest."""

    engines: tuple[str, ...]
    types: str  # as `_word` has them
    sm_archs: tuple[str, ...]
    kernels: str  # the name of the engine's kernels
    library: str
    other_log: float  # added to the interval in squares; 0: these kernels were timed


_DATA_CENTER = ("sm_100", "sm_103")
_FLASHINFER = "FlashInfer's bmm_fp8 (the first backend that runs)"
_KERNELS = (
    EngineKernel(ENGINES, "16 or 32 bits", since("sm_75"), "cuBLAS", "cublas", 0.0),
    EngineKernel(ENGINES, "fp8", ("sm_89",), "CUTLASS (cutlass_scaled_mm)", "cublas", _OTHER_KERNEL),
    EngineKernel(("vllm",), "fp8", ("sm_90",), "CUTLASS (cutlass_scaled_mm)", "cublas", _OTHER_KERNEL),
    EngineKernel(("vllm",), "fp8", since("sm_100"), _FLASHINFER, "cublas", _OTHER_KERNEL),
    EngineKernel(("sglang",), "fp8", since("sm_90"), "cuBLAS, through FlashInfer's bmm_fp8", "cublas", 0.0),
    EngineKernel(ENGINES, "fp8_block", ("sm_90",), "DeepGEMM", TRTLLM, _ALIKE),
    EngineKernel(ENGINES, "fp8_block", _DATA_CENTER, "DeepGEMM", TRTLLM, 0.0),
    EngineKernel(ENGINES, "fp8_block", ("sm_89",), "Triton", TRTLLM, _OTHER_KERNEL),
    EngineKernel(ENGINES, "fp8_block", ("sm_120",), "CUTLASS", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("vllm",), "nvfp4", _DATA_CENTER, "FlashInfer's CuTe DSL kernels, tuned", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("sglang",), "nvfp4", _DATA_CENTER, "FlashInfer's CUTLASS kernels, tuned", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("vllm",), "nvfp4", ("sm_120",), "FlashInfer's CUTLASS kernels, tuned", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("sglang",), "nvfp4", ("sm_120",), "cuDNN, through FlashInfer", TRTLLM, _OTHER_KERNEL),
    EngineKernel(ENGINES, "mxfp8", since("sm_100"), "FlashInfer's CuTe DSL or CUTLASS kernels", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("sglang",), "mxfp8", ("sm_90",), "DeepGEMM", TRTLLM, _ALIKE),
    EngineKernel(("vllm",), "mxfp4", _DATA_CENTER, "FlashInfer", TRTLLM, _OTHER_KERNEL),
    EngineKernel(ENGINES, "int8", ("sm_80", "sm_89"), "CUTLASS", TRTLLM, _OTHER_KERNEL),
    EngineKernel(ENGINES, "int8", ("sm_75", "sm_90"), "CUTLASS", "cublas", _OTHER_KERNEL),
    EngineKernel(("vllm",), "narrow weights", ("sm_90",), "Machete, else Marlin", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("vllm",), "narrow weights", since("sm_75"), "Marlin", TRTLLM, _OTHER_KERNEL),
    EngineKernel(("sglang",), "narrow weights", since("sm_80"), "Marlin", TRTLLM, _OTHER_KERNEL),
)
_OF_EXPERTS = {"vllm": ("marlin", "triton"), "sglang": ("triton", "marlin")}
"""Libraries of grouped kernels in the order in which the engines take them; SGLang's layers were timed, vLLM runs the
same kernels. On data-center Blackwell both try TensorRT-LLM-gen's first (`engine_libraries` has the sources)."""


def _word(types: GemmTypes) -> str:
    a, group = types.a.dtype, types.group_size
    if types.is_weight_quantized:
        return "narrow weights"
    if types.is_block_scaled:
        names = {DType.FP8: ("fp8_block", "mxfp8"), DType.FP4: ("nvfp4", "mxfp4")}
        return names[a][group == 32] if a in names else "other block-scaled types"
    return "16 or 32 bits" if a.bits >= 16 else str(a)


def engine_library(engine: str, arch: GpuSpec, types: GemmTypes, *, is_grouped: bool = False) -> str:
    """Return the library that answers for an engine: ``vllm/cublas``, or of groups of rows that of the very kernels.

    Raises:
        UnsupportedError: of the engine no kernels are known for these types on this GPU.
    """
    if is_grouped:
        of_blackwell = ("trtllm-gen",) if arch.sm_arch in _DATA_CENTER and types.b.dtype is not DType.INT4 else ()
        if library := first_library((*of_blackwell, *_OF_EXPERTS[engine]), arch, types):
            return library
    elif (found := engine_kernel(engine, arch, types)) is not None:
        LIBRARIES[found.library].check(arch, types)
        return f"{engine}/{found.library}"
    raise UnsupportedError(
        f"of {engine} no kernels for {types.inputs} are known on {arch.name} ({arch.sm_arch}); library auto answers "
        "with those of another"
    )


def engine_kernel(library: str, arch: GpuSpec, types: GemmTypes) -> EngineKernel | None:
    """Return what stands behind an answer for an engine (``vllm`` or ``vllm/cublas``); None: it is for none."""
    engine, word = library.partition("/")[0], _word(types)
    rows = (row for row in _KERNELS if engine in row.engines and word == row.types and arch.sm_arch in row.sm_archs)
    return next(rows, None)


def widened(interval: Interval, log: float) -> Interval:
    """Return an interval that errs by `log` besides, in squares."""
    low, high = ([math.hypot(math.log(end), log) for end in ends] for ends in interval)
    return Interval(tuple(math.exp(-end) for end in low), tuple(math.exp(end) for end in high))


def say_engine(library: str, arch: GpuSpec, types: GemmTypes) -> str:
    """Return a sentence on whose timings stand behind an answer for an engine; empty: it is for none."""
    kernel = engine_kernel(library, arch, types)
    if kernel is None:
        return ""
    told = (
        "were timed" if not kernel.other_log else f"were not timed: {kernel.library}'s stand in, the interval is wider"
    )
    return f"{library.partition('/')[0]} runs {kernel.kernels} here, which {told} ({SOURCES[kernel.engines[0]]})."
