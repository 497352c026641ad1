"""Whole models on an arch: from their operations to time to first token, time per token, tokens a second and memory."""

from gemm_eval.estimate.costs import IN_ATTENTION, OperationCost, operation_costs
from gemm_eval.estimate.model import estimate_model, estimate_models
from gemm_eval.estimate.result import KINDS, ModelEstimate, StepEstimate

__all__ = [
    "IN_ATTENTION",
    "KINDS",
    "ModelEstimate",
    "OperationCost",
    "StepEstimate",
    "estimate_model",
    "estimate_models",
    "operation_costs",
]
