"""From torch: what a module takes on a GPU that one does not own, which kernels and why. Needs the extra `torch`.

>>> from gemm_eval.torch import predict_module
>>> print(predict_module(model, inputs, "h200-sxm"))  # doctest: +SKIP

Nothing is run and nothing is allocated: a model may lie on torch's device "meta". TORCH.md says what is counted.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.torch.comparison import Comparison, MeasuredOperation
    from gemm_eval.torch.evaluate_module import predict_module, predict_sizes
    from gemm_eval.torch.live import Prediction, predict
    from gemm_eval.torch.measure_module import compare
    from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation
    from gemm_eval.torch.size_table import SizeTable

__all__ = [
    "Comparison",
    "MeasuredOperation",
    "ModulePrediction",
    "PredictedOperation",
    "Prediction",
    "SizeTable",
    "compare",
    "predict",
    "predict_module",
    "predict_sizes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".measure_module": ("compare",),
        ".comparison": ("Comparison", "MeasuredOperation"),
        ".live": ("Prediction", "predict"),
        ".evaluate_module": ("predict_module", "predict_sizes"),
        ".prediction": ("ModulePrediction", "PredictedOperation"),
        ".size_table": ("SizeTable",),
    },
)
