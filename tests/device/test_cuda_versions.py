"""CUDA 12 and 13: which compiler is named, and what is said where CuPy's CUDA is not the driver's."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from gemm_eval.device import runtime
from gemm_eval.errors import GemmEvalError

UNLIKE = RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")


def refuse() -> int:
    raise UNLIKE


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], str]]:
    """What is said where the driver is for one CUDA, CuPy for another, and no GPU is found."""

    def said(of_driver: int, of_cupy: int) -> str:
        versions = SimpleNamespace(
            getDeviceCount=refuse, driverGetVersion=lambda: of_driver, runtimeGetVersion=lambda: of_cupy
        )
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=versions)))
        runtime.import_cupy.cache_clear()
        with pytest.raises(GemmEvalError) as caught:
            runtime.import_cupy()
        return str(caught.value)

    yield said
    runtime.import_cupy.cache_clear()


def test_a_driver_for_cuda_12_and_cupy_for_13(no_gpu: Callable[[int, int], str]) -> None:
    assert no_gpu(12040, 13020) == (
        "this CuPy is for CUDA 13, the driver for CUDA 12: update the driver, or pip uninstall cupy-cuda13x and "
        "pip install 'gemm_eval[gpu-cuda12]'"
    )


def test_a_driver_that_no_extra_is_for(no_gpu: Callable[[int, int], str]) -> None:
    assert no_gpu(11080, 12090) == "this CuPy is for CUDA 12, the driver for CUDA 11: update the driver"


@pytest.mark.parametrize("of_driver", [0, 13000, 13020])
def test_no_driver_or_one_of_the_same_cuda(no_gpu: Callable[[int, int], str], of_driver: int) -> None:
    assert no_gpu(of_driver, 13020) == f"this needs an NVIDIA GPU and its driver: {UNLIKE}"


@pytest.mark.parametrize(("version", "package"), [((12, 9), "nvidia-cuda-nvrtc-cu12"), ((13, 0), "nvidia-cuda-nvrtc")])
def test_the_compiler_is_named_by_the_package_of_its_cuda(
    version: tuple[int, int], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may be installed, where PyTorch brings the other one: kernels are kept by the version that made them."""
    monkeypatch.setattr(runtime, "_nvrtc", lambda: SimpleNamespace(getVersion=lambda: version))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"from {name}")
    runtime.compiler_version.cache_clear()
    try:
        assert runtime.compiler_version() == f"{version[0]}.{version[1]} from {package}"
    finally:
        runtime.compiler_version.cache_clear()


def test_an_nvrtc_that_is_missing_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_nvrtc", lambda: SimpleNamespace(getVersion=refuse))
    runtime.compiler_version.cache_clear()

    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[gpu\]', or 'gemm_eval\[gpu-cuda12\]' where"):
        runtime.compiler_version()
