"""Layers compiled by max-autotune with all candidates and with those that `prune_inductor` leaves, on a real GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from torch._inductor import config, select_algorithm  # noqa: E402
from torch._inductor.utils import fresh_inductor_cache  # noqa: E402

from gemm_eval.torch import prune_inductor  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
MODE = "max-autotune-no-cudagraphs"
TOP_K = 3
LARGEST_ERROR = 0.01  # over the largest value: bf16 has 8 bits
SIZES = [(16, 4096, 1024, False), (257, 1000, 2056, True), (2048, 1024, 1024, True)]  # M, N, K, bias


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def check(found: Any, expected: Any) -> None:
    assert float((found.double() - expected).abs().max() / expected.abs().max()) < LARGEST_ERROR


class Timed:
    """How many candidates Inductor times, of templates and of libraries."""

    def __init__(self) -> None:
        self.templates = self.externs = 0

    def __call__(self, timings: dict[Any, float], *_: Any) -> None:
        externs = sum(isinstance(choice, select_algorithm.ExternKernelCaller) for choice in timings)
        self.externs += externs
        self.templates += len(timings) - externs


@pytest.fixture
def timed() -> Any:
    counts = Timed()
    functions = select_algorithm.get_algorithm_selector_cache().feedback_saver_fns
    functions.append(counts)
    with fresh_inductor_cache(), config.patch(fx_graph_cache=False), torch.no_grad():
        torch._dynamo.reset()
        yield counts
    functions.remove(counts)


@pytest.mark.parametrize(("M", "N", "K", "has_bias"), SIZES)
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_linear(M: int, N: int, K: int, has_bias: bool, is_pruned: bool, timed: Any) -> None:
    layer = torch.nn.Linear(K, N, bias=has_bias, device="cuda", dtype=torch.bfloat16)
    x = normal(M, K)
    expected = x.double() @ layer.weight.double().T + (layer.bias.double() if has_bias else 0.0)
    compiled = torch.compile(layer, mode=MODE)
    if is_pruned:
        with prune_inductor(top_k=TOP_K, drop_slower=False) as pruned:
            check(compiled(x), expected)
        assert [(one.problem.M, one.problem.K, one.problem.N) for one in pruned.gemms] == [(M, K, N)]
        assert pruned.num_kept == TOP_K < pruned.num_before
        assert timed.templates == TOP_K
    else:
        check(compiled(x), expected)
        assert timed.templates > TOP_K
    assert timed.externs >= 1


def test_what_the_library_surely_beats_is_not_timed(timed: Any) -> None:
    """Tensor cores are busy: no Triton kernel without TMA keeps up, and nothing follows that could be fused."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Triton kernels were timed on Hopper alone")
    x, weight = normal(4096, 8192), normal(8192, 8192)
    with prune_inductor(top_k=TOP_K) as pruned:
        found = torch.compile(lambda x, weight: x @ weight, mode=MODE)(x, weight)
    check(found[::64], x[::64].double() @ weight.double())
    (gemm,) = pruned.gemms
    assert (gemm.num_kept, gemm.num_slower, timed.templates) == (0, TOP_K, 0)


@pytest.mark.skipif(
    torch.cuda.get_device_capability() < (9, 0), reason="Inductor has no grouped template before Hopper"
)
def test_a_batch_and_experts(timed: Any) -> None:
    a, b = normal(8, 256, 512), normal(8, 512, 384)
    x, experts = normal(512, 1024), normal(8, 768, 1024).transpose(-2, -1)
    ends = torch.arange(64, 513, 64, device="cuda", dtype=torch.int32)

    def both(a: Any, b: Any, x: Any, experts: Any, ends: Any) -> Any:
        return torch.bmm(a, b), torch._grouped_mm(x, experts, offs=ends)

    with prune_inductor(top_k=TOP_K, drop_slower=False) as pruned:
        batch, grouped = torch.compile(both, mode=MODE)(a, b, x, experts, ends)

    check(batch, a.double() @ b.double())
    check(grouped, torch.cat([x[64 * i : 64 * i + 64].double() @ experts[i].double() for i in range(8)]))
    assert {one.op_name for one in pruned.gemms} == {"bmm", "grouped_mm"}
    assert all(one.num_kept == TOP_K < one.num_before for one in pruned.gemms)
    assert timed.templates == 2 * TOP_K
