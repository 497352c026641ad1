"""What a kernel takes more in a step of inference than alone, again and again. MODEL.md, "In a step"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.coefficients import FREE, Coefficient
from gemm_eval.units import cycles_per_us

_SOURCE = "round, of what a fit of 30 layers of an H200 gives (arch/measured/h200-sxm/switches; `validate stacks`)"

SWITCH_COEFFICIENTS = (
    Coefficient(
        "code_cycles", "cycles", 0.0, 4000.0, 120.0, FREE,
        "instructions that come from L2, as other kernels ran since", _SOURCE,
    ),
    Coefficient(
        "input_cycles", "cycles", 0.0, 6000.0, 2650.0, FREE,
        "inputs of many rows that other SMs have just written", _SOURCE,
    ),
    Coefficient("half_rows", "1", 1.0, 200.0, 33.0, FREE, "rows that cost half of that", _SOURCE),
)  # fmt: skip
"""All of them."""

SWITCH_DEFAULTS = {item.name: item.default for item in SWITCH_COEFFICIENTS}

_MOST_ROWS = 64  # that were timed: more cost as many


def switch_us(arch: GpuSpec, num_rows: Any, c: Mapping[str, float] = SWITCH_DEFAULTS) -> Any:
    """Return how much longer a GEMM or attention takes between other kernels, in microseconds.

    Args:
        arch: the GPU.
        num_rows: of A and C, or queries; a number or an array.
        c: values of `SWITCH_COEFFICIENTS`.
    """
    rows = np.minimum(num_rows, _MOST_ROWS)
    cycles = c["code_cycles"] + c["input_cycles"] * rows / (rows + c["half_rows"])
    return cycles / cycles_per_us(arch.boost_clock_ghz)
