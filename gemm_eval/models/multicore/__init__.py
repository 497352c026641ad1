"""Cost model 1: multi-core chips with explicit SRAM. MODEL.md beside this file defines every term."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.models.multicore.attention_kernels import ATTENTION_COST_DTYPE, evaluate_attention_mapping
    from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, Block, block_of, evaluate_range, sram_used_bytes
    from gemm_eval.models.multicore.group_kernels import evaluate_grouped, spread_of
    from gemm_eval.models.multicore.model import (
        FIRST,
        MODEL_VERSION,
        OTHER_SOFTMAX_OPS_PER_SCORE,
        PARAMS_DTYPE,
        MulticoreCost,
        attention_params,
        attention_sizes,
        batch_sizes,
        cost_fields,
        cost_of_mapping,
        evaluate_mapping,
        group_sizes,
        kernel_sizes,
        layer_terms,
        pack_params,
        params_in_room,
        split_layouts,
        unpack_attention_cost,
        unpack_cost,
        with_room,
    )
    from gemm_eval.models.multicore.terms import BOUNDS, TERMS

__all__ = [
    "ATTENTION_COST_DTYPE", "BOUNDS", "COST_DTYPE", "FIRST", "MODEL_VERSION", "OTHER_SOFTMAX_OPS_PER_SCORE",
    "PARAMS_DTYPE", "TERMS", "Block", "MulticoreCost", "attention_params", "attention_sizes",
    "batch_sizes", "block_of", "cost_fields", "cost_of_mapping", "evaluate_attention_mapping", "evaluate_grouped",
    "evaluate_mapping",
    "evaluate_range", "group_sizes", "kernel_sizes", "layer_terms", "pack_params", "params_in_room", "split_layouts",
    "spread_of", "sram_used_bytes", "unpack_attention_cost", "unpack_cost", "with_room",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
