"""`W4Linear` on a real GPU: against its reference on the CPU, under torch.compile, in CUDA graphs, and its memory."""

import dataclasses
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.kernels import PackedW4, convert_checkpoint, dequantize, load_packed, pack_w4
from tests.kernels.checkpoint_samples import GPTQ, make_layer, write_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

torch = pytest.importorskip("torch", reason="needs torch: pip install 'gemm_eval[torch]'")
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
WORST_ERROR = {"fp16": 1e-3, "bf16": 5e-3}
K, N = 2056, 648


@pytest.fixture(scope="module", autouse=True)
def linear(cupy: Any) -> Any:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from gemm_eval.kernels import linear

    return linear


def packed_of(
    mode: str = "group", group: int | None = 64, activation: str = "fp16", is_sorted: bool = True, seed: int = 0,
    sizes: tuple[int, int] = (K, N),
) -> PackedW4:  # fmt: skip
    random = np.random.default_rng(seed)
    weights = (0.05 * random.standard_normal(sizes)).astype(np.float32)
    packed = pack_w4(weights, group, mode, activation=activation)
    order = None if is_sorted else random.permutation(sizes[0]).astype(np.int32)
    return dataclasses.replace(packed, permutation=order)


def layer_of(linear: Any, **options: Any) -> Any:
    packed = packed_of(**options)
    bias = np.random.default_rng(7).standard_normal(packed.N).astype(np.float32)
    return linear.W4Linear.from_packed(packed, bias).cuda()


def tokens(*shape: int, activation: str = "fp16", seed: int = 1) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(TYPES[activation]).cuda()


def error_of(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def same(found: Any, expected: Any) -> bool:
    return torch.equal(found.view(torch.int16), expected.view(torch.int16))


KINDS = [("group", 32), ("group_zero", 128), ("column", None), ("mxfp4", None), ("nvfp4", None)]


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("mode", "group"), KINDS)
def test_it_is_what_the_cpu_computes(
    linear: Any, mode: str, group: int | None, is_sorted: bool, activation: str
) -> None:
    layer = layer_of(linear, mode=mode, group=group, activation=activation, is_sorted=is_sorted)
    on_cpu = layer_of(linear, mode=mode, group=group, activation=activation, is_sorted=is_sorted).cpu()
    for shape in ((K,), (1, K), (17, K), (2, 3, K), (300, K), (0, K)):
        x = tokens(*shape, activation=activation)
        y = layer(x)
        assert (y.shape, y.dtype, y.device) == ((*shape[:-1], N), x.dtype, x.device)
        if y.numel():
            assert error_of(y.cpu(), on_cpu(x.cpu())) < WORST_ERROR[activation]
            assert same(layer(x), y)


def test_rows_that_kernels_cannot_read(linear: Any) -> None:
    layer, flat = layer_of(linear, is_sorted=False), tokens(64 * K)
    for x in (flat[1 : 1 + 4 * K].view(4, K), flat[: 4 * (K + 4)].view(4, K + 4)[:, :K], flat.view(K, 64).t()[:4]):
        assert same(layer(x), layer(x.contiguous().clone()))


def test_gradients(linear: Any) -> None:
    packed = packed_of(is_sorted=False)
    layer, x = linear.W4Linear.from_packed(packed).cuda(), tokens(5, K).requires_grad_()
    gradient = tokens(5, N, seed=2)
    layer(x).backward(gradient)

    assert error_of(x.grad.cpu(), gradient.cpu().double() @ torch.from_numpy(dequantize(packed)).t()) < 2e-3


class Block(torch.nn.Module):
    """Two layers, one with act-order, and what stands between them in a model."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.up = layer_of(linear, is_sorted=False)
        self.down = linear.W4Linear.from_packed(packed_of("group_zero", sizes=(N, K))).cuda()

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(linear: Any, mode: str) -> None:
    pytest.importorskip("triton")
    block = Block(linear)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    with torch.no_grad():
        for num_tokens in (4, 64):
            for seed in range(4):  # warm-up, capture, replays
                x = tokens(num_tokens, K, seed=seed)
                torch.compiler.cudagraph_mark_step_begin()
                assert error_of(compiled(x), block(x)) < 2e-3


@pytest.mark.parametrize("num_tokens", [1, 16, 100, 512])
def test_a_cuda_graph(linear: Any, num_tokens: int) -> None:
    """Captured as torch does, on a stream of its own that nothing ran on before."""
    block, x = Block(linear), tokens(num_tokens, K)
    with torch.no_grad():
        block(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = block(x)
        for seed in range(3):
            x.copy_(tokens(num_tokens, K, seed=seed))
            graph.replay()
            torch.cuda.synchronize()
            assert same(y, block(x))


def test_the_current_stream_is_taken(linear: Any) -> None:
    layer, x = layer_of(linear, is_sorted=False), tokens(64, K)
    expected = layer(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = x * 1
        y = layer(late)
    stream.synchronize()
    assert same(y, expected)


def test_no_memory_stays_behind(linear: Any) -> None:
    x = tokens(16, K)
    layer_of(linear)(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for seed in range(5):  # at the same address, most likely
        layer = linear.W4Linear.from_packed(packed_of(seed=seed, is_sorted=seed % 2 == 0)).cuda()
        y = layer(x).cpu()
        assert error_of(y, layer.cpu()(x.cpu())) < 1e-3
        del layer, y
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def check_same_buffers(there: Any, here: Any) -> None:
    """One on the GPU, the other on the CPU."""
    expected = dict(here.named_buffers())
    assert there.scale_unit == here.scale_unit
    assert {name for name, _ in there.named_buffers()} == set(expected)
    assert all(tensor.is_cuda and torch.equal(tensor.cpu(), expected[name]) for name, tensor in there.named_buffers())


def test_from_linear_on_the_gpu(linear: Any) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        plain = torch.nn.Linear(512, 256).to(dtype)
        there = linear.W4Linear.from_linear(plain.cuda(), 32)
        check_same_buffers(there, linear.W4Linear.from_linear(plain.cpu(), 32))


def test_from_tensors_of_a_checkpoint_on_the_gpu(linear: Any) -> None:
    sample = make_layer("gptq", 256, 128, 64, 3, has_bias=True, is_sorted=False)
    tensors = {name: torch.from_numpy(stored.array.copy()) for name, stored in sample.tensors.items()}
    layer = linear.W4Linear.from_gptq(**{name: x.cuda() for name, x in tensors.items()}, group_size=64)
    check_same_buffers(layer, linear.W4Linear.from_gptq(**tensors, group_size=64))
    again, bias = layer.to_packed()
    other = linear.W4Linear.from_packed(again, bias)
    x = tokens(9, 256)
    assert same(layer(x), other(x))
    assert (
        error_of(layer(x).cpu(), x.cpu().double() @ torch.from_numpy(sample.meant) + torch.from_numpy(sample.bias))
        < 1e-3
    )


def test_a_checkpoint_from_disk(linear: Any, tmp_path: Path) -> None:
    samples = {f"layers.{i}": make_layer("gptq", 512, 256, 64, i, has_bias=True, is_sorted=i > 0) for i in range(2)}
    write_checkpoint(tmp_path / "a", samples, GPTQ, files=2)
    convert_checkpoint(tmp_path / "a", tmp_path / "b")
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(512, 256) for _ in samples])}).cuda()
    assert linear.replace_linears(model, load_packed(tmp_path / "b")) == 2
    x = tokens(33, 512)
    for layer, sample in zip(model["layers"], samples.values(), strict=True):
        expected = x.cpu().double() @ torch.from_numpy(sample.meant) + torch.from_numpy(sample.bias)
        assert layer.qweight.is_cuda
        assert error_of(layer(x).cpu(), expected) < 1e-3
