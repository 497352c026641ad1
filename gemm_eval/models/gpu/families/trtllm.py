"""TensorRT-LLM's kernels of its own for Ampere and Ada: weight-only ones, SmoothQuant's, and those without tensor cores.

Tiles, stages and parts of K are those that its profiler times when an engine is built (TensorRT-LLM 1.0,
cpp/tensorrt_llm: kernels/cutlass_kernels/cutlass_heuristic.cpp, int8_gemm/int8_gemm_template.h; kernels without tensor
cores: kernels/weightOnlyBatchedGemv/kernelDispatcher.h and int8SQ.cu; which runs for few rows:
plugins/weightOnlyQuantMatmulPlugin and plugins/smoothQuantGemmPlugin).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import Family, TileChoice
from gemm_eval.models.gpu.families.mma_sync import MMA_SYNC
from gemm_eval.models.gpu.families.vector import VECTOR_FAMILY

__all__ = ["TRTLLM_FAMILIES"]

_ARCHS = ("sm_80", "sm_89")
_WEIGHT_ONLY, _INT8 = "sm80_weight_only", "sm80_int8"
_WEIGHT_ONLY_GEMV, _INT8_GEMV = "weight_only_gemv", "int8_gemv"
_SINGLE = ((1, 1),)
_GEMV_ROWS = 15
_INT8_GEMV_ROWS = 4


def _weight_only_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _GEMV_ROWS + 1):
        yield TileChoice(_WEIGHT_ONLY_GEMV, m, 32, 4, Schedule.VECTOR, _SINGLE)
    for m, n in ((16, 128), (16, 256), (32, 128), (64, 128), (128, 128)):
        yield TileChoice(_WEIGHT_ONLY, m, n, 4, Schedule.MULTISTAGE, _SINGLE)


def _int8_tiles(*_: object) -> Iterator[TileChoice]:
    for m in range(1, _INT8_GEMV_ROWS + 1):
        yield TileChoice(_INT8_GEMV, m, 2, 4, Schedule.VECTOR, _SINGLE)
    # what is called 128x64 there is 128x128
    for m, n, warps in ((32, 128, 4), (64, 128, 4), (64, 64, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8)):
        yield TileChoice(_INT8, m, n, warps, Schedule.MULTISTAGE, _SINGLE)


_HIGHEST = {"reduce_us": 12.0, "tile_cycles": 8000.0, "step_cycles": 1500.0, "vector_step_cycles": 3000.0, "vector_tile_cycles": 12000.0, "vector_kernel_us": 8.0}


def _coefficients(**defaults):
    return tuple(item._replace(high=_HIGHEST.get(item.name, item.high)) for item in with_defaults(**defaults))


TRTLLM_FAMILIES: tuple[Family, ...] = (
    replace(
        MMA_SYNC,
        name=_WEIGHT_ONLY,
        number=16,
        sm_archs=_ARCHS,
        own_of=(),
        rate_frac={},
        max_stages=4,
        dense_tiles=lambda *_: (),
        weight_only_tiles=_weight_only_tiles,
        coefficients=_coefficients(**{**MMA_SYNC.defaults, "step_cycles": 400.0, "reduce_part_us": 0.5}),
    ),
    replace(
        MMA_SYNC,
        name=_INT8,
        number=17,
        sm_archs=_ARCHS,
        own_of=(),
        rate_frac={},
        max_stages=6,
        step_bytes=64,
        min_rows=_INT8_GEMV_ROWS + 1,
        dense_tiles=_int8_tiles,
        weight_only_tiles=lambda *_: (),
        coefficients=_coefficients(**MMA_SYNC.defaults),
    ),
    replace(
        VECTOR_FAMILY,
        name=_WEIGHT_ONLY_GEMV,
        number=18,
        sm_archs=_ARCHS,
        max_stages=2,
        step_bytes=2048,
        weight_only_tiles=lambda *_: (),
    ),
    replace(
        VECTOR_FAMILY,
        name=_INT8_GEMV,
        number=19,
        sm_archs=_ARCHS,
        max_stages=2,
        step_bytes=2048,
        weight_only_tiles=lambda *_: (),
    ),
)
