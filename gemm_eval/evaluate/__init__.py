"""The facade: evaluators and their results."""

from gemm_eval.evaluate._evaluator import CacheInfo, GEMMEvaluator
from gemm_eval.evaluate._result import GEMMResult
from gemm_eval.evaluate._select import select_config
from gemm_eval.evaluate._table import GEMMTable

__all__ = ["CacheInfo", "GEMMEvaluator", "GEMMResult", "GEMMTable", "select_config"]
