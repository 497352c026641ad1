"""Cost model 1: multi-core chips with explicit SRAM. MODEL.md beside this file defines every term."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, Block, block_of, sram_used_bytes
    from gemm_eval.models.multicore.model import MODEL_VERSION, MulticoreCost, evaluate_mapping, unpack_cost
    from gemm_eval.models.multicore.moe import layer_terms
    from gemm_eval.models.multicore.params import PARAMS_DTYPE, pack_params
    from gemm_eval.models.multicore.replay_kernels import replay_range
    from gemm_eval.models.multicore.terms import BOUNDS

__all__ = [
    "BOUNDS",
    "COST_DTYPE",
    "MODEL_VERSION",
    "PARAMS_DTYPE",
    "Block",
    "MulticoreCost",
    "block_of",
    "evaluate_mapping",
    "layer_terms",
    "pack_params",
    "replay_range",
    "sram_used_bytes",
    "unpack_cost",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".cost_kernels": (
            "Block",
            "COST_DTYPE",
            "block_of",
            "sram_used_bytes",
        ),
        ".model": (
            "MODEL_VERSION",
            "MulticoreCost",
            "evaluate_mapping",
            "unpack_cost",
        ),
        ".moe": ("layer_terms",),
        ".params": (
            "PARAMS_DTYPE",
            "pack_params",
        ),
        ".replay_kernels": ("replay_range",),
        ".terms": ("BOUNDS",),
    },
)
