"""Linear layers of ten models, for `measure_inductor.py`: sizes are those of the models' config files."""

from __future__ import annotations

import random
from typing import NamedTuple

_TOKENS = (16, 32, 64, 128, 257, 512, 1024, 1500, 2048, 4096)

# hidden, columns of q, k and v together, columns of q, columns of the first feed-forward GEMM, rows of the second, bias
_MODELS = {
    "llama-3-8b": (4096, 6144, 4096, 28672, 14336, False),
    "bert-large": (1024, 3072, 1024, 4096, 4096, True),
    "qwen3-4b": (2560, 6144, 4096, 19456, 9728, False),
    "gpt2-xl": (1600, 4800, 1600, 6400, 6400, True),
    "gemma-3-4b": (2560, 4096, 2048, 20480, 10240, False),
    "vit-h-14": (1280, 3840, 1280, 5120, 5120, True),
    "mistral-nemo-12b": (5120, 6144, 4096, 28672, 14336, False),
    "t5-xl": (2048, 6144, 2048, 10240, 5120, False),
    "phi-4-mini": (3072, 5120, 3072, 16384, 8192, False),
    "llama-3-70b": (8192, 10240, 8192, 57344, 28672, False),
}


class Layer(NamedTuple):
    """A linear layer: y[M,N] = x[M,K] w[N,K]^T, and a bias.

    Attributes:
        model, name: whose layer it is.
        M, N, K: rows (tokens), columns, reduction.
        has_bias: whether a bias of N is added.
    """

    model: str
    name: str
    M: int
    N: int
    K: int
    has_bias: bool

    @property
    def weight_bytes(self) -> int:
        """Of 16-bit weights."""
        return 2 * self.N * self.K


def _layers() -> tuple[Layer, ...]:
    found: list[Layer] = []
    for hidden, qkv, q, up, down, has_bias in _MODELS.values():
        model = list(_MODELS)[len(found) // 4]
        for name, n, k in (("qkv", qkv, hidden), ("out", hidden, q), ("up", up, hidden), ("down", hidden, down)):
            # steps of 3 give each model few and many tokens, and each of its four layers others in the next one
            tokens = _TOKENS[3 * len(found) % len(_TOKENS)]
            found.append(Layer(model, name, tokens, n, k, has_bias))
    return tuple(found)


LAYERS = _layers()
"""Forty layers, four of each model, of 16 to 4,096 tokens."""


def _drawn(seed: int, num_models: int) -> tuple[Layer, ...]:
    draw = random.Random(seed)
    layers = []
    for i in range(4 * num_models):
        M, N, K = (round(2 ** draw.uniform(low, high)) for low, high in ((3, 12), (9, 14), (9, 13.5)))
        step = draw.choice((8, 64, 64, 128))
        model = f"drawn-{1 + i // 4}"
        layers.append(Layer(model, f"layer {i % 4}", M, N // step * step, K // step * step, draw.random() < 0.5))
    return tuple(layers)


DRAWN_LAYERS = _drawn(12, 3)
"""Twelve layers of sizes that were drawn: of no model, and not among what rules were made from."""


def models() -> list[str]:
    """Return the names of the models, in the order in which they are measured."""
    return list(_MODELS)
