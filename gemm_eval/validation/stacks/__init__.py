"""Steps of stacks of layers that were measured, and their predictions; layers beside their operations alone."""

from gemm_eval.validation.stacks.scores import StackLine, score_stacks
from gemm_eval.validation.stacks.switches import SwitchScore, fit_switches, read_switches, score_switches
from gemm_eval.validation.stacks.tables import StackStep, gpus_with_stacks, list_stack_steps

__all__ = [
    "StackLine",
    "StackStep",
    "SwitchScore",
    "fit_switches",
    "gpus_with_stacks",
    "list_stack_steps",
    "read_switches",
    "score_stacks",
    "score_switches",
]
