"""PyTorch: torch.compile's max-autotune, pruned by the model. Importing this package imports no torch."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.torch.inductor import prune_inductor
    from gemm_eval.torch.inductor_report import PrunedGemm, PrunedTemplate, PruneReport, RankedConfig

__all__ = ["PruneReport", "PrunedGemm", "PrunedTemplate", "RankedConfig", "prune_inductor"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".inductor": ("prune_inductor",),
        ".inductor_report": ("PruneReport", "PrunedGemm", "PrunedTemplate", "RankedConfig"),
    },
)
