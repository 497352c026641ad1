"""What the GPU tests share."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gemm_eval.device import runtime
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import DeviceLimits
from gemm_eval.kernels.families import Variant
from gemm_eval.kernels.registry import compile_for, why_not
from gemm_eval.measure.w4a16 import build_all


@pytest.fixture(scope="session", autouse=True)
def compiled_ahead(request: pytest.FixtureRequest) -> None:
    """Compile what the chosen tests run, on all cores at once: one after another it takes longer than the tests.

    Besides the model's own these are the kernels that `variants_ahead` of a test's module names; processes of
    pytest-xdist share them.
    """
    try:
        runtime.import_cupy()
    except GemmEvalError:
        return  # every test says so itself
    limits, worker = runtime.limits_of_device(runtime.current_device()), getattr(request.config, "workerinput", None)
    model = None
    if worker is None or worker["workerid"] == "gw0":  # a first call compiles the model's kernels; others wait for it
        call = (
            "from gemm_eval import GEMMEvaluator; GEMMEvaluator('h200-sxm', disk_cache=False).evaluate(1, 64, 64, 64)"
        )
        model = subprocess.Popen([sys.executable, "-c", call])
    for is_by_model in (False, True):  # which the model chooses
        named = [
            variant
            for item in request.session.items
            if hasattr(item, "callspec") and ("choice" in item.originalname) is is_by_model
            for variant in getattr(item.module, "variants_ahead", _none)(
                item.originalname, limits, item.callspec.params
            )
        ]
        variants = [one for one in dict.fromkeys(named) if why_not(one, None, limits) is None]
        if worker is None:
            build_all(variants, limits)
        else:
            for variant in variants[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
                compile_for(variant, limits)
        assert model is None or model.wait() == 0


def _none(test: str, limits: DeviceLimits, params: Mapping[str, Any]) -> Iterable[Variant]:
    return ()


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, where there is a GPU that it can use."""
    try:
        return runtime.import_cupy()
    except GemmEvalError as error:
        pytest.skip(str(error))
