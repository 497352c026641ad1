"""What is computed: GEMM problems."""

from gemm_eval.workload._problem import MAX_DIM, MAX_MACS, GemmProblem, make_problem

__all__ = ["MAX_DIM", "MAX_MACS", "GemmProblem", "make_problem"]
