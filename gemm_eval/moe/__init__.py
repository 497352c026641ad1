"""Mixtures of experts: how tokens are routed, and what a layer costs."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.moe.routing import balanced_counts, most_loaded_rank_first, power_law_counts, uniform_counts

__all__ = ["balanced_counts", "most_loaded_rank_first", "power_law_counts", "uniform_counts"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".routing": (
            "balanced_counts",
            "most_loaded_rank_first",
            "power_law_counts",
            "uniform_counts",
        ),
    },
)
