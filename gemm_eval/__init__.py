"""gemm_eval: an analytical cost model for GEMM.

>>> from gemm_eval import GEMMEvaluator, load_arch
>>> result = GEMMEvaluator(load_arch("demo-8core")).evaluate(1, 4096, 4096, 4096)  # G, M, K, N
>>> print(result.explain())  # doctest: +SKIP

Importing this package is cheap: what a name needs is loaded when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from gemm_eval.evaluate import Crossover, GEMMEvaluator, GEMMResult, GEMMTable, select_config, w4a16_crossover
    from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
    from gemm_eval.search import CostModel, PlanOptions, SearchPlan, check_cost_model, find_planned
    from gemm_eval.transformer import ModelConfig, list_models, load_model, transformer_gemms
    from gemm_eval.transformer.prewarm import PrewarmReport, prewarm, prewarm_for_transformer
    from gemm_eval.workload import GemmProblem

__all__ = [
    "ArchError",
    "ArchNotFoundError",
    "ArchValidationError",
    "CostModel",
    "Crossover",
    "DType",
    "GEMMEvaluator",
    "GEMMResult",
    "GEMMTable",
    "GemmEvalError",
    "GemmProblem",
    "GpuSpec",
    "InfeasibleError",
    "InvalidInputError",
    "InvalidMappingError",
    "InvalidOptionError",
    "InvalidProblemError",
    "LoopOrder",
    "ModelConfig",
    "ModelConfigError",
    "MulticoreMapping",
    "MulticoreSpec",
    "Partition",
    "PlanOptions",
    "PrewarmReport",
    "SearchPlan",
    "StorageError",
    "Tile",
    "UnsupportedError",
    "__version__",
    "check_cost_model",
    "find_planned",
    "list_archs",
    "list_models",
    "load_arch",
    "load_model",
    "prewarm",
    "prewarm_for_transformer",
    "select_config",
    "transformer_gemms",
    "w4a16_crossover",
]

_ROOMS = {
    "gemm_eval.arch": ("GpuSpec", "MulticoreSpec", "list_archs", "load_arch"),
    "gemm_eval.dtypes": ("DType",),
    "gemm_eval.evaluate": (
        "Crossover",
        "GEMMEvaluator",
        "GEMMResult",
        "GEMMTable",
        "select_config",
        "w4a16_crossover",
    ),
    "gemm_eval.mapping": ("LoopOrder", "MulticoreMapping", "Partition", "Tile"),
    "gemm_eval.search": ("CostModel", "PlanOptions", "SearchPlan", "check_cost_model", "find_planned"),
    "gemm_eval.transformer": ("ModelConfig", "list_models", "load_model", "transformer_gemms"),
    "gemm_eval.transformer.prewarm": ("PrewarmReport", "prewarm", "prewarm_for_transformer"),
    "gemm_eval.workload": ("GemmProblem",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("gemm_eval")
    if name in __all__:
        value = getattr(import_module(_ROOM_OF.get(name, "gemm_eval.errors")), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gemm_eval' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
