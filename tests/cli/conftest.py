"""Kernels that commands call, compiled before they run."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator
from tests.cli.commands import SIZES


@pytest.fixture(scope="module")
def compiled_kernels() -> None:
    """Compile what the commands call: the first compile of a machine says so on stderr."""
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate(*SIZES)
    evaluator.evaluate_mapping(result.problem, result.mapping)
