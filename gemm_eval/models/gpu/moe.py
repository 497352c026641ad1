"""What a layer of experts takes on a GPU besides its GEMMs: routing, permutation, quantization, activation, sum.

Each term is that of small kernels: a fixed time, and bytes moved at the bandwidth of L2 as far as they stay there, of
DRAM beyond. A kernel that a library has fused into another costs nothing of its own: its share is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import LAYER_TERMS, MoeWork

__all__ = ["MOE_COEFFICIENTS", "layer_terms", "moe_coefficients"]

_ASSUMED = "assumed: one kernel each, at what a copy reaches; no timing of the term alone tells it yet"
_SCORE_BYTES = 4.0  # of a router's score, fp32
_PICK_BYTES = 8.0  # of an assignment: the expert's number and its weight, 4 bytes each
_PLACE_BYTES = 4.0  # of an assignment's place in the order by expert
_PICK_READS = 2  # of assignments: once to count those of each expert, once to place them

MOE_COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient(
        "moe_routing_us", "us", 0.0, 40.0, 4.0, FREE, "fixed cost of top-k and of the order by expert, with launches",
        _ASSUMED,
    ),
    Coefficient(
        "moe_routing_expert_ns", "ns", 0.0, 50.0, 2.0, FREE, "what each expert of the layer adds to that order",
        _ASSUMED,
    ),
    Coefficient("moe_permute_us", "us", 0.0, 20.0, 2.0, FREE, "fixed cost of copying rows to their experts", _ASSUMED),
    Coefficient(
        "moe_permute_frac", "1", 0.0, 2.0, 1.0, FREE, "share of the rows' bytes that is copied; 0: GEMM 1 gathers",
        _ASSUMED,
    ),
    Coefficient(
        "moe_quantize_us", "us", 0.0, 20.0, 2.0, FREE, "fixed cost of quantizing each of the two activations", _ASSUMED
    ),
    Coefficient("moe_activation_us", "us", 0.0, 20.0, 2.0, FREE, "fixed cost of the activation", _ASSUMED),
    Coefficient(
        "moe_activation_frac", "1", 0.0, 2.0, 1.0, FREE, "share of its bytes that it moves; 0: GEMM 1 stores it",
        _ASSUMED,
    ),
    Coefficient("moe_finalize_us", "us", 0.0, 20.0, 2.0, FREE, "fixed cost of the sum over the experts", _ASSUMED),
    Coefficient(
        "moe_l2_frac", "1", 0.05, 2.0, 0.6, NO_LIMIT, "share of the L2 bandwidth that these kernels reach", _ASSUMED
    ),
    Coefficient(
        "moe_dram_frac", "1", 0.2, 1.0, 0.85, NO_LIMIT, "share of the published DRAM bandwidth that they reach",
        _ASSUMED,
    ),
    Coefficient(
        "moe_l2_hold_frac", "1", 0.05, 1.0, 0.5, SPEC, "share of L2 in which a buffer outlives one kernel", _ASSUMED
    ),
)  # fmt: skip
"""Coefficients of the layer's small kernels."""


def moe_coefficients(arch: GpuSpec, library: str) -> Mapping[str, float]:  # noqa: ARG001
    """Return the coefficients of a library's small kernels on a GPU: defaults, as long as nothing is fitted."""
    return {item.name: item.default for item in MOE_COEFFICIENTS}


def layer_terms(arch: GpuSpec, library: str, work: MoeWork) -> FrozenDict[str, npt.NDArray[np.float64]]:
    """Return the terms of a layer of experts besides its GEMMs, in us, in the shape of the sizes of `work`.

    A rank without an assignment routes, because it must see that it has none; its other terms are 0.

    Args:
        arch: the GPU.
        library: whose kernels run, as the options of its GEMMs name it.
        work: what one rank does; arrays where there are several draws.

    Returns:
        The names of `LAYER_TERMS`, all of them, with a time each.
    """
    c = moe_coefficients(arch, library)
    tokens, hidden, inter = (np.asarray(size, float) for size in (work.num_tokens, work.hidden, work.inter))
    rows, experts = np.asarray(work.local_rows, float), np.asarray(work.num_experts, float)
    picks = tokens * np.asarray(work.topk, float)
    is_busy = rows > 0

    def move(read: npt.NDArray[np.float64], written: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Time of moving so many bytes: what was written before is read from L2 as far as it is still there."""
        held = arch.l2_bytes * c["moe_l2_hold_frac"]
        moved = read + written
        missed = np.maximum(0.0, 1.0 - held / np.maximum(moved, 1.0))
        l2 = bytes_per_us(arch.l2_gb_per_s) * c["moe_l2_frac"]
        dram = bytes_per_us(arch.dram_gb_per_s) * c["moe_dram_frac"]
        time: npt.NDArray[np.float64] = moved * ((1.0 - missed) / l2 + missed / dram)
        return time

    wide, narrow = work.wide_bytes, work.input_bytes
    width = rows * inter
    routed = move(
        tokens * experts * _SCORE_BYTES + _PICK_READS * picks * _PICK_BYTES, picks * (_PICK_BYTES + _PLACE_BYTES)
    )
    # with types that A is quantized to, rows are quantized where they lie, and copied narrow
    copied = move(work.local_tokens * hidden * narrow, rows * hidden * narrow)
    quantized = np.zeros_like(rows)
    if work.is_quantized:
        quantized = 2 * c["moe_quantize_us"] + move(
            work.local_tokens * hidden * wide, work.local_tokens * hidden * narrow
        )
        quantized = quantized + move(width * wide, width * narrow)
    activated = move((1 + work.gated) * width * wide, width * wide)
    summed = move(rows * hidden * wide, work.local_tokens * hidden * wide)
    times = {
        "routing_us": c["moe_routing_us"] + experts * c["moe_routing_expert_ns"] / 1e3 + routed,
        "permute_us": is_busy * (c["moe_permute_us"] * (c["moe_permute_frac"] > 0) + c["moe_permute_frac"] * copied),
        "quantize_us": is_busy * quantized,
        "activation_us": is_busy
        * (c["moe_activation_us"] * (c["moe_activation_frac"] > 0) + c["moe_activation_frac"] * activated),
        "finalize_us": is_busy * (c["moe_finalize_us"] + summed),
    }
    return FrozenDict((name, np.broadcast_to(times[name], np.broadcast(tokens, rows).shape)) for name in LAYER_TERMS)
