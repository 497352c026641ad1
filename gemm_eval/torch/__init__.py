"""From torch: the time that a module takes on a GPU that one does not own, and why; torch.compile without the wait.

>>> from gemm_eval.torch import predict_module
>>> print(predict_module(model, inputs, "h200-sxm"))  # doctest: +SKIP

TORCH.md says what is counted. All of it needs the extra `torch`; importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.torch.evaluate_module import predict_module, predict_sizes
    from gemm_eval.torch.inductor import PrunedGemm, PrunedTemplate, PruneReport, RankedConfig, prune_inductor
    from gemm_eval.torch.measure_module import compare
    from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation
    from gemm_eval.torch.render import Comparison, MeasuredOperation, SizeTable
    from gemm_eval.torch.trace import Prediction, predict

__all__ = [
    "Comparison", "MeasuredOperation", "ModulePrediction", "PredictedOperation", "Prediction", "PruneReport",
    "PrunedGemm", "PrunedTemplate", "RankedConfig", "SizeTable", "compare", "predict", "predict_module",
    "predict_sizes", "prune_inductor",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
