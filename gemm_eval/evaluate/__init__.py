"""The facade: evaluators and their results."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.evaluate.attention import AttentionResult
    from gemm_eval.evaluate.backend import Kind
    from gemm_eval.evaluate.batch import GEMMTable, ProblemBatch
    from gemm_eval.evaluate.crossover import Crossover, select_config, w4a16_crossover
    from gemm_eval.evaluate.evaluator import CacheInfo, GEMMEvaluator, GemmOptions, RunArguments
    from gemm_eval.evaluate.interval import (
        CHIPS,
        CORRECTION,
        chip_coefficients,
        chip_features,
        chip_group,
        chip_interval,
        interval_line,
        shared_frac,
        source_of,
        sum_interval,
    )
    from gemm_eval.evaluate.operations import CollectiveResult, MemoryBoundResult, MixerResult, memory_bounds
    from gemm_eval.evaluate.result import DIALECT, GEMMResult, Lever, Result, answer_schema

__all__ = [
    "CHIPS", "CORRECTION", "DIALECT", "AttentionResult", "CacheInfo", "CollectiveResult", "Crossover", "GEMMEvaluator",
    "GEMMResult", "GEMMTable", "GemmOptions", "Kind", "Lever", "MemoryBoundResult", "MixerResult",
    "ProblemBatch", "Result", "RunArguments", "answer_schema", "chip_coefficients",
    "chip_features", "chip_group", "chip_interval", "interval_line",
    "memory_bounds", "select_config", "shared_frac", "source_of", "sum_interval", "w4a16_crossover",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
