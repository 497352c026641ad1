"""Begin and end of a drawn module: a stem and blocks in a row, and heads with their losses."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tools.drawn.common import Inputs, Plain, Plan, token_norm
from tools.drawn.maps import ConvNorm


class Net(nn.Module):
    """A stem that reads inputs, blocks, and a head that reads inputs too."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x = self.stem(inputs)
        for block in self.blocks:
            x = block(x, inputs)
        return self.head(x, inputs)


def repeated(plan: Plan, count: int, make: Callable[[], list[nn.Module]]) -> list[nn.Module]:
    """Return blocks of the same kind, as a stage of a real model has them: the choices are made again for each."""
    state, begin, blocks = plan.choices.getstate(), len(plan.text), []
    for number in range(count):
        plan.choices.setstate(state)
        blocks += make()
        if number == 0:
            end = len(plan.text)
    plan.text[begin:] = [f"{count}x[", *plan.text[begin:end], "]"]
    return blocks


class Reading(nn.Module):
    """A module of the input of some name."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name, self.module = name, module

    def forward(self, inputs: Inputs) -> torch.Tensor:
        return self.module(inputs[self.name])


class Loss(nn.Module):
    """A loss of logits [rows, classes] or of values, or what is chosen from them."""

    def __init__(self, plan: Plan, rows: int, classes: int) -> None:
        super().__init__()
        choices = plan.choices
        self.form = choices.pick(
            ("none", 5), ("cross_entropy", 3), ("softmax", 1), ("log_softmax", 0.7), ("topk", 0.7), ("argmax", 0.7),
            ("bce", 1), ("mse", 0.5), ("smooth_l1", 0.5), ("huber", 0.3), ("kl", 0.5), ("focal", 0.5), ("nll", 0.3),
            ("sort", 0.2 if classes <= 4096 else 0),
        )  # fmt: skip
        self.smoothing, self.upcasts = 0.1 if choices.chance(0.3) else 0.0, choices.chance(0.4)
        self.top = min(classes, choices.choice((1, 5, 10, 50)))
        if self.form in ("cross_entropy", "nll"):
            self.labels = plan.add_input("labels", (rows,), "ids", classes)
        elif self.form in ("bce", "mse", "smooth_l1", "huber", "kl", "focal"):
            self.labels = plan.add_input("targets", (rows, classes), "unit")
        plan.text.append(f"loss({self.form} {rows}x{classes})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.form == "none":
            return x
        x = x.reshape(-1, x.shape[-1])
        if self.upcasts:
            x = x.float()
        simple = {
            "softmax": lambda: x.softmax(-1), "log_softmax": lambda: x.log_softmax(-1), "argmax": lambda: x.argmax(-1),
            "topk": lambda: x.topk(self.top, -1).values, "sort": lambda: x.sort(-1).values,
        }  # fmt: skip
        if self.form in simple:
            return simple[self.form]()
        y = inputs[self.labels]
        if self.form == "cross_entropy":
            return F.cross_entropy(x, y, label_smoothing=self.smoothing)
        if self.form == "nll":
            return F.nll_loss(x.log_softmax(-1), y)
        y = y.to(x.dtype)
        if self.form == "focal":
            p, entropy = x.sigmoid(), F.binary_cross_entropy_with_logits(x, y, reduction="none")
            return (entropy * (1 - (p * y + (1 - p) * (1 - y))).pow(2)).mean(1).sum()
        if self.form == "kl":
            return F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")
        function = {
            "bce": F.binary_cross_entropy_with_logits, "mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss,
            "huber": F.huber_loss,
        }[self.form]  # fmt: skip
        return function(x, y)


class Classified(nn.Module):
    """A class of each picture or sequence."""

    def __init__(self, plan: Plan, width: int, dims: int) -> None:
        super().__init__()
        choices = plan.choices
        classes = choices.choice((2, 10, 100, 365, 1000, 1000, 21841))
        self.dims, self.pool = dims, choices.pick(("mean", 4), ("max", 1), ("first", 2 if dims == 1 else 0))
        self.norm = token_norm(choices, width) if choices.chance(0.5) else nn.Identity()
        if isinstance(self.norm, nn.Module) and self.norm.__class__.__name__ == "OfFirst":
            self.norm = nn.LayerNorm(width)
        self.pools_first = choices.chance(0.7)
        self.linear, self.loss = nn.Linear(width, classes), Loss(plan, plan.batch, classes)

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        if self.dims > 1:
            if self.pool == "max":
                return x.amax(tuple(range(2, 2 + self.dims)))
            pools = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
            return pools[self.dims - 1](x, 1).flatten(1) if self.pools_first else x.flatten(2).mean(-1)
        return x[:, 0] if self.pool == "first" else x.amax(1) if self.pool == "max" else x.mean(1)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.dims == 1 and not self.pools_first:
            return self.loss(self.linear(self._pooled(self.norm(x))), inputs)
        return self.loss(self.linear(self.norm(self._pooled(x))), inputs)


class Predicted(nn.Module):
    """Logits of each token."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        choices = plan.choices
        classes = choices.choice((1, 9, 128, 1024, 8192, 30522, 32000, 50257))
        self.norm, self.linear = token_norm(choices, width), nn.Linear(width, classes, bias=choices.chance(0.3))
        self.transform = Plain(nn.Sequential(nn.Linear(width, width), nn.GELU())) if choices.chance(0.2) else None
        self.loss, self.cap = Loss(plan, plan.batch * length, classes), choices.chance(0.05)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.transform is not None:
            x = self.transform(x, inputs)
        logits = self.linear(self.norm(x))
        return self.loss(30.0 * torch.tanh(logits / 30.0) if self.cap else logits, inputs)


class Segmented(nn.Module):
    """A class of each pixel, from maps that are made larger."""

    def __init__(self, plan: Plan, channels: int, size: int) -> None:
        super().__init__()
        choices = plan.choices
        classes = choices.choice((1, 3, 19, 21, 150))
        self.factor, self.mode = choices.choice((1, 2, 4)), choices.choice(("bilinear", "nearest", "bicubic"))
        self.last, self.form = nn.Conv2d(channels, classes, 1), choices.choice(("none", "loss", "argmax", "sigmoid"))
        large = size * self.factor
        if self.form == "loss":
            self.labels = plan.add_input("pixels", (plan.batch, large, large), "ids", classes)
        plan.text.append(f"segmented({channels}-{classes} x{self.factor} {self.mode} {self.form})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        y = self.last(x)
        if self.factor > 1:
            options = {} if self.mode == "nearest" else {"align_corners": False}
            y = F.interpolate(y, scale_factor=self.factor, mode=self.mode, **options)
        if self.form == "loss":
            return F.cross_entropy(y.float(), inputs[self.labels])
        return y.argmax(1) if self.form == "argmax" else y.sigmoid() if self.form == "sigmoid" else y


class Detected(nn.Module):
    """Boxes with the highest scores among all places of two sizes of maps."""

    def __init__(self, plan: Plan, channels: int, size: int) -> None:
        super().__init__()
        choices = plan.choices
        self.classes, self.top = choices.choice((1, 20, 80)), choices.choice((50, 100, 300))
        self.top = min(self.top, size * size)
        self.conv = ConvNorm(plan, channels, channels)
        self.scores, self.boxes = nn.Conv2d(channels, self.classes, 1), nn.Conv2d(channels, 4, 1)
        plan.text.append(f"detected({channels} {self.classes} top {self.top})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        y = self.conv(x)
        levels = [y, F.max_pool2d(y, 2, ceil_mode=True)]
        scores = torch.cat([self.scores(level).flatten(2).transpose(1, 2) for level in levels], 1).sigmoid()
        boxes = torch.cat([self.boxes(level).flatten(2).transpose(1, 2) for level in levels], 1)
        best, _ = scores.max(-1)
        values, chosen = best.topk(self.top, 1)
        picked = boxes.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 4))
        centre, size = picked.split(2, -1)
        corners = torch.cat((centre - size.exp() / 2, centre + size.exp() / 2), -1)
        return torch.cat((corners, values.unsqueeze(-1)), -1)
