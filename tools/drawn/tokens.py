"""Blocks of tokens [batch, length, width]: attention, MLPs, mixtures of experts, scans, selections."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tools.drawn.common import Choices, Inputs, Plain, Plan, Sum, activation, divisor, token_norm


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).to(x.dtype)


class Positions(nn.Module):
    """Rotary positions of queries and keys, [batch, heads, length, head_dim]."""

    def __init__(self, choices: Choices, head_dim: int) -> None:
        super().__init__()
        self.is_complex, self.theta, self.head_dim = choices.chance(0.25), 10000.0, head_dim

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        x = tensors[0]
        steps = torch.arange(0, self.head_dim, 2, device=x.device, dtype=torch.float)
        places = torch.arange(x.shape[2], device=x.device, dtype=torch.float)
        angles = torch.outer(places, self.theta ** (-steps / self.head_dim))
        if self.is_complex:
            return [_turned(x, angles) for x in tensors]
        both = torch.cat((angles, angles), -1)
        cos, sin = both.cos().to(x.dtype), both.sin().to(x.dtype)
        return [_rotated(x, cos, sin) for x in tensors]


class RelativeBias(nn.Module):
    """A bias of each head by the distance of query and key: logarithmic buckets, a table, or a slope."""

    def __init__(self, choices: Choices, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.length, self.buckets = heads, length, 32
        self.form = choices.pick(("buckets", 3), ("table", 3), ("slope", 2), ("learned", 1))
        if self.form == "learned":
            self.bias = nn.Parameter(torch.zeros(1, heads, length, length))
        elif self.form != "slope":
            self.table = nn.Embedding(self.buckets if self.form == "buckets" else 2 * length - 1, heads)
        if self.form == "table":
            places = torch.arange(length)
            self.register_buffer("index", places[:, None] - places[None] + length - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "learned":
            return self.bias
        if self.form == "table":
            index = self.index.view(-1)
            bias = self.table.weight[index].view(self.length, self.length, self.heads)
            return bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        places = torch.arange(self.length, device=x.device)
        distance = places[None] - places[:, None]
        if self.form == "slope":
            slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, device=x.device) / self.heads)
            return (slopes[:, None, None] * -distance.abs()).to(x.dtype).unsqueeze(0)
        half = self.buckets // 4
        size = distance.abs()
        far = half + (torch.log(size.float() / half + 1e-6) / math.log(16) * half).to(torch.long)
        bucket = (distance > 0).to(torch.long) * 2 * half
        bucket = bucket + torch.where(size < half, size, torch.min(far, torch.full_like(far, 2 * half - 1)))
        return self.table(bucket).permute(2, 0, 1).unsqueeze(0)


class Attention(nn.Module):
    """Attention of tokens to themselves or to an input, with drawn heads, masks, positions and code."""

    def __init__(self, plan: Plan, length: int, width: int, is_causal: bool, memory: str = "") -> None:
        super().__init__()
        choices, self.memory = plan.choices, memory
        head_dim = choices.pick((32, 2), (64, 6), (80, 1), (96, 1), (128, 4), (256, 0.5), (40, 0.5), (72, 0.5))
        self.heads = max(1, width // head_dim if choices.chance(0.85) else choices.choice((4, 8, 16)))
        self.kv_heads = self.heads
        if choices.chance(0.35):
            self.kv_heads = self.heads // divisor(choices, self.heads, 2, 4, 8, self.heads)
        self.head_dim = head_dim
        has_bias, source = choices.chance(0.55), plan.inputs[memory].shape[-1] if memory else width
        inner, kv_inner = self.heads * head_dim, self.kv_heads * head_dim
        self.is_fused = not memory and choices.chance(0.5)
        if self.is_fused:
            self.qkv = nn.Linear(width, inner + 2 * kv_inner, bias=has_bias)
        else:
            self.q = nn.Linear(width, inner, bias=has_bias)
            self.k, self.v = nn.Linear(source, kv_inner, bias=has_bias), nn.Linear(source, kv_inner, bias=has_bias)
        self.out = nn.Linear(inner, width, bias=has_bias)
        self.qk_norm = token_norm(Choices(choices.random()), head_dim) if choices.chance(0.12) else None
        if self.qk_norm is not None and not isinstance(self.qk_norm, nn.LayerNorm | nn.RMSNorm):
            self.qk_norm = nn.RMSNorm(head_dim)
        self.rotary = Positions(choices, head_dim) if not memory and choices.chance(0.4) else None
        forms = [("none", 6), ("padding", 1.5), ("padding_additive", 1.5)]
        if not memory:
            forms += [("bias", 2), ("window", 1)]
        self.mask = "none" if memory and choices.chance(0.6) else choices.pick(*forms)
        self.is_causal = is_causal and not memory
        self.code = choices.pick(("sdpa", 7), ("matmul", 2.5), ("einsum", 0.7), ("baddbmm", 0.5))
        self.upcasts, self.cap = choices.chance(0.4), 30.0 if choices.chance(0.06) else 0.0
        self.window = choices.size(32, max(33, length // 2))
        self.expands, self.makes_bool = choices.chance(0.5), choices.chance(0.5)
        if self.mask == "bias":
            self.bias = RelativeBias(choices, self.heads, length)
        if self.mask.startswith("padding"):
            keys = plan.inputs[memory].shape[1] if memory else length
            self.padding = plan.add_input("padding", (plan.batch, keys), "mask")
        plan.text.append(
            f"attention({length}x{width} heads {self.heads}/{self.kv_heads}x{head_dim} {self.code} {self.mask}"
            f"{' causal' * self.is_causal}{' rotary' * (self.rotary is not None)}{' cross' * bool(memory)})"
        )

    def _mask(self, q: torch.Tensor, keys: int, inputs: Inputs) -> tuple[torch.Tensor | None, bool]:
        """Return a mask, boolean or additive, and whether the causal one is left to the kernel."""
        places = torch.arange(keys, device=q.device)
        ahead: Any = None
        if self.mask == "window":
            distance = places[:, None] - places[None]
            inside = distance.abs() < self.window
            ahead = inside & (distance >= 0) if self.is_causal else inside
        elif self.is_causal and self.mask != "none":
            ahead = torch.ones(keys, keys, dtype=torch.bool, device=q.device).tril()
        if self.mask == "none":
            return None, self.is_causal
        if self.mask == "bias":
            bias = self.bias(q).to(q.dtype)
            return bias if ahead is None else bias.masked_fill(~ahead, torch.finfo(q.dtype).min), False
        if self.mask == "window":
            mask = ahead[None, None]
        else:
            mask = inputs[self.padding][:, None, None]
            if ahead is not None:
                mask = mask & ahead
            elif self.expands:
                mask = mask.expand(-1, -1, q.shape[2], -1)
        if self.mask == "padding_additive" or (self.mask == "window" and not self.makes_bool):
            return (1.0 - mask.to(q.dtype)) * torch.finfo(q.dtype).min, False
        return mask, False

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.is_fused:
            inner, kv_inner = self.heads * self.head_dim, self.kv_heads * self.head_dim
            q, k, v = self.qkv(x).split((inner, kv_inner, kv_inner), -1)
        else:
            source = inputs[self.memory] if self.memory else x
            q, k, v = self.q(x), self.k(source), self.v(source)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (q, k, v))
        if self.qk_norm is not None:
            q, k = self.qk_norm(q), self.qk_norm(k)
        if self.rotary is not None:
            q, k = self.rotary(q, k)
        mask, is_causal = self._mask(q, k.shape[2], inputs)
        groups = self.heads // self.kv_heads
        if groups > 1 and not (self.code == "sdpa" and mask is None and self.expands):
            if self.expands:
                k, v = (y[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for y in (k, v))
            else:
                k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        if self.code == "sdpa":
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
            )
            return self.out(y.transpose(1, 2).flatten(2))
        y = self._written_out(q, k, v, mask, is_causal)
        return self.out(y.transpose(1, 2).reshape(*x.shape[:2], -1))

    def _written_out(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
    ) -> torch.Tensor:
        scale = self.head_dim**-0.5
        if self.code == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
        elif self.code == "baddbmm":
            q3, k3 = q.reshape(-1, *q.shape[2:]), k.reshape(-1, *k.shape[2:])
            start = torch.zeros(1, 1, 1, dtype=q.dtype, device=q.device)
            scores = torch.baddbmm(start, q3, k3.transpose(1, 2), beta=0, alpha=scale).view(*q.shape[:3], -1)
        else:
            scores = torch.matmul(q * scale, k.transpose(-2, -1))
        if self.cap:
            scores = torch.tanh(scores / self.cap) * self.cap
        if is_causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(ahead, float("-inf"))
        if mask is not None:
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            else:
                scores = scores + mask
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype) if self.upcasts else scores.softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v) if self.code == "einsum" else weights @ v


class TorchAttention(nn.Module):
    """torch's own module for attention."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        heads = divisor(plan.choices, width, 4, 8, 16)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=plan.choices.chance(0.8))
        self.needs_weights = plan.choices.chance(0.3)
        plan.text.append(f"nn.MultiheadAttention({width}, {heads})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=self.needs_weights)[0]


class Mlp(nn.Module):
    """Two linear layers; with a gate, whose layer may be one with the first."""

    def __init__(self, plan: Plan, width: int, hidden: int | None = None) -> None:
        super().__init__()
        choices = plan.choices
        self.gate = choices.pick(("", 5), ("fused", 2), ("apart", 3), ("glu", 0.5))
        hidden = hidden or choices.size(1.3 * width, 4.2 * width, 8 if choices.chance(0.9) else 1)
        has_bias = choices.chance(0.6)
        self.first = nn.Linear(width, hidden * (2 if self.gate in ("fused", "glu") else 1), bias=has_bias)
        self.other = nn.Linear(width, hidden, bias=has_bias) if self.gate == "apart" else None
        self.act, self.last = activation(choices), nn.Linear(hidden, width, bias=has_bias)
        self.norm = nn.LayerNorm(hidden) if choices.chance(0.08) else nn.Identity()
        self.drop = nn.Dropout(0.1) if choices.chance(0.2) else nn.Identity()
        plan.text.append(f"mlp({width}-{hidden} {self.gate or 'plain'})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        h = self.first(x)
        if self.gate == "fused":
            gate, h = h.chunk(2, -1)
            h = self.act(gate) * h
        elif self.gate == "glu":
            h = F.glu(h, -1)
        elif self.other is not None:
            h = self.act(h) * self.other(x)
        else:
            h = self.act(h)
        return self.last(self.drop(self.norm(h)))


class Experts(nn.Module):
    """A mixture of experts: grouped GEMMs of sorted rows, a loop over experts with fixed rows, or all of them."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        choices = plan.choices
        has_grouped = plan.dtype is torch.bfloat16 and width % 8 == 0
        self.code = choices.pick(("grouped", 3 if has_grouped else 0), ("loop", 2), ("dense", 1))
        self.num = choices.choice((4, 8, 16, 32, 64)) if self.code == "grouped" else choices.choice((4, 8))
        self.top, self.hidden = choices.choice((1, 2, 2, 4)), choices.size(0.5 * width, 3 * width, 16)
        self.counts = choices.choice(("histc", "searchsorted", "one_hot"))
        self.sigmoid, self.act = choices.chance(0.25), choices.choice((F.silu, F.gelu))
        self.router = nn.Linear(width, self.num, bias=False)
        self.up = nn.Parameter(torch.randn(self.num, 2 * self.hidden, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(self.num, width, self.hidden) * self.hidden**-0.5)
        self.shared = Mlp(plan, width) if choices.chance(0.25) else None
        plan.text.append(f"experts({self.code} {self.num} top {self.top} {width}-{self.hidden})")

    def _mlp(self, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        gate, h = (x @ up.transpose(-2, -1)).chunk(2, -1)
        return (self.act(gate) * h) @ down.transpose(-2, -1)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        probabilities = logits.sigmoid() if self.sigmoid else logits.softmax(-1, dtype=torch.float)
        if self.code == "grouped":
            y = self._grouped(rows, probabilities)
        elif self.code == "loop":
            y = self._loop(rows, probabilities)
        else:
            weights, chosen = probabilities.topk(self.top, -1)
            full = torch.zeros_like(probabilities).scatter(1, chosen, weights).to(x.dtype)
            every = self._mlp(rows.unsqueeze(0).expand(self.num, -1, -1), self.up, self.down)
            y = (every * full.t().unsqueeze(-1)).sum(0)
        y = y.view_as(x)
        return y if self.shared is None else y + self.shared(x, inputs)

    def _grouped(self, rows: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        weights, chosen = probabilities.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.reshape(-1)
        order = flat.argsort()
        chosen_sorted, token = flat[order], order // self.top
        if self.counts == "histc":
            counts = torch.histc(chosen_sorted.int(), bins=self.num, min=0, max=self.num - 1)
            ends = counts.cumsum(0, dtype=torch.int32)
        elif self.counts == "one_hot":
            ends = F.one_hot(chosen_sorted, self.num).sum(0).cumsum(0).to(torch.int32)
        else:
            numbers = torch.arange(self.num, device=rows.device)
            ends = torch.searchsorted(chosen_sorted, numbers, right=True).to(torch.int32)
        h = torch._grouped_mm(rows[token], self.up.transpose(-2, -1), offs=ends)
        gate, h = h.chunk(2, -1)
        out = torch._grouped_mm(self.act(gate) * h, self.down.transpose(-2, -1), offs=ends)
        out = out * weights.reshape(-1)[order].unsqueeze(-1).to(out.dtype)
        if self.sigmoid:
            return torch.zeros_like(rows).index_add_(0, token, out)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return out[back].view(-1, self.top, rows.shape[-1]).sum(1)

    def _loop(self, rows: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        capacity = max(1, rows.shape[0] * self.top // self.num)
        weights, chosen = probabilities.t().topk(capacity, -1)  # each expert chooses rows
        y = torch.zeros_like(rows)
        for number in range(self.num):
            mine = self._mlp(rows[chosen[number]], self.up[number], self.down[number])
            y.index_add_(0, chosen[number], mine * weights[number, :, None].to(mine.dtype))
        return y


class TokenMixer(nn.Module):
    """An MLP over tokens, between two transposes, whose norm may follow the first."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        hidden = plan.choices.size(0.5 * length, 4 * length, 8)
        self.norm = nn.LayerNorm(length) if plan.choices.chance(0.3) else nn.Identity()
        self.first, self.last, self.act = nn.Linear(length, hidden), nn.Linear(hidden, length), activation(plan.choices)
        plan.text.append(f"mixer({length}-{hidden} x{width})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.last(self.act(self.first(self.norm(x.transpose(1, 2))))).transpose(1, 2)


class SpatialGate(nn.Module):
    """Half of the channels, times a linear layer over tokens of the other half."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm, self.mix = nn.LayerNorm(width), nn.Conv1d(length, length, 1)
        plan.text.append(f"spatial_gate({length} x{width})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        u, v = F.gelu(self.first(x)).chunk(2, -1)
        return self.last(u * self.mix(self.norm(v)))


class TokenConvolution(nn.Module):
    """A gated convolution along tokens, as in speech models; causal or centred."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        choices = plan.choices
        self.window, self.is_causal = choices.choice((3, 4, 7, 15, 31)), choices.chance(0.4)
        groups = choices.pick((width, 4), (1, 1), (divisor(choices, width, 2, 4, 8), 1))
        self.first = nn.Conv1d(width, 2 * width, 1) if choices.chance(0.5) else nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, self.window, groups=groups)
        self.norm = nn.BatchNorm1d(width) if choices.chance(0.5) else nn.Identity()
        self.act, self.last = activation(choices), nn.Linear(width, width)
        plan.text.append(f"token_conv({width} {self.window} groups {groups})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if isinstance(self.first, nn.Conv1d):
            h = F.glu(self.first(x.transpose(1, 2)), 1)
        else:
            h = F.glu(self.first(x), -1).transpose(1, 2)
        left = self.window - 1 if self.is_causal else (self.window - 1) // 2
        h = self.conv(F.pad(h, (left, self.window - 1 - left)))
        return self.last(self.act(self.norm(h)).transpose(1, 2))


class Scan(nn.Module):
    """A recurrence along tokens, by cumulative sums and products."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        self.form = plan.choices.choice(("mean", "decay", "linear", "doubling", "logsumexp"))
        self.heads = divisor(plan.choices, width, 2, 4, 8)
        self.first, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)
        plan.text.append(f"scan({self.form} {length}x{width})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        a, b, c = self.first(x).chunk(3, -1)
        if self.form == "mean":
            steps = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
            h = a.cumsum(1) / steps[:, None]
        elif self.form == "decay":
            total = F.logsigmoid(b.float()).cumsum(1)
            h = (torch.exp(total) * (a.float() * torch.exp(-total).clamp(max=1e4)).cumsum(1)).to(x.dtype)
        elif self.form == "logsumexp":
            h = torch.exp(torch.logcumsumexp(a.float(), 1) - torch.logcumsumexp(b.float(), 1)).to(x.dtype)
        elif self.form == "linear":
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (a, b, c))
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = k.transpose(-2, -1) @ v
            norm = (q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-4
            return self.last(((q @ state) / norm).transpose(1, 2).flatten(2))
        else:
            decay, h, step = torch.sigmoid(b), a, 1
            while step < x.shape[1]:
                shifted = F.pad(h[:, :-step], (0, 0, step, 0))
                h = h + decay * shifted
                decay = decay * F.pad(decay[:, :-step], (0, 0, step, 0))
                step *= 4
        return self.last(h * F.silu(c))


class Selection(nn.Module):
    """An MLP of the tokens with the highest scores, which are put back to where they were."""

    def __init__(self, plan: Plan, length: int, width: int) -> None:
        super().__init__()
        choices = plan.choices
        self.form, self.num = (
            choices.choice(("topk", "sort", "argsort")),
            max(1, int(length * choices.uniform(0.1, 0.6))),
        )
        self.score, self.mlp = nn.Linear(width, 1), Mlp(plan, width)
        self.back = choices.choice(("scatter", "scatter_add", "index_put", "index_copy"))
        plan.text.append(f"selection({self.form} {self.num} of {length}, {self.back})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        scores = self.score(x).squeeze(-1)
        if self.form == "topk":
            chosen = scores.topk(self.num, 1).indices
        elif self.form == "sort":
            chosen = scores.sort(1, descending=True).indices[:, : self.num]
        else:
            chosen = scores.argsort(1)[:, -self.num :]
        index = chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        y = self.mlp(x.gather(1, index), inputs)
        if self.back == "scatter":
            return torch.zeros_like(x).scatter(1, index, y)
        if self.back == "scatter_add":
            return torch.zeros_like(x).scatter_add_(1, index, y)
        rows = (chosen + torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]).reshape(-1)
        flat = torch.zeros_like(x).reshape(-1, x.shape[-1])
        if self.back == "index_put":
            flat[rows] = y.reshape(rows.shape[0], -1)
        else:
            flat.index_copy_(0, rows, y.reshape(rows.shape[0], -1))
        return flat.view_as(x)


class Modulated(nn.Module):
    """A block whose input and output are scaled and shifted by a condition, as in diffusion transformers."""

    def __init__(self, plan: Plan, block: nn.Module, width: int) -> None:
        super().__init__()
        self.condition = plan.add_input("condition", (plan.batch, width))
        self.block, self.norm = block, nn.LayerNorm(width, elementwise_affine=False)
        self.linear = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        shift, scale, gate = self.linear(F.silu(inputs[self.condition])).unsqueeze(1).chunk(3, -1)
        return x + gate * self.block(self.norm(x) * (1 + scale) + shift, inputs)


class Normed(nn.Module):
    """A block between norms: before it, after it, or both."""

    def __init__(self, plan: Plan, block: nn.Module, width: int) -> None:
        super().__init__()
        form = plan.choices.pick(("pre", 6), ("both", 1))
        self.before, self.block = token_norm(plan.choices, width), block
        self.after = token_norm(plan.choices, width) if form == "both" else nn.Identity()

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.after(self.block(self.before(x), inputs))


class TorchLayer(nn.Module):
    """torch's own encoder layer."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        choices = plan.choices
        self.layer = nn.TransformerEncoderLayer(
            width, divisor(choices, width, 4, 8), choices.size(width, 4 * width, 8),
            activation=choices.choice(("relu", "gelu")), batch_first=True, norm_first=choices.chance(0.5),
        )  # fmt: skip
        plan.text.append(f"nn.TransformerEncoderLayer({width})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.layer(x)


class Recurrent(nn.Module):
    """torch's own LSTM or GRU over few tokens."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        make = plan.choices.choice((nn.LSTM, nn.GRU))
        self.cells = make(width, width, batch_first=True)
        plan.text.append(f"{make.__name__}({width})")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self.cells(x)[0]


def token_blocks(plan: Plan, length: int, width: int, is_causal: bool, memory: str = "") -> list[nn.Module]:
    """Return the blocks of one layer, each with its residual."""
    choices = plan.choices
    if not is_causal and not memory and choices.chance(0.04):
        return [TorchLayer(plan, width)]
    mixers = [
        (lambda: Attention(plan, length, width, is_causal), 12), (lambda: TokenConvolution(plan, width), 1),
        (lambda: Scan(plan, length, width), 1.3),
    ]  # fmt: skip
    if not is_causal:
        mixers += [
            (lambda: TorchAttention(plan, width), 1), (lambda: SpatialGate(plan, length, width), 0.5),
            (lambda: TokenMixer(plan, length, width), 1.2),
        ]  # fmt: skip
    if length <= 64 and plan.dtype is not torch.float32:
        mixers.append((lambda: Recurrent(plan, width), 1.5))
    blocks = [choices.pick(*mixers)()]
    if memory:
        blocks.append(Attention(plan, length, width, False, memory))
    blocks.append(
        choices.pick(
            (lambda: Mlp(plan, width), 10), (lambda: Experts(plan, width), 2),
            (lambda: Selection(plan, length, width), 0.8 if length > 8 else 0),
        )()
    )  # fmt: skip
    form = choices.pick(("pre", 8), ("post", 1.5), ("modulated", 1.2))
    if form == "modulated":
        return [Modulated(plan, block, width) for block in blocks]
    if form == "post":
        return [layer for block in blocks for layer in (Sum(choices, block, width), Plain(token_norm(choices, width)))]
    return [Sum(choices, Normed(plan, block, width), width) for block in blocks]


class Mixed(nn.Module):
    """Layers whose results are all kept, stacked and summed up by learned weights."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.weights = nn.Parameter(torch.zeros(len(layers) + 1))

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        results = [x]
        for layer in self.layers:
            results.append(layer(results[-1], inputs))
        stacked = torch.stack(results, 0)
        return (stacked * self.weights.softmax(0).view(-1, *[1] * x.dim())).sum(0)
