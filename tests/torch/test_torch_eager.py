"""Which kernels eager mode has for an operation, by types, order in memory and sizes: as seen on an H200."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from gemm_eval.torch import eager_mode, predict_module  # noqa: E402
from gemm_eval.torch.fusion import kernels_of  # noqa: E402
from gemm_eval.torch.graph import (  # noqa: E402
    ConvolutionWork,
    Work,
)
from gemm_eval.torch.recorder import Recorder, current_precision  # noqa: E402
from gemm_eval.transformer import MemoryWork  # noqa: E402

ROOT = Path(__file__).parents[2]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def tensor(*shape: int, dtype: Any = BF16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def last(*shape: int) -> Any:
    return tensor(*shape).to(memory_format=torch.channels_last)


def works(run: Callable[[], Any]) -> list[Work]:
    recorder = Recorder(current_precision())
    with torch.no_grad(), recorder:
        out = run()
    trace = recorder.finish()
    del out
    return [work for kernel in kernels_of(trace, "eager") for work in kernel.works]


def words(run: Callable[[], Any]) -> list[str]:
    """Return the names of kernels, without their instructions."""
    whats = [work.what if isinstance(work, MemoryWork) else type(work).__name__ for work in works(run)]
    return [what.partition(" ")[0] for what in whats]


X, Y, WIDE = tensor(64, 512), tensor(64, 512), tensor(64, 512, dtype=FP32)
HEADS = tensor(2, 300, 12, 64)
IMAGE, LAST = tensor(8, 96, 40, 40), last(8, 96, 40, 40)
STATS = [tensor(96) for _ in range(4)]
PLACES = torch.zeros(8, dtype=torch.long, device="meta")
FILTERS_LAST, POINTWISE_LAST, FEW_LAST = last(64, 96, 3, 3), last(64, 96, 1, 1), last(8, 3, 64, 64)

CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "one type and order": (lambda: X + Y, ["torch_vector"]),
    "in place": (lambda: X.add_(Y), ["torch_vector"]),
    "numbers alone": (lambda: X.sum() + 1, ["torch_sum", "torch_vector"]),
    "a number": (lambda: X * 0.5, ["torch_vector"]),
    "an error function": (lambda: functional.gelu(X), ["torch_gelu"]),
    "to more bits": (lambda: X.float(), ["torch_cast"]),
    "to fewer bits": (lambda: WIDE.to(BF16), ["torch_vector"]),
    "two types": (lambda: X * WIDE, ["torch_cast"]),
    "a row for all": (lambda: X * tensor(512), ["torch_offsets"]),
    "a column for all, of 4 bytes": (lambda: WIDE * tensor(64, 1, dtype=FP32), ["torch_offsets_wide"]),
    "heads side by side": (lambda: HEADS.transpose(1, 2).contiguous(), ["torch_offsets"]),
    "a part of each row": (lambda: -HEADS[..., 32:], ["torch_offsets"]),
    "a transposed matrix": (lambda: tensor(3000, 512).t().contiguous(), ["torch_offsets"]),
    "channels moved": (lambda: IMAGE.permute(0, 2, 3, 1).contiguous(), ["torch_offsets"]),
    "joined": (lambda: torch.cat((X, Y), -1), ["torch_vector"]),
    "joined halves": (lambda: torch.cat((HEADS[..., 32:], HEADS[..., :32]), -1), ["torch_cat"]),
    "joined off 16 bytes": (lambda: torch.cat((tensor(64, 3), tensor(64, 5)), -1), ["torch_cat_contiguous"]),
    "rolled twice": (lambda: torch.roll(HEADS, (2, 2), (1, 2)), ["torch_roll", "torch_roll"]),
    "padded": (lambda: functional.pad(X, (0, 8)), ["torch_constant", "torch_offsets"]),
    "filled": (lambda: torch.zeros_like(X), ["torch_constant"]),
    "looked up": (lambda: functional.embedding(PLACES, X), ["torch_gather"]),
    "layer norm": (lambda: functional.layer_norm(X, (512,)), ["torch_layer_norm"]),
    "layer norm of what has gaps": (lambda: functional.layer_norm(HEADS.transpose(1, 2), (64,)),
        ["torch_offsets", "torch_layer_norm"]),
    "softmax in registers": (lambda: X.softmax(-1), ["torch_softmax"]),
    "softmax of long rows": (lambda: tensor(64, 4096).softmax(-1), ["torch_softmax_cta"]),
    "sums of rows": (lambda: X.sum(-1), ["torch_sum"]),
    "sums of long rows": (lambda: tensor(64, 10_000).sum(-1), ["torch_sum"]),
    "sums of columns": (lambda: X.sum(0), ["torch_columns"]),
    "batch norm": (lambda: functional.batch_norm(IMAGE, *STATS), ["torch_exp", "torch_exp", "torch_batch_norm"]),
    "batch norm of channels side by side": (lambda: functional.batch_norm(LAST, *STATS),
        ["torch_exp", "torch_exp", "torch_transform_last"]),
    "group norm": (lambda: functional.group_norm(IMAGE, 16), ["torch_moments", "torch_scales", "torch_offsets"]),
    "batch norm of a batch": (lambda: functional.batch_norm(IMAGE, *STATS, training=True),
        ["torch_statistics", "torch_exp", "torch_batch_norm"]),
    "a copy": (lambda: X.clone(), ["memcpy"]),
    "padded by nothing": (lambda: torch.constant_pad_nd(X, (0, 0)), ["memcpy"]),
    "masked": (lambda: X.masked_fill(X > 0, 1.0), ["torch_vector", "memcpy", "torch_vector"]),
    "looked up in short rows": (lambda: functional.embedding(PLACES, tensor(64, 3)), ["torch_gather_elements"]),
    "the largest of a row": (lambda: X.topk(10), ["torch_topk", "torch_sort_warp"]),
    "sums of columns so far": (lambda: X.cumsum(0), ["torch_scan"]),
    "larger, channels side by side": (
        lambda: functional.interpolate(LAST, scale_factor=2, mode="bilinear"), ["torch_bilinear_last"]),
    "max pool": (lambda: functional.max_pool2d(IMAGE, 3), ["torch_max_pool"]),
    "average pool": (lambda: functional.avg_pool2d(IMAGE, 2), ["torch_avg_pool"]),
    "larger, nearest": (lambda: functional.interpolate(IMAGE, scale_factor=2), ["torch_offsets"]),
    "larger, bilinear": (lambda: functional.interpolate(IMAGE, scale_factor=2, mode="bilinear"), ["torch_bilinear"]),
    "larger, bicubic": (lambda: functional.interpolate(IMAGE, scale_factor=2, mode="bicubic"),
        ["torch_constant", "torch_bicubic"]),
    "the largest one of a row": (lambda: X.topk(1), ["torch_topk"]),
    "sums at places": (lambda: X.index_add(0, tensor(64, dtype=torch.int64), X), ["memcpy", "torch_index_add"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_runs(name: str) -> None:
    run, expected = CASES[name]
    assert words(run) == expected


def test_a_kernel_has_the_bytes_and_elements_of_its_operation() -> None:
    assert works(lambda: X + Y) == [MemoryWork("torch_vector", 2 * 2 * 64 * 512, 2 * 64 * 512, 32, 1024)]
    assert works(lambda: X.float()) == [MemoryWork("torch_cast", 2 * 64 * 512, 4 * 64 * 512, 32, 1024)]
    assert works(lambda: tensor(60, 100).softmax(-1)) == [
        MemoryWork("torch_softmax", 12_000, 12_000, 30, 256)  # two rows of a warp, each filled up to 128
    ]
    (*_, norm) = works(lambda: functional.batch_norm(IMAGE, *STATS))
    assert isinstance(norm, MemoryWork)
    assert (norm.rows, norm.width) == (8 * 96 * 16, 100)  # 512 threads a plane of 1,600 elements


def test_interpolation_of_four_times_the_positions_takes_four_times_the_steps() -> None:
    def steps(side: int) -> int:
        (work,) = works(lambda: functional.interpolate(tensor(1, 64, side, side), scale_factor=2, mode="bilinear"))
        assert isinstance(work, MemoryWork)
        return work.rows * work.width

    assert steps(2048) / steps(1024) == pytest.approx(4.0, rel=0.1)


def test_a_loop_has_the_instructions_of_its_dimensions_and_lines() -> None:
    """Dimensions that lie behind each other count as one; neighbours far apart take a line of memory each."""

    def instructions(run: Callable[[], Any]) -> int:
        (work,) = works(run)
        assert isinstance(work, MemoryWork)
        return int(work.what.partition(" ")[2])

    part, row = instructions(lambda: -HEADS[..., 32:]), instructions(lambda: X * tensor(512))
    assert part < row < instructions(lambda: IMAGE * tensor(96, 1, 1))
    assert row == instructions(lambda: HEADS * tensor(12, 64))
    assert instructions(lambda: torch.sigmoid(HEADS[..., 32:])) == part + 20
    near, far = (instructions(lambda k=k: tensor(8, k, 64).transpose(1, 2).contiguous()) for k in (64, 512))
    assert part + 40 < near < far == instructions(lambda: tensor(8, 2048, 64).transpose(1, 2).contiguous())
    assert instructions(lambda: functional.pixel_shuffle(IMAGE, 2)) < near


LAYOUT, FILLED = "cudnn_layout", ("memset", "cudnn_pad")  # zeros, then what there is
CONVOLUTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "window, channels first": (lambda: functional.conv2d(IMAGE, tensor(64, 96, 3, 3)),
        [LAYOUT, LAYOUT, "ConvolutionWork", LAYOUT]),
    "with bias": (lambda: functional.conv2d(IMAGE, tensor(64, 96, 3, 3), tensor(64)),
        [LAYOUT, LAYOUT, "ConvolutionWork", LAYOUT, "torch_bias"]),
    "window, channels last": (lambda: functional.conv2d(LAST, FILTERS_LAST, tensor(64)),
        ["ConvolutionWork", "torch_bias_last"]),
    "one operand has channels last": (lambda: functional.conv2d(IMAGE, FILTERS_LAST),
        ["torch_offsets", "ConvolutionWork"]),
    "pointwise filters have channels last": (lambda: functional.conv2d(IMAGE, POINTWISE_LAST),
        ["torch_offsets", "ConvolutionWork"]),
    "filters that fill no load": (lambda: functional.conv2d(IMAGE, tensor(60, 96, 3, 3)),
        [LAYOUT, "cudnn_transform", "ConvolutionWork", LAYOUT]),
    "two groups, one after the other": (lambda: functional.conv2d(IMAGE, tensor(96, 48, 3, 3), groups=2),
        [LAYOUT, LAYOUT, "ConvolutionWork", LAYOUT] * 2),
    "two groups of whole tiles": (lambda: functional.conv2d(tensor(4, 256, 24, 24), tensor(256, 128, 5, 5), groups=2),
        [LAYOUT, LAYOUT, "ConvolutionWork", LAYOUT]),
    "pointwise, channels first": (lambda: functional.conv2d(IMAGE, tensor(64, 96, 1, 1)), ["ConvolutionWork"]),
    "pointwise in steps": (lambda: functional.conv2d(IMAGE, tensor(64, 96, 1, 1), stride=2),
        [LAYOUT, "ConvolutionWork", LAYOUT]),
    "pointwise, an odd number of positions": (lambda: functional.conv2d(tensor(8, 96, 7, 7), tensor(64, 96, 1, 1)),
        ["ConvolutionWork"]),
    "many of them": (lambda: functional.conv2d(tensor(150, 640, 7, 7), tensor(640, 640, 1, 1)),
        [LAYOUT, "ConvolutionWork", LAYOUT]),
    "depthwise, channels first": (lambda: functional.conv2d(IMAGE, tensor(96, 1, 7, 7), tensor(96), groups=96),
        ["ConvolutionWork"]),
    "depthwise, channels last": (lambda: functional.conv2d(LAST, tensor(96, 1, 7, 7), tensor(96), groups=96),
        ["ConvolutionWork", "torch_bias_last"]),
    "first layer": (lambda: functional.conv2d(tensor(8, 3, 64, 64), tensor(64, 3, 7, 7)),
        ["memset", LAYOUT, "memset", LAYOUT, "ConvolutionWork", LAYOUT]),
    "first layer, channels last": (lambda: functional.conv2d(FEW_LAST, tensor(64, 3, 7, 7)),
        ["torch_offsets", *FILLED, *FILLED, "ConvolutionWork"]),
    "few channels that fill no load": (lambda: functional.conv2d(tensor(8, 26, 16, 16), tensor(64, 26, 3, 3)),
        ["ConvolutionWork"]),
    "small first layer": (lambda: functional.conv2d(tensor(8, 3, 64, 64), tensor(64, 3, 4, 4)), ["ConvolutionWork"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_what_runs_around_a_convolution(name: str) -> None:
    run, expected = CONVOLUTIONS[name]
    assert words(run) == expected


def test_a_pointwise_convolution_is_a_gemm_of_each_image() -> None:
    (work,) = works(lambda: functional.conv2d(IMAGE, tensor(64, 96, 1, 1)))
    assert isinstance(work, ConvolutionWork)
    assert work.problem.sizes == (8, 64, 96, 1600)


def test_torch_compile_lays_out_channels_last_itself() -> None:
    """Copies of its own go before, and the bias is an elementwise kernel after: cuDNN lays out nothing."""
    layer = torch.nn.Conv2d(96, 64, 3).to(BF16)
    eager, compiled = (predict_module(layer, IMAGE, "h200-sxm", fusion=fusion) for fusion in ("eager", "inductor"))
    memory = [one._work.what.partition(" ")[0] for one in compiled.operations if one.kind == "memory"]
    assert memory == ["inductor_map"] * 3
    assert [one._work.what for one in eager.operations if one.kind == "memory"][:2] == ["cudnn_layout"] * 2
    convolutions = [next(one for one in each.operations if one.kind == "convolution") for each in (eager, compiled)]
    assert convolutions[0].latency_us == convolutions[1].latency_us


class LayersOfConvNext(torch.nn.Module):
    """A depthwise convolution, then a norm of channels: two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(96, 96, 7, padding=3, groups=96), torch.nn.LayerNorm(96)

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_channels_stay_where_they_are(layout: str) -> None:
    """On a GPU a norm of channels leaves them side by side, and the next convolution does; "meta" says otherwise."""
    module = torch.nn.Sequential(LayersOfConvNext(), LayersOfConvNext()).to(BF16)
    found = predict_module(module, IMAGE if layout == "first" else LAST, "h200-sxm", fusion="eager")
    whats = [getattr(one._work, "what", "convolution").partition(" ")[0] for one in found.operations]
    first = ["convolution", "torch_offsets", "torch_layer_norm"]  # a norm of channels that lie apart copies them
    side_by_side = ["convolution", "torch_bias_last", "torch_layer_norm"]  # its bias is added by itself
    assert whats == (first if layout == "first" else side_by_side) + side_by_side
    assert [one._work.kernel.engine for one in found.operations if one.kind == "convolution"] == [
        "planes" if layout == "first" else "channels", "channels"
    ]  # fmt: skip


@pytest.mark.parametrize("norm", [torch.nn.RMSNorm, torch.nn.LayerNorm])
def test_gradients_of_a_norm_are_those_of_inputs_and_of_weights(norm: Any) -> None:
    """As torch 2.11 runs them on an H200: a CTA for each row, and one for 32 columns that goes over all rows."""
    layer = torch.nn.Sequential(torch.nn.Linear(2048, 2048), norm(2048)).to(BF16)
    x = torch.zeros(4, 1024, 2048, device="meta", dtype=BF16)
    operations = predict_module(layer, x, "h200-sxm", backward=True, fusion="eager").operations
    inputs, weights = (one._work for one in operations if one.phase == "backward" and "norm" in one.name)
    assert (inputs.what, inputs.rows, inputs.width) == ("torch_norm_gradient", 4096, 2048)
    assert inputs.read_bytes == 2 * inputs.write_bytes == 4 * x.numel()
    assert (weights.what, weights.rows) == ("torch_norm_weights", 2048)


# kernels and microseconds of gradients that a profiler showed on an H200 with torch 2.11, in drawn modules of seed 8
GRADIENTS = [
    (torch.nn.Conv2d(96, 96, 3, padding=1), (37, 96, 96, 96), FP16, ["tensor", "weights", "torch_sum_apart"], 557.5),
    (torch.nn.Conv2d(384, 384, 7, padding=3, groups=384), (37, 384, 24, 24), FP16,
     ["planes_inputs", "planes_weights", "torch_sum_apart"], 990.0),
    (torch.nn.Conv2d(48, 48, 1), (71, 48, 48, 48), FP32, ["fp32", "fp32_weights", "torch_sum_apart"], 243.1),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "shape", "dtype", "kernels", "measured_us"), GRADIENTS, ids=lambda value: str(value))
def test_gradients_of_a_convolution(
    layer: Any, shape: tuple[int, ...], dtype: Any, kernels: list[str], measured_us: float, monkeypatch: Any
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x = torch.zeros(shape, device="meta", dtype=dtype, requires_grad=True)
    prediction = predict_module(layer.to(dtype), x, "h200-sxm", backward=True, fusion="eager")
    gradients = [one for one in prediction.operations if one.phase == "backward"]
    names = [one._work.kernel.engine if hasattr(one._work, "kernel") else one._work.what for one in gradients]
    assert [name for name in names if "layout" not in name] == kernels
    assert sum(one.latency_us for one in gradients) == pytest.approx(measured_us, rel=0.3)


def test_gradients_of_a_loss_fill_zeros() -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(64, 8192, bias=False).to(BF16)

        def forward(self, x: Any, targets: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.head(x), targets)

    inputs = torch.zeros(512, 64, dtype=BF16), torch.zeros(512, dtype=torch.long)
    found = predict_module(Loss(), inputs, "h200-sxm", backward=True, fusion="eager").operations
    zeros, some = (one._work for one in found if one.name == "aten.nll_loss_backward")
    assert (zeros.what, zeros.write_bytes, some.what) == ("torch_constant", 2 * 512 * 8192, "torch_nll_loss")


def test_rms_norm_is_one_kernel_of_eager_mode() -> None:
    """On "meta" it comes apart; on a GPU it does so where types differ."""
    x = tensor(4096, 2048)
    norm = torch.nn.RMSNorm(2048).to(BF16)
    with torch.no_grad():
        (one,) = predict_module(norm, x, "h200-sxm", fusion="eager").operations
        assert one._work == MemoryWork("torch_rms_norm", 2 * (x.numel() + 2048), 2 * x.numel(), 4096, 2048)
        with pytest.warns(UserWarning, match="Mismatch dtype"):
            assert len(predict_module(norm.float(), x, "h200-sxm", fusion="eager").operations) > 1


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda: tensor(64, 9216).softmax(1), "torch_softmax_cta"),
        (lambda: tensor(64, 9224).softmax(1), "torch_softmax_long"),
        (lambda: torch.cat([tensor(64, 40), tensor(64, 40)], 1), "torch_vector 40"),
        (lambda: torch.cat([tensor(64, 48), tensor(64, 48)], 1), "torch_vector"),
        (lambda: tensor(16, 64).index_add_(0, tensor(16000, dtype=torch.long), tensor(16000, 64)),
         "torch_norm_weights"),
        (lambda: tensor(64, 64).index_add_(0, tensor(16000, dtype=torch.long), tensor(16000, 64)),
         "torch_index_add"),
    ],
)  # fmt: skip
def test_sizes_decide_between_kernels(run: Callable[[], Any], what: str) -> None:
    assert what in [work.what for work in works(run)]


def test_other_chips_have_one_kernel_for_an_operation() -> None:
    """No cuDNN changes layouts there."""
    layers = torch.nn.Sequential(torch.nn.Conv2d(96, 64, 3), torch.nn.BatchNorm2d(64)).to(BF16).eval()
    assert len(predict_module(layers, IMAGE, "sg2260", fusion="eager").operations) == 2
    assert len(predict_module(layers, IMAGE, "h200-sxm", fusion="eager").operations) == 8


def test_the_committed_table_is_what_is_made_of_the_timings(tmp_path: Path) -> None:
    """Coefficients are fitted on kernels as they are seen today."""
    from benchmarks.measure_torch_kernels import table

    measured = ROOT / "arch" / "measured" / "h200-sxm"
    shutil.copy(measured / "torch" / "kernels.csv", tmp_path)
    table(tmp_path)
    assert (tmp_path / "torch.csv").read_text() == (measured / "memory-bound" / "torch.csv").read_text()


def test_threads_of_a_sum_are_those_of_its_launch() -> None:
    """Warps and values of a thread, from grids and blocks that a profiler showed."""
    grids = {
        (tensor(17, 197, 576), 1): (77 * 4, 50),
        (tensor(380, 36, 448), 1): (333 * 4, 36),
        (tensor(19, 1984, 768), 1): (114 * 19 * 4, 27),
        (tensor(1536, 30522), 1): (1536 * 16, 60),
        (tensor(5, 1600, 384, dtype=FP32), 2): (500 * 16, 12),
    }
    for (x, dim), expected in grids.items():
        work, *_ = eager_mode.reduction_works(x, [dim], 0, 0)
        assert (work.rows, work.width // 32) == expected


def test_filters_of_a_single_channel_say_how_the_result_lies() -> None:
    """As cuDNN's `suggest_memory_format` goes by strides, which tell of a channel that stands alone."""
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, device="meta")
    x = torch.empty(2, 16, 8, 8, device="meta")
    for form in (torch.contiguous_format, torch.channels_last):
        weight = layer.weight.to(memory_format=form)
        assert eager_mode.has_channels_last(weight) == (form is torch.channels_last)
    assert not eager_mode.has_channels_last(x[:, :1].mean((2, 3), keepdim=True))
