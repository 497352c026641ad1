"""The facade: evaluators and their results."""

from gemm_eval.evaluate._evaluator import CacheInfo, GEMMEvaluator
from gemm_eval.evaluate._result import GEMMResult
from gemm_eval.evaluate._select import select_config
from gemm_eval.evaluate._table import GEMMTable
from gemm_eval.evaluate.crossover import Crossover, w4a16_crossover

__all__ = [
    "CacheInfo",
    "Crossover",
    "GEMMEvaluator",
    "GEMMResult",
    "GEMMTable",
    "select_config",
    "w4a16_crossover",
]
