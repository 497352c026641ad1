"""Served models: continuous batching, queueing, pools of workers, and the search for a deployment."""

from gemm_eval.serving.batching import Load, SteadyState, Times, steady_state
from gemm_eval.serving.estimate import Requests, ServingEstimate, estimate_serving, serve
from gemm_eval.serving.steps import StepTimes

__all__ = [
    "Load", "Requests", "ServingEstimate", "SteadyState", "StepTimes", "Times", "estimate_serving", "serve",
    "steady_state",
]  # fmt: skip
