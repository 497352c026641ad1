"""What the first W4A16 GEMM of a kind waits for: the machine code of its kernel.

NVRTC is loaded already. As plain tests these only check that the ways agree.
"""

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.arch.gpu import limits_of_spec
from gemm_eval.device import CompiledKernel, compiler_version
from gemm_eval.device import runtime as nvrtc
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import Sizes, Variant, WeightMode
from gemm_eval.kernels.plan import choose
from gemm_eval.kernels.registry import compile_for, make_variant

SPEC = load_arch("h200-sxm", GpuSpec)
H200 = limits_of_spec(SPEC)
TYPES = DType.FP16, WeightMode.GROUP, 128
SIZES = [Sizes(M, 4096, 28672) for M in (1, 32, 4096)]
COMPILE = "machine code of one W4A16 kernel for an H200 (M tokens, K = 4096, N = 28672)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    try:
        compiler_version()
        nvrtc.compile_text('extern "C" __global__ void nothing() {}', "nothing", "sm_90a", {})  # loads the compiler
    except GemmEvalError as error:
        pytest.skip(str(error))
    return tmp_path / "cuda"


def variant_of(sizes: Sizes) -> Variant:
    return make_variant(choose(sizes, *TYPES, SPEC, H200), *TYPES)


def forget_in_process(variant: Variant) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The next call compiles, or reads the disk."""
    nvrtc._memo.clear()
    return (variant, H200), {}


def forget(folder: Path, variant: Variant) -> tuple[tuple[Any, ...], dict[str, Any]]:
    for path in folder.glob("*.kernel"):
        path.unlink()
    return forget_in_process(variant)


def check(compiled: CompiledKernel, folder: Path) -> None:
    assert compiled.cubin.startswith(b"\x7fELF")
    assert len(list(folder.glob("*.kernel"))) >= 1


@pytest.mark.benchmark(group=COMPILE)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"M={sizes.M}")
def test_first_compile(benchmark: Any, folder: Path, sizes: Sizes) -> None:
    variant = variant_of(sizes)
    compiled = benchmark.pedantic(compile_for, setup=lambda: forget(folder, variant), rounds=5)
    check(compiled, folder)


@pytest.mark.benchmark(group=COMPILE)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"M={sizes.M}")
def test_from_the_disk_cache(benchmark: Any, folder: Path, sizes: Sizes) -> None:
    variant = variant_of(sizes)
    first = compile_for(variant, H200)
    compiled = benchmark.pedantic(compile_for, setup=lambda: forget_in_process(variant), rounds=50)
    assert compiled == first
    assert compiled is not first
    check(compiled, folder)
