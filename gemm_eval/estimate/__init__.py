"""Whole models on an arch: from their operations to TTFT, TPOT, tokens a second and memory."""

from gemm_eval.estimate.model import ModelEstimate, estimate_model, estimate_models, tokens_per_step
from gemm_eval.estimate.price import (
    HOST_TIMES,
    IDEAL,
    IN_ATTENTION,
    Engine,
    OperationCost,
    Price,
    Prices,
    default_engine,
    engine_calibration_path,
    list_engines,
    load_engine,
    operation_costs,
)
from gemm_eval.estimate.replica import KINDS, Basis, Replica, StepEstimate, StepSize, evaluator_of, pipeline_us

__all__ = [
    "HOST_TIMES", "IDEAL", "IN_ATTENTION", "KINDS", "Basis", "Engine", "ModelEstimate", "OperationCost", "Price",
    "Prices", "Replica", "StepEstimate", "StepSize", "default_engine", "engine_calibration_path", "estimate_model",
    "estimate_models", "evaluator_of", "list_engines", "load_engine", "operation_costs", "pipeline_us",
    "tokens_per_step",
]  # fmt: skip
