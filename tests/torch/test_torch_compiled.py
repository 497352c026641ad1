"""Kernels that torch.compile makes, by rules of Inductor: seen in the code that it made of drawn modules on an H100."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from gemm_eval.torch import predict_module  # noqa: E402
from gemm_eval.torch.fusion import Kernel, kernels_of  # noqa: E402
from gemm_eval.torch.recorder import Recorder, current_precision  # noqa: E402
from gemm_eval.transformer import GemmWork, MemoryWork  # noqa: E402

BF16 = torch.bfloat16


def tensor(*shape: int, dtype: Any = BF16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def kernels(run: Callable[[], Any]) -> list[Kernel]:
    recorder = Recorder(current_precision())
    with torch.no_grad(), recorder:
        out = run()
    trace = recorder.finish()
    del out
    return kernels_of(trace, "inductor")


def names(run: Callable[[], Any]) -> list[str]:
    return [" ".join(call.name.removeprefix("aten.") for call in kernel.calls) for kernel in kernels(run)]


def instructions(kernel: Kernel) -> int:
    (work,) = kernel.works
    assert isinstance(work, MemoryWork)
    return int(work.what.partition(" ")[2])


@pytest.mark.parametrize(("width", "is_spread"), [(2352, True), (2304, False), (1000, False)])
def test_a_bias_is_copied_to_rows_that_are_padded(width: int, is_spread: bool) -> None:
    """Long rows begin on 128 bytes, and cuBLAS adds no vector to rows with gaps."""
    x, first, bias, second = tensor(704, 960), tensor(width, 960), tensor(width), tensor(960, width)
    gemm, *_ = kernels(lambda: functional.linear(functional.linear(x, first, bias), second))
    assert [type(work) for work in gemm.works] == [MemoryWork] * is_spread + [GemmWork]
    alone, *_ = kernels(lambda: functional.linear(x, first, bias))
    assert len(alone.works) == 1  # what the caller gets is not padded


@pytest.mark.parametrize(("rows", "width", "is_copied"), [(18, 520, True), (64, 520, False), (18, 2888, False)])
def test_what_is_padded_is_copied_before_it_is_a_matrix(rows: int, width: int, is_copied: bool) -> None:
    x, weight = tensor(10, rows, width), tensor(256, width)
    assert names(lambda: functional.linear(x.relu(), weight)) == ["relu", *["clone"] * is_copied, "mm"]


def test_constants_are_computed_by_each_kernel_that_reads_them() -> None:
    q, k = tensor(4, 256, 8, 64), tensor(4, 256, 8, 64)

    def rotate() -> tuple[Any, ...]:
        angles = torch.outer(torch.arange(256, device="meta"), 10000 ** (torch.arange(64, device="meta") / -64))
        return tuple(x * angles.cos()[:, None].to(BF16) for x in (q, k))

    found = kernels(rotate)
    assert names(rotate) == ["mul", "mul"]
    plain, *_ = kernels(lambda: q * k * k)
    assert all(instructions(kernel) > instructions(plain) + 50 for kernel in found)


def test_short_sums_are_maps_that_read_what_is_in_memory() -> None:
    parts = [tensor(60, 48, 2312) for _ in range(6)]
    (stacked, summed) = kernels(lambda: torch.stack([x.relu() for x in parts], -1).sum(-1).relu())
    assert [call.name for call in summed.calls] == ["aten.sum", "aten.relu"]
    assert all(work.what.startswith("inductor_map") for kernel in (stacked, summed) for work in kernel.works)


def test_what_is_added_at_places_is_in_memory_before_it_is_read() -> None:
    x, places = tensor(33, 400, 96, dtype=torch.float32), torch.zeros(33, 400, 96, dtype=torch.long, device="meta")

    def into() -> Any:
        return tensor(33, 784, 96, dtype=torch.float32).zero_().scatter_add_(1, places, x * 2).sum(-1)

    assert names(into) == ["zero_", "mul scatter_add_", "sum"]


@pytest.mark.parametrize("has_mask", [True, False])
def test_many_rows_are_read_in_pieces_where_not_all_that_is_read_are_rows(has_mask: bool) -> None:
    scores, mask = tensor(20, 10, 576, 576), torch.zeros(20, 1, 1, 576, dtype=torch.bool, device="meta")
    (kernel,) = kernels(lambda: (scores.masked_fill(mask, -1e4) if has_mask else scores * 2).softmax(-1))
    (work,) = kernel.works
    assert isinstance(work, MemoryWork)
    assert work.what.startswith("inductor_long_rows" if has_mask else "inductor_rows")


def test_the_bias_of_a_convolution_is_added_by_all_who_read_its_result() -> None:
    x, weight, bias, scale = tensor(8, 64, 32, 32), tensor(128, 64, 3, 3), tensor(128), tensor(128)
    found = kernels(lambda: functional.group_norm(functional.conv2d(x, weight, bias), 8, scale, scale))
    sums, norm = (kernel.works[0] for kernel in (found[1], found[-1]))
    result_bytes = 8 * 128 * 30 * 30 * 2
    assert isinstance(sums, MemoryWork)
    assert isinstance(norm, MemoryWork)
    assert sums.write_bytes < result_bytes // 10
    assert result_bytes + bias.nbytes <= sums.read_bytes <= result_bytes + 2 * bias.nbytes
    assert norm.write_bytes == result_bytes


def test_a_loss_of_classes_writes_no_logarithms() -> None:
    scores, classes = tensor(1536, 30522), torch.zeros(1536, dtype=torch.long, device="meta")
    total = sum(work.num_bytes for kernel in kernels(lambda: functional.cross_entropy(scores, classes))
                for work in kernel.works)  # fmt: skip
    assert scores.nbytes < total < 1.01 * scores.nbytes


def test_both_halves_of_a_tensor_are_read() -> None:
    x, weight = tensor(64, 256), tensor(1024, 256)

    def gated() -> Any:
        gate, value = functional.linear(x, weight).chunk(2, -1)
        return functional.silu(gate) * value

    work = kernels(gated)[-1].works[0]
    assert isinstance(work, MemoryWork)
    assert (work.read_bytes, work.write_bytes) == (64 * 1024 * 2, 64 * 512 * 2)


@pytest.mark.parametrize(
    ("pool", "kernel"),
    [
        (lambda x: functional.adaptive_avg_pool2d(x, 2), "inductor_"),
        (lambda x: functional.adaptive_avg_pool2d(x, 7), "torch_adaptive_pool"),
        (lambda x: functional.avg_pool2d(x, 8), "inductor_"),
        (lambda x: functional.avg_pool2d(x, 8, 1), "torch_avg_pool"),
        (lambda x: functional.avg_pool2d(x, 3), "inductor_map"),
    ],
)
def test_large_windows_are_sums_unless_they_overlap(pool: Callable[[Any], Any], kernel: str) -> None:
    (work,) = kernels(lambda: pool(tensor(8, 64, 96, 96)))[-1].works
    assert isinstance(work, MemoryWork)
    assert work.what.startswith(kernel)


@pytest.mark.parametrize(("batch", "is_padded"), [(1024, True), (64, False)])
def test_a_long_gemm_off_16_bytes_is_padded_behind_a_copy_of_its_weight(batch: int, is_padded: bool) -> None:
    module, x = torch.nn.Linear(3605, 6344, bias=False, device="meta", dtype=BF16), tensor(batch, 3605)
    result = predict_module(module, x, "h200-sxm")
    assert [each.kind for each in result.operations] == ["memory"] * is_padded + ["gemm"]
    assert ("K=3608" in result.operations[-1].detail) == is_padded
    eager = predict_module(module, x, "h200-sxm", fusion="eager")
    assert (result.latency_us < eager.latency_us / 2) == is_padded


def test_what_the_host_reads_is_computed() -> None:
    class Depends(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if (x + 1).sum() > 0 else x

    result = predict_module(Depends(), torch.ones(8, 64), "h200-sxm")
    assert any("aten.sum" in each.name for each in result.operations)


@pytest.mark.parametrize(("count", "is_written"), [(8, False), (9, True)])
def test_parts_of_long_joins_are_in_memory_before_they_are_read(count: int, is_written: bool) -> None:
    parts = [tensor(64, 32 * (number + 1)) for number in range(count)]
    assert len(kernels(lambda: torch.cat(parts, 1).sum(1))) == 1 + is_written
    columns = [tensor(64, 1) for _ in range(count)]
    works = [kernel.works[0] for kernel in kernels(lambda: torch.cat(columns, 1).sum(1, keepdim=True).argmax(1))]
    assert (sum(work.read_bytes for work in works if isinstance(work, MemoryWork)) > 0) == is_written


def test_parts_of_joins_are_written_where_they_belong() -> None:
    """By the kernels that make them; what is dead but for a part runs, and GEMMs before a constant do not."""
    rows, index, weight = tensor(512, 64), torch.zeros(96, 9, dtype=torch.long, device="meta"), tensor(576, 1)

    def pick() -> Any:
        parts = torch.cat([functional.embedding(index[:, number], rows) for number in range(9)], 1)
        return (parts @ weight).argmax(1)

    works = [kernel.works[0] for kernel in kernels(pick)]
    assert not any(isinstance(work, GemmWork) for work in works)
    assert [work.write_bytes for work in works if isinstance(work, MemoryWork)] == [9 * 2 * 96 * 64, 8 * 96]


def test_scans_of_a_kernel_wait_once_for_each_other() -> None:
    x = tensor(8, 1024, 256, dtype=torch.float32)
    (one,) = kernels(lambda: x.cumsum(1))
    (both,) = kernels(lambda: x.exp().cumsum(1) + x.cumsum(1))
    first, second = (int(kernel.works[0].what.split()[1]) for kernel in (one, both))  # type: ignore[union-attr]
    assert first < second < 1.3 * first


def test_sums_of_rows_that_lie_apart_take_longer() -> None:
    x, y = tensor(64, 256, 128), tensor(64, 128, 256)
    (near,) = kernels(lambda: functional.layer_norm(x + x, (128,)))
    (far,) = kernels(lambda: functional.layer_norm(x + y.transpose(1, 2), (128,)))
    near_count, far_count = (int(kernel.works[0].what.split()[1]) for kernel in (near, far))  # type: ignore[union-attr]
    assert far_count >= near_count + 80


def test_a_copy_that_is_only_read_by_kernels_is_not_made() -> None:
    x = tensor(8, 32, 64, 64).to(memory_format=torch.channels_last)
    works = [kernel.works[0] for kernel in kernels(lambda: functional.group_norm(x.contiguous(), 4))]
    written = sum(work.write_bytes for work in works if isinstance(work, MemoryWork))
    assert 2 * x.numel() <= written < 2.1 * x.numel()
