"""Calls of torch whose kernels `measure_torch_kernels.py` times; made on any device, so that they can be traced too.

None has the sizes of a module of measure_modules.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

BF16, FP32 = torch.bfloat16, torch.float32
Made = tuple[Callable[[], Any], torch.Tensor]
"""What runs the call, and the input that a kernel before it writes."""


class Case(NamedTuple):
    """A call.

    Attributes:
        group: kind of kernel.
        text: operation, types and sizes; unique.
        make: makes its tensors on a device.
    """

    group: str
    text: str
    make: Callable[[str], Made]


CASES: list[Case] = []
_random = random.Random(7)


def _add(group: str, text: str, make: Callable[[str], Made]) -> None:
    if all(case.text != text for case in CASES):
        CASES.append(Case(group, text, make))


def _tensor(device: str, shape: tuple[int, ...], dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, device=device, dtype=dtype) if device == "meta" else torch.randn(
        shape, device=device, dtype=dtype
    )  # fmt: skip


def _word(dtype: torch.dtype) -> str:
    return {BF16: "bf16", FP32: "fp32"}[dtype]


def _of(group: str, name: str, call: Callable[..., Any], *shapes: tuple[int, ...], dtypes: Any = BF16) -> None:
    """Return a call on contiguous tensors of these shapes."""
    types = dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(shapes)
    text = f"{name} " + " ".join(f"{_word(d)}{list(s)}" for d, s in zip(types, shapes, strict=True)).replace(", ", ",")

    def make(device: str) -> Made:
        tensors = [_tensor(device, shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
        return lambda: call(*tensors), tensors[0]

    _add(group, text, make)


def _sizes(low: float, high: float, count: int, unit: int = 8) -> list[int]:
    """Numbers evenly spread in their logarithms, a little off."""
    step = (high / low) ** (1 / (count - 1))
    return [unit * max(1, round(low * step**i * _random.uniform(0.85, 1.15) / unit)) for i in range(count)]


# ---- elementwise -----------------------------------------------------------------------------------------------------

for n in _sizes(3e4, 1.2e8, 9, 1024):
    _of("vector", "relu", torch.relu, (n,))
    _of("vector", "gelu", functional.gelu, (n,))
    _of("vector", "silu", functional.silu, (n,))
    _of("vector", "mul", torch.mul, (n,), (n,))
    _of("vector", "add_", lambda x, y: x.add_(y), (n,), (n,))
for n in _sizes(3e4, 6e7, 6, 1024):
    _of("vector", "tanh", torch.tanh, (n,))
    _of("vector", "pow3", lambda x: x.pow(3.0), (n,))
    _of("vector", "mul_scalar", lambda x: x * 0.5, (n,))
    _of("vector", "pow2", lambda x: x.pow(2), (n,), dtypes=FP32)
    _of("vector", "mul", torch.mul, (n,), (n,), dtypes=FP32)
    _of("vector", "relu_", lambda x: x.relu_(), (n,))
    _of("cast", "to_fp32", lambda x: x.float(), (n,))
    _of("cast", "to_bf16", lambda x: x.to(BF16), (n,), dtypes=FP32)
    _of("cast", "mul_mixed", torch.mul, (n,), (n,), dtypes=(BF16, FP32))

# ---- elementwise with offsets: broadcasts and strides ----------------------------------------------------------------

for rows in _sizes(60, 60_000, 5):
    for width in (192, 768, 1536, 3584):
        if rows * width > 1.5e8:
            continue
        _of("offsets", "mul_row", torch.mul, (rows, width), (width,))
        _of("offsets", "mul_column", torch.mul, (rows, width), (rows, 1))
for rows in _sizes(60, 30_000, 4):
    for width in (320, 2048, 5120):
        _of("offsets", "mul_column", torch.mul, (rows, width), (rows, 1), dtypes=FP32)
        _of("offsets", "add_row", torch.add, (rows, width), (width,))
for images, channels, side in ((8, 96, 40), (16, 160, 24), (24, 48, 112), (40, 320, 12), (20, 640, 20)):
    _of("offsets", "mul_channels", torch.mul, (images, channels, side, side), (channels, 1, 1))
    _of("offsets", "add_image", torch.add, (images, channels, side, side), (1, channels, side, side))
_HEADS = (
    (1, 12, 300, 64),
    (2, 20, 1500, 64),
    (4, 8, 2304, 128),
    (1, 40, 5000, 128),
    (12, 6, 640, 32),
    (6, 24, 900, 96),
)
for batch, heads, length, head in _HEADS:
    shape = (batch, length, heads, head)
    _of("offsets", "copy_heads", lambda x: x.transpose(1, 2).contiguous(), shape)
    _of("offsets", "copy_transposed", lambda x: x.transpose(2, 3).contiguous(), shape)
    _of("offsets", "neg_half", lambda x: -x[..., x.shape[-1] // 2 :], shape)
    _of("offsets", "add_strided", lambda x, y: x.transpose(1, 2) + y, shape, (batch, heads, length, head))
    _of("offsets", "mul_angles", lambda x, y: x.transpose(1, 2) * y, shape, (batch, 1, length, head))
    _of("offsets", "div_norm", torch.div, shape, (batch, length, heads, 1))
    _of("offsets", "add_mask", torch.add, (batch, heads, 256, 256), (1, heads, 256, 256))
for rows, width in ((300, 1024), (5000, 768), (9000, 2304), (20_000, 3072)):
    _of("offsets", "copy_third", lambda x: x.chunk(3, -1)[1].contiguous(), (rows, 3 * width))
    _of("offsets", "copy_columns", lambda x: x.t().contiguous(), (rows, width))
for images, side, channels, window in ((8, 64, 96, 8), (4, 32, 384, 4), (24, 48, 192, 12), (32, 64, 160, 8)):
    parts = side // window

    def windows(x: Any, p: int = parts, w: int = window) -> Any:
        """Windows of an image, one after the other."""
        return x.view(x.shape[0], p, w, p, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, x.shape[-1])

    _of("offsets", f"windows{window}", windows, (images, side, side, channels))
    _of("roll", "roll2", lambda x: torch.roll(x, (2, 2), (1, 2)), (images, side, side, channels))
    _of("pad", "pad2", lambda x: functional.pad(x, (0, 0, 0, 2, 0, 2)), (images, side, side, channels))
    _of("offsets", "to_last", lambda x: x.permute(0, 3, 1, 2).contiguous(), (images, side, side, channels))
    _of("offsets", "from_last", lambda x: x.permute(0, 2, 3, 1).contiguous(), (images, channels, side, side))

# ---- put together, taken out -----------------------------------------------------------------------------------------

for batch, heads, length, head in _HEADS:
    half = (batch, heads, length, head // 2)
    _of("cat", "cat_last", lambda x, y: torch.cat((x, y), -1), half, half)
    _of("cat", "cat_halves", lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1),
        (batch, heads, length, head))  # fmt: skip
    _of("cat", "cat_length", lambda x, y: torch.cat((x, y), 2), (batch, heads, length, head), (batch, heads, 16, head))
    _of("cat", "cat_fp32", lambda x, y: torch.cat((x, y), -1), (batch, length, head // 2), (batch, length, head // 2),
        dtypes=FP32)  # fmt: skip
for rows, width in ((200, 768), (3000, 2048), (10_000, 1280), (12_000, 5120)):

    def lookup(device: str, rows: int = rows, width: int = width) -> Made:
        """Rows of a table."""
        table = _tensor(device, (30_000, width))
        places = torch.arange(rows, device=device) * 7 % 30_000
        out = _tensor(device, (64,))
        return lambda: functional.embedding(places, table), out

    _add("gather", f"embedding bf16[{rows},{width}]", lookup)

# ---- sums, norms -----------------------------------------------------------------------------------------------------

for rows in (400, 5000, 60_000, 300_000):
    for width in (32, 64, 192, 448, 1152, 3584, 8192):
        if not 1e5 <= rows * width <= 1.3e8:
            continue
        _of("layer_norm", "layer_norm", lambda x, w, b: functional.layer_norm(x, w.shape, w, b), (rows, width),
            (width,), (width,))  # fmt: skip
        _of("softmax", "softmax", lambda x: x.softmax(-1), (rows, width))
        _of("reduce", "norm", lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True), (rows, width))
        _of("reduce", "mean", lambda x: x.mean(-1, keepdim=True), (rows, width), dtypes=FP32)
        if width in (192, 1152, 3584):
            _of("rms_norm", "rms_norm", lambda x, w: functional.rms_norm(x, w.shape, w), (rows, width), (width,))
            _of("reduce", "amax", lambda x: x.amax(-1), (rows, width))
            _of("softmax", "softmax", lambda x: x.softmax(-1), (rows, width), dtypes=FP32)
for images, channels, side in ((8, 96, 40), (16, 160, 24), (24, 320, 14), (40, 768, 7), (48, 80, 56), (12, 64, 112)):
    shape = (images, channels, side, side)
    _of("pool", "mean_image", lambda x: x.mean((2, 3)), shape)
    _of("reduce", "sum_columns", lambda x: x.flatten(1).sum(0), shape)
    _of("pool", "max_pool3", lambda x: functional.max_pool2d(x, 3, 2, 1), shape)
    _of("pool", "avg_pool2", lambda x: functional.avg_pool2d(x, 2), shape)
    _of("group_norm", "group_norm", lambda x, w, b: functional.group_norm(x, 16, w, b), shape, (channels,), (channels,))
    _of("batch_norm", "batch_norm", lambda x, m, v, w, b: functional.batch_norm(x, m, v.abs(), w, b), shape,
        *((channels,),) * 4)  # fmt: skip
    _of("upsample", "nearest2", lambda x: functional.interpolate(x, scale_factor=2), shape)
    _of("upsample", "bilinear2", lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), shape)
for images, channels, side in ((16, 256, 28), (32, 96, 48), (32, 512, 10)):

    def norm_last(device: str, shape: tuple[int, ...] = (images, channels, side, side)) -> Made:
        """Batch norm of images whose channels lie side by side."""
        x = _tensor(device, shape).contiguous(memory_format=torch.channels_last)
        m, v, w, b = (_tensor(device, shape[1:2]) for _ in range(4))
        return lambda: functional.batch_norm(x, m, v, w, b), x

    _add("batch_norm", f"batch_norm_last bf16[{images},{channels},{side},{side}]", norm_last)

# ---- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(
    shape: tuple[int, int, int, int], filters: int, window: int, stride: int = 1, groups: int = 1, bias: bool = False,
    padding: int | None = None,
) -> None:  # fmt: skip
    pad = (window - 1) // 2 if padding is None else padding
    for layout in ("nchw", "nhwc"):

        def make(device: str, layout: str = layout) -> Made:
            """Its tensors in one layout."""
            form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
            x = _tensor(device, shape).contiguous(memory_format=form)
            weight = _tensor(device, (filters, shape[1] // groups, window, window)).contiguous(memory_format=form)
            b = _tensor(device, (filters,)) if bias else None
            return lambda: functional.conv2d(x, weight, b, stride, pad, 1, groups), x

        text = f"conv2d {layout} bf16{list(shape)} {filters} filters {window}x{window} stride {stride} pad {pad}"
        text += f" groups {groups}{' bias' if bias else ''}"
        _add("convolution", text.replace(", ", ","), make)


for images, side in ((8, 64), (24, 40), (40, 20), (48, 10), (12, 52), (20, 26), (36, 13), (64, 18)):
    for channels, filters in ((96, 192), (320, 320), (640, 160), (128, 1024)):
        if images * side * side * max(channels, filters) > 5e7:
            continue
        _convolution((images, channels, side, side), filters, 1)
    for channels, filters in ((64, 96), (192, 192), (320, 640)):
        if images * side * side * max(channels, filters) > 4e7:
            continue
        _convolution((images, channels, side, side), filters, 3)
        _convolution((images, channels, side, side), filters, 3, 2)
for images, side, window, stride, filters in (
    (16, 192, 7, 2, 48), (24, 256, 7, 2, 64), (20, 160, 3, 2, 32), (16, 192, 4, 4, 96), (40, 256, 4, 4, 192),
    (16, 192, 16, 16, 768), (24, 256, 16, 16, 1280), (8, 384, 14, 14, 1024), (12, 128, 5, 1, 64),
):  # fmt: skip
    _convolution((images, 3, side, side), filters, window, stride, bias=window != 7,
                 padding=0 if stride == window else None)  # fmt: skip
for images, channels, side, window in (
    (16, 96, 48, 7), (24, 192, 24, 7), (24, 384, 12, 7), (40, 768, 6, 7), (16, 144, 56, 3), (32, 576, 18, 3),
    (32, 240, 30, 5), (64, 960, 9, 5),
):  # fmt: skip
    _convolution((images, channels, side, side), channels, window, groups=channels, bias=True)
for images, channels, side, groups in ((16, 256, 40, 32), (24, 512, 20, 32), (32, 384, 14, 8)):
    _convolution((images, channels, side, side), channels, 3, groups=groups)
for images, channels, side in ((16, 96, 48), (24, 192, 24), (24, 384, 12)):
    _convolution((images, channels, side, side), 2 * channels, 2, 2, bias=True, padding=0)
for images, channels, length in ((4, 80, 3000), (12, 512, 1500)):
    _of("convolution", "conv1d_3", lambda x, w: functional.conv1d(x, w, None, 1, 1), (images, channels, length),
        (768, channels, 3))  # fmt: skip
for images, channels, side in ((8, 192, 32), (16, 128, 48)):
    _of("convolution", "transposed2", lambda x, w: functional.conv_transpose2d(x, w, None, 2),
        (images, channels, side, side), (channels, channels // 2, 2, 2))  # fmt: skip

# ---- batched products of windows, attention with a mask --------------------------------------------------------------

for batch, m, k, n in (
    (800, 49, 32, 49), (2400, 49, 49, 32), (3000, 64, 32, 64), (500, 144, 32, 144), (384, 77, 64, 77),
    (96, 256, 64, 256), (200, 16, 64, 512), (1536, 100, 48, 100),
):  # fmt: skip
    _of("bmm", "bmm", torch.bmm, (batch, m, k), (batch, k, n))
    _of("bmm", "bmm_t", lambda x, y: torch.bmm(x, y.transpose(1, 2)), (batch, m, k), (batch, n, k))


def _masked(batch: int, heads: int, kv_heads: int, length: int, head: int, kind: str) -> None:
    def make(device: str) -> Made:
        """Return queries, keys and values of tokens side by side."""
        q = _tensor(device, (batch, length, heads, head)).transpose(1, 2)
        k, v = (_tensor(device, (batch, length, kv_heads, head)).transpose(1, 2) for _ in range(2))
        mask = None
        if kind == "bool":
            mask = torch.ones(batch, 1, length, length, device=device, dtype=torch.bool).tril()
        if kind == "bias":
            mask = _tensor(device, (1, heads, length, length))
        if kind == "broadcast":
            mask = torch.ones(1, 1, length, length, device=device, dtype=torch.bool).tril().expand(batch, 1, -1, -1)
        gqa = {"enable_gqa": True} if heads != kv_heads else {}
        return lambda: functional.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal", **gqa), q

    _add("attention", f"sdpa {kind} bf16[{batch},{heads}/{kv_heads},{length},{head}]", make)


for sizes in ((1, 16, 16, 1500, 128), (4, 12, 12, 640, 64), (8, 8, 2, 1024, 128), (2, 20, 20, 200, 64)):
    for kind in ("none", "causal", "bool", "bias", "broadcast"):
        _masked(*sizes, kind)

# ---- what torch.compile makes of several operations ------------------------------------------------------------------

COMPILED: list[Case] = []
"""Likewise, to be compiled for their sizes."""


def _compiled(name: str, call: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    text = f"{name} " + " ".join(f"bf16{list(shape)}" for shape in shapes).replace(", ", ",")

    def make(device: str) -> Made:
        tensors = [_tensor(device, shape) for shape in shapes]
        function = call
        if device != "meta":
            torch.compiler.reset()
            function = torch.compile(call, dynamic=False)
        return lambda: function(*tensors), tensors[0]

    COMPILED.append(Case("compiled", text, make))


def _rms(x: Any, weight: Any) -> Any:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _add_rms(x: Any, residual: Any, weight: Any) -> Any:
    total = x + residual
    return total, _rms(total, weight)


def _add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
    total = x + residual
    return total, functional.layer_norm(total, weight.shape, weight, bias)


def _silu_mul(x: Any, y: Any) -> Any:
    return functional.silu(x) * y


def _gelu(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    x = x.transpose(1, 2)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def _normalized(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
    return functional.batch_norm(x, mean, var.abs(), weight, bias)


def _normalized_relu(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
    return functional.relu(_normalized(x, mean, var, weight, bias))


def _add_normalized_relu(x: Any, residual: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
    return functional.relu(_normalized(x, mean, var, weight, bias) + residual)


for rows, width in ((48, 3584), (700, 1536), (3000, 5120), (14_000, 768), (20_000, 2048)):
    _compiled("rms_norm", _rms, (rows, width), (width,))
    _compiled("add_rms_norm", _add_rms, (rows, width), (rows, width), (width,))
    _compiled("add_layer_norm", _add_layer_norm, (rows, width), (rows, width), (width,), (width,))
    _compiled("silu_mul", _silu_mul, (rows, 3 * width), (rows, 3 * width))
    _compiled("gelu", _gelu, (rows, 4 * width))
for batch, heads, length, head in _HEADS[:4]:
    _compiled("rotary", _rotary, (batch, length, heads, head), (batch, 1, length, head), (batch, 1, length, head))
    _compiled("softmax", lambda x: x.softmax(-1), (batch, heads, length, min(length, 1024)))
for images, channels, side in ((8, 96, 40), (24, 320, 14), (48, 80, 56)):
    shape = (images, channels, side, side)
    _compiled("batch_norm_relu", _normalized_relu, shape, *((channels,),) * 4)
    _compiled("add_batch_norm_relu", _add_normalized_relu, shape, shape, *((channels,),) * 4)
    _compiled("mean_image", lambda x: x.mean((2, 3)), shape)
