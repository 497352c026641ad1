"""Golden rankings of the GPU model: the ten best kernel configs of typical GEMMs, on GPUs of every generation.

``make golden`` writes them anew. Do that only after a change that is meant to change answers, raise GPU_MODEL_VERSION,
and read the difference: it is the change as users will see it.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from gemm_eval import UnsupportedError, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import GpuOptions, pack_gpu, unpack_gpu_cost
from gemm_eval.search.gpu import find_top_configs
from gemm_eval.workload import make_problem

__all__ = ["GPU_GOLDEN_FILE", "KEY_COLUMNS", "gpu_golden_text"]

GPU_GOLDEN_FILE = Path(__file__).with_name("gpu_top.csv")
KEY_COLUMNS = ("arch", "dtype", "library", "l2", "G", "M", "K", "N")
_NUM_CONFIGS = 10
_ARCHS = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "b200")
_SCHEMES = (
    ("fp16", "cublas", "cold"),
    ("fp8", "cublas", "cold"),
    ("int8", "cublas", "warm"),
    ("w4a16", "auto", "cold"),
    ("w8a16", "hypothetical", "cold"),
)
_LAYERS = ((4096, 4096), (4096, 6144), (14336, 4096), (4096, 28672), (8192, 10240), (28672, 8192))  # K, N
_TOKENS = (1, 16, 64, 256, 1024, 4096)
_OTHERS = (
    (1, 17, 4096, 4096),
    (1, 127, 4096, 12288),
    (1, 257, 1009, 4096),
    (1, 1025, 4097, 4095),
    (1, 33, 7, 5),
    (1, 8192, 8192, 8192),
    (1, 2048, 512, 128256),
    (8, 128, 7168, 4096),
    (64, 1, 128, 4096),
    (32, 4096, 128, 4096),
    (256, 16, 2048, 1408),
)
_SHAPES = (*((1, m, k, n) for k, n in _LAYERS for m in _TOKENS), *_OTHERS)
_COLUMNS = (*KEY_COLUMNS, "rank", "latency_us", "bound", "config")


def gpu_golden_text() -> str:
    """Return the golden file's content as the code computes it now; latencies in ten digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for name in _ARCHS:
        arch = load_arch(name, GpuSpec)
        for dtype, library, l2 in _SCHEMES:
            types = make_problem(1, 1, 1, 1, default_dtype=arch.default_dtype, dtype=dtype)
            try:
                packed = pack_gpu(arch, types, GpuOptions(library, l2))  # sizes do not matter to it
            except UnsupportedError:
                continue
            for shape in _SHAPES:
                problem = make_problem(*shape, default_dtype=arch.default_dtype, dtype=dtype)
                for rank, record in enumerate(find_top_configs(arch, problem, packed, _NUM_CONFIGS), 1):
                    cost = unpack_gpu_cost(record)
                    config = "/".join(str(getattr(value, "name", value)).lower() for value in cost.config)
                    row = (name, dtype, library, l2, *shape, rank, f"{cost.latency_us:.10g}", cost.bound, config)
                    writer.writerow(row)
    return out.getvalue()


if __name__ == "__main__":
    GPU_GOLDEN_FILE.write_text(gpu_golden_text(), encoding="utf-8")
