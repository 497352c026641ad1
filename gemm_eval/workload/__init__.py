"""What is computed: GEMM problems, attention, messages between GPUs, their types, and how a GPU is asked to run it."""

from gemm_eval.workload.attention import MAX_HEAD_DIM, AttentionProblem
from gemm_eval.workload.collective import COLLECTIVES, MAX_MESSAGE_BYTES, MAX_RANKS, CollectiveProblem
from gemm_eval.workload.memory_bound import ENGINES, TORCH, MemoryKernel, memory_kernel
from gemm_eval.workload.moe import LAYER_TERMS, MoeWork
from gemm_eval.workload.options import NOTHING_SAID, RunOptions, run_options
from gemm_eval.workload.problem import MAX_MACS, GemmProblem, make_problem, problem_of
from gemm_eval.workload.row_groups import (
    MAX_GROUPS,
    NO_LAYOUTS,
    Layouts,
    RowGroups,
    check_row_groups,
    distinct_groups,
    pack_layouts,
    without_lone_groups,
)
from gemm_eval.workload.types import MAX_DIM, TYPE_NAMES, BlockScale, GemmTypes, Operand, make_types

__all__ = [
    "COLLECTIVES",
    "ENGINES",
    "LAYER_TERMS",
    "MAX_DIM",
    "MAX_GROUPS",
    "MAX_HEAD_DIM",
    "MAX_MACS",
    "MAX_MESSAGE_BYTES",
    "MAX_RANKS",
    "NOTHING_SAID",
    "NO_LAYOUTS",
    "TORCH",
    "TYPE_NAMES",
    "AttentionProblem",
    "BlockScale",
    "CollectiveProblem",
    "GemmProblem",
    "GemmTypes",
    "Layouts",
    "MemoryKernel",
    "MoeWork",
    "Operand",
    "RowGroups",
    "RunOptions",
    "check_row_groups",
    "distinct_groups",
    "make_problem",
    "make_types",
    "memory_kernel",
    "pack_layouts",
    "problem_of",
    "run_options",
    "without_lone_groups",
]
