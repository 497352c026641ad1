"""The terms of a layer of experts: which model of which arch says what its small kernels take."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu import layer_terms as gpu_layer_terms
from gemm_eval.models.multicore import layer_terms as multicore_layer_terms
from gemm_eval.workload import LAYER_TERMS, MoeWork

__all__ = ["BREAKDOWN", "layer_terms"]

_TERMS = {
    "routing_us": LAYER_TERMS["routing_us"],
    "permute_us": LAYER_TERMS["permute_us"],
    "quantize_us": LAYER_TERMS["quantize_us"],
    "gemm1_us": "the grouped GEMM into the experts: gate and up, or up alone",
    "activation_us": LAYER_TERMS["activation_us"],
    "gemm2_us": "the grouped GEMM out of the experts: down",
    "finalize_us": LAYER_TERMS["finalize_us"],
    "shared_us": "the shared experts: both GEMMs, the activation and what quantizes its inputs",
}
BREAKDOWN = tuple(_TERMS)
"""The terms of a layer's time, in the order they run; they add up to it."""


def layer_terms(arch: ArchSpec, library: str | None, work: MoeWork) -> FrozenDict[str, npt.NDArray[Any]]:
    """Return the terms besides the GEMMs, in us: see the `layer_terms` of the models of GPUs and multi-core chips."""
    if isinstance(arch, MulticoreSpec):
        return multicore_layer_terms(arch, work)
    return gpu_layer_terms(arch, library or "", work)
