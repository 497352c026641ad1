"""Gradients of a GEMM: the GEMM of its data gradient (dgrad) and that of its weight gradient (wgrad), with their types.

Of Y[M,N] = X[M,K] x W[K,N] they are dX[M,K] = dY[M,N] x W^T and dW[N,K] = dY^T[N,M] x X. In 16 bits and wider, cuBLAS
reads all operands where the forward pass left them: dgrad is ``nn``, wgrad is ``nt``. Narrower operands have their
reduction along memory (``tn``) in all three: kernels that quantize a tensor also write it transposed, as Transformer
Engine does (https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html). Weight
gradients are added up in fp32 main gradients (Megatron-LM's gradient accumulation fusion).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.workload import LAYOUTS, GemmProblem, GemmTypes, make_types, problem_of

MAIN_GRADIENT = DType.FP32
"""The type in which weight gradients are added up over microbatches (Megatron-LM: `main_grad`)."""

_LINEAR, _DGRAD, _WGRAD = LAYOUTS[:3]
_WIDE_BITS = 16


class Gradients(NamedTuple):
    """The GEMMs of the gradients of both operands of a GEMM."""

    dgrad: GemmProblem
    wgrad: GemmProblem


@lru_cache(maxsize=1024)
def gradient_types(types: GemmTypes, *, is_weight: bool = True) -> tuple[GemmTypes, GemmTypes]:
    """Return the types of dgrad and wgrad. Gradients of activations have the type of the forward result.

    fp8 with a scale for each tensor adds up its gradients in full precision (Transformer Engine's split accumulator).
    Scales of blocks go along the reduction of each GEMM; those of wgrad are of one row in both operands, as in
    DeepSeek-V3 (https://arxiv.org/abs/2412.19437, section 3.3.2).

    Raises:
        InvalidOptionError: the weights are stored in fewer bits than they are multiplied in.
    """
    if types.is_weight_quantized:
        raise InvalidOptionError(
            f"{types.inputs} has no gradients: train in a type that both operands have, as bf16, fp8 or fp8_block"
        )
    words: dict[str, Any] = dict(types.words)
    is_wide = types.a.dtype.bits >= _WIDE_BITS
    if not is_wide and not types.is_block_scaled and types.a.dtype is DType.FP8:
        words["accumulate"] = "full"
    to_data = words | {"layout": _DGRAD if is_wide else _LINEAR}
    to_weight = words | {"layout": _WGRAD if is_wide else _LINEAR}
    if types.is_block_scaled:
        to_weight["group_n"] = 1
    if is_weight:
        to_weight["output_dtype"] = MAIN_GRADIENT
    return make_types(**to_data), make_types(**to_weight)


def gradients(problem: GemmProblem, *, is_weight: bool = True) -> Gradients:
    """Return the GEMMs of both gradients of a GEMM; `is_weight` says whether B is a weight.

    The groups of wgrad differ in their reduction: it is a batch, each as long as the mean group since only
    the sum of long reductions matters.
    """
    to_data, to_weight = gradient_types(problem.types, is_weight=is_weight)
    G, M, K, N = problem.sizes
    num_tokens = M if problem.row_groups is None else max(1, round(problem.rows / G))
    dgrad = problem_of(to_data, G, M, N, K, problem.row_groups)
    return Gradients(dgrad, problem_of(to_weight, G, N, num_tokens, K))
