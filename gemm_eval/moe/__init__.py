"""Mixtures of experts: how tokens are routed, and what a layer costs."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.moe.layer import (
        DISTRIBUTION_FORMS,
        Balanced,
        Distribution,
        ExpertCounts,
        ExpertWeights,
        MoeLayer,
        PowerLaw,
        Routed,
        Uniform,
        parse_distribution,
        route,
    )
    from gemm_eval.moe.routing import (
        balanced_counts,
        expected_counts,
        group_limited_counts,
        most_loaded_rank_first,
        power_law_counts,
        uniform_counts,
    )
    from gemm_eval.moe.runs import make_runs, mean_work, moe_layer, moe_layers, works_of
    from gemm_eval.moe.table import BREAKDOWN, MoeDraw, MoeLayerResult, MoeLayerTable

__all__ = [
    "BREAKDOWN", "DISTRIBUTION_FORMS", "Balanced", "Distribution", "ExpertCounts", "ExpertWeights", "MoeDraw",
    "MoeLayer", "MoeLayerResult", "MoeLayerTable", "PowerLaw", "Routed", "Uniform", "balanced_counts",
    "expected_counts", "group_limited_counts", "make_runs", "mean_work", "moe_layer", "moe_layers",
    "most_loaded_rank_first", "parse_distribution", "power_law_counts", "route", "uniform_counts", "works_of",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
