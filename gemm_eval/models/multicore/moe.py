"""What a layer of experts takes on a multi-core chip besides its GEMMs: passes over its activations in DRAM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.frozen import FrozenDict
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import LAYER_TERMS, MoeWork

_SCORE_BYTES = 4.0  # of a router's score, fp32
_PICK_BYTES = 8.0  # of an assignment: the expert's number and its weight


def layer_terms(arch: MulticoreSpec, work: MoeWork) -> FrozenDict[str, npt.NDArray[np.float64]]:
    """Return the terms of a layer of experts besides its GEMMs, in us, in the shape of the sizes of `work`.

    Each is a program of its own, which starts in `launch_us` and moves what it reads and writes at the DRAM bandwidth
    that large transfers reach; the arithmetic hides behind that. A rank without an assignment only routes.
    """
    tokens, hidden, inter = (np.asarray(size, float) for size in (work.num_tokens, work.hidden, work.inter))
    rows, experts = np.asarray(work.local_rows, float), np.asarray(work.num_experts, float)
    is_busy, width, wide, narrow = rows > 0, rows * inter, work.wide_bytes, work.input_bytes

    def move(num_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        time: npt.NDArray[np.float64] = num_bytes / bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        return time + arch.launch_us

    quantized = np.zeros_like(rows)
    if work.is_quantized:
        quantized = move(work.local_tokens * hidden * (wide + narrow)) + move(width * (wide + narrow))
    times = {
        "routing_us": move(tokens * (experts * _SCORE_BYTES + np.asarray(work.topk, float) * _PICK_BYTES)),
        "permute_us": is_busy * move((work.local_tokens + rows) * hidden * narrow),
        "quantize_us": is_busy * quantized,
        "activation_us": is_busy * move((2 + work.gated) * width * wide),
        "finalize_us": is_busy * move((rows + work.local_tokens) * hidden * wide),
    }
    return FrozenDict((name, np.broadcast_to(times[name], np.broadcast(tokens, rows).shape)) for name in LAYER_TERMS)
