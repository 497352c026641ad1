"""Which grouped GEMMs are measured: both GEMMs of the experts of real models, by how tokens fall on experts.

Deterministic: what is random has a seed of its own for each layer and number of tokens, and is the same for its two
GEMMs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.shapes import GemmShape, GroupedShape, rough_latency_us
from gemm_eval.moe import balanced_counts, most_loaded_rank_first, power_law_counts, uniform_counts
from gemm_eval.words import shown

__all__ = ["GROUPED_SETS", "list_expert_batches", "list_grouped_shapes"]


class _Experts(NamedTuple):
    """Experts of a model's layer, as its published config has them, on ranks."""

    model: str
    hidden: int
    inter: int
    num_experts: int
    topk: int
    tp: int = 1
    ep: int = 1


# hidden_size, (moe_)intermediate_size, number of routed experts and experts of a token in each model's config.json
_MODELS = (
    _Experts("mixtral-8x7b", 4096, 14336, 8, 2),
    _Experts("mixtral-8x7b", 4096, 14336, 8, 2, tp=4),
    _Experts("mixtral-8x22b", 6144, 16384, 8, 2),
    _Experts("mixtral-8x22b", 6144, 16384, 8, 2, tp=8),
    _Experts("phi-3.5-moe", 4096, 6400, 16, 2),
    _Experts("llama-4-scout", 5120, 8192, 16, 1),
    _Experts("llama-4-maverick", 5120, 8192, 128, 1, ep=8),
    _Experts("olmoe-1b-7b", 2048, 1024, 64, 8),
    _Experts("deepseek-v2-lite", 2048, 1408, 64, 6),
    _Experts("deepseek-v3", 7168, 2048, 256, 8, ep=8),
    _Experts("deepseek-v3", 7168, 2048, 256, 8, ep=16),
    _Experts("deepseek-v3", 7168, 2048, 256, 8, ep=32),
    _Experts("kimi-k2", 7168, 2048, 384, 8, ep=16),
    _Experts("qwen3-30b-a3b", 2048, 768, 128, 8),
    _Experts("qwen3-235b-a22b", 4096, 1536, 128, 8),
    _Experts("qwen3-235b-a22b", 4096, 1536, 128, 8, tp=4),
    _Experts("qwen3-235b-a22b", 4096, 1536, 128, 8, ep=8),
    _Experts("qwen3-next-80b-a3b", 2048, 512, 512, 10),
    _Experts("glm-4.5-air", 4096, 1408, 128, 8),
    _Experts("gpt-oss-120b", 2880, 2880, 128, 4),
)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_POWERS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
_SKEWED = (*_POWERS, "uniform")
_SPARSE_STEP, _SPARSE_TOKENS = 8, (64, 512, 4096)  # one expert of eight has tokens
_MAX_LATENCY_US = 12_000.0
# Small ones, whose time is that of the call and of what each group costs.
_FLOOR_GROUPS, _FLOOR_ROWS, _FLOOR_NK = (1, 2, 8, 32, 128, 512), (0, 1, 64), ((128, 128), (256, 1024))
_REPEAT_STEP = 24


def _counts(of: _Experts, num_tokens: int, distribution: str, seed: int) -> tuple[int, ...]:
    """Rows of each expert of the rank that has most."""
    if distribution == "balanced":
        counts = balanced_counts(num_tokens, of.num_experts, of.topk)
    elif distribution == "sparse":
        counts = np.zeros(of.num_experts, np.int64)
        few = balanced_counts(num_tokens, of.num_experts // _SPARSE_STEP, of.topk)
        counts[::_SPARSE_STEP] = few
    elif distribution == "uniform":
        counts = uniform_counts(num_tokens, of.num_experts, of.topk, np.random.default_rng(seed))
    else:
        rng = np.random.default_rng(seed)
        counts = power_law_counts(num_tokens, of.num_experts, of.topk, _POWERS[distribution], of.ep, rng)
    if distribution != "balanced":
        counts = most_loaded_rank_first(counts, of.ep)
    return tuple(counts[: of.num_experts // of.ep].tolist())


def _both_gemms(of: _Experts, num_tokens: int, distribution: str, seed: int) -> Iterator[GroupedShape]:
    groups = _counts(of, num_tokens, distribution, seed)
    if not any(groups):
        return
    inter = of.inter // of.tp
    for gemm, (k, n) in enumerate(((of.hidden, 2 * inter), (inter, of.hidden)), 1):
        shape = GroupedShape(
            len(groups), max(groups), k, n, groups, of.model, gemm, num_tokens, of.num_experts, of.topk, of.tp, of.ep,
            distribution, seed,
        )  # fmt: skip
        if rough_latency_us(shape) < _MAX_LATENCY_US:
            yield shape


def _layers() -> Iterator[GroupedShape]:
    for place, of in enumerate(_MODELS):
        for step, num_tokens in enumerate(_TOKENS):
            yield from _both_gemms(of, num_tokens, "balanced", -1)
            kinds = [_SKEWED[(place + step) % 3]]
            if (place + step) % 2:
                kinds.append(_SKEWED[(place + step + 1) % 3])
            for kind in kinds:
                yield from _both_gemms(of, num_tokens, kind, 1000 * place + 10 * step + _SKEWED.index(kind))
        if of.num_experts // _SPARSE_STEP >= of.topk:
            for num_tokens in _SPARSE_TOKENS:
                yield from _both_gemms(of, num_tokens, "sparse", -1)


def _floors() -> Iterator[GroupedShape]:
    for groups in _FLOOR_GROUPS:
        for rows in _FLOOR_ROWS:
            for k, n in _FLOOR_NK:
                counts = (max(rows, 1), *(groups - 1) * (rows,))
                yield GroupedShape(
                    groups, max(counts), k, n, counts, "none", 1, sum(counts), groups, 1, 1, 1, "floor", -1
                )  # fmt: skip


GROUPED_SETS = ("grouped", "grouped-repeat", "grouped-smoke")
"""Names that `list_grouped_shapes` knows."""


def list_grouped_shapes(shape_set: str) -> list[GroupedShape]:
    """Return the grouped GEMMs of a set.

    Args:
        shape_set: ``grouped`` (14 models on 1 to 32 ranks, 8 to 16,384 tokens, balanced and skewed, and small ones that
            show what a call and a group cost), ``grouped-repeat`` (some of these, to be timed again) or
            ``grouped-smoke``.

    Raises:
        InvalidOptionError: no set of that name.
    """
    if shape_set not in GROUPED_SETS:
        raise InvalidOptionError(f"--set must be one of {', '.join(GROUPED_SETS)}, got {shown(shape_set)}")
    shapes = list(dict.fromkeys((*_layers(), *_floors())))
    if shape_set == "grouped":
        return shapes
    some = shapes[:: _REPEAT_STEP if shape_set == "grouped-repeat" else len(shapes) // 3]
    return [shape._replace(take=1) for shape in some] if shape_set == "grouped-repeat" else some


def list_expert_batches() -> list[GemmShape]:
    """Return, as batches, the grouped GEMMs of models whose groups are equal: batched kernels run these too."""
    equal = [shape for shape in _layers() if min(shape.row_groups) == shape.M]
    return list(dict.fromkeys(GemmShape(*shape[:4]) for shape in equal))
