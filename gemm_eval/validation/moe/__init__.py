"""Measured layers of mixtures of experts, and their grouped GEMMs: reading, fitting and scoring them."""

from gemm_eval.validation.moe.scores import (
    MODEL,
    ROOFLINE,
    LayerLine,
    calibrate_layers,
    find_layer_timings,
    gpus_with_layers,
    score_layers,
)
from gemm_eval.validation.moe.tables import (
    GroupedTimings,
    LayerTimings,
    list_grouped_timings,
    list_layer_timings,
    read_grouped_timings,
    read_layer_timings,
)

__all__ = [
    "MODEL",
    "ROOFLINE",
    "GroupedTimings",
    "LayerLine",
    "LayerTimings",
    "calibrate_layers",
    "find_layer_timings",
    "gpus_with_layers",
    "list_grouped_timings",
    "list_layer_timings",
    "read_grouped_timings",
    "read_layer_timings",
    "score_layers",
]
