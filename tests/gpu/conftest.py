"""What the GPU tests share."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gemm_eval.device import runtime
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.registry import compile_for, why_not
from gemm_eval.measure.w4a16 import build_all


@pytest.fixture(scope="session", autouse=True)
def compiled_ahead(request: pytest.FixtureRequest) -> None:
    """Compile what the chosen tests run, on all cores at once: one after another it takes longer than the tests.

    The model's kernels come first. Those for the GPU are what `variants_ahead` of a test's module names; processes of
    pytest-xdist share them.
    """
    try:
        runtime.import_cupy()
    except GemmEvalError:
        return  # every test says so itself
    subprocess.run([sys.executable, "-m", "gemm_eval.compiled"], check=True)
    limits = runtime.limits_of_device(runtime.current_device())
    variants = {}
    for item in request.session.items:
        list_variants = getattr(item.module, "variants_ahead", None)
        if list_variants is not None and hasattr(item, "callspec"):
            named = list_variants(item.originalname, limits, item.callspec.params)
            variants |= dict.fromkeys(one for one in named if why_not(one, None, limits) is None)
    worker = getattr(request.config, "workerinput", None)
    if worker is None:
        build_all(list(variants), limits)
        return
    share = list(variants)[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]
    for variant in share:
        compile_for(variant, limits)


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, where there is a GPU that it can use."""
    try:
        return runtime.import_cupy()
    except GemmEvalError as error:
        pytest.skip(str(error))
