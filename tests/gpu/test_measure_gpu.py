"""The timing backend on a real GPU, end to end."""

from pathlib import Path

import pytest
import yaml

from gemm_eval import measure
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import WeightMode

pytestmark = pytest.mark.gpu
SHAPES = [measure.GemmShape(1, 16, 1024, 1024), measure.GemmShape(2, 300, 256, 512)]


@pytest.mark.filterwarnings("default")  # the vendor's packages warn as they like
@pytest.mark.parametrize(
    ("kernel", "dtype", "shapes"),
    [("cublas", "fp16", SHAPES), ("cublas", "bf16", SHAPES), ("cublaslt", "fp8", SHAPES[:1])],
)
def test_two_gemms_end_to_end(tmp_path: Path, kernel: str, dtype: str, shapes: list[measure.GemmShape]) -> None:
    pytest.importorskip("cupy")
    if kernel == "cublaslt":
        pytest.importorskip("torch")
    try:
        runner = measure.make_runner(kernel, dtype)
    except GemmEvalError as error:
        pytest.skip(str(error))
    path = measure.Campaign(
        runner, measure.TimingProtocol(), tmp_path, "x", print, pool_bytes=1 << 29, with_trace=False
    ).run(shapes)
    frame = measure.read_timings(path)

    assert len(frame) == len(shapes)
    assert frame["latency_us"].between(0.5, 1000.0).all()
    assert (frame["calls_per_replay"] >= 3).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_our_kernels_end_to_end(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("cupy")
    try:
        runner = measure.W4A16Runner(dtype)
    except GemmEvalError as error:
        pytest.skip(str(error))
    kinds = (
        (WeightMode.GROUP, 128), (WeightMode.COLUMN, 0), (WeightMode.GROUP_ZERO, 32), (WeightMode.MXFP4, 32),
        (WeightMode.NVFP4, 16),
    )  # fmt: skip
    gemms = [measure.QuantShape(1, m, 1024, 640, *kind) for m in (3, 70) for kind in kinds]
    items = measure.list_items(gemms, dtype, runner.spec, measure.Choice(3, 2))
    path = measure.Campaign(
        runner, measure.TimingProtocol.quick(), tmp_path, "x", print, pool_bytes=1 << 29, with_trace=False
    ).run(items)  # fmt: skip
    frame = measure.read_timings(path)

    assert len(frame) == len(items)
    assert frame["latency_us"].between(0.5, 1000.0).all()
    assert frame["registers"].between(16, 255).all()
    assert (frame["ctas_per_sm"] >= 1).all()

    found = measure.profile_kernels(runner, items[:5], [items[4].config])
    assert not found.errors
    assert found.find(items[4].config) is not None


@pytest.mark.filterwarnings("default")
def test_grouped_gemms_end_to_end(tmp_path: Path) -> None:
    """The campaign's own check compares results with float64, groups without a row among them."""
    pytest.importorskip("cupy")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("PyTorch's grouped kernels are of Hopper")
    runner = measure.make_runner("grouped", "bf16")
    shapes = [shape for shape in measure.list_grouped_shapes("grouped") if shape.model in ("none", "olmoe-1b-7b")][::8]
    path = measure.Campaign(
        runner, measure.TimingProtocol.quick(), tmp_path, "x", print, pool_bytes=1 << 30, with_trace=True
    ).run(shapes)
    frame = measure.read_timings(path)

    assert len(frame) == len(shapes)
    assert frame["latency_us"].between(2.0, 5000.0).all()
    assert set(frame["cta_m"]) <= {64, 128}
    assert max(yaml.safe_load(path.with_suffix(".meta.yaml").read_text())["check_relative_errors"].values()) < 1e-2
