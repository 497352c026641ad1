"""Random GPU problems, without Hypothesis: millions of them, and the same for the same seed on every machine."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval import GemmProblem
from gemm_eval.arch import SM_ARCHS, GpuSpec, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.workload import GemmTypes, RunOptions

GPUS = tuple(arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec))
NVIDIA_GPUS = tuple(arch for arch in GPUS if arch.sm_arch in SM_ARCHS)

_ROUND = (64, 128, 256, 512, 1024, 1536, 2048, 4096, 7168, 8192, 14336, 28672)
_WEIGHTS = (DType.INT4, DType.INT4, DType.INT4, DType.INT8, DType.FP8, DType.FP4)
_BLOCK_SCALED = ("fp8_block", "mxfp8", "mxfp4", "nvfp4")
_LIBRARIES = (None, "gemm-eval", "trtllm", "hypothetical")


def draw_arch(rng: random.Random) -> GpuSpec:
    """A preset; sometimes with another number of SMs, or less shared memory."""
    arch = rng.choice(GPUS)
    if rng.random() < 0.2:
        arch = arch.with_(num_sms=rng.choice((1, 7, 66, 144, 200)))
    if rng.random() < 0.1:
        arch = arch.with_(smem_per_cta_bytes=int(arch.smem_per_cta_bytes * rng.choice((0.5, 0.2))))
    return arch


def draw_types(rng: random.Random, arch: GpuSpec) -> GemmProblem:
    """Data types, as a problem of size 1: dense, block-scaled, or narrower weights."""
    rates = arch.tensor_flop_per_cycle
    if rng.random() < 0.3:
        return GemmProblem(1, 1, 1, 1, rng.choice(sorted(rates)))
    scaled = [types for types in map(GemmTypes.parse, _BLOCK_SCALED) if types.a.dtype in rates]
    if scaled and rng.random() < 0.3:
        words: dict[str, Any] = dict(rng.choice(scaled).words)
        group = {"group_size": rng.choice((16, 32, 100, 128, 1000)), "group_n": rng.choice((1, 3, 128))}
        return GemmProblem(1, 1, 1, 1, **(words | group if rng.random() < 0.3 else words))
    weight = rng.choice(_WEIGHTS)
    group_size = rng.choice((None, 32, 64, 128)) if weight is not DType.FP4 else rng.choice((None, 16, 32, 100))
    zero = DType.INT4 if weight is DType.INT4 and group_size and rng.random() < 0.3 else None
    group_n = rng.choice((2, 128)) if rng.random() < 0.1 else 1
    inputs = [dtype for dtype in (DType.FP16, DType.BF16) if dtype in rates]
    if DType.FP8 in rates and weight.bits < DType.FP8.bits:
        inputs.append(DType.FP8)
    return GemmProblem(
        1, 1, 1, 1, rng.choice(inputs), weight, group_size=group_size, zero_dtype=zero, group_n=group_n
    )  # fmt: skip


def draw_options(rng: random.Random, types: GemmProblem) -> RunOptions:
    """A library for the types, states of L2 and clock, what A was before it was quantized; and nothing is corrected."""
    library = rng.choice(_LIBRARIES) if types.is_weight_quantized else None
    if types.types.is_block_scaled:
        library = rng.choice((None, "cublas", "trtllm"))
    is_narrow = types.input_dtype.bits < DType.FP16.bits
    quantize_from = rng.choice((None, "bf16", "fp16", "fp32")) if is_narrow else None
    return RunOptions(
        library, rng.choice(("cold", "cold-all", "warm")), rng.choice(("burst", "sustained")), quantize_from,
        correction=False,
    )  # fmt: skip


def _size(rng: random.Random, log2: float, step: int) -> int:
    """Round sizes, neighbours of them, and any size; small and large ones are equally frequent."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_ROUND)
    if kind < 0.5:
        return max(1, rng.choice(_ROUND) + rng.choice((-1, 1, 8, -8, 16)))
    size = int(2.0 ** rng.uniform(0.0, log2))
    return max(1, size // step * step) if kind < 0.8 else size


def draw_sizes(rng: random.Random, count: int) -> npt.NDArray[np.int64]:
    """Return [count, 4] of G, M, K, N."""
    rows: list[Any] = []
    for _ in range(count):
        G = rng.choice((1, 1, 1, 1, 2, 3, 8, 40))
        M = rng.choice((1, 2, 4, 8, 16, 17, 32, 64)) if rng.random() < 0.4 else _size(rng, 13.0, 1)
        rows.append((G, M, _size(rng, 14.5, 8), _size(rng, 14.5, 8)))
    return np.array(rows, np.int64)
