"""The kernels that vLLM and SGLang call, by data types and generation of SMs, and whose timings tell their times.

No GEMM was timed through these engines, but layers of experts through SGLang. An engine's kernel has the terms of the
nearest kernel that was timed, and a wider interval where that is another kernel.
"""

from typing import NamedTuple

from gemm_eval.arch import GFX_ARCHS, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.calibration import OTHER_SMS
from gemm_eval.models.gpu.families.family import since
from gemm_eval.models.gpu.libraries import ENGINES, LIBRARIES, TRTLLM, first_library
from gemm_eval.workload import GemmTypes

_SOURCES = {
    "vllm": "vLLM in 2026, vllm/model_executor/kernels/linear/__init__.py: the first kernel of a list that runs",
    "sglang": "SGLang in 2026, sglang/srt/layers/quantization: fp8_utils.py, fp4_utils.py, marlin_utils.py",
}
"""Where the kernels of an engine are chosen. Assumed, not read there: fp8_block on sm_89 and of vLLM on sm_90, mxfp4,
SGLang's int8 and narrow weights, and that aiter is on where ROCm runs (VLLM_ROCM_USE_AITER, SGLANG_USE_AITER)."""

_ALIKE = OTHER_SMS  # of the same source as the timed kernel, compiled by someone else
_OTHER = 0.45
"""Logarithm by which another kernel than the timed one errs, besides. Assumed: no timings of these kernels are here."""


class EngineKernel(NamedTuple):
    """The kernels that engines run GEMMs of some types with, and the library here whose timed kernels are nearest."""

    engines: tuple[str, ...]
    types: str  # as `_word` names them
    sm_archs: tuple[str, ...]
    kernels: str
    library: str
    other_log: float  # added to intervals in squares; 0: these very kernels were timed


_SM10X = ("sm_100", "sm_103")
_VLLM, _SGLANG = (("vllm",), ("sglang",))
_KERNELS = (  # the first that fits counts
    EngineKernel(ENGINES, "16 or 32 bits", since("sm_75"), "cuBLAS", "cublas", 0.0),
    EngineKernel(_SGLANG, "fp8", since("sm_90"), "cuBLAS, through FlashInfer's bmm_fp8", "cublas", 0.0),
    EngineKernel(ENGINES, "fp8", ("sm_89", "sm_90"), "CUTLASS (cutlass_scaled_mm)", "cublas", _OTHER),
    EngineKernel(_VLLM, "fp8", since("sm_100"), "FlashInfer's bmm_fp8, with its first backend", "cublas", _OTHER),
    EngineKernel(ENGINES, "fp8_block", ("sm_89",), "Triton", TRTLLM, _OTHER),
    EngineKernel(ENGINES, "fp8_block", ("sm_90",), "DeepGEMM", TRTLLM, _ALIKE),
    EngineKernel(ENGINES, "fp8_block", _SM10X, "DeepGEMM", TRTLLM, 0.0),
    EngineKernel(ENGINES, "fp8_block", ("sm_120",), "CUTLASS", TRTLLM, _OTHER),
    EngineKernel(_VLLM, "nvfp4", _SM10X, "FlashInfer's CuTe DSL kernels, tuned", TRTLLM, _OTHER),
    EngineKernel(_SGLANG, "nvfp4", ("sm_120",), "cuDNN, through FlashInfer", TRTLLM, _OTHER),
    EngineKernel(ENGINES, "nvfp4", since("sm_100"), "FlashInfer's CUTLASS kernels, tuned", TRTLLM, _OTHER),
    EngineKernel(_SGLANG, "mxfp8", ("sm_90",), "DeepGEMM", TRTLLM, _ALIKE),
    EngineKernel(ENGINES, "mxfp8", since("sm_100"), "FlashInfer's CuTe DSL or CUTLASS kernels", TRTLLM, _OTHER),
    EngineKernel(_VLLM, "mxfp4", _SM10X, "FlashInfer", TRTLLM, _OTHER),
    EngineKernel(ENGINES, "int8", ("sm_80", "sm_86", "sm_89"), "CUTLASS", TRTLLM, _OTHER),
    EngineKernel(ENGINES, "int8", ("sm_75", "sm_90"), "CUTLASS", "cublas", _OTHER),
    EngineKernel(_VLLM, "narrow weights", ("sm_90",), "Machete, else Marlin", TRTLLM, _OTHER),
    EngineKernel(_VLLM, "narrow weights", since("sm_75"), "Marlin", TRTLLM, _OTHER),
    EngineKernel(_SGLANG, "narrow weights", since("sm_80"), "Marlin", TRTLLM, _OTHER),
    # on ROCm with aiter on; rows of tables are of GEMMs that its tuner was run for
    EngineKernel(ENGINES, "16 or 32 bits", GFX_ARCHS, "hipBLASLt", "hipblaslt", _ALIKE),
    *(
        EngineKernel(ENGINES, types, GFX_ARCHS[first:], "aiter's tuned kernels", "aiter", _ALIKE)
        for types, first in (("fp8", 1), ("fp8_block", 1), ("int8", 1), ("mxfp8", 2), ("mxfp4", 2))
    ),
)
_OF_EXPERTS = {"vllm": ("marlin", "triton", "aiter-moe"), "sglang": ("triton", "marlin", "aiter-moe")}
"""Grouped kernels in the order in which the engines take them, on sm_100 and sm_103 after TensorRT-LLM-gen's. They were
timed through SGLang, and vLLM runs the same (`engine_libraries` has the sources)."""


def _word(types: GemmTypes) -> str:
    a = types.a.dtype
    if types.is_weight_quantized:
        return "narrow weights"
    if types.is_block_scaled:
        return f"mx{a}" if types.group_size == 32 else {DType.FP8: "fp8_block", DType.FP4: "nvfp4"}.get(a, "")
    return "16 or 32 bits" if a.bits >= 16 else str(a)


def engine_kernel(library: str, arch: GpuSpec, types: GemmTypes) -> EngineKernel | None:
    """Return what stands behind an answer for an engine (``vllm`` or ``vllm/cublas``); None: it is for none."""
    engine, word = library.partition("/")[0], _word(types)
    rows = (row for row in _KERNELS if engine in row.engines and word == row.types and arch.sm_arch in row.sm_archs)
    return next(rows, None)


def engine_library(engine: str, arch: GpuSpec, types: GemmTypes, *, is_grouped: bool = False) -> str:
    """Return the library that answers for an engine: ``vllm/cublas``, or of groups of rows that of the very kernels.

    Raises:
        UnsupportedError: of the engine no kernels are known for these types on this GPU.
    """
    kernel = engine_kernel(engine, arch, types)
    if is_grouped:
        first = ("trtllm-gen",) if arch.sm_arch in _SM10X and types.b.dtype is not DType.INT4 else ()
        if library := first_library((*first, *_OF_EXPERTS[engine]), arch, types):
            return library
    elif kernel is not None:
        LIBRARIES[kernel.library].check(arch, types)
        return f"{engine}/{kernel.library}"
    raise UnsupportedError(
        f"of {engine} no kernels for {types.inputs} are known on {arch.name} ({arch.sm_arch}): use another library"
    )


def say_engine(library: str, arch: GpuSpec, types: GemmTypes) -> str:
    """Return a sentence on whose timings stand behind an answer for an engine; empty: it is for none."""
    engine, kernel = library.partition("/")[0], engine_kernel(library, arch, types)
    if kernel is None:
        return ""
    whose = "which were timed"
    if kernel.other_log:
        whose = f"which were not timed: {kernel.library}'s stand for them, with a wider interval"
    return f"{engine} runs {kernel.kernels} here, {whose} ({_SOURCES[engine]})."
