"""Whole models on an arch: from their operations to time to first token, time per token, tokens a second and memory."""

from gemm_eval.estimate.engine import IDEAL, Engine
from gemm_eval.estimate.model import ModelEstimate, estimate_model, estimate_models, tokens_per_step
from gemm_eval.estimate.price import IN_ATTENTION, OperationCost, Price, Prices, operation_costs, price_of
from gemm_eval.estimate.replica import KINDS, Replica, StepEstimate, StepSize, pipeline_us

__all__ = [
    "IDEAL", "IN_ATTENTION", "KINDS", "Engine", "ModelEstimate", "OperationCost", "Price", "Prices", "Replica",
    "StepEstimate", "StepSize", "estimate_model", "estimate_models", "operation_costs", "pipeline_us", "price_of", "tokens_per_step",
]  # fmt: skip
