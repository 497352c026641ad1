"""The GEMMs and configs that the Triton model is fitted on, drawn at random from fixed seeds; needs Triton, no GPU.

No GEMM has the (N, K) of one in benchmark_asm_aware.py.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, NamedTuple

import triton
import triton_gemm
import triton_w4a16_gemm
from triton.runtime.autotuner import Heuristics

PAIRS = (  # N, K
    (5120, 5120), (2560, 2560), (13824, 5120), (5120, 13824), (11008, 4096), (4096, 11008), (18944, 3584),
    (3584, 18944), (5632, 2048), (2048, 5632), (1280, 8192), (8192, 1024), (7168, 2048), (2048, 7168), (1536, 7168),
    (24576, 1536), (9216, 3072), (3072, 12288), (12288, 6144), (16384, 2048), (640, 640), (384, 1280), (448, 2048),
    (896, 4864), (4864, 896), (1152, 1152), (1792, 1792), (2304, 2304), (3328, 3328), (21504, 5376), (14336, 5120),
    (1408, 2048), (2048, 1408), (10752, 2688), (32000, 4096), (576, 7168), (320, 256), (768, 384), (6656, 6656),
    (2816, 8448),
)  # fmt: skip
TOKENS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 333, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 8192
)  # fmt: skip
_SMEM_BYTES = 227 << 10
_DECORATED = (triton.JITFunction, Heuristics)


class DataSet(NamedTuple):
    """What is timed: data type, weights' group (0: not quantized), how many configs, GEMMs, and configs of a GEMM."""

    name: str
    dtype: str
    group_size: int
    num_configs: int
    num_gemms: int
    num_timed: int


DATA_SETS = (
    DataSet("fp16", "fp16", 0, 150, 240, 60),
    DataSet("bf16", "bf16", 0, 40, 50, 40),
    DataSet("fp8", "fp8", 0, 80, 110, 50),
    DataSet("w4a16-fp16", "fp16", 128, 150, 240, 60),
    DataSet("w4a16-bf16", "bf16", 128, 40, 50, 40),
    DataSet("w4a16-fp16-g64", "fp16", 64, 30, 40, 40),
)


def kernel_of(data: DataSet) -> Any:
    """Return the kernel of a data set, before it is tuned."""
    return triton_w4a16_gemm.w4a16_kernel if data.group_size else triton_gemm.gemm_kernel


def kernel_sources() -> dict[str, str]:
    """SHA-256 of the Triton functions of each file, by its name: what was timed or compiled."""
    found = {}
    for module in (triton_gemm, triton_w4a16_gemm):
        functions = {
            value.fn if isinstance(value, Heuristics) else value
            for value in vars(module).values()
            if isinstance(value, _DECORATED)
        }
        text = "\n".join(sorted(one.src for one in functions if one.module == module.__name__))
        found[f"examples/{module.__name__}.py"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def config_pool(data: DataSet) -> list[triton.Config]:
    """Return the configs of the example, and random ones from the product of all values."""
    example = triton_w4a16_gemm if data.group_size else triton_gemm
    configs = list(example.CONFIGS)
    rng = random.Random(f"configs of {data.name}")
    bits = 8 if data.dtype == "fp8" else 16
    depths = (64, 128) if data.group_size else ((64, 128, 256) if bits == 8 else (32, 64, 128, 256))
    everything = list(
        itertools.product(
            (16, 32, 64, 128, 256), (32, 64, 128, 256), depths, (4, 8), (2, 3, 4, 5, 6), (1, 1, 2, 4, 8), (1, 4, 8, 16)
        )
    )
    known = {str(config) for config in configs}
    while len(configs) < len(example.CONFIGS) + data.num_configs:
        m, n, k, warps, stages, split, group = rng.choice(everything)
        b_bits = 4 if data.group_size else bits
        if stages * k * (m * bits + n * b_bits) // 8 > _SMEM_BYTES or m * n // (32 * warps) > 256 or m * n < 64 * warps:
            continue
        if split > 1 and m * n > 128 * 128:
            continue
        meta = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group, "SPLIT_K": split}
        config = triton.Config(meta, num_warps=warps, num_stages=stages)
        if str(config) not in known:
            known.add(str(config))
            configs.append(config)
    return configs


def list_gemms(data: DataSet) -> list[tuple[int, int, int]]:
    """(M, N, K), sorted by size."""
    rng = random.Random(f"GEMMs of {data.name}")
    all_gemms = [(m, n, k) for m in TOKENS for n, k in PAIRS if m * n * k <= 1 << 39]
    return sorted(rng.sample(all_gemms, data.num_gemms), key=lambda gemm: gemm[0] * gemm[1] * gemm[2])


def is_worth_timing(config: triton.Config, M: int, N: int, K: int) -> bool:
    """Leaves out what nobody needs to know: tiles of more than three times the work, crumbs of a huge GEMM."""
    m, n, split = (config.kwargs[name] for name in ("BLOCK_M", "BLOCK_N", "SPLIT_K"))
    work = triton.cdiv(M, m) * m * triton.cdiv(N, n) * n
    smallest = triton.cdiv(M, 16) * 16 * triton.cdiv(N, 32) * 32
    tiles = triton.cdiv(M, m) * triton.cdiv(N, n)
    return work <= 3 * smallest and tiles * split <= 20_000 and not (split > 1 and tiles > 600) and split <= K // 128
