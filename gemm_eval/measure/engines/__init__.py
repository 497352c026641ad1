"""Engines that a comparison runs side by side: ours, and those that users would take instead.

One file each. An engine that is added here is an option of `gemm-eval kernels --compare` and a row of its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm_eval.measure.engines.base import Bound, Engine
from gemm_eval.measure.engines.cublas import CublasEngine
from gemm_eval.measure.engines.humming import HummingEngine
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.engines.ours import OurEngine
from gemm_eval.measure.engines.tinygemm import TinygemmEngine

__all__ = ["ENGINES", "Bound", "DenseGemm", "Engine", "Operands", "Weights"]

ENGINES: Mapping[str, type[Engine[Any]]] = {
    engine.name: engine for engine in (OurEngine, HummingEngine, CublasEngine, TinygemmEngine)
}
"""Engines by name, in the order in which they are timed."""
