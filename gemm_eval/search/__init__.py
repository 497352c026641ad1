"""Searches over mapping spaces."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.progress import run_in_chunks
    from gemm_eval.search.gpu import (
        behind_answer,
        evaluate_config,
        find_best_config,
        find_best_config_many,
        find_top_configs,
    )
    from gemm_eval.search.gpu_kernels import NEAR_CONFIGS, NEAR_RATIO, OF_GENERIC, OF_OURS
    from gemm_eval.search.multicore import (
        check_idle_cores,
        find_best,
        find_best_fused_attention,
        find_best_many,
        find_best_of_each_partition,
        replay_mappings,
    )
    from gemm_eval.search.restricted import (
        CostModel,
        PlanOptions,
        SearchPlan,
        check_cost_model,
        find_planned,
        find_ruled_few,
        find_ruled_many,
        ruled_out_error,
    )

__all__ = [
    "NEAR_CONFIGS", "NEAR_RATIO", "OF_GENERIC", "OF_OURS", "CostModel", "PlanOptions",
    "SearchPlan", "behind_answer", "check_cost_model", "check_idle_cores", "evaluate_config",
    "find_best", "find_best_config", "find_best_config_many", "find_best_fused_attention",
    "find_best_many", "find_best_of_each_partition", "find_planned", "find_ruled_few", "find_ruled_many",
    "find_top_configs", "replay_mappings", "ruled_out_error", "run_in_chunks",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
