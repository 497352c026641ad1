"""The kernels of a mixture-of-experts layer around its two grouped GEMMs: MODEL.md, "Layers of experts"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import GemmTypes

__all__ = ["LAYER_TERMS", "MoeWork", "layer_terms"]

Floats = npt.NDArray[np.float64]

LAYER_TERMS = ("routing_us", "permute_us", "quantize_us", "activation_us", "finalize_us")
"""Of a layer, besides `gemm1_us` and `gemm2_us`."""

_NS_PER_US, _PS_PER_US = 1e3, 1e6
_ACTIVATION_BYTES = 2  # of tokens, and of what the GEMMs give: bf16 or fp16


class MoeWork(NamedTuple):
    """What layers ask of one rank; numbers, or arrays of the same shape.

    Attributes:
        num_tokens: of the layer, before each goes to its experts: those that all ranks of an expert group see together.
        hidden: elements of a token.
        inter: columns of gate or up on the rank.
        num_experts: of the layer.
        num_local_experts: of the rank.
        rows: assignments of tokens to experts of the rank.
        num_active: experts of the rank that have any.
        gated: 2 where gate and up are multiplied, 1 where there is no gate.
        has_grouped_router: whether experts are chosen in groups first (1), or all at once (0).
    """

    num_tokens: Any
    hidden: Any
    inter: Any
    num_experts: Any
    num_local_experts: Any
    rows: Any
    num_active: Any
    gated: Any = 2
    has_grouped_router: Any = 0


def layer_terms(arch: GpuSpec, types: GemmTypes, c: Mapping[str, float], work: MoeWork) -> dict[str, Any]:
    """Return the time of each of `LAYER_TERMS`, in microseconds.

    Args:
        arch: the GPU.
        types: of the GEMMs.
        c: coefficients of the library's family for them, those of `MOE_LAYER` among them.
        work: what the layer asks.
    """
    w = MoeWork(*(np.asarray(value, np.float64) for value in work))
    routing = c["moe_fixed_us"] + w.num_tokens * (
        (c["moe_token_ns"] + w.has_grouped_router * c["moe_grouped_router_ns"]) / _NS_PER_US
        + w.num_experts * c["moe_token_expert_ps"] / _PS_PER_US
    )
    permute = (
        w.rows * c["moe_row_ns"] + w.num_local_experts * c["moe_expert_ns"] + w.num_active * c["moe_active_ns"]
    ) / _NS_PER_US
    token_bytes = w.num_tokens * w.hidden * _ACTIVATION_BYTES
    tokens = _moved_us(arch, c, 2.0 * token_bytes, "moe_token_frac")
    is_quantized = types.a.dtype.bits < 8 * _ACTIVATION_BYTES
    activation_bytes = w.rows * w.inter * (w.gated + 1.0) * _ACTIVATION_BYTES
    finalize_bytes = w.rows * w.hidden * _ACTIVATION_BYTES + token_bytes
    return {
        "routing_us": routing,
        "permute_us": permute + (0.0 if is_quantized else tokens),
        "quantize_us": tokens if is_quantized else np.zeros_like(tokens),
        "activation_us": _moved_us(arch, c, activation_bytes, "moe_activation_frac"),
        "finalize_us": _moved_us(arch, c, finalize_bytes, "moe_finalize_frac"),
    }


_HOLD_FRAC = 0.7  # of L2: in which what one kernel writes is still there when the next reads it


def _moved_us(arch: GpuSpec, c: Mapping[str, float], num_bytes: Floats, frac: str) -> Floats:
    """Bytes through L2, and through DRAM as far as L2 cannot hold them."""
    missed = 1.0 / (1.0 + (_HOLD_FRAC * arch.l2_bytes / np.maximum(num_bytes, 1.0)) ** 2)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * c[frac])
    moved: Floats = np.hypot(l2_us, missed * num_bytes / (bytes_per_us(arch.dram_gb_per_s) * c["moe_dram_frac"]))
    return moved
