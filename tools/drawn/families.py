"""Whole modules: stems, stages of repeated blocks, heads and losses, as families of models have them."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tools.drawn.common import Inputs, Plain, Plan, Sum, activation, divisor, map_norm, token_norm
from tools.drawn.heads import Classified, Detected, Loss, Net, Predicted, Reading, Segmented, repeated
from tools.drawn.maps import ConvNorm, down, map_block
from tools.drawn.tokens import Mixed, Mlp, token_blocks


def map_stages(plan: Plan, channels: int, size: int, stages: int, depth: int) -> tuple[list[nn.Module], int, int]:
    """Return stages of blocks with what halves the size between them; channels and size after."""
    blocks: list[nn.Module] = []
    growth = plan.choices.choice((1.5, 2, 2))
    for stage in range(stages):
        if stage:
            out = int(channels * growth) // 8 * 8
            blocks.append(Plain(down(plan, channels, out)))
            channels, size = out, (size + 1) // 2
        for _ in range(plan.choices.randint(1, 2)):
            count = plan.choices.randint(1, depth)
            blocks += repeated(plan, count, lambda c=channels, s=size: [map_block(plan, c, s)])  # type: ignore[misc]
    return blocks, channels, size


def image(plan: Plan, sizes: Sequence[int]) -> tuple[str, int]:
    """Add a picture to the inputs; return its name and size."""
    size = plan.choices.choice(sizes)
    return plan.add_input("image", (plan.batch, plan.choices.pick((3, 8), (1, 1), (4, 1)), size, size)), size


def image_stem(plan: Plan, name: str, channels: int, factor: int) -> nn.Module:
    """Return what makes maps of a picture, smaller by a factor."""
    choices, depth = plan.choices, plan.inputs[name].shape[1]
    forms: list[tuple[Callable[[], nn.Module], float]] = [(lambda: nn.Conv2d(depth, channels, factor, factor), 2)]
    if factor == 1:
        forms = [(lambda: nn.Conv2d(depth, channels, 3, padding=1), 1)]
    if factor == 2:
        forms.append((lambda: ConvNorm(plan, depth, channels, 3, 2), 2))
    if factor == 4:
        half = max(8, channels // 2)
        forms += [
            (lambda: nn.Sequential(nn.Conv2d(depth, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels),
                                   nn.ReLU(True), nn.MaxPool2d(3, 2, 1)), 3),
            (lambda: nn.Sequential(ConvNorm(plan, depth, half, 3, 2), ConvNorm(plan, half, channels, 3, 2)), 2),
        ]  # fmt: skip
    return Reading(name, choices.pick(*forms)())


def vision(plan: Plan) -> nn.Module:
    """Draw a convolutional network of some stages."""
    choices = plan.choices
    name, size = image(plan, (64, 96, 128, 160, 192, 224, 224, 256, 320, 384))
    channels, factor = choices.size(24, 160, 8 if choices.chance(0.92) else 1), choices.pick((4, 5), (2, 2), (1, 0.6))
    channels += channels % 2
    stem = image_stem(plan, name, channels, factor)
    blocks, channels, size = map_stages(
        plan, channels, -(-size // factor), choices.randint(1, 4), choices.choice((2, 3, 4))
    )
    head: nn.Module = choices.pick(
        (lambda: Classified(plan, channels, 2), 5), (lambda: Segmented(plan, channels, size), 2),
        (lambda: Detected(plan, channels, size), 1.5), (lambda: Plain(nn.Identity()), 1),
    )()  # fmt: skip
    return Net(stem, blocks, head)


class UNet(nn.Module):
    """Stages down and up again, each of which also reads the maps of its size from the way down."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        name, size = image(plan, (32, 48, 64, 96, 128, 192, 256))
        channels, depth = choices.size(32, 192, 32), choices.randint(1, 3)
        self.stem = image_stem(plan, name, channels, 1)
        self.downs, self.ups, self.joins = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.rows, widths = nn.ModuleList(), [channels]
        for _ in range(depth):
            self.rows.append(map_block(plan, channels, size))
            out = min(2 * channels, 512)
            self.downs.append(down(plan, channels, out))
            channels, size = out, (size + 1) // 2
            widths.append(channels)
        self.middle = nn.ModuleList(repeated(plan, choices.randint(1, 3), lambda: [map_block(plan, channels, size)]))
        up = choices.choice(("transposed", "nearest", "bilinear"))
        self.adds, self.back = choices.chance(0.25), nn.ModuleList()
        for level in reversed(range(depth)):
            out = widths[level]
            size *= 2
            if up == "transposed":
                self.ups.append(nn.ConvTranspose2d(channels, out, 2, 2))
            else:
                self.ups.append(
                    nn.Sequential(nn.Upsample(scale_factor=2, mode=up), nn.Conv2d(channels, out, 3, padding=1))
                )
            self.joins.append(nn.Identity() if self.adds else nn.Conv2d(2 * out, out, 1))
            self.back.append(map_block(plan, out, size))
            channels = out
        self.head: nn.Module = choices.choice(
            (lambda: Segmented(plan, channels, size), lambda: Plain(nn.Conv2d(channels, 4, 3, padding=1)))
        )()
        plan.text.append(f"unet({depth} {up}{' adds' * self.adds})")

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(inputs), []
        for row, smaller in zip(self.rows, self.downs, strict=True):
            x = row(x, inputs)
            kept.append(x)
            x = smaller(x)
        for block in self.middle:
            x = block(x, inputs)
        for larger, join, row in zip(self.ups, self.joins, self.back, strict=True):
            x, other = larger(x), kept.pop()
            x = row(x + other if self.adds else join(torch.cat((x, other), 1)), inputs)
        return self.head(x, inputs)


class Embedded(nn.Module):
    """Tokens from ids, with places and kinds, normed or not."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        choices = plan.choices
        vocabulary = choices.choice((256, 1000, 8192, 30522, 32000, 50257))
        self.name, self.table = (
            plan.add_input("ids", (plan.batch, length), "ids", vocabulary),
            nn.Embedding(vocabulary, width),
        )
        self.places = choices.pick(("none", 3), ("learned", 3), ("computed", 1.5))
        if self.places == "learned":
            self.place_table = nn.Embedding(length, width)
        self.kinds = None
        if choices.chance(0.25):
            self.kinds, self.kind_table = (
                plan.add_input("kinds", (plan.batch, length), "ids", 2),
                nn.Embedding(2, width),
            )
        self.norm, self.scales = (
            token_norm(choices, width) if choices.chance(0.35) else nn.Identity(),
            choices.chance(0.15),
        )
        plan.text.append(f"embedded({vocabulary} {length}x{width} {self.places})")

    def forward(self, inputs: Inputs) -> torch.Tensor:
        ids = inputs[self.name]
        x = self.table(ids)
        width = x.shape[-1]
        if self.scales:
            x = x * math.sqrt(width)
        places = torch.arange(ids.shape[1], device=ids.device)
        if self.places == "learned":
            x = x + self.place_table(places)
        elif self.places == "computed":
            rates = torch.exp(torch.arange(0, width, 2, device=ids.device) * (-math.log(10000.0) / width))
            angles = places[:, None] * rates
            x = x + torch.cat((angles.sin(), angles.cos()), -1)[:, :width].to(x.dtype)
        if self.kinds is not None:
            x = x + self.kind_table(inputs[self.kinds])
        return self.norm(x)


class PatchTokens(nn.Module):
    """Tokens from patches of a picture, with places and perhaps a token for the class."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        choices, patch = plan.choices, plan.choices.choice((8, 14, 16, 16, 32))
        name, size = image(plan, (112, 224, 224, 224, 336, 448))
        size = size // patch * patch
        plan.inputs[name] = plan.inputs[name]._replace(shape=(*plan.inputs[name].shape[:2], size, size))
        self.name, self.conv = name, nn.Conv2d(plan.inputs[name].shape[1], width, patch, patch)
        self.length = (size // patch) ** 2
        self.first = nn.Parameter(torch.zeros(1, 1, width)) if choices.chance(0.5) else None
        self.length += self.first is not None
        self.places = nn.Parameter(torch.zeros(1, self.length, width)) if choices.chance(0.8) else None
        plan.text.append(f"patches({size} by {patch} to {self.length}x{width})")

    def forward(self, inputs: Inputs) -> torch.Tensor:
        x = self.conv(inputs[self.name]).flatten(2).transpose(1, 2)
        if self.first is not None:
            x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1)
        return x if self.places is None else x + self.places


def _width(plan: Plan) -> int:
    return plan.choices.size(192, 2048, 64) if plan.choices.chance(0.93) else plan.choices.size(100, 1200, 4)


def layers_of(plan: Plan, length: int, width: int, is_causal: bool, memory: str = "") -> list[nn.Module]:
    """Return layers of tokens: one kind again and again, or two kinds in turns."""
    choices = plan.choices
    blocks = repeated(plan, choices.randint(1, 4), lambda: token_blocks(plan, length, width, is_causal, memory))
    if choices.chance(0.25):
        blocks += repeated(plan, choices.randint(1, 2), lambda: token_blocks(plan, length, width, is_causal, memory))
    return [Mixed(blocks)] if choices.chance(0.06) else blocks


def tokens(plan: Plan) -> nn.Module:
    """Draw a transformer of text, a decoder or an encoder."""
    choices, width = plan.choices, _width(plan)
    length = choices.size(16, 4096, choices.pick((64, 4), (16, 1), (1, 1)))
    stem, is_causal = Embedded(plan, length, width), choices.chance(0.55)
    memory = ""
    if choices.chance(0.2):
        memory = plan.add_input("memory", (plan.batch, choices.size(20, 1500), choices.choice((width, 512, 768))))
    blocks = layers_of(plan, length, width, is_causal, memory)
    head: nn.Module = Predicted(plan, length, width) if choices.chance(0.6) else Classified(plan, width, 1)
    return Net(stem, blocks, head)


def patches(plan: Plan) -> nn.Module:
    """Draw a transformer of a picture."""
    width = plan.choices.size(128, 1280, 64)
    stem = PatchTokens(plan, width)
    return Net(stem, layers_of(plan, stem.length, width, False), Classified(plan, width, 1))


class Flattened(nn.Module):
    """Maps as tokens of some width."""

    def __init__(self, plan: Plan, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Conv2d(channels, width, 1), token_norm(plan.choices, width)
        self.places = nn.Parameter(torch.zeros(1, size * size, width))

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.norm(self.linear(x).flatten(2).transpose(1, 2) + self.places)


def hybrid(plan: Plan) -> nn.Module:
    """Draw convolutions, then a transformer of their maps."""
    choices = plan.choices
    name, size = image(plan, (96, 128, 192, 224, 256))
    channels, width = choices.size(32, 96, 8), choices.size(128, 768, 64)
    stem = image_stem(plan, name, channels, 4)
    blocks, channels, size = map_stages(plan, channels, size // 4, choices.randint(1, 3), 2)
    blocks.append(Flattened(plan, channels, width, size))
    blocks += layers_of(plan, size * size, width, False)
    return Net(stem, blocks, Classified(plan, width, 1))


class Tables(nn.Module):
    """Many embeddings and dense features, how they interact, and an MLP (recommendation)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        plan.batch *= choices.choice((64, 128, 256, 512))
        batch, count = plan.batch, choices.randint(4, 32)
        self.width, self.form = choices.choice((8, 16, 32, 64, 128)), choices.choice(("dot", "factors", "cross", "cat"))
        sizes = [choices.size(10, 1_000_000) for _ in range(count)]
        self.is_apart = choices.chance(0.6)
        self.names = [plan.add_input(f"field{number}_", (batch,), "ids", size) for number, size in enumerate(sizes)]
        self.tables = nn.ModuleList(nn.Embedding(size, self.width) for size in sizes)
        self.dense = plan.add_input("features", (batch, choices.choice((4, 13, 64))))
        hidden = choices.size(64, 512, 8)
        self.bottom = nn.Sequential(
            nn.Linear(plan.inputs[self.dense].shape[1], hidden), nn.ReLU(), nn.Linear(hidden, self.width)
        )
        self.history = ""
        if choices.chance(0.4):
            length = choices.size(10, 200)
            self.history = plan.add_input("history", (batch, length), "ids", sizes[0])
            self.seen = plan.add_input("seen", (batch, length), "mask")
        columns = count + 1 + bool(self.history)
        self.register_buffer("pairs", torch.tril_indices(columns, columns, -1))
        flat = columns * self.width
        wide = {"dot": self.width + columns * (columns - 1) // 2, "factors": flat + self.width}.get(self.form, flat)
        self.cross = nn.ModuleList(nn.Linear(flat, flat) for _ in range(2 if self.form == "cross" else 0))
        top, layers = choices.size(128, 1024, 8), []
        for _ in range(choices.randint(1, 3)):
            layers += [nn.Linear(wide, top), activation(choices)]
            wide = top
            if choices.chance(0.3):
                layers.append(nn.BatchNorm1d(top))
        self.top, self.loss = nn.Sequential(*layers, nn.Linear(wide, 1)), Loss(plan, batch, 1)
        plan.text.append(f"tables({count} of {self.width} {self.form} batch {batch}{' history' * bool(self.history)})")

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        vectors = [table(inputs[name]) for table, name in zip(self.tables, self.names, strict=True)]
        dense = self.bottom(inputs[self.dense])
        vectors.append(dense)
        if self.history:
            past, seen = self.tables[0](inputs[self.history]), inputs[self.seen]
            scores = (past * vectors[0].unsqueeze(1)).sum(-1).masked_fill(~seen, float("-inf"))
            vectors.append((scores.softmax(-1).unsqueeze(-1) * past).sum(1))
        x = torch.stack(vectors, 1)
        flat = x.flatten(1) if self.is_apart else torch.cat(vectors, 1)
        if self.form == "dot":
            products = torch.bmm(x, x.transpose(1, 2))
            flat = torch.cat((dense, products[:, self.pairs[0], self.pairs[1]]), 1)
        elif self.form == "factors":
            flat = torch.cat((flat, 0.5 * (x.sum(1).square() - x.square().sum(1))), 1)
        start = flat
        for layer in self.cross:
            flat = start * layer(flat) + flat
        return self.loss(self.top(flat), inputs)


class Graph(nn.Module):
    """Messages along edges: gathers of nodes, an MLP, and sums by node."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        nodes, self.width = choices.size(2000, 100_000), choices.size(32, 256, 8)
        edges, self.form = (
            nodes * choices.choice((3, 8, 16)),
            choices.choice(("index_add", "amax", "mean", "attention")),
        )
        self.nodes = plan.add_input("nodes", (nodes, self.width))
        self.source, self.target = (plan.add_input(name, (edges,), "ids", nodes) for name in ("source", "target"))
        graphs = choices.choice((16, 128))
        self.graph, self.graphs = plan.add_input("graph", (nodes,), "ids", graphs), graphs
        count = choices.randint(1, 3)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * self.width, self.width), nn.SiLU(), nn.Linear(self.width, self.width))
            for _ in range(count)
        )
        self.scores = nn.ModuleList(nn.Linear(self.width, 1) for _ in range(count))
        self.norms = nn.ModuleList(token_norm(choices, self.width) for _ in range(count))
        for number, norm in enumerate(self.norms):
            if norm.__class__.__name__ == "OfFirst":
                self.norms[number] = nn.BatchNorm1d(self.width)
        self.last, self.picks = nn.Linear(self.width, 10), choices.chance(0.5)
        self.loss = Loss(plan, graphs, 10)
        plan.text.append(f"graph({nodes} nodes {edges} edges x{self.width} {self.form} {count})")

    def _sums(self, x: torch.Tensor, target: torch.Tensor, message: torch.Tensor, score: nn.Module) -> torch.Tensor:
        empty = torch.zeros_like(x)
        if self.form == "index_add":
            return empty.index_add(0, target, message)
        index = target.unsqueeze(-1).expand_as(message)
        if self.form == "attention":
            weights = torch.exp(F.leaky_relu(score(message), 0.2).float()).clamp(max=1e4)
            total = torch.zeros(x.shape[0], 1, device=x.device).index_add(0, target, weights)
            weights = weights / (total[target] + 1e-6)
            return empty.scatter_add(0, index, message * weights.to(message.dtype))
        return empty.scatter_reduce(0, index, message, self.form, include_self=False)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x, source, target = inputs[self.nodes], inputs[self.source], inputs[self.target]
        for message, score, norm in zip(self.messages, self.scores, self.norms, strict=True):
            if self.picks:
                pairs = torch.cat((x[source], x[target]), -1)
            else:
                pairs = torch.cat((x.index_select(0, source), x.index_select(0, target)), -1)
            x = x + norm(self._sums(x, target, message(pairs), score))
        pooled = torch.zeros(self.graphs, self.width, dtype=x.dtype, device=x.device)
        return self.loss(self.last(pooled.index_add_(0, inputs[self.graph], x)), inputs)


class Points(nn.Module):
    """Points in space: nearest neighbours, gathers, convolutions and a maximum over neighbours."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        count, self.near = choices.size(256, 2048, 64), choices.choice((8, 16, 20, 32))
        self.name = plan.add_input("points", (plan.batch, 3, count))
        widths = [choices.choice((32, 64, 128)) for _ in range(choices.randint(1, 3))]
        self.convs, inside = nn.ModuleList(), 3
        for width in widths:
            self.convs.append(
                nn.Sequential(nn.Conv2d(2 * inside, width, 1), map_norm(choices, width), nn.LeakyReLU(0.2))
            )
            inside = width
        self.measures = choices.choice(("cdist", "product"))
        self.last, self.head = nn.Conv1d(sum(widths), 512, 1), Classified(plan, 512, 1)
        plan.text.append(f"points({count} near {self.near} {widths} {self.measures})")

    def _neighbours(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2)
        if self.measures == "cdist":
            distance = torch.cdist(rows.float(), rows.float())
        else:
            square = x.square().sum(1)
            distance = square[:, :, None] - 2 * rows @ x + square[:, None]
        chosen = distance.topk(self.near, -1, largest=False).indices
        index = (chosen + torch.arange(x.shape[0], device=x.device)[:, None, None] * x.shape[2]).view(-1)
        near = rows.reshape(-1, x.shape[1])[index].view(*chosen.shape, -1)
        centre = rows.unsqueeze(2).expand_as(near)
        return torch.cat((near - centre, centre), -1).permute(0, 3, 1, 2)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x, results = inputs[self.name], []
        for conv in self.convs:
            x = conv(self._neighbours(x)).amax(-1)
            results.append(x)
        return self.head(self.last(torch.cat(results, 1)).transpose(1, 2), inputs)


class Waves(nn.Module):
    """Convolutions of a signal: dilated with gates, or in steps; up again by transposed ones or not."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        length, width = choices.size(1000, 32000, 8), choices.size(32, 384, 8)
        self.name = plan.add_input("signal", (plan.batch, choices.choice((1, 80, 128)), length))
        first, strides = choices.choice((7, 10, 15)), [choices.choice((1, 2, 4)) for _ in range(choices.randint(1, 3))]
        self.stem = nn.ModuleList([nn.Conv1d(plan.inputs[self.name].shape[1], width, first, padding=first // 2)])
        for stride in strides:
            self.stem.append(
                nn.Sequential(
                    map_norm(choices, width, 1),
                    activation(choices),
                    nn.Conv1d(width, width, 2 * stride + 1, stride, stride),
                )
            )
        window, groups = (
            choices.choice((2, 3, 5)),
            choices.pick((1, 4), (width, 1.5), (divisor(choices, width, 2, 4), 1)),
        )
        self.is_causal, self.gated, self.window = choices.chance(0.5), choices.chance(0.5), window
        count = choices.randint(2, 8)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width * (1 + self.gated), window, dilation=2 ** (number % 6), groups=groups)
            for number in range(count)
        )
        self.outs = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(count))
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(width, width, 2 * stride, stride, stride // 2 if stride > 1 else 0)
            for stride in reversed(strides if choices.chance(0.5) else [])
        )
        self.act, self.sums = activation(choices), choices.chance(0.5)
        self.last = nn.Conv1d(width, choices.choice((1, 80, 256)), 1)
        plan.text.append(f"waves({length} x{width} strides {strides} {count} of {window} groups {groups})")

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x, skips = inputs[self.name], []
        for layer in self.stem:
            x = layer(x)
        for conv, out in zip(self.convs, self.outs, strict=True):
            reach = (self.window - 1) * conv.dilation[0]
            left = reach if self.is_causal else reach // 2
            h = conv(F.pad(x, (left, reach - left)))
            if self.gated:
                a, b = h.chunk(2, 1)
                h = torch.tanh(a) * torch.sigmoid(b)
            else:
                h = self.act(h)
            h = out(h)
            skips.append(h)
            x = x + h
        if self.sums:
            x = F.relu(torch.stack(skips).sum(0))
        for up in self.ups:
            x = up(F.leaky_relu(x, 0.1))
        return self.last(x)


class Volumes(nn.Module):
    """Convolutions of clips or volumes: in three dimensions, or in space and time apart."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        size, frames, channels = choices.choice((32, 56, 64, 112)), choices.choice((4, 8, 16)), choices.size(16, 96, 8)
        self.name = plan.add_input("clip", (plan.batch, choices.choice((1, 3)), frames, size, size))
        self.stem = nn.Conv3d(plan.inputs[self.name].shape[1], channels, (3, 5, 5), (1, 2, 2), (1, 2, 2))
        self.pool, apart = (
            choices.choice((nn.MaxPool3d((1, 2, 2)), nn.AvgPool3d((1, 2, 2)), nn.Identity())),
            choices.chance(0.5),
        )
        self.blocks = nn.ModuleList()
        for _ in range(choices.randint(1, 3)):
            groups = choices.pick((1, 3), (channels, 1))
            convs = [nn.Conv3d(channels, channels, 3, padding=1, groups=groups)]
            if apart:
                convs = [
                    nn.Conv3d(channels, channels, (1, 3, 3), padding=(0, 1, 1)),
                    nn.Conv3d(channels, channels, (3, 1, 1), padding=(1, 0, 0)),
                ]
            self.blocks.append(
                Sum(
                    choices,
                    Plain(nn.Sequential(*convs, map_norm(choices, channels, 3), activation(choices))),
                    channels,
                    -4,
                )
            )
        self.up = nn.ConvTranspose3d(channels, channels, 2, 2) if choices.chance(0.3) else nn.Identity()
        self.head: nn.Module = (
            Classified(plan, channels, 3) if choices.chance(0.7) else Plain(nn.Conv3d(channels, 2, 1))
        )
        plan.text.append(f"volumes({frames}x{size} x{channels}{' apart' * apart})")

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(inputs[self.name]))
        for block in self.blocks:
            x = block(x, inputs)
        return self.head(self.up(x), inputs)


class Pair(nn.Module):
    """Two towers of tokens, and how alike each is to each (contrastive)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        width, common = choices.size(192, 768, 64), choices.choice((256, 512))
        self.picture, length = PatchTokens(plan, width), choices.size(16, 256)
        self.text = Embedded(plan, length, width)
        self.layers = nn.ModuleList(layers_of(plan, self.picture.length, width, False))
        self.text_layers = nn.ModuleList(layers_of(plan, length, width, True))
        self.first, self.last = nn.Linear(width, common, bias=False), nn.Linear(width, common, bias=False)
        plan.text.append(f"pair({common})")

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x, y = self.picture(inputs), self.text(inputs)
        for layer in self.layers:
            x = layer(x, inputs)
        for layer in self.text_layers:
            y = layer(y, inputs)
        x, y = F.normalize(self.first(x.mean(1)), dim=-1), F.normalize(self.last(y[:, -1]), dim=-1)
        logits = 14.3 * x @ y.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Features(nn.Module):
    """Rows of features through MLPs and norms, with no tokens."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        choices = plan.choices
        plan.batch *= choices.choice((16, 64, 512))
        width = choices.size(64, 4096, 8 if choices.chance(0.8) else 1)
        self.name = plan.add_input("features", (plan.batch, width))
        self.blocks = nn.ModuleList(
            repeated(plan, choices.randint(2, 6), lambda: [Sum(choices, Mlp(plan, width), width)])
        )
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 16)
        self.loss = Loss(plan, plan.batch, 16)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        x = inputs[self.name]
        for block in self.blocks:
            x = block(x, inputs)
        return self.loss(self.last(self.norm(x)), inputs)


FAMILIES: dict[str, tuple[Callable[[Plan], nn.Module], float]] = {
    "vision": (vision, 28), "tokens": (tokens, 26), "patches": (patches, 9), "hybrid": (hybrid, 8), "unet": (UNet, 9),
    "tables": (Tables, 5), "graph": (Graph, 3), "points": (Points, 3), "waves": (Waves, 5), "volumes": (Volumes, 3),
    "pair": (Pair, 3), "features": (Features, 2),
}  # fmt: skip
