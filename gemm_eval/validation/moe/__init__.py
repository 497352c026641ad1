"""Measured layers of mixtures of experts: reading, fitting and scoring them."""

from gemm_eval.validation.moe.tables import COLUMNS, LayerTimings, list_layer_timings, read_layer_timings

__all__ = ["COLUMNS", "LayerTimings", "list_layer_timings", "read_layer_timings"]
