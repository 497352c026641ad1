"""The kernels of a mixture-of-experts layer around its two grouped GEMMs: MODEL.md, "Layers of experts"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.traffic import l2_and_dram_us, side_by_side
from gemm_eval.workload import LAYER_TERMS, MoeWork

Floats = npt.NDArray[np.float64]

_NS_PER_US, _PS_PER_US = 1e3, 1e6
_ACTIVATION_BYTES = 2  # of tokens, and of what the GEMMs give: bf16 or fp16


def layer_terms(arch: GpuSpec, c: Mapping[str, float], work: MoeWork) -> dict[str, Any]:
    """Return the time of each of `LAYER_TERMS`, in microseconds; MODEL.md, "Layers of experts".

    Args:
        arch: the GPU.
        c: coefficients of the library's family for them, those of `MOE_LAYER` among them; a step without the share of
            a rate at which it moves bytes is part of a GEMM.
        work: what the layer asks.
    """
    tokens_of, hidden, rows = (np.asarray(size, np.float64) for size in (work.num_tokens, work.hidden, work.local_rows))
    grouped = np.asarray(work.has_grouped_router, np.float64)
    routing = c["moe_fixed_us"] + tokens_of * (
        (c["moe_token_ns"] + grouped * c["moe_grouped_router_ns"]) / _NS_PER_US
        + np.asarray(work.num_experts, np.float64) * c["moe_token_expert_ps"] / _PS_PER_US
    )
    permute = (
        rows * c["moe_row_ns"]
        + np.asarray(work.num_local_experts, np.float64) * c["moe_expert_ns"]
        + np.asarray(work.num_active, np.float64) * c["moe_active_ns"]
    ) / _NS_PER_US
    token_bytes = tokens_of * hidden * _ACTIVATION_BYTES
    tokens = _moved_us(arch, c, 2.0 * token_bytes, "moe_token_frac")
    # what GEMM 1 gives, one or two columns for each of the activation, and what GEMM 2 reads
    activation_bytes = rows * np.asarray(work.inter, np.float64) * (2.0 + np.asarray(work.gated)) * _ACTIVATION_BYTES
    has_sum = np.asarray(work.topk) > 1  # else GEMM 2 writes the tokens
    finalize_bytes = has_sum * (rows * hidden * _ACTIVATION_BYTES + token_bytes)
    # CTAs that each expert has: half as many where experts are fewest, as timings by number of experts show
    few_ctas = np.where(np.asarray(work.num_local_experts) < _FEW_EXPERTS, 2.0, 1.0)
    most_rows = few_ctas * np.asarray(work.most_rows, np.float64)
    columns = np.ceil(np.asarray(work.inter, np.float64) / _COLUMNS_OF_CTA)
    any_ctas = tokens_of * np.asarray(work.topk, np.float64) * columns
    is_quantized = work.is_quantized
    times = (
        routing,
        permute + (0.0 if is_quantized else tokens),
        tokens if is_quantized else np.zeros_like(tokens),
        _moved_us(arch, c, activation_bytes, "moe_activation_frac")
        + most_rows * c["moe_most_row_ns"] / _NS_PER_US
        + any_ctas / (_CTAS_OF_SM * arch.num_sms) * c["moe_any_row_us"],
        _moved_us(arch, c, finalize_bytes, "moe_finalize_frac"),
    )
    return dict(zip(LAYER_TERMS, times, strict=True))


_FEW_EXPERTS = 4
_CTAS_OF_SM, _COLUMNS_OF_CTA = 16, 128  # of 128 threads
_HOLD_FRAC = 0.7  # of L2: in which what one kernel writes is still there when the next reads it; assumed


def _moved_us(arch: GpuSpec, c: Mapping[str, float], num_bytes: Floats, frac: str) -> Floats:
    """Return the time of bytes through L2, and through DRAM as far as L2 cannot hold them; 0 without such a step."""
    if frac not in c:
        return np.zeros_like(num_bytes)
    l2_us, dram_us = l2_and_dram_us(
        arch, num_bytes, num_bytes, hold_frac=_HOLD_FRAC, l2_frac=c[frac], dram_frac=c["moe_dram_frac"]
    )
    return side_by_side(l2_us, dram_us)
