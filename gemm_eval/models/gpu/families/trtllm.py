"""TensorRT-LLM's own kernels: weight-only ones and SmoothQuant's for Ampere and Ada, and those without tensor cores.

Tiles, numbers of stages and parts of K are those that it times when an engine is built (TensorRT-LLM 1.0,
cpp/tensorrt_llm/kernels/cutlass_kernels: cutlass_heuristic.cpp, int8_gemm/int8_gemm_template.h); kernels without tensor
cores: kernels/weightOnlyBatchedGemv (kernelDispatcher.h, int8SQ.cu), and for how many rows they run:
plugins/weightOnlyQuantMatmulPlugin, plugins/smoothQuantGemmPlugin. Those of fp8 for few rows (kernels/cudaCoreGemm,
thop/fp8PerTensorScalingTrtllmGemm and its callers, TensorRT-LLM 1.3) it runs on Ada and RTX Blackwell for up to 8 rows,
instead of cuBLAS's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import TRTLLM_OWN, Coefficient, with_defaults
from gemm_eval.models.gpu.families.family import Family, TileChoice, no_tiles
from gemm_eval.models.gpu.families.mma_sync import MMA_SYNC
from gemm_eval.models.gpu.families.vector import VECTOR_FAMILY

__all__ = ["TRTLLM_FAMILIES"]

_SM_ARCHS = ("sm_80", "sm_89")
_SINGLE = ((1, 1),)
_MOST_WEIGHT_ONLY_ROWS = 15  # of C, of kernels without tensor cores, which are timed beside the others
_MOST_INT8_ROWS = 4  # they take all GEMMs of so few rows, and no others
_MOST_FP8_ROWS = 8  # likewise
# a pass over K of their 128 threads, 16 bytes of weights each: 1,024 fp16 (4 columns of int4, or 2 of int8, lie side by
# side) or 2,048 int8
_PASS_BYTES = 2048


def _weight_only_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_WEIGHT_ONLY_ROWS + 1):
        yield TileChoice("weight_only_gemv", m, 32, 4, Schedule.VECTOR, _SINGLE)
    for m, n in ((16, 128), (16, 256), (32, 128), (64, 128), (128, 128)):  # all four warps along N
        yield TileChoice("sm80_weight_only", m, n, 4, Schedule.MULTISTAGE, _SINGLE)


def _int8_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_INT8_ROWS + 1):
        yield TileChoice("int8_gemv", m, 2, 4, Schedule.VECTOR, _SINGLE)
    # what is called 128x64 there is 128x128
    for m, n, warps in ((32, 128, 4), (64, 128, 4), (64, 64, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8)):
        yield TileChoice("sm80_int8", m, n, warps, Schedule.MULTISTAGE, _SINGLE)


def _fp8_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _MOST_FP8_ROWS + 1):
        yield TileChoice("fp8_gemv", m, 2, 4, Schedule.VECTOR, _SINGLE)


# parts of K are added one after another, a CTA waiting for the next; the kernels without tensor cores load, wait,
# multiply, and load again
_HIGHEST = {"reduce_us": 12.0, "tile_cycles": 8000.0, "step_cycles": 1500.0, "vector_step_cycles": 3000.0}


def _coefficients(**defaults: float) -> tuple[Coefficient, ...]:
    own = (*with_defaults(**(MMA_SYNC.defaults | defaults)), *TRTLLM_OWN)
    return tuple(item._replace(high=_HIGHEST.get(item.name, item.high)) for item in own)


_TENSOR = replace(MMA_SYNC, sm_archs=_SM_ARCHS, rate_frac={}, dense_tiles=no_tiles, weight_only_tiles=no_tiles)
_VECTOR = replace(
    VECTOR_FAMILY, sm_archs=_SM_ARCHS, step_bytes=_PASS_BYTES, max_stages=2, weight_only_tiles=no_tiles,
)  # fmt: skip

TRTLLM_FAMILIES: tuple[Family, ...] = (
    replace(
        _TENSOR,
        name="sm80_weight_only",
        number=21,
        max_stages=4,
        weight_only_tiles=_weight_only_tiles,
        coefficients=_coefficients(step_cycles=400.0, vector_step_cycles=1500.0),
    ),
    replace(
        _TENSOR,
        name="sm80_int8",
        number=17,
        max_stages=6,
        step_bytes=64,
        min_rows=_MOST_INT8_ROWS + 1,
        dense_tiles=_int8_tiles,
        coefficients=_coefficients(),
    ),
    replace(_VECTOR, name="weight_only_gemv", number=18),
    replace(_VECTOR, name="int8_gemv", number=19),
    # every thread converts 16 weights and the tokens' 16 to fp32, once for each row and column of the tile
    replace(
        _VECTOR,
        name="fp8_gemv",
        number=70,
        sm_archs=("sm_89", "sm_120"),
        most_rows=_MOST_FP8_ROWS,
        dense_tiles=_fp8_tiles,
        coefficients=_coefficients(vector_frac=0.1),
    ),
)
"""Those of tensor cores have coefficients for those without, which come from the same timings."""
