"""Whole models on an arch: from their operations to time to first token, time per token, tokens a second and memory."""

from gemm_eval.estimate.model import KINDS, ModelEstimate, StepEstimate, estimate_model, estimate_models
from gemm_eval.estimate.price import IN_ATTENTION, OperationCost, Price, Prices, operation_costs, price_of

__all__ = [
    "IN_ATTENTION", "KINDS", "ModelEstimate", "OperationCost", "Price", "Prices", "StepEstimate", "estimate_model",
    "estimate_models", "operation_costs", "price_of",
]  # fmt: skip
