"""Stacks of four layers that are trained: shaped like Llama 3 8B, Qwen3 30B A3B and GPT-2 XL, in plain torch.

A stack returns the loss of the next token; `make_stack` builds one on any device, "meta" too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

NUM_LAYERS = 4
ROPE_BASE = 500_000.0


class Shape(NamedTuple):
    """Sizes of a stack; `num_experts` 0: none; biases: layer norms and positions of GPT-2, else of Llama."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    num_experts: int = 0
    experts_per_token: int = 0
    has_biases: bool = False
    has_head_norms: bool = False


STACKS = {
    "llama-3-8b": Shape(4096, 32, 8, 128, 14336, 128256),
    "qwen3-30b-a3b": Shape(2048, 32, 4, 128, 768, 151936, 128, 8, has_head_norms=True),
    "gpt2-xl": Shape(1600, 25, 25, 64, 6400, 50304, has_biases=True),
}
CASES = (
    ("llama-3-8b", 1, 4096), ("llama-3-8b", 4, 4096), ("qwen3-30b-a3b", 1, 4096), ("qwen3-30b-a3b", 4, 4096),
    ("gpt2-xl", 4, 1024), ("gpt2-xl", 32, 1024),
)  # fmt: skip
"""Stack, sequences and tokens of each."""


class Attention(nn.Module):
    """Queries, keys and values by one projection, positions turned, and the output projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.qkv = nn.Linear(shape.hidden, width, bias=shape.has_biases)
        self.out = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden, bias=shape.has_biases)
        self.norms = nn.ModuleList(nn.RMSNorm(shape.head_dim, eps=1e-6) for _ in range(2 * shape.has_head_norms))

    def forward(self, x: torch.Tensor, turns: torch.Tensor | None) -> torch.Tensor:
        """Return the result, [batch, tokens, hidden]."""
        shape = self.shape
        batch, tokens, _ = x.shape
        heads = shape.num_heads, shape.num_kv_heads, shape.num_kv_heads
        q, k, v = self.qkv(x).view(batch, tokens, -1, shape.head_dim).split(heads, 2)
        if shape.has_head_norms:
            q, k = self.norms[0](q), self.norms[1](k)
        if turns is not None:
            q, k = _turned(q, turns), _turned(k, turns)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        is_gqa = shape.num_heads > shape.num_kv_heads
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_gqa)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        return out


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * turns[0] + torch.cat((-high, low), -1) * turns[1]


class Mlp(nn.Module):
    """A gated activation, or GPT-2's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_gated = not shape.has_biases
        width = shape.inner * (2 if self.is_gated else 1)
        self.up = nn.Linear(shape.hidden, width, bias=shape.has_biases)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=shape.has_biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, [batch, tokens, hidden]."""
        inner = self.up(x)
        if self.is_gated:
            gate, other = inner.chunk(2, -1)
            inner = functional.silu(gate) * other
        else:
            inner = functional.gelu(inner, approximate="tanh")
        out: torch.Tensor = self.down(inner)
        return out


class Experts(nn.Module):
    """Experts by grouped products over rows that are sorted by expert; nothing waits for the CPU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(shape.hidden, shape.num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(shape.num_experts, shape.hidden, 2 * shape.inner))
        self.down = nn.Parameter(torch.empty(shape.num_experts, shape.inner, shape.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, [batch, tokens, hidden]."""
        shape, h = self.shape, x.reshape(-1, x.shape[-1])
        shares, experts = self.router(h).softmax(-1).topk(shape.experts_per_token, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        order = experts.flatten().argsort()
        place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
        counts = torch.zeros(shape.num_experts, device=x.device, dtype=torch.int32)
        counts = counts.scatter_add_(0, experts.flatten(), torch.ones_like(experts.flatten(), dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        rows = h.index_select(0, order // shape.experts_per_token)
        gate, other = functional.grouped_mm(rows, self.up, offs=ends).chunk(2, -1)
        y = functional.grouped_mm(functional.silu(gate) * other, self.down, offs=ends)
        back = y.index_select(0, place).view(h.shape[0], shape.experts_per_token, -1)
        return (back * shares[..., None]).sum(1).view_as(x)


class Layer(nn.Module):
    """Attention and an MLP or experts, each behind a norm and with a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_norm(shape) for _ in range(2))
        self.attention = Attention(shape)
        self.ffn = Experts(shape) if shape.num_experts else Mlp(shape)

    def forward(self, x: torch.Tensor, turns: torch.Tensor | None) -> torch.Tensor:
        """Return the result, [batch, tokens, hidden]."""
        x = x + self.attention(self.norms[0](x), turns)
        out: torch.Tensor = x + self.ffn(self.norms[1](x))
        return out


def _norm(shape: Shape) -> nn.Module:
    return nn.LayerNorm(shape.hidden) if shape.has_biases else nn.RMSNorm(shape.hidden, eps=1e-6)


class Stack(nn.Module):
    """Embedding, layers, a norm and an LM head that has weights of its own; `forward` returns the mean loss."""

    def __init__(self, shape: Shape, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(tokens, shape.hidden) if shape.has_biases else None
        self.layers = nn.ModuleList(Layer(shape) for _ in range(NUM_LAYERS))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        half = shape.head_dim // 2
        angles = torch.arange(tokens)[:, None] * ROPE_BASE ** (-torch.arange(half) / half)
        angles = torch.cat((angles, angles), -1)[:, None]
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens and targets, [batch, tokens] each."""
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        turns: Any = None if self.positions is not None else self.turns
        for layer in self.layers:
            x = layer(x, turns)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_stack(name: str, tokens: int, device: str) -> Stack:
    """Return a stack in bf16; weights are random, but on "meta"."""
    with torch.device(device):
        stack = Stack(STACKS[name], tokens)
    stack.to(torch.bfloat16)
    for parameter in stack.parameters():
        if parameter.dim() > 1 and device != "meta":
            nn.init.normal_(parameter, std=0.02)
    return stack


def inputs_of(name: str, batch: int, tokens: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens and targets, [batch, tokens]."""
    vocabulary = STACKS[name].vocabulary
    ids = torch.randint(0, vocabulary, (batch, tokens + 1), device=device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
