"""`compare` on a real GPU: its times are those of torch's profiler, and it says what ran."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

torch = pytest.importorskip("torch", reason="needs torch: pip install 'gemm_eval[torch]'")


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
    return float(sum(event.self_device_time_total for event in profiler.key_averages()))


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
    assert found.graph_us is not None
    assert found.graph_us < 1.2 * found.measured_us + 50


def test_a_module_is_predicted_on_a_gpu_without_a_byte_on_it() -> None:
    from gemm_eval.torch import predict_module

    module, x = Layer().cuda().bfloat16(), torch.randn(4, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    predict_module(module, x, "h200-sxm", backward=True, optimizer="adamw")
    assert torch.cuda.max_memory_allocated() == before
