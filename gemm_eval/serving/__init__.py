"""Served models: continuous batching, queueing, pools of workers, and the search for a deployment."""

from gemm_eval.serving.batching import Load, SteadyState, Times, steady_state
from gemm_eval.serving.commands import checkpoint_of, engine_commands
from gemm_eval.serving.deployments import Deployments, LeftOut, find_deployments, summary
from gemm_eval.serving.estimate import Requests, ServingEstimate, estimate_serving, serve
from gemm_eval.serving.steps import StepPredictor, StepTimes

__all__ = [
    "Deployments", "LeftOut", "Load", "Requests", "ServingEstimate", "SteadyState", "StepPredictor", "StepTimes",
    "Times", "checkpoint_of", "engine_commands", "estimate_serving", "find_deployments", "serve", "steady_state",
    "summary",
]  # fmt: skip
