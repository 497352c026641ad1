"""The facade: evaluators and their results."""

from gemm_eval.evaluate._evaluator import CacheInfo, GEMMEvaluator
from gemm_eval.evaluate._result import GEMMResult, Terms

__all__ = ["CacheInfo", "GEMMEvaluator", "GEMMResult", "Terms"]
