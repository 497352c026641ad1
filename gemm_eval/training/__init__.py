"""Training of models: time of a step, MFU and memory of a layout on many devices, and the best layout."""

from gemm_eval.training.estimate import estimate_training, find_training_layouts
from gemm_eval.training.result import BREAKDOWN, DEFINITIONS, StageStep, TrainingEstimate, model_flop
from gemm_eval.training.schedule import SCHEDULES, StageTimes, Task, num_in_flight, schedule_us, stage_chunks, timeline
from gemm_eval.training.step import OPTIMIZERS, RECOMPUTE, Optimizer, TrainingMemory

__all__ = [
    "BREAKDOWN", "DEFINITIONS", "OPTIMIZERS", "RECOMPUTE", "SCHEDULES", "Optimizer", "StageStep", "StageTimes", "Task",
    "TrainingEstimate", "TrainingMemory", "estimate_training", "find_training_layouts", "model_flop", "num_in_flight",
    "schedule_us", "stage_chunks", "timeline",
]  # fmt: skip
