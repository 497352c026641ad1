"""Kernels that commands call, compiled before they run."""

import pytest

from gemm_eval import GEMMEvaluator
from tests.cli.commands import SIZES


@pytest.fixture(scope="module")
def compiled_kernels() -> None:
    """Compile what the commands call: the first compile of a machine says so on stderr."""
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate(*SIZES)
    evaluator.evaluate_mapping(result.problem, result.mapping)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep stderr empty on a slow machine too, where progress would be printed every few seconds."""
    monkeypatch.setattr("gemm_eval.progress._LINE_EVERY_S", 1e6)
