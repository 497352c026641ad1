"""Engines that a comparison runs side by side: ours, and those that users would take instead.

One file each. An engine that `registry` lists is an option of `gemm-eval kernels --compare` and a row of its tables.
"""

from gemm_eval.measure.engines.base import Bound, Engine
from gemm_eval.measure.engines.experts import (
    DEFAULT_TOKENS,
    EXPERT_LAYERS,
    ExpertGrid,
    ExpertLayer,
    ExpertWeights,
    GroupedGemm,
)
from gemm_eval.measure.engines.grouped import (
    GROUPED_ENGINES,
    GroupedEngine,
    choose_grouped_engines,
    compare_grouped_engines,
)
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.engines.registry import ENGINES
from gemm_eval.measure.engines.side_by_side import (
    EngineFailure,
    EngineTiming,
    Grid,
    SideBySide,
    choose_engines,
    compare_engines,
    make_device,
)
from gemm_eval.measure.engines.standing import (
    Case,
    Standing,
    by_regime,
    by_rows,
    list_cases,
    losses,
    stand,
    standing_document,
)

__all__ = [
    "DEFAULT_TOKENS",
    "ENGINES",
    "EXPERT_LAYERS",
    "GROUPED_ENGINES",
    "Bound",
    "Case",
    "DenseGemm",
    "Engine",
    "EngineFailure",
    "EngineTiming",
    "ExpertGrid",
    "ExpertLayer",
    "ExpertWeights",
    "Grid",
    "GroupedEngine",
    "GroupedGemm",
    "Operands",
    "SideBySide",
    "Standing",
    "Weights",
    "by_regime",
    "by_rows",
    "choose_engines",
    "choose_grouped_engines",
    "compare_engines",
    "compare_grouped_engines",
    "list_cases",
    "losses",
    "make_device",
    "stand",
    "standing_document",
]
