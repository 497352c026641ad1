"""Stacks of layers with random weights, shaped like models, in torch: bf16, or W4A16 with the kernels of gemm_eval.

`Stack.step` runs one step of inference as a serving engine does: fused operations (engine_kernels.py), cuBLAS or our
W4A16 kernels, cuDNN's attention, experts by `grouped_mm` or our grouped kernel. `reference` computes the same in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy as cp
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.engine_kernels import Kernels
from gemm_eval.kernels import GroupedW4, PackedW4, dequantize, pack_w4, stack_w4, w4a16_gemm, w4a16_grouped_gemm
from gemm_eval.transformer import GroupedAttention, ModelConfig

BF16 = torch.bfloat16
GROUP_SIZE = 128
ROPE_BASE = 500_000.0


@dataclass
class Layer:
    """Weights of a layer: matrices [N, K], of experts [experts, N, K]; packed where they have 4 bits."""

    norms: tuple[torch.Tensor, torch.Tensor]
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    qkv: Any
    o: Any
    router: torch.Tensor | None
    up: Any
    down: Any


def normal(*shape: int) -> torch.Tensor:
    """Random weights, small enough that what they multiply stays of the size it has."""
    return torch.randn(*shape, device="cuda", dtype=BF16) * shape[-1] ** -0.5


def gains(size: int) -> torch.Tensor:
    """Weights of a norm."""
    return 1 + 0.1 * torch.randn(size, device="cuda", dtype=BF16)


def use_torch_memory() -> None:
    """Let torch give the memory that CuPy takes, so that its count has all."""

    def allocate(num_bytes: int) -> Any:
        held = torch.empty(max(num_bytes, 1), device="cuda", dtype=torch.uint8)
        memory = cp.cuda.UnownedMemory(held.data_ptr(), num_bytes, held)
        return cp.cuda.MemoryPointer(memory, 0)

    cp.cuda.set_allocator(allocate)


def packed(columns: int, length: int) -> PackedW4:
    """Return a matrix of random 4-bit weights [N, K], as our kernels read it."""
    return pack_w4(cp.asarray(normal(columns, length).float().T), GROUP_SIZE, activation="bf16").to_gpu()


def packed_experts(num: int, columns: int, length: int) -> GroupedW4:
    """Those of all experts."""
    return stack_w4(packed(columns, length) for _ in range(num))


class Stack:
    """Some layers of a model, with its embedding, last norm and LM head.

    Args:
        config: the model, with as many layers as are wanted.
        is_packed: weights of 4 bits, but for embedding, router and LM head.
    """

    def __init__(self, config: ModelConfig, *, is_packed: bool) -> None:
        attention, hidden = config.attention, config.hidden_size
        assert isinstance(attention, GroupedAttention)
        self.config, self.is_packed, self.kernels = config, is_packed, Kernels()
        self.num_heads, self.num_kv_heads, self.head_dim = (
            attention.num_heads, attention.num_kv_heads, attention.head_dim,
        )  # fmt: skip
        self.embedding = torch.randn(config.vocab_size, hidden, device="cuda", dtype=BF16)
        self.layers = [self._layer() for _ in range(config.num_layers)]
        self.final_norm, self.head = gains(hidden), normal(config.vocab_size, hidden)
        self.angles = torch.empty(0, device="cuda")
        self.loads: torch.Tensor | None = None

    def _layer(self) -> Layer:
        config, hidden, attention = self.config, self.config.hidden_size, self.config.attention
        assert isinstance(attention, GroupedAttention)
        matrix: Callable[[int, int], Any] = packed if self.is_packed else normal
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        moe = config.moe
        head_norms = (gains(self.head_dim), gains(self.head_dim)) if attention.qk_norm else None
        router = None
        if moe is None:
            assert config.ffn is not None
            up = matrix(2 * config.ffn.intermediate_size, hidden)
            down = matrix(hidden, config.ffn.intermediate_size)
        else:
            router = normal(moe.num_experts, hidden)
            many: Callable[[int, int, int], Any] = packed_experts if self.is_packed else normal
            up = many(moe.num_experts, 2 * moe.intermediate_size, hidden)
            down = many(moe.num_experts, hidden, moe.intermediate_size)
        qkv, o = matrix(width, hidden), matrix(hidden, self.num_heads * self.head_dim)
        return Layer((gains(hidden), gains(hidden)), head_norms, qkv, o, router, up, down)

    def set_positions(self, num: int) -> None:
        """Prepare cosines and sines of so many positions."""
        half = self.head_dim // 2
        rates = ROPE_BASE ** (-torch.arange(half, device="cuda", dtype=torch.float64) / half)
        angles = torch.arange(num, device="cuda", dtype=torch.float64)[:, None] * rates
        self.angles = torch.stack((angles.cos(), angles.sin()), -1).float().contiguous()

    def caches(self, batch: int, kv_len: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of earlier tokens, for each layer: [batch, kv_len, KV heads, head_dim]."""
        shape = batch, kv_len, self.num_kv_heads, self.head_dim
        return [
            (torch.randn(shape, device="cuda", dtype=BF16), torch.randn(shape, device="cuda", dtype=BF16))
            for _ in self.layers
        ]

    def step(
        self, ids: torch.Tensor, caches: list[tuple[torch.Tensor, torch.Tensor]], begin: Callable[[str], None]
    ) -> torch.Tensor:
        """Run the last tokens of each sequence, and return logits [batch, vocabulary] of the last one, in fp32.

        Tensors live as long as in modules of serving engines, but that rows of experts are freed when they are read.
        `loads` are then the rows of each expert, [layers, experts].

        Args:
            ids: [batch, q_len], tokens at the last positions of the caches.
            caches: of each layer; written at these positions.
            begin: called before each operation with its name.
        """
        batch, q_len = ids.shape
        run = self.kernels
        begin("embedding")
        x = run.gather(self.embedding, ids.view(-1))
        num = 0 if self.config.moe is None else self.config.moe.num_experts
        counts = torch.zeros(len(self.layers), 2, num, device="cuda", dtype=torch.int32) if num else None
        self.loads = None if counts is None else counts[:, 0]
        residual: torch.Tensor | None = None
        for place, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            begin("input_norm")
            h = run.norm(x, layer.norms[0], residual)
            residual = x if residual is None else residual
            x = self._attention(h, layer, cache, q_len, begin)
            begin("ffn_norm")
            h = run.norm(x, layer.norms[1], residual)
            del x
            x = self._dense(h, layer, begin) if counts is None else self._experts(h, layer, counts[place], begin)
        begin("final_norm")
        h = run.norm(x, self.final_norm, residual)
        begin("lm_head")
        logits = functional.linear(h.view(batch, q_len, -1)[:, -1], self.head)
        begin("logits_cast")
        return logits.float()

    def _attention(
        self, h: torch.Tensor, layer: Layer, cache: tuple[torch.Tensor, torch.Tensor], q_len: int,
        begin: Callable[[str], None],
    ) -> torch.Tensor:  # fmt: skip
        begin("qkv_proj")
        qkv = _linear(h, layer.qkv)
        if layer.head_norms is not None:
            begin("qk_norm")
            self.kernels.qk_norm(qkv, layer.head_norms, self.num_heads, self.num_kv_heads)
        begin("rotary_kv_write")
        self.kernels.rotary_kv_write(qkv, self.angles, cache, self.num_heads, q_len)
        begin("attention")
        heads = qkv.view(-1, q_len, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        q, k, v = (tensor.transpose(1, 2) for tensor in (heads[:, :, : self.num_heads], *cache))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found = functional.scaled_dot_product_attention(
                q, k, v, is_causal=q_len > 1, enable_gqa=self.num_heads > self.num_kv_heads
            )
        out = found.transpose(1, 2).reshape(-1, self.num_heads * self.head_dim)
        del qkv, heads, q, k, v, found
        begin("o_proj")
        return _linear(out, layer.o)

    def _dense(self, h: torch.Tensor, layer: Layer, begin: Callable[[str], None]) -> torch.Tensor:
        begin("gate_up_proj")
        both = _linear(h, layer.up)
        begin("ffn_activation")
        inner = self.kernels.silu_mul(both)
        begin("down_proj")
        return _linear(inner, layer.down)

    def _experts(
        self, h: torch.Tensor, layer: Layer, counts: torch.Tensor, begin: Callable[[str], None]
    ) -> torch.Tensor:
        run, moe = self.kernels, self.config.moe
        assert moe is not None
        begin("router")
        logits = functional.linear(h, layer.router)
        begin("routing")
        experts, weights = run.routing(logits, moe.experts_per_token, counts[0])
        begin("expert_sort")
        offsets, row_of_choice = run.expert_sort(experts, counts[0], counts[1])
        begin("permute")
        rows = run.permute(h, row_of_choice)
        begin("expert_gate_up")
        both = _grouped(rows, layer.up, offsets)
        del rows
        begin("expert_activation")
        inner = run.silu_mul(both)
        del both
        begin("expert_down")
        y = _grouped(inner, layer.down, offsets)
        del inner
        begin("finalize")
        return run.finalize(y, row_of_choice, weights)


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def _linear(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """x [rows, K] times a matrix [N, K]."""
    if isinstance(weight, torch.Tensor):
        return functional.linear(x, weight)
    out = torch.empty(x.shape[0], weight.N, device=x.device, dtype=x.dtype)
    w4a16_gemm(x, weight, out=out, stream=_stream())
    return out


def _grouped(x: torch.Tensor, weight: Any, offsets: torch.Tensor) -> torch.Tensor:
    """Rows x [rows, K], group after group, times the matrices [groups, N, K]."""
    if isinstance(weight, torch.Tensor):
        return functional.grouped_mm(x, weight.transpose(1, 2), offs=offsets[1:])
    out = torch.empty(x.shape[0], weight.N, device=x.device, dtype=x.dtype)
    w4a16_grouped_gemm(x, weight, offsets, out=out, stream=_stream())
    return out


def _matrix(weight: Any) -> torch.Tensor:
    """As float64 [N, K]."""
    if isinstance(weight, PackedW4):
        return torch.as_tensor(dequantize(weight, "float64"), device="cuda").T
    return weight.double()


def reference(stack: Stack, ids: torch.Tensor) -> torch.Tensor:
    """Return logits [batch, tokens, vocabulary] of whole sequences ids [batch, tokens], in float64."""
    x = stack.embedding[ids].double()
    batch, tokens, hidden = x.shape
    heads, kv_heads, size = stack.num_heads, stack.num_kv_heads, stack.head_dim
    hidden_pairs = torch.ones(tokens, tokens, device="cuda", dtype=torch.bool).triu(1)
    for layer in stack.layers:
        h = _normed(x, layer.norms[0])
        q, k, v = (h @ _matrix(layer.qkv).T).view(batch, tokens, -1, size).split((heads, kv_heads, kv_heads), 2)
        if layer.head_norms is not None:
            q, k = _normed(q, layer.head_norms[0]), _normed(k, layer.head_norms[1])
        q, k = _turned(q, stack.angles[:tokens]), _turned(k, stack.angles[:tokens])
        k, v = (tensor.repeat_interleave(heads // kv_heads, 2) for tensor in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
        shares = scores.masked_fill(hidden_pairs, float("-inf")).softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, tokens, -1)
        x = x + out @ _matrix(layer.o).T
        h = _normed(x, layer.norms[1])
        x = x + (
            _mixed(stack, layer, h.view(-1, hidden)).view_as(h)
            if layer.router is not None
            else _mlp(h, layer.up, layer.down)
        )
    return _normed(x, stack.final_norm) @ stack.head.double().T


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    cosine, sine = (part[:, None, :].double() for part in angles.unbind(-1))
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def _mlp(h: torch.Tensor, up: Any, down: Any) -> torch.Tensor:
    gate, other = (h @ _matrix(up).T).chunk(2, -1)
    return (functional.silu(gate) * other) @ _matrix(down).T


def _mixed(stack: Stack, layer: Layer, h: torch.Tensor) -> torch.Tensor:
    moe = stack.config.moe
    assert moe is not None
    assert layer.router is not None
    weights, experts = (h @ layer.router.double().T).topk(moe.experts_per_token, -1)
    weights, out = weights.softmax(-1), torch.zeros_like(h)
    for expert in experts.unique().tolist():
        token, choice = (experts == expert).nonzero(as_tuple=True)
        out[token] += weights[token, choice, None] * _mlp(h[token], layer.up[expert], layer.down[expert])
    return out
