"""Pruning for `@triton.autotune`: which configs of a Triton GEMM kernel are worth a benchmark.

    from gemm_eval.autotune.triton import KernelArguments, autotune  # pip install 'gemm_eval[triton]'

    @autotune(CONFIGS, key=["M", "N", "K"], top_k=0.2)  # instead of @triton.autotune
    @triton.jit
    def kernel(a_ptr, b_ptr, c_ptr, M, N, K, ..., BLOCK_M: tl.constexpr, ...): ...

Or by hand, as a plug-in of Triton's own decorator: see `TritonPruner`.
"""

from gemm_eval.autotune.triton.arguments import (
    KernelArguments,
    Rejection,
    TensorArgument,
    dtype_of,
    is_small,
    reject_configs,
)
from gemm_eval.autotune.triton.compile import CodeReader, CompiledConfig, compile_offline, gpu_spec
from gemm_eval.autotune.triton.pruner import Ranking, TritonModel, TritonPruner, Verdict, autotune, num_kept

__all__ = [
    "CodeReader", "CompiledConfig", "KernelArguments", "Ranking", "Rejection", "TensorArgument", "TritonModel",
    "TritonPruner", "Verdict", "autotune", "compile_offline", "dtype_of", "gpu_spec", "is_small", "num_kept",
    "reject_configs",
]  # fmt: skip
