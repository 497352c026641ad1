"""`compare` on a real GPU: its times are those of torch's profiler, and it says what ran."""

import os
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

torch = pytest.importorskip("torch", reason="needs torch: pip install 'gemm_eval[torch]'")


def check_graph(found: Any) -> None:
    """Check a graph's time, unless other processes' kernels may run between its own."""
    assert found.graph_us is not None
    assert "PYTEST_XDIST_WORKER" in os.environ or found.graph_us < 1.2 * found.measured_us + 50


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")


class Layer(torch.nn.Module):
    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = (y.unflatten(-1, (16, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def profiled_us(module: Any, x: Any) -> float:
    """All time of kernels in a run, by torch's profiler alone."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler, torch.no_grad():
        module(x)
        torch.cuda.synchronize()
    kernels = (event for event in profiler.key_averages() if "CUDA" in str(event.device_type))
    return float(sum(event.self_device_time_total for event in kernels))


def test_times_are_those_of_the_profiler_and_every_kernel_has_its_operation() -> None:
    from gemm_eval.torch import compare

    module, x = Layer().cuda().bfloat16().eval(), torch.randn(4, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    found = compare(module, x, repeats=5)
    assert found.measured_us == pytest.approx(profiled_us(module, x), rel=0.1)
    assert found.outside_us < 0.02 * found.measured_us
    measured = [one for one in found.operations if one.measured_us]
    assert {"qkv", "out", "up", "down"} <= {one.path for one in measured if "mm" in one.name}
    assert all(one.kernels for one in measured)
    attention = [one for one in measured if one.name == "aten.scaled_dot_product_attention"]
    assert len(attention) == 1
    assert 0.5 < found.ratio < 2.0
    check_graph(found)


def kernels_alone(module: Any, x: Any) -> list[str]:
    """Kernels of a run that nobody looks on but the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        module(x)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            module(x)
            torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    return sorted(one.name() for one in events if one.device_type() == torch.autograd.DeviceType.CUDA)


class SelfAttention(torch.nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 16, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.float32], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        SelfAttention,
        lambda: torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True),
        lambda: torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True, activation="gelu"),
    ],
    ids=["attention", "layer", "layer with gelu"],
)
def test_fast_paths_launch_the_kernels_that_torch_launches(make: Any, dtype: Any) -> None:
    from gemm_eval.torch import compare, predict

    module = make().cuda().to(dtype).eval()
    x = torch.randn(8, 512, 1024, device="cuda", dtype=dtype)
    found = compare(module, x, repeats=3)
    assert sorted(name for one in found.operations for name in one.kernels) == kernels_alone(module, x)
    check_graph(found)
    with torch.no_grad(), predict("h200-sxm"):
        out = module(x)
    with torch.no_grad():
        torch.testing.assert_close(out, module(x))


def test_a_graph_is_of_what_ran_in_eager_mode() -> None:
    """As transformers does: other operations while it is captured."""
    from gemm_eval.torch import compare

    class Asks(Layer):
        def forward(self, x: Any) -> Any:
            for _ in range(20 if torch.cuda.is_current_stream_capturing() else 1):
                y = super().forward(x)
            return y

    module, x = Asks().cuda().bfloat16().eval(), torch.randn(4, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    found = compare(module, x, repeats=3)
    check_graph(found)


def test_a_module_that_waits_for_the_gpu_has_no_graph_and_spoils_no_other() -> None:
    from gemm_eval.torch import compare

    class Waits(Layer):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * float(x.abs().max())

    class FailsInCapture(Layer):
        def forward(self, x: Any) -> Any:
            if torch.cuda.graphs.is_current_stream_capturing():  # which says what is true
                torch.cuda.synchronize()
            return super().forward(x)

    x = torch.randn(4, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    for kind in (Waits, FailsInCapture):
        stream = torch.cuda.current_stream()
        with pytest.warns(RuntimeWarning, match="cannot be captured"):
            found = compare(kind().cuda().bfloat16().eval(), x, repeats=3)
        assert found.graph_us is None
        assert found.measured_us > 0
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.get_sync_debug_mode() == 0
    assert compare(Layer().cuda().bfloat16().eval(), x, repeats=3).graph_us is not None


def test_a_module_is_predicted_on_a_gpu_without_a_byte_on_it() -> None:
    from gemm_eval.torch import predict_module

    module, x = Layer().cuda().bfloat16(), torch.randn(4, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    predict_module(module, x, "h200-sxm", backward=True, optimizer="adamw")
    assert torch.cuda.max_memory_allocated() == before
