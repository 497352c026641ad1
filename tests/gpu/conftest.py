"""What the GPU tests share."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval.device import runtime
from gemm_eval.errors import GemmEvalError


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, where there is a GPU that it can use."""
    try:
        return runtime.import_cupy()
    except GemmEvalError as error:
        pytest.skip(str(error))
