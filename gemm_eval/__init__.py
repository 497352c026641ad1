"""gemm_eval: an analytical cost model for GEMM.

>>> from gemm_eval import GEMMEvaluator, load_arch
>>> result = GEMMEvaluator(load_arch("demo-8core")).evaluate(1, 4096, 4096, 4096)  # G, M, K, N
>>> print(result.explain())  # doctest: +SKIP

Importing this package is cheap: what a name needs is loaded when the name is first used.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec, MulticoreSpec, list_archs, load_arch
    from gemm_eval.dtypes import DType
    from gemm_eval.errors import (
        ArchError,
        ArchNotFoundError,
        ArchValidationError,
        GemmEvalError,
        InfeasibleError,
        InvalidInputError,
        InvalidMappingError,
        InvalidOptionError,
        InvalidProblemError,
        ModelConfigError,
        StorageError,
        UnsupportedError,
    )
    from gemm_eval.estimate import ModelEstimate, estimate_model, estimate_models
    from gemm_eval.evaluate import (
        AttentionResult,
        CollectiveResult,
        Crossover,
        GEMMEvaluator,
        GEMMResult,
        GEMMTable,
        select_config,
        w4a16_crossover,
    )
    from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
    from gemm_eval.moe import MoeLayer, MoeLayerResult, MoeLayerTable, moe_layer, moe_layers
    from gemm_eval.search import CostModel, PlanOptions, SearchPlan, check_cost_model, find_planned
    from gemm_eval.serving import Deployments, ServingEstimate, estimate_serving, find_deployments
    from gemm_eval.training import TrainingEstimate, estimate_training, find_training_layouts
    from gemm_eval.transformer import ModelConfig, list_models, load_model, transformer_gemms
    from gemm_eval.transformer.prewarm import PrewarmReport, prewarm, prewarm_for_transformer
    from gemm_eval.version import __version__
    from gemm_eval.workload import AttentionProblem, CollectiveProblem, GemmProblem

__all__ = [
    "ArchError", "ArchNotFoundError", "ArchValidationError", "AttentionProblem", "AttentionResult", "CollectiveProblem",
    "CollectiveResult", "CostModel", "Crossover", "DType", "Deployments", "GEMMEvaluator", "GEMMResult", "GEMMTable",
    "GemmEvalError", "GemmProblem", "GpuSpec", "InfeasibleError", "InvalidInputError", "InvalidMappingError",
    "InvalidOptionError", "InvalidProblemError", "LoopOrder", "ModelConfig", "ModelConfigError", "ModelEstimate",
    "MoeLayer", "MoeLayerResult", "MoeLayerTable", "MulticoreMapping", "MulticoreSpec", "Partition", "PlanOptions",
    "PrewarmReport", "SearchPlan", "ServingEstimate", "StorageError", "Tile", "TrainingEstimate", "UnsupportedError",
    "__version__", "check_cost_model", "estimate_model", "estimate_models", "estimate_serving", "estimate_training",
    "find_deployments", "find_planned", "find_training_layouts", "list_archs", "list_models", "load_arch", "load_model",
    "moe_layer", "moe_layers", "prewarm", "prewarm_for_transformer", "select_config", "transformer_gemms",
    "w4a16_crossover",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
