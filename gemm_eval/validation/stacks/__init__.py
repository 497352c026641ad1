"""Steps of stacks of layers that were measured, and their predictions."""

from gemm_eval.validation.stacks.scores import StackLine, score_stacks
from gemm_eval.validation.stacks.tables import StackStep, gpus_with_stacks, list_stack_steps

__all__ = ["StackLine", "StackStep", "gpus_with_stacks", "list_stack_steps", "score_stacks"]
