"""Golden answers: the best mapping of typical GEMMs on every multi-core preset, to the bit, and the three best kernel
configs of few GEMMs on a GPU of every generation.

``make golden`` writes them anew and says what changed. Do that only after a change that is meant to change answers,
raise MODEL_VERSION or GPU_MODEL_VERSION, and read what it says: it is the change as users will see it.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

from gemm_eval import GEMMEvaluator, MulticoreSpec, UnsupportedError, list_archs, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.gpu import GpuCost, pack_gpu, unpack_gpu_cost
from gemm_eval.search.gpu import find_top_configs
from gemm_eval.workload import RunOptions, make_problem
from tools.golden import FOLDER
from tools.golden.changes import Golden, first_change, first_change_of_ranking, rewrite

_SHAPES = (
    (1, 1, 4096, 4096), (1, 1, 8192, 57344), (1, 16, 4096, 6144), (1, 17, 14336, 4096), (1, 64, 8192, 10240),
    (1, 256, 4096, 28672), (1, 1000, 3584, 37888), (1, 2048, 4096, 6144), (1, 2048, 14336, 4096), (1, 4096, 4096, 4096),
    (1, 8192, 8192, 57344), (128, 4, 128, 2048), (8, 8192, 128, 2048), (8, 8192, 2048, 128), (1, 127, 1009, 4093),
    (1, 33, 7, 5),
)  # fmt: skip
_DTYPES = (None, "w4a16", "int8")
_MULTICORE_KEY = ("arch", "dtype", "G", "M", "K", "N")
_MULTICORE_COLUMNS = (
    *(*_MULTICORE_KEY, "latency_us", "dram_bytes", "bound"),
    *("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order"),
)

_ARCHS = ("h200-sxm", "a100-sxm-80gb", "l40s", "b200", "rtx-pro-6000-server")
_NUM_CONFIGS = 3
_CASES = (  # dtype, library, L2, clock, type before quantization; G, M, K, N
    ("fp16", "cublas", "cold", "burst", "", 1, 1, 4096, 4096),
    ("fp16", "cublas", "cold", "burst", "", 1, 33, 7, 5),
    ("fp16", "cublas", "cold", "burst", "", 1, 64, 14336, 4096),
    ("fp16", "cublas", "cold", "burst", "", 1, 257, 1009, 4096),
    ("fp16", "cublas", "cold", "burst", "", 1, 257, 1010, 4096),
    ("fp16", "cublas", "cold", "burst", "", 32, 4096, 128, 4096),
    ("fp16", "cublas", "cold-all", "burst", "", 256, 1, 4096, 1),
    ("fp16", "cublas", "warm", "burst", "", 1, 8192, 96, 512),
    ("bf16", "cublas", "cold", "sustained", "", 1, 16384, 8192, 28672),
    ("tf32", "cublas", "cold-all", "burst", "", 1, 1024, 4096, 6144),
    ("tf32", "cublas", "cold-all", "burst", "", 1, 64, 8192, 64),
    ("tf32", "cublas", "cold-all", "burst", "", 1, 512, 1023, 257),
    ("fp32", "cublas", "cold", "burst", "", 1, 256, 4096, 6144),
    ("fp8", "cublas", "cold", "burst", "", 1, 4096, 8192, 10240),
    ("fp8 full", "cublas", "cold", "burst", "", 1, 4096, 8192, 10240),
    ("fp8", "cublas", "cold", "burst", "", 8, 128, 7168, 4104),
    ("fp8", "cublas", "warm", "burst", "", 1, 16, 8192, 1024),
    ("int8", "cublas", "cold-all", "sustained", "", 1, 1024, 4096, 28672),
    ("int8", "cublas", "warm", "burst", "", 1, 17, 4096, 4096),
    ("w4a16", "auto", "cold", "burst", "", 1, 1, 4096, 6144),
    ("w4a16", "auto", "cold", "burst", "", 1, 16, 28672, 8192),
    ("w4a16", "gemm-eval", "cold", "burst", "", 1, 24, 7168, 1536),
    ("w4a16", "gemm-eval", "cold", "burst", "", 1, 40, 4096, 28672),
    ("w4a16", "auto", "cold", "sustained", "", 1, 4096, 4096, 6144),
    ("w4a16", "auto", "warm", "burst", "", 1, 256, 4104, 4096),
    ("w4a16", "auto", "cold", "burst", "", 1, 1, 128, 4096),
    ("w4a16", "gemm-eval", "cold", "burst", "", 64, 64, 128, 4096),
    ("w4a16", "auto", "cold", "burst", "", 8, 2, 4096, 14336),
    ("w4a16", "auto", "cold", "burst", "", 1, 1025, 4097, 4095),
    ("w4a16", "hypothetical", "cold", "burst", "", 1, 128, 28672, 8192),
    ("w4a16", "hypothetical", "warm", "burst", "", 1, 16, 4096, 256),
    ("w4a16", "trtllm", "cold-all", "burst", "", 1, 32, 14336, 4096),
    ("w8a16", "trtllm", "cold", "burst", "", 1, 1, 4096, 6144),
    ("int8", "trtllm", "cold", "burst", "", 1, 1, 4096, 6144),
    ("int8", "trtllm", "cold", "burst", "", 1, 256, 4096, 6144),
    ("fp8", "trtllm", "cold", "burst", "bf16", 1, 2, 4096, 6144),
    ("w8a16", "hypothetical", "cold", "burst", "", 1, 1, 8192, 10240),
    ("w8a16", "trtllm", "warm", "sustained", "", 1, 512, 4096, 6144),
    ("fp8", "cublas", "cold", "burst", "bf16", 1, 32, 4096, 6144),
    ("fp8", "cublas", "cold-all", "burst", "fp32", 1, 8192, 14336, 4096),
    ("int8", "cublas", "cold", "burst", "fp16", 1, 512, 4096, 4096),
    ("int8", "cublas", "cold", "burst", "", 1, 1024, 4096, 4104),
    ("fp8_block", "trtllm", "cold", "burst", "", 1, 16, 7168, 4096),
    ("fp8_block", "trtllm", "cold", "burst", "bf16", 1, 96, 4096, 6144),
    ("fp8_block", "trtllm", "warm", "sustained", "bf16", 1, 4096, 7168, 4096),
    ("mxfp8", "trtllm", "cold", "burst", "", 1, 256, 4096, 4096),
    ("nvfp4", "trtllm", "cold", "burst", "", 4, 1024, 8192, 10240),
    ("nvfp4", "trtllm", "cold", "burst", "bf16", 1, 64, 4096, 14336),
    ("w4a8_fp8", "gemm-eval", "cold", "burst", "", 1, 256, 4096, 6144),
)
_GPU_KEY = ("arch", "dtype", "library", "l2", "clock", "quantize_from", "G", "M", "K", "N")
_GPU_COLUMNS = (*_GPU_KEY, "rank", "latency_us", "bound", "config")


def _csv(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows((columns, *rows))
    return out.getvalue()


def _multicore_rows() -> Iterator[tuple[Any, ...]]:
    """Yield the rows as the code computes them now; floats in full precision."""
    for arch in map(load_arch, list_archs()):
        if not isinstance(arch, MulticoreSpec):
            continue
        evaluator = GEMMEvaluator(arch)
        for dtype in _DTYPES:
            for shape in _SHAPES:
                try:
                    r = evaluator.evaluate(*shape, dtype=dtype)
                except UnsupportedError:
                    continue
                assert isinstance(r.mapping, MulticoreMapping)
                partition, tile, order = r.mapping
                asked = (arch.name, r.problem.input_dtype if dtype is None else dtype, *shape)
                yield (*asked, repr(r.latency_us), r.dram_bytes, r.bound, *partition, *tile, order.name)


def _gpu_rows() -> Iterator[tuple[Any, ...]]:
    """Yield the rows as the code computes them now; latencies in ten digits."""
    for name in _ARCHS:
        arch = load_arch(name, GpuSpec)
        for dtype, library, l2, clock, quantize_from, *sizes in _CASES:
            options = RunOptions(library, l2, clock, quantize_from or None, correction=False)
            for rank, cost in enumerate(_ranking(arch, dtype, options, sizes), 1):
                config = "/".join(str(getattr(value, "name", value)).lower() for value in cost.config)
                asked = (name, dtype, library, l2, clock, quantize_from, *sizes)
                yield (*asked, rank, f"{cost.latency_us:.10g}", cost.bound, config)


def _ranking(arch: GpuSpec, dtype: str, options: RunOptions, sizes: list[int]) -> Iterator[GpuCost]:
    """The best configs; none where the library has no kernels for these types on this GPU."""
    dtype, _, accumulate = dtype.partition(" ")
    problem = make_problem(*sizes, default_dtype=arch.default_dtype, dtype=dtype, accumulate=accumulate or None)
    try:
        packed = pack_gpu(arch, problem.types, options)
    except UnsupportedError:
        return
    yield from map(unpack_gpu_cost, find_top_configs(arch, problem, packed, _NUM_CONFIGS))


MULTICORE = Golden(
    FOLDER / "multicore_best.csv", _MULTICORE_KEY,
    lambda: _csv(_MULTICORE_COLUMNS, _multicore_rows()), first_change, "MODEL_VERSION",
)  # fmt: skip
GPU = Golden(
    FOLDER / "gpu_top.csv", _GPU_KEY,
    lambda: _csv(_GPU_COLUMNS, _gpu_rows()), first_change_of_ranking, "GPU_MODEL_VERSION",
)  # fmt: skip

if __name__ == "__main__":
    rewrite(MULTICORE)
    rewrite(GPU)
