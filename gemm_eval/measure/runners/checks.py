"""The correctness check of a runner: small GEMMs against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.measure.shapes import GemmShape

__all__ = ["CHECK_SHAPES", "MAX_ERRORS", "decode", "relative_error"]

CHECK_SHAPES = {"2-D": GemmShape(1, 40, 144, 80), "batched": GemmShape(3, 24, 144, 48)}
"""Small GEMMs by layout; each operand has fewer than 32,768 elements."""


MAX_ERRORS = {"fp16": 2e-3, "bf16": 1e-2}
"""Largest relative error of a right result, by the type of operands and output."""


def decode(values: npt.NDArray[Any], dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return bytes of fp16, bf16 or fp32 numbers as float64, in `shape`."""
    if dtype == "bf16":
        wide = values.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64).reshape(shape)
    return values.view({"fp16": np.float16, "fp32": np.float32}[dtype]).astype(np.float64).reshape(shape)


def relative_error(out: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Return the norm of the difference over the norm of the reference; NaN if an element is NaN."""
    return float(np.linalg.norm(out - reference) / np.linalg.norm(reference))
