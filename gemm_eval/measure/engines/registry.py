"""The engines by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm_eval.measure.engines.base import Engine
from gemm_eval.measure.engines.cublas import CublasEngine
from gemm_eval.measure.engines.humming import HummingEngine
from gemm_eval.measure.engines.ours import OurEngine
from gemm_eval.measure.engines.tinygemm import TinygemmEngine

__all__ = ["ENGINES"]

ENGINES: Mapping[str, type[Engine[Any]]] = {
    engine.name: engine for engine in (OurEngine, HummingEngine, CublasEngine, TinygemmEngine)
}
"""Engines by name, in the order in which they are timed."""
