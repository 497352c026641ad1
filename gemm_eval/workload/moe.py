"""`MoeWork`: what one rank does in a layer of experts besides its two GEMMs, as cost models take it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.workload.types import GemmTypes

__all__ = ["LAYER_TERMS", "MoeWork"]

Sizes = int | npt.NDArray[np.int64]

LAYER_TERMS = {
    "routing_us": "top-k of the router's scores, and the order of tokens by expert",
    "permute_us": "rows of tokens, copied to where their experts read them",
    "quantize_us": "both activations, made as narrow as the GEMMs read them",
    "activation_us": "the activation between the two GEMMs, with the product of gate and up",
    "finalize_us": "the weighted sum over each token's experts",
}
"""Terms of a layer's time besides its GEMMs, in the order they run, and what that time goes to."""


class MoeWork(NamedTuple):
    """The work of one rank in a layer of experts; sizes are numbers or arrays of one shape, one value for each draw.

    Attributes:
        num_tokens: tokens that all ranks of the expert-parallel group see together.
        hidden: width of the model.
        inter: intermediate width of an expert on this rank: that of the model over the tensor-parallel degree.
        num_experts: routed experts of the layer.
        num_local_experts: those of this rank.
        topk: experts of a token.
        local_rows: assignments (token, expert) on this rank.
        num_active: experts of this rank that have tokens.
        most_rows: of its experts, those of the one that has most.
        gated: gate and up projection; else up alone.
        types: of both GEMMs.
        has_grouped_router: whether groups of experts are chosen before experts, as DeepSeek-V3 does.
    """

    num_tokens: Sizes
    hidden: Sizes
    inter: Sizes
    num_experts: Sizes
    num_local_experts: Sizes
    topk: Sizes
    local_rows: Sizes
    num_active: Sizes
    most_rows: Sizes
    gated: bool | Sizes
    types: GemmTypes
    has_grouped_router: bool | Sizes = False

    @property
    def is_quantized(self) -> bool:
        """Whether both activations are made narrower, as the GEMMs read them narrower than 16 bits."""
        return self.types.a.dtype.bits < 16

    @property
    def wide_bytes(self) -> float:
        """Bytes of an element of activations between kernels: as in A, or 2 where the GEMMs read it narrower."""
        return max(2.0, self.types.a.dtype.bits / 8)

    @property
    def input_bytes(self) -> float:
        """Bytes of an element of A as a GEMM reads it, with its share of the scales."""
        scale = self.types.a.scale
        scale_bits = 0.0 if scale is None or scale.group_size is None else scale.group_bits / scale.group_size
        return (self.types.a.dtype.bits + scale_bits) / 8

    @property
    def local_tokens(self) -> npt.NDArray[np.float64]:
        """Tokens that this rank holds at least one assignment of, at most: each assignment's own, but none twice."""
        tokens: npt.NDArray[np.float64] = np.minimum(self.local_rows, self.num_tokens).astype(np.float64)
        return tokens
