"""The facade: evaluators and their results."""

from gemm_eval.evaluate._evaluator import CacheInfo, GEMMEvaluator
from gemm_eval.evaluate._result import GEMMResult

__all__ = ["CacheInfo", "GEMMEvaluator", "GEMMResult"]
