"""GEMM problems, their types and options, and the other operations: attention, collectives, layers of experts."""

from gemm_eval.workload.operations import (
    COLLECTIVES,
    ENGINES,
    LAYER_TERMS,
    MAX_MESSAGE_BYTES,
    MAX_RANKS,
    MIXER_KERNELS,
    MIXER_STATE_BYTES,
    TORCH,
    AttentionProblem,
    CollectiveProblem,
    MixerProblem,
    MoeWork,
    memory_kernel,
)
from gemm_eval.workload.problem import (
    MAX_GROUPS,
    MAX_MACS,
    NO_LAYOUTS,
    GemmProblem,
    Layouts,
    RowGroups,
    check_row_groups,
    distinct_groups,
    make_problem,
    pack_layouts,
    problem_of,
    resolve_types,
    without_lone_groups,
)
from gemm_eval.workload.types import (
    ACCUMULATE,
    LAYOUTS,
    MAX_DIM,
    NOTHING_SAID,
    TYPE_NAMES,
    GemmTypes,
    Operand,
    RunOptions,
    make_types,
    run_options,
)

__all__ = [
    "ACCUMULATE", "COLLECTIVES", "ENGINES", "LAYER_TERMS", "LAYOUTS", "MAX_DIM", "MAX_GROUPS", "MAX_MACS",
    "MAX_MESSAGE_BYTES", "MAX_RANKS", "MIXER_KERNELS", "MIXER_STATE_BYTES", "NOTHING_SAID", "NO_LAYOUTS", "TORCH",
    "TYPE_NAMES", "AttentionProblem", "CollectiveProblem", "GemmProblem", "GemmTypes", "Layouts", "MixerProblem",
    "MoeWork", "Operand", "RowGroups", "RunOptions", "check_row_groups", "distinct_groups", "make_problem",
    "make_types", "memory_kernel", "pack_layouts", "problem_of", "resolve_types", "run_options", "without_lone_groups",
]  # fmt: skip
