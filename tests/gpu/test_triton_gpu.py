"""The Triton kernels in examples/ on a real GPU: every config, and the tuned kernels as functions."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import triton_gemm  # noqa: E402
import triton_operands  # noqa: E402
import triton_w4a16_gemm  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
RAGGED, FILLS_GPU = (133, 384, 1280), (4096, 4096, 2048)  # M, N, K


def make(size: tuple[int, int, int], dtype: str, group_size: int = 0) -> Any:
    return triton_operands.make_operands(*size, dtype, group_size=group_size, seed=sum(size))


def check(c: Any, operands: Any) -> None:
    assert triton_operands.relative_error(c, operands.reference()) < 1e-2


def check_config(config: Any, dtype: str, group_size: int = 0) -> None:
    for size in (RAGGED, FILLS_GPU):
        operands = make(size, dtype, group_size)
        grid = triton_gemm.grid({"M": size[0], "N": size[1], **config.kwargs})
        operands.kernel[grid](*operands.args, **operands.meta, **config.all_kwargs())
        check(operands.c, operands)


@pytest.mark.parametrize("config", triton_gemm.CONFIGS, ids=str)
def test_every_config_of_the_gemm(config: Any) -> None:
    check_config(config, "fp16")


@pytest.mark.parametrize("config", triton_w4a16_gemm.CONFIGS, ids=str)
def test_every_config_of_the_w4a16_gemm(config: Any) -> None:
    check_config(config, "fp16", 128)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
def test_the_tuned_gemm_as_a_function(dtype: str) -> None:
    for size in ((64, 64, 64), (1, 1024, 2048), RAGGED, FILLS_GPU):
        operands = make(size, dtype)
        check(triton_gemm.gemm(operands.a, operands.b), operands)


@pytest.mark.parametrize("group_size", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_tuned_w4a16_gemm_as_a_function(dtype: str, group_size: int) -> None:
    for size in ((1, 1024, 2048), (64, 128, 256), RAGGED, FILLS_GPU):
        operands = make(size, dtype, group_size)
        a, packed, scales = operands.args[:3]
        check(triton_w4a16_gemm.w4a16_gemm(a, packed, scales), operands)
