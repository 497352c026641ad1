"""The timing backend on a real GPU, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval.errors import GemmEvalError
from gemm_eval.measure import Campaign, GemmShape, TimingProtocol, make_runner, read_timings

pytestmark = pytest.mark.gpu
SHAPES = [GemmShape(1, 16, 1024, 1024), GemmShape(2, 300, 256, 512)]


@pytest.mark.filterwarnings("default")  # the vendor's packages warn as they like
@pytest.mark.parametrize(
    ("kernel", "dtype", "shapes"),
    [("cublas", "fp16", SHAPES), ("cublas", "bf16", SHAPES), ("cublaslt", "fp8", SHAPES[:1])],
)
def test_two_gemms_end_to_end(tmp_path: Path, kernel: str, dtype: str, shapes: list[GemmShape]) -> None:
    pytest.importorskip("cupy")
    if kernel == "cublaslt":
        pytest.importorskip("torch")
    try:
        runner = make_runner(kernel, dtype)
    except GemmEvalError as error:
        pytest.skip(str(error))
    path = Campaign(runner, TimingProtocol(), tmp_path, "x", print, pool_bytes=1 << 29, with_trace=False).run(shapes)
    frame = read_timings(path)

    assert len(frame) == len(shapes)
    assert frame["latency_us"].between(0.5, 1000.0).all()
    assert (frame["calls_per_replay"] >= 3).all()
