"""Operations of torch as problems: sizes, types, groups, scales, FLOP as torch counts them."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gemm_eval import AttentionProblem, GEMMEvaluator, GemmProblem  # noqa: E402
from gemm_eval.torch import PredictedOperation, predict_module  # noqa: E402
from gemm_eval.torch.graph import ConvolutionWork, EfficientAttentionWork, UnpricedWork, work_flop  # noqa: E402
from gemm_eval.torch.price import ModulePrices  # noqa: E402
from gemm_eval.transformer import AttentionWork, GemmWork  # noqa: E402
from tests.cases import case  # noqa: E402

EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)
BF16 = torch.bfloat16


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def operations(function: Any, *args: Any, **options: Any) -> tuple[PredictedOperation, ...]:
    return predict_module(Call(function), args, EVALUATOR, **options).operations


def works(function: Any, *args: Any, **options: Any) -> list[Any]:
    """What the matrix operations of a function are."""
    found = [one._work for one in operations(function, *args, **options)]
    return [
        work for work in found if isinstance(work, GemmWork | ConvolutionWork | AttentionWork | EfficientAttentionWork)
    ]


def meta(*shape: int, dtype: Any = BF16) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta")


def gemm(G: int, M: int, K: int, N: int, dtype: str = "bf16", out: str | None = None, **types: Any) -> GemmWork:
    return GemmWork(GemmProblem(G, M, K, N, dtype, dtype, out or dtype, **types))  # type: ignore[arg-type]


def test_matrix_products() -> None:
    a, b, batch, other = meta(48, 64), meta(64, 80), meta(3, 48, 64), meta(3, 64, 80)
    functional = nn.functional
    for what, found, expected in (
        ("mm", works(torch.mm, a, b), gemm(1, 48, 64, 80, layout="nn")),
        ("addmm", works(torch.addmm, meta(80), a, b), replace(gemm(1, 48, 64, 80, layout="nn"), has_bias=True)),
        ("matmul", works(torch.matmul, batch, b), gemm(1, 144, 64, 80, layout="nn")),
        ("linear", works(functional.linear, batch, meta(80, 64), meta(80)),
         replace(gemm(1, 144, 64, 80), has_bias=True)),
        ("bmm", works(torch.bmm, batch, other), gemm(3, 48, 64, 80, layout="nn")),
        ("baddbmm", works(torch.baddbmm, meta(80), batch, other), gemm(3, 48, 64, 80, layout="nn")),
        ("einsum", works(lambda x, y: torch.einsum("bik,bkj->bij", x, y), batch, other),
         gemm(3, 48, 64, 80, layout="nn")),
        ("transposed", works(lambda x, y: x.t() @ y, meta(64, 48), b), gemm(1, 48, 64, 80, layout="nt")),
        ("both transposed", works(lambda x, y: x.t() @ y.t(), meta(64, 48), meta(80, 64)),
         gemm(1, 48, 64, 80, layout="tt")),
        ("mv", works(torch.mv, a, meta(64)), gemm(1, 48, 64, 1)),
        ("one matrix for all", works(lambda x, y: x @ y.expand(3, -1, -1), batch, b),
         gemm(1, 144, 64, 80, layout="nn")),
        ("fp16", works(torch.mm, meta(48, 64, dtype=torch.half), meta(64, 80, dtype=torch.half)),
         gemm(1, 48, 64, 80, "fp16", layout="nn")),
    ):  # fmt: skip
        with case(what):
            assert found == [expected]


@pytest.mark.parametrize(
    ("function", "bias", "sizes", "expected"),
    [
        ("addmm", (48, 80), ((48, 64), (64, 80)), ["memory", "gemm"]),
        ("addmm", (80,), ((48, 64), (64, 80)), ["gemm"]),
        ("addmm", (1,), ((48, 64), (64, 1)), ["memory", "gemm"]),  # cuBLASLt takes no single column
        ("baddbmm", (1, 1, 1), ((3, 48, 64), (3, 64, 80)), ["memory", "gemm"]),
    ],
)
def test_what_is_added_is_copied_before_but_for_a_vector_of_columns(
    function: str, bias: Any, sizes: Any, expected: list[str]
) -> None:
    found = operations(getattr(torch, function), meta(*bias), *(meta(*each) for each in sizes))
    assert [one.kind for one in found] == expected
    scaled = operations(lambda *x: getattr(torch, function)(*x, beta=0), meta(*bias), *(meta(*each) for each in sizes))
    assert [one.kind for one in scaled] == ["gemm"]


def test_distances_are_a_product_between_sums_of_squares() -> None:
    points = meta(3, 64, 16, dtype=torch.float32)
    found = operations(torch.cdist, points, points, fusion="eager")
    squares = ["pow", "sum", "ones_like"]
    names = [*squares, *squares, "mul", "cat", "cat", "bmm", "clamp_min", "sqrt"]
    assert [one.name for one in found] == [f"aten.{name}" for name in names]
    assert works(torch.cdist, points, points) == [gemm(3, 64, 18, 64, "fp32")]


def test_a_bias_takes_time_of_16_bits_alone() -> None:
    """More with more elements of an SM up to a limit, and with rows of no whole lines; off 16 bytes K is not cut."""

    def us(M: int, K: int, N: int, dtype: str = "bf16") -> tuple[float, float]:
        plain = gemm(1, M, K, N, dtype)
        prices = ModulePrices(EVALUATOR, None)
        return prices[plain].latency_us, prices[replace(plain, has_bias=True)].latency_us

    few, many, odd, wide = (us(M, 512, N) for M, N in ((64, 512), (8192, 512), (8192, 504), (1 << 20, 512)))
    assert few[0] + 0.3 < few[1] < few[0] + 0.6
    assert few[1] - few[0] < many[1] - many[0] < odd[1] - odd[0]
    assert many[1] - many[0] < wide[1] - wide[0] < 4 * (many[1] - many[0])
    assert us(64, 512, 512, "fp32")[0] == us(64, 512, 512, "fp32")[1]
    assert us(16, 1280, 10)[1] > us(16, 640, 10)[1] + 3


def test_empty_products_are_nothing() -> None:
    assert operations(torch.mm, meta(0, 64), meta(64, 80)) == ()


def test_fp32_is_what_torch_is_set_to() -> None:
    a = meta(48, 64, dtype=torch.float32)
    assert works(torch.mm, a, a.t()) == [gemm(1, 48, 64, 48, "fp32")]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert works(torch.mm, a, a.t()) == [gemm(1, 48, 64, 48, "tf32", "fp32")]
    finally:
        torch.set_float32_matmul_precision(before)


def test_types_that_no_model_has_are_listed() -> None:
    (one,) = operations(torch.mm, meta(8, 16, dtype=torch.float64), meta(16, 4, dtype=torch.float64))
    assert (one.kind, one.latency_us, one.flop) == ("unpriced", 0.0, 2 * 8 * 16 * 4)
    assert "float64" in one.detail


def test_operations_that_no_model_has_are_listed_with_their_bytes() -> None:
    (one,) = operations(torch.fft.fft, meta(64, 128, dtype=torch.complex64))
    assert (one.kind, one.name, one.num_bytes) == ("unpriced", "aten._fft_c2c", 2 * 64 * 128 * 8)
    assert isinstance(one._work, UnpricedWork)


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, **how: Any) -> Any:
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=BF16, **how)


def test_scaled_products() -> None:
    a, b = meta(256, 512, dtype=torch.float8_e4m3fn), meta(384, 512, dtype=torch.float8_e4m3fn).t()
    one, rows, columns = (
        meta(1, dtype=torch.float32),
        meta(256, 1, dtype=torch.float32),
        meta(1, 384, dtype=torch.float32),
    )
    full = gemm(1, 256, 512, 384, "fp8", "bf16", accumulate="full")
    assert works(scaled_mm, a, b, one, one) == works(scaled_mm, a, b, rows, columns) == [full]
    fast = works(lambda *x: scaled_mm(*x, use_fast_accum=True), a, b, one, one)
    assert fast == [gemm(1, 256, 512, 384, "fp8", "bf16")]


def test_integer_products() -> None:
    a, b = meta(64, 512, dtype=torch.int8), meta(512, 384, dtype=torch.int8)
    assert works(torch._int_mm, a, b) == [gemm(1, 64, 512, 384, "int8", "int32")]


def grouped_mm(a: Any, b: Any, offsets: Any) -> Any:
    return torch._grouped_mm(a, b, offs=offsets)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch of 2.8 and later has grouped products")
def test_grouped_products_deal_their_rows_evenly() -> None:
    offsets = torch.zeros(8, dtype=torch.int32)
    (found,) = works(grouped_mm, meta(130, 256), meta(8, 256, 512), offsets)
    assert found.problem == GemmProblem.grouped((17, 17, *[16] * 6), 256, 512, input_dtype="bf16")
    assert "evenly" in found.note
    (found,) = works(grouped_mm, meta(256, 128), meta(128, 512), offsets)  # gradients of weights
    assert found.problem == gemm(8, 256, 16, 512).problem


CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...], tuple[int, int, int, int]]] = {
    "1d": (nn.Conv1d(16, 32, 3, padding=1), (2, 16, 100), (1, 200, 48, 32)),
    "2d, stride": (nn.Conv2d(16, 32, 3, stride=2, padding=1), (2, 16, 28, 28), (1, 2 * 14 * 14, 144, 32)),
    "2d, dilation": (nn.Conv2d(16, 32, 3, dilation=2), (2, 16, 28, 28), (1, 2 * 24 * 24, 144, 32)),
    "3d": (nn.Conv3d(8, 16, (1, 3, 3)), (2, 8, 4, 10, 10), (1, 2 * 4 * 8 * 8, 72, 16)),
    "groups": (nn.Conv2d(32, 64, 3, padding=1, groups=4), (2, 32, 14, 14), (4, 392, 72, 16)),
    "depthwise": (nn.Conv2d(32, 32, 7, padding=3, groups=32), (2, 32, 14, 14), (32, 392, 49, 1)),
    "transposed": (nn.ConvTranspose2d(32, 16, 2, stride=2), (2, 32, 14, 14), (1, 392, 32, 64)),
    "transposed, groups": (nn.ConvTranspose2d(32, 16, 4, stride=2, groups=4), (2, 32, 14, 14), (4, 392, 8, 64)),
    "no batch": (nn.Conv2d(16, 32, 1), (16, 28, 28), (1, 784, 16, 32)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_an_implicit_gemm(name: str) -> None:
    layer, shape, sizes = CONVOLUTIONS[name]
    layer = layer.to(BF16)
    prediction = predict_module(layer, meta(*shape), EVALUATOR)
    (work,) = [one._work for one in prediction.operations if one.flop]
    assert work.problem.sizes == sizes
    out = layer.to("meta")(meta(*shape))
    assert work.write_bytes == 2 * out.numel()
    assert work.read_bytes == 2 * (meta(*shape).numel() + layer.weight.numel())
    assert work.is_depthwise == (name == "depthwise")
    with FlopCounterMode(display=False) as counter:
        layer(meta(*shape))
    assert counter.get_total_flops() == prediction.unmasked_flop


def test_gradients_of_a_convolution_are_two_gemms_of_its_size() -> None:
    layer = nn.Conv2d(16, 32, 3, padding=1).to(BF16)
    x = meta(2, 16, 14, 14).requires_grad_()
    prediction = predict_module(layer, x, EVALUATOR, backward=True)
    found = [one._work.problem.sizes for one in prediction.operations if one.phase == "backward" and one.flop]
    assert found == [(1, 392, 32, 144), (1, 144, 392, 32)]
    prediction = predict_module(layer, x.detach(), EVALUATOR, backward=True)
    found = [one._work.problem.sizes for one in prediction.operations if one.phase == "backward" and one.flop]
    assert found == [(1, 144, 392, 32)]  # of the weights alone: nobody asked for that of x
    stacked = nn.Sequential(nn.Conv2d(16, 16, 1), layer).to(BF16)
    prediction = predict_module(stacked, x, EVALUATOR, backward=True)
    found = [one._work.problem.sizes for one in prediction.operations if one.path == "1" and one.flop]
    assert found == [(1, 392, 144, 32), (1, 392, 32, 144), (1, 144, 392, 32)]


def test_channels_are_filled_up_to_what_is_loaded_at_once() -> None:
    for layer, padded in (
        (nn.Conv2d(3, 64, 7, stride=2, padding=3), (392, 64)),
        (nn.Conv2d(20, 30, 3, padding=1), (216, 32)),
        (nn.Conv2d(64, 64, 3, padding=1), None),
    ):
        with case(layer):
            x = meta(2, layer.in_channels, 56, 56)
            (work,) = [one._work for one in predict_module(layer.to(BF16), x, EVALUATOR).operations if one.flop]
            assert (None if work.padded is None else work.padded.sizes[2:]) == padded


def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return works(lambda *qkv: nn.functional.scaled_dot_product_attention(*qkv, **options), q, k, v)


def attention(*sizes: int, **options: Any) -> AttentionWork:
    return AttentionWork(AttentionProblem(*sizes, **options))


def test_attention_is_one_operation() -> None:
    q, k = meta(2, 8, 128, 64), meta(2, 8, 256, 64)
    assert attend(q, k, k) == [attention(2, 128, 256, 8, 8, 64, causal=False)]
    assert attend(q, q, q, is_causal=True) == [attention(2, 128, 128, 8, 8, 64)]
    assert attend(q, meta(2, 8, 256, 64), meta(2, 8, 256, 32)) == [
        attention(2, 128, 256, 8, 8, 64, v_head_dim=32, causal=False)
    ]
    assert attend(k, q, q) == [attention(2, 256, 128, 8, 8, 64, causal=False)]  # more queries than keys
    grouped = meta(2, 2, 128, 64)
    assert attend(q, grouped, grouped, is_causal=True, enable_gqa=True) == [attention(2, 128, 128, 8, 2, 64)]


def test_a_causal_mask_of_fewer_queries_than_keys_never_reads_the_rest() -> None:
    q, k = meta(2, 8, 128, 64), meta(2, 8, 256, 64)
    assert attend(q, k, k, is_causal=True) == [attention(2, 128, 128, 8, 8, 64)]
    (found,) = attend(k, q, q, is_causal=True)
    assert not found.problem.causal
    assert "more queries than keys" in found.note


def test_a_mask_saves_nothing_and_is_read() -> None:
    q = meta(2, 8, 128, 64)
    (found,) = attend(q, q, q, attn_mask=meta(2, 1, 128, 128, dtype=torch.bool))
    assert (found.problem.causal, found.mask_bytes) == (False, 2 * 128 * 128 * 2)  # written out in 16 bits
    (same,) = attend(q, q, q, attn_mask=meta(2, 1, 1, 128).expand(2, 8, 128, 128))
    assert (same.mask_bytes, same.is_mask_of_keys) == (2 * 128 * 2, True)
    prices = ModulePrices(EVALUATOR, None)
    plain, keys, whole = (prices[replace(found, mask_bytes=size, is_mask_of_keys=size < 1000)].latency_us
                          for size in (0, 512, 2 * 128 * 128 * 2))  # fmt: skip
    assert plain < keys < whole < 1.5 * plain


def test_a_mask_that_is_trained_runs_the_memory_efficient_kernel() -> None:
    q, bias = meta(2, 8, 128, 64), meta(1, 8, 128, 128).requires_grad_()
    with torch.no_grad():
        assert [(type(work), work.is_half) for work in attend(q, q, q, attn_mask=bias)] == [
            (EfficientAttentionWork, True)
        ]


def test_attention_is_fused_where_heads_and_masks_lie_along_their_rows() -> None:
    q = meta(2, 8, 128, 64)
    whole = attend(q, q, q, attn_mask=meta(2, 1, 128, 128))
    assert [type(work) for work in whole] == [AttentionWork]
    expanded = attend(q, q, q, attn_mask=meta(2, 1, 128, 1).expand(2, 1, 128, 128))
    across = attend(q, q, meta(2, 8, 64, 128).transpose(-1, -2))
    shared = meta(2, 2, 128, 64, dtype=torch.float32)  # fp32 has no fused kernel of heads that share keys
    queries = meta(2, 8, 128, 64, dtype=torch.float32)
    odd = meta(2, 8, 128, 36)  # FlashAttention fills up heads; with a mask there is no FlashAttention
    assert [type(work) for work in attend(odd, odd, odd)] == [AttentionWork]
    masked, grouped = attend(odd, odd, odd, attn_mask=meta(128, 128)), attend(queries, shared, shared, enable_gqa=True)
    assert [type(work) for work in masked] == [type(work) for work in grouped] == [GemmWork] * 2
    assert [type(work) for work in attend(queries, queries, queries)] == [EfficientAttentionWork]
    for found in (expanded, across):
        assert [type(work) for work in found] == [GemmWork] * 2  # scores, and their products with V, in fp32
        assert {work.problem.input_dtype for work in found} == {"fp32"}
        assert sum(work_flop(work)[0] for work in found) == work_flop(whole[0])[1]


def test_attention_within_a_module_of_torch_is_seen_too() -> None:
    layer = nn.MultiheadAttention(256, 8, batch_first=True).to(BF16)
    x = meta(2, 64, 256)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x, x, x, need_weights=False)[0]

    found = [one._work for one in predict_module(Attention(), x, EVALUATOR).operations]
    assert attention(2, 64, 64, 8, 8, 32, causal=False) in found
    assert nn.functional.scaled_dot_product_attention.__module__ != __name__


def test_flex_attention_is_causal_where_its_mask_is() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q = meta(1, 4, 1024, 64)
    mask = flex.create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 1024, 1024, device="cpu")
    code = flex.flex_attention.__code__
    (found,) = works(lambda *qkv: flex.flex_attention(*qkv, block_mask=mask), q, q, q)
    assert (found.problem.causal, found.problem.num_heads) == (True, 4)
    assert "56% of blocks" in found.note
    (found,) = works(flex.flex_attention, q, q, q)
    assert not found.problem.causal
    assert flex.flex_attention.__code__ is code


def test_the_backward_pass_of_attention_is_that_of_one_operation() -> None:
    layer = nn.Linear(64, 64).to(BF16)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(self.layer(x), x, x, is_causal=True)

    found = predict_module(Attention(), meta(2, 8, 128, 64), EVALUATOR, backward=True).operations
    problem = AttentionProblem(2, 128, 128, 8, 8, 64)
    assert [(one.phase, one._work) for one in found if one.kind == "attention"] == [
        ("forward", AttentionWork(problem)), ("backward", AttentionWork(replace(problem, backward=True)))
    ]  # fmt: skip
