"""Random choices, inputs, activations and norms that all drawn modules share."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Inputs = dict[str, torch.Tensor]


class Choices(random.Random):
    """Random choices, the same for the same seed on every machine."""

    def pick(self, *weighted: tuple[Any, float]) -> Any:
        """Return a value of (value, weight) pairs."""
        return self.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def size(self, low: float, high: float, multiple: int = 1) -> int:
        """Return a multiple of `multiple`, log-uniform between two limits."""
        return max(1, round(low * float((high / low) ** self.random()) / multiple)) * multiple


class Input(NamedTuple):
    """An input of `forward`.

    `values` is "normal", "ids" (integers below `high`), "mask" (mostly True), "unit" (floats from 0 to 1) or "fp32"
    (normal, whatever the type of the module).
    """

    shape: tuple[int, ...]
    values: str = "normal"
    high: int = 0

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a random tensor on torch's default device."""
        if self.values == "ids":
            return torch.randint(0, self.high, self.shape)
        if self.values == "mask":
            mask = torch.rand(self.shape) > 0.1
            mask[..., 0] = True  # no row of a softmax is empty
            return mask
        values = torch.rand(self.shape) if self.values == "unit" else torch.randn(self.shape)
        return values if self.values == "fp32" else values.to(dtype)


@dataclass
class Plan:
    """A module while it is drawn: its choices, type, inputs by name, and its parts in words."""

    choices: Choices
    dtype: torch.dtype
    batch: int
    inputs: dict[str, Input] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def add_input(self, name: str, shape: Sequence[int], values: str = "normal", high: int = 0) -> str:
        """Add an input unless another part did; return its name, with a number where shapes differ."""
        new, full = Input(tuple(shape), values, high), name
        while self.inputs.setdefault(full, new) != new:
            full = f"{name}{int(full.removeprefix(name) or 1) + 1}"
        return full


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of `x`."""
        return self.function(x)


def activation(choices: Choices) -> nn.Module:
    """Return a drawn activation."""
    make = choices.pick(
        (lambda: nn.ReLU(inplace=choices.chance(0.6)), 5), (nn.GELU, 4), (lambda: nn.GELU("tanh"), 2), (nn.SiLU, 5),
        (nn.Hardswish, 1), (nn.ReLU6, 1), (lambda: nn.LeakyReLU(0.1), 1), (nn.Mish, 0.5), (nn.ELU, 0.5), (nn.Tanh, 0.5),
        (lambda: Function(lambda x: F.relu(x).square()), 0.5), (nn.Softplus, 0.3), (nn.Hardsigmoid, 0.3),
        (lambda: Function(lambda x: x * torch.sigmoid(1.702 * x)), 0.7),
        (lambda: Function(lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))), 0.7),
    )  # fmt: skip
    module: nn.Module = make()
    return module


class UpcastRms(nn.Module):
    """RMS norm in fp32, operation by operation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` over the root of its mean square."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Transposed(nn.Module):
    """A norm of channels that are first, between two transposes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of `x`, channels first or last as they were."""
        return self.inner(x.movedim(1, -1) if x.dim() > 3 else x.transpose(1, -1)).movedim(-1, 1)


class OfFirst(nn.Module):
    """A norm for channels first, of tokens whose channels are last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of `x`."""
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class ChannelsFirstNorm(nn.Module):
    """A layer norm of channels that are first, operation by operation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of `x` over its channels."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        shape = [-1] + [1] * (x.dim() - 2)
        return self.weight.view(shape) * ((x - mean) / torch.sqrt(variance + 1e-6)) + self.bias.view(shape)


class ResponseNorm(nn.Module):
    """A global response norm: channels over the mean of their norms in space."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of maps `x`."""
        size = x.norm(p=2, dim=(2, 3), keepdim=True)
        scale = size / (size.mean(1, keepdim=True) + 1e-6)
        return x + self.weight.view(1, -1, 1, 1) * (x * scale) + self.bias.view(1, -1, 1, 1)


def divisor(choices: Choices, number: int, *wanted: int) -> int:
    """Return one of `wanted` that divides a number; 1: none does."""
    return choices.choice([value for value in wanted if number % value == 0] or [1])


def token_norm(choices: Choices, width: int) -> nn.Module:
    """Return a drawn norm of tokens."""
    make = choices.pick(
        (lambda: nn.LayerNorm(width), 6), (lambda: nn.RMSNorm(width), 3), (lambda: UpcastRms(width), 3),
        (lambda: nn.LayerNorm(width, elementwise_affine=False), 1), (lambda: OfFirst(nn.BatchNorm1d(width)), 0.4),
        (lambda: OfFirst(nn.GroupNorm(divisor(choices, width, 1, 8, 32), width)), 0.4),
        (lambda: Function(lambda x: F.normalize(x, dim=-1)), 0.3),
    )  # fmt: skip
    module: nn.Module = make()
    return module


def map_norm(choices: Choices, channels: int, dims: int = 2) -> nn.Module:
    """Return a drawn norm of maps with so many dimensions in space."""
    batch_norm, instance_norm = (
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1],
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1],
    )
    make = choices.pick(
        (lambda: batch_norm(channels), 8),
        (lambda: nn.GroupNorm(divisor(choices, channels, 1, 4, 8, 16, 32), channels), 3),
        (lambda: Transposed(nn.LayerNorm(channels)), 1.5), (lambda: ChannelsFirstNorm(channels), 0.7),
        (lambda: instance_norm(channels, affine=choices.chance(0.5)), 0.6),
        (lambda: ResponseNorm(channels) if dims == 2 else nn.Identity(), 0.4), (nn.Identity, 0.5),
    )  # fmt: skip
    module: nn.Module = make()
    return module


class Sum(nn.Module):
    """A residual: `x`, plus what a block makes of it, which may be scaled."""

    def __init__(self, choices: Choices, block: nn.Module, channels: int, channel_dim: int = -1) -> None:
        super().__init__()
        self.block = block
        self.shape = [-1] + [1] * (-1 - channel_dim)
        self.scale = nn.Parameter(torch.full((channels,), 0.1)) if choices.chance(0.15) else None
        self.swaps = choices.chance(0.3)
        self.drop = nn.Dropout(0.1) if choices.chance(0.2) else nn.Identity()

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return the sum."""
        y = self.drop(self.block(x, inputs))
        if self.scale is not None:
            y = y * self.scale.view(self.shape)
        return y + x if self.swaps else x + y


class Plain(nn.Module):
    """A module of one argument as a block, which is given inputs too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return what the module makes of `x`."""
        return self.module(x)
