"""Cost model 1: multi-core chips with explicit SRAM. MODEL.md beside this file defines every term."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_package

if TYPE_CHECKING:
    from gemm_eval.models.multicore.attention import (
        AttentionCost,
        attention_params,
        attention_sizes,
        unpack_attention_cost,
    )
    from gemm_eval.models.multicore.attention_cost_kernels import ATTENTION_COST_DTYPE, evaluate_attention_mapping
    from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, Block, block_of, sram_used_bytes
    from gemm_eval.models.multicore.group_kernels import spread_of
    from gemm_eval.models.multicore.grouped_cost_kernels import replay_grouped
    from gemm_eval.models.multicore.groups import batch_sizes, group_sizes, split_layouts
    from gemm_eval.models.multicore.model import MODEL_VERSION, MulticoreCost, evaluate_mapping, unpack_cost
    from gemm_eval.models.multicore.moe import layer_terms
    from gemm_eval.models.multicore.params import (
        OTHER_SOFTMAX_OPS_PER_SCORE,
        PARAMS_DTYPE,
        pack_params,
        params_in_room,
        with_room,
    )
    from gemm_eval.models.multicore.replay_kernels import replay_range
    from gemm_eval.models.multicore.terms import BOUNDS, TERMS

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__)
