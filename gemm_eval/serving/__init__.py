"""Served models: continuous batching, queueing, pools of workers, and the search for a deployment."""

from gemm_eval.serving.batching import Load, SteadyState, StepPredictor, StepTimes, Times, steady_state
from gemm_eval.serving.deployments import (
    Deployments,
    LeftOut,
    checkpoint_of,
    engine_commands,
    find_deployments,
    summary,
)
from gemm_eval.serving.estimate import Requests, ServingEstimate, estimate_serving, serve

__all__ = [
    "Deployments", "LeftOut", "Load", "Requests", "ServingEstimate", "SteadyState", "StepPredictor", "StepTimes",
    "Times", "checkpoint_of", "engine_commands", "estimate_serving", "find_deployments", "serve", "steady_state",
    "summary",
]  # fmt: skip
