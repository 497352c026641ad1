"""Evaluators of a multi-core chip of each kind and of a GPU."""

import pytest

from gemm_eval import GEMMEvaluator
from tests.report.figures import ARCHS


@pytest.fixture(scope="module")
def evaluators() -> dict[str, GEMMEvaluator]:
    return {name: GEMMEvaluator(name, disk_cache=False) for name in ARCHS}
