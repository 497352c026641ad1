"""Mixtures of experts: how tokens are routed, and what a layer costs."""

from gemm_eval.moe.routing import balanced_counts, most_loaded_rank_first, power_law_counts, uniform_counts

__all__ = ["balanced_counts", "most_loaded_rank_first", "power_law_counts", "uniform_counts"]
