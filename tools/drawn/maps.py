"""Blocks of maps [batch, channels, height, width]: convolutions of all kinds, pooling, interpolation, windows."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tools.drawn.common import Choices, Inputs, Plain, Plan, Sum, activation, divisor, map_norm
from tools.drawn.tokens import Attention, Mlp


def groups_of(choices: Choices, channels: int, depthwise: float = 0.3) -> int:
    """Return a drawn number of groups: one, few, many, or one for each channel."""
    return int(
        choices.pick(
            (1, 1 - depthwise), (channels, depthwise), (divisor(choices, channels, 2, 4, 8), 0.15),
            (max(1, channels // divisor(choices, channels, 8, 16, 24, 32, 64)), 0.2),
        )
    )  # fmt: skip


class ConvNorm(nn.Sequential):
    """A convolution, a norm and an activation, in one of the usual orders."""

    def __init__(
        self, plan: Plan, channels: int, out: int, window: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1,
        is_linear: bool = False,
    ) -> None:  # fmt: skip
        choices = plan.choices
        conv = nn.Conv2d(
            channels, out, window, stride, dilation * (window - 1) // 2, dilation, groups, bias=choices.chance(0.25)
        )
        act = nn.Identity() if is_linear else activation(choices)
        order = choices.pick(("conv norm act", 7), ("norm act conv", 1.5), ("conv act norm", 1))
        parts = {"conv": conv, "norm": map_norm(choices, channels if order.startswith("norm") else out), "act": act}
        super().__init__(*(parts[name] for name in order.split()))
        plan.text.append(f"conv({channels}-{out} {window} stride {stride} groups {groups} dilation {dilation})")


class Basic(nn.Sequential):
    """Two convolutions, dilated or in groups or not."""

    def __init__(self, plan: Plan, channels: int) -> None:
        window, groups = plan.choices.choice((3, 3, 3, 5)), groups_of(plan.choices, channels, 0.05)
        dilation = plan.choices.pick((1, 6), (2, 1), (4, 0.5))
        super().__init__(
            ConvNorm(plan, channels, channels, window, 1, groups, dilation),
            ConvNorm(plan, channels, channels, window, 1, groups, is_linear=True),
        )


class Squeeze(nn.Module):
    """Channels times a gate that is made of their means."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        hidden = max(4, channels // plan.choices.choice((4, 8, 16)))
        self.first, self.last = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.act, self.gate = activation(plan.choices), plan.choices.choice((nn.Sigmoid(), nn.Hardsigmoid()))
        self.pools = plan.choices.chance(0.5)
        plan.text.append(f"squeeze({channels}-{hidden})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = F.adaptive_avg_pool2d(x, 1) if self.pools else x.mean((2, 3), keepdim=True)
        return x * self.gate(self.last(self.act(self.first(mean))))


class Bottleneck(nn.Sequential):
    """Convolutions 1x1 to other channels, of a window in groups, and 1x1 back."""

    def __init__(self, plan: Plan, channels: int) -> None:
        choices = plan.choices
        is_inverted = choices.chance(0.45)
        inner = (
            channels * choices.choice((2, 3, 4, 6)) if is_inverted else max(8, channels // choices.choice((1, 2, 4)))
        )
        window = choices.pick((3, 5), (5, 2), (7, 1))
        groups = inner if is_inverted and choices.chance(0.85) else groups_of(choices, inner, 0.05)
        squeeze = [Squeeze(plan, inner)] if choices.chance(0.3) else []
        super().__init__(
            ConvNorm(plan, channels, inner, 1), ConvNorm(plan, inner, inner, window, 1, groups), *squeeze,
            ConvNorm(plan, inner, channels, 1, is_linear=True),
        )  # fmt: skip


class LargeWindow(nn.Module):
    """A depthwise convolution of a large window, then an MLP of channels that are last."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        choices = plan.choices
        window = choices.choice((5, 7, 7, 9, 13))
        self.conv = nn.Conv2d(channels, channels, window, padding=window // 2, groups=channels)
        self.norm, self.mlp = nn.LayerNorm(channels), Mlp(plan, channels, channels * choices.choice((2, 3, 4)))
        plan.text.append(f"large_window({channels} {window})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)), {}).permute(0, 3, 1, 2)


class Dense(nn.Module):
    """Layers that read the results of all before them, side by side."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        growth, count = plan.choices.choice((16, 24, 32, 48)), plan.choices.randint(2, 6)
        self.layers = nn.ModuleList(
            nn.Sequential(
                ConvNorm(plan, channels + number * growth, 4 * growth, 1), ConvNorm(plan, 4 * growth, growth, 3)
            )
            for number in range(count)
        )
        self.last = nn.Conv2d(channels + count * growth, channels, 1)
        plan.text.append(f"dense({channels} {count}x{growth})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = [x]
        for layer in self.layers:
            results.append(layer(torch.cat(results, 1)))
        return self.last(torch.cat(results, 1))


class Branches(nn.Module):
    """Branches of other windows and of pooling, side by side."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        choices = plan.choices
        part = max(8, channels // 4 // 8 * 8)
        pool = choices.choice((nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)))
        long = choices.choice((3, 5, 7))
        self.branches = nn.ModuleList(
            [
                ConvNorm(plan, channels, part, 1),
                nn.Sequential(ConvNorm(plan, channels, part, 1), ConvNorm(plan, part, part, choices.choice((3, 5)))),
                nn.Sequential(
                    nn.Conv2d(channels, part, (1, long), padding=(0, long // 2)), activation(choices),
                    nn.Conv2d(part, part, (long, 1), padding=(long // 2, 0)),
                ),
                nn.Sequential(pool, ConvNorm(plan, channels, part, 1)),
            ]
        )  # fmt: skip
        self.last = nn.Conv2d(4 * part, channels, 1)
        plan.text.append(f"branches({channels})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([branch(x) for branch in self.branches], 1))


class Shuffle(nn.Module):
    """Half of the channels through convolutions, then all of them shuffled."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.inner = nn.Sequential(
            ConvNorm(plan, half, half, 1), ConvNorm(plan, half, half, 3, 1, half), ConvNorm(plan, half, half, 1)
        )
        self.calls = plan.choices.chance(0.3)
        plan.text.append(f"shuffle({channels})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat((a, self.inner(b)), 1)
        if self.calls:
            return F.channel_shuffle(y, 2)
        return y.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class CrossStage(nn.Module):
    """A split of channels whose second part goes through blocks, all results side by side."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        half, count = channels // 2, plan.choices.randint(1, 3)
        self.first = ConvNorm(plan, channels, 2 * half, 1)
        self.blocks = nn.ModuleList(ConvNorm(plan, half, half, 3) for _ in range(count))
        self.last, self.pools = ConvNorm(plan, half * (2 + count), channels, 1), plan.choices.chance(0.25)
        plan.text.append(f"cross_stage({channels} {count})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            results.append(F.max_pool2d(results[-1], 5, 1, 2) if self.pools else block(results[-1]))
        return self.last(torch.cat(results, 1))


class SpatialAttention(nn.Module):
    """Maps times a gate of their largest and mean channel."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)
        plan.text.append(f"spatial_attention({channels})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)
        return x * torch.sigmoid(self.conv(both))


class PoolMixer(nn.Module):
    """The mean of a window less the centre, then an MLP of convolutions."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        self.window, hidden = plan.choices.choice((3, 5, 7)), channels * plan.choices.choice((2, 4))
        self.norm, self.first = map_norm(plan.choices, channels), nn.Conv2d(channels, hidden, 1)
        self.act, self.last = activation(plan.choices), nn.Conv2d(hidden, channels, 1)
        plan.text.append(f"pool_mixer({channels} {self.window})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = F.avg_pool2d(y, self.window, 1, self.window // 2, count_include_pad=False) - y
        return self.last(self.act(self.first(x + y)))


class Pyramid(nn.Module):
    """Means of regions in several sizes, brought back to the size of the map."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        part = max(8, channels // 4)
        self.sizes, self.mode = (1, 2, 3, 6)[: plan.choices.randint(2, 4)], plan.choices.choice(("bilinear", "nearest"))
        self.convs = nn.ModuleList(nn.Conv2d(channels, part, 1) for _ in self.sizes)
        self.last = ConvNorm(plan, channels + part * len(self.sizes), channels, 3)
        plan.text.append(f"pyramid({channels} {self.sizes} {self.mode})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = [x]
        for size, conv in zip(self.sizes, self.convs, strict=True):
            options = {"align_corners": False} if self.mode == "bilinear" else {}
            results.append(F.interpolate(conv(F.adaptive_avg_pool2d(x, size)), x.shape[2:], mode=self.mode, **options))
        return self.last(torch.cat(results, 1))


class DownUp(nn.Module):
    """A convolution at half the size, between one in steps of two and a transposed one or an interpolation."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        choices = plan.choices
        self.down = choices.choice((nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Conv2d(channels, channels, 3, 2, 1)))
        self.conv = ConvNorm(plan, channels, channels)
        self.up = choices.choice(("transposed2", "transposed4", "nearest", "bilinear", "bicubic", "shuffle"))
        if self.up.startswith("transposed"):
            window = int(self.up[-1])
            groups = divisor(choices, channels, 1, 1, 4, channels)
            self.back = nn.ConvTranspose2d(channels, channels, window, 2, window // 2 - 1, groups=groups)
        elif self.up == "shuffle":
            self.back = nn.Sequential(nn.Conv2d(channels, 4 * channels, 1), nn.PixelShuffle(2))
        else:
            options = {} if self.up == "nearest" else {"align_corners": choices.chance(0.3)}
            self.back = nn.Upsample(scale_factor=2, mode=self.up, **options)
        plan.text.append(f"down_up({channels} {self.up})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.back(self.conv(self.down(x)))
        return F.pad(y, (0, x.shape[3] - y.shape[3], 0, x.shape[2] - y.shape[2]))


class Timed(nn.Module):
    """A residual block of a diffusion model, to which a condition is added."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        choices = plan.choices
        self.name = plan.add_input("condition", (plan.batch, choices.choice((128, 256, 512))))
        self.scales = choices.chance(0.4)
        norm = divisor(choices, channels, 8, 16, 32)
        self.norm1, self.norm2 = nn.GroupNorm(norm, channels), nn.GroupNorm(norm, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.linear = nn.Linear(plan.inputs[self.name].shape[1], channels * (1 + self.scales))
        plan.text.append(f"timed({channels})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        condition = self.linear(F.silu(inputs[self.name]))[:, :, None, None]
        if self.scales:
            scale, shift = condition.chunk(2, 1)
            y = self.norm2(y) * (1 + scale) + shift
        else:
            y = self.norm2(y + condition)
        return self.conv2(F.silu(y))


class MapAttention(nn.Module):
    """Attention of all places of a map."""

    def __init__(self, plan: Plan, channels: int, size: int) -> None:
        super().__init__()
        self.norm, self.attention = map_norm(plan.choices, channels), Attention(plan, size * size, channels, False)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        y = self.attention(self.norm(x).flatten(2).transpose(1, 2), inputs)
        return y.transpose(1, 2).reshape(x.shape)


class Windows(nn.Module):
    """Attention within windows of a map, which may be shifted, with a bias by place; then an MLP."""

    def __init__(self, plan: Plan, channels: int, size: int) -> None:
        super().__init__()
        choices = plan.choices
        self.window = divisor(choices, size, 4, 7, 8, 14, 16)
        self.shift = self.window // 2 if choices.chance(0.5) and self.window < size else 0
        self.heads, self.is_grid = max(1, channels // 32), choices.chance(0.2)
        if channels % self.heads:
            self.heads = 1
        self.norm, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.uses_kernel, self.mlp = choices.chance(0.5), Mlp(plan, channels)
        self.table = nn.Parameter(torch.zeros((2 * self.window - 1) ** 2, self.heads))
        places = torch.arange(self.window)
        rows, columns = (grid.reshape(-1) for grid in torch.meshgrid(places, places, indexing="ij"))
        index = (rows[:, None] - rows + self.window - 1) * (2 * self.window - 1)
        self.register_buffer("index", (index + columns[:, None] - columns + self.window - 1).view(-1))
        plan.text.append(f"windows({channels} {size} by {self.window}{' shifted' * bool(self.shift)})")

    def _mask(self, size: int, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(size, device=x.device)
        part = (places >= size - self.window).long() + (places >= size - self.shift).long()
        number = self._split((part[:, None] * 3 + part)[None, :, :, None])[:, :, 0]
        return torch.where(number[:, None] == number[:, :, None], 0.0, -100.0).to(x.dtype)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, _, channels = x.shape
        count, window = height // self.window, self.window
        if self.is_grid:
            parts = x.view(batch, window, count, window, count, channels).permute(0, 2, 4, 1, 3, 5)
        else:
            parts = x.view(batch, count, window, count, window, channels).permute(0, 1, 3, 2, 4, 5)
        return parts.reshape(-1, window * window, channels)

    def _join(self, y: torch.Tensor, size: int) -> torch.Tensor:
        count, window = size // self.window, self.window
        parts = y.view(-1, count, count, window, window, y.shape[-1])
        order = (0, 3, 1, 4, 2, 5) if self.is_grid else (0, 1, 3, 2, 4, 5)
        return parts.permute(order).reshape(-1, size, size, y.shape[-1])

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        tokens, size = x.permute(0, 2, 3, 1), x.shape[2]
        y = self.norm(tokens)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self._split(y)
        length = y.shape[1]
        q, k, v = self.qkv(y).view(-1, length, 3, self.heads, x.shape[1] // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].view(length, length, -1).permute(2, 0, 1).unsqueeze(0)
        if self.shift:
            mask = self._mask(size, x)
            bias = (bias + mask.unsqueeze(1)).repeat(x.shape[0], 1, 1, 1)
        if self.uses_kernel:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            y = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        y = self._join(self.out(y.transpose(1, 2).flatten(2)), size)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        tokens = tokens + y
        return (tokens + self.mlp(self.norm2(tokens), inputs)).permute(0, 3, 1, 2)


class Sampled(nn.Module):
    """Maps read at places that a convolution says."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        self.offset, self.last = nn.Conv2d(channels, 2, 3, padding=1), nn.Conv2d(channels, channels, 1)
        plan.text.append(f"sampled({channels})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = (torch.linspace(-1, 1, size, device=x.device, dtype=x.dtype) for size in x.shape[2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
        grid = grid + 0.1 * torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        return self.last(F.grid_sample(x, grid, align_corners=False))


class Patches(nn.Module):
    """A product of neighbours, unfolded, with weights that a convolution makes (involution)."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        self.groups, self.window = divisor(plan.choices, channels, 4, 8, 16), plan.choices.choice((3, 5))
        self.weights = nn.Conv2d(channels, self.groups * self.window**2, 1)
        plan.text.append(f"patches({channels} {self.window})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        count = self.window**2
        weights = self.weights(x).view(batch, self.groups, 1, count, height, width)
        parts = F.unfold(x, self.window, padding=self.window // 2)
        parts = parts.view(batch, self.groups, channels // self.groups, count, height, width)
        return (weights * parts).sum(3).view(batch, channels, height, width)


class Gated(nn.Module):
    """Two halves of a depthwise convolution, one the gate of the other (restoration networks)."""

    def __init__(self, plan: Plan, channels: int) -> None:
        super().__init__()
        self.norm, self.first = map_norm(plan.choices, channels), nn.Conv2d(channels, 2 * channels, 1)
        self.conv = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.gate, self.last = plan.choices.choice((None, nn.GELU(), nn.Sigmoid())), nn.Conv2d(channels, channels, 1)
        plan.text.append(f"gated({channels})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.conv(self.first(self.norm(x))).chunk(2, 1)
        return self.last(a * (b if self.gate is None else self.gate(b)))


def map_block(plan: Plan, channels: int, size: int) -> nn.Module:
    """Return a drawn block of maps, with its residual if it has one."""
    choices = plan.choices

    def plain(make: type[nn.Module]) -> nn.Module:
        block = Plain(make(plan, channels))
        return Sum(choices, block, channels, -3) if choices.chance(0.85) else block

    is_small = size * size <= 2048
    make = choices.pick(
        (lambda: plain(Basic), 5), (lambda: plain(Bottleneck), 7), (lambda: plain(LargeWindow), 2),
        (lambda: plain(Dense), 1.6), (lambda: plain(Branches), 1.2), (lambda: plain(Shuffle), 1),
        (lambda: plain(CrossStage), 1.2), (lambda: plain(SpatialAttention), 0.5), (lambda: plain(PoolMixer), 1),
        (lambda: plain(Pyramid), 0.6), (lambda: plain(DownUp), 1.6), (lambda: plain(Sampled), 0.4),
        (lambda: plain(Patches), 0.4), (lambda: plain(Gated), 1),
        (lambda: Sum(choices, Timed(plan, channels), channels, -3), 1.5),
        (lambda: Sum(choices, MapAttention(plan, channels, size), channels, -3), 1.5 if is_small else 0),
        (lambda: Windows(plan, channels, size), 2 if any(size % n == 0 for n in (4, 7)) else 0),
    )  # fmt: skip
    block: nn.Module = make()
    return block


def down(plan: Plan, channels: int, out: int) -> nn.Module:
    """Return what halves the size of a map, between two stages."""
    choices = plan.choices
    make = choices.pick(
        (lambda: ConvNorm(plan, channels, out, 3, 2), 4), (lambda: nn.Conv2d(channels, out, 2, 2), 2),
        (lambda: nn.Sequential(nn.MaxPool2d(2), ConvNorm(plan, channels, out, 1)), 1.5),
        (lambda: nn.Sequential(ConvNorm(plan, channels, out, 1), nn.AvgPool2d(2)), 1),
        (lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4 * channels, out, 1)), 0.6),
        (lambda: ConvNorm(plan, channels, out, 3, 2, math.gcd(channels, out)), 0.7),
        (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(channels, out, 1, bias=False)), 0.7),
    )  # fmt: skip
    module: nn.Module = make()
    return module
