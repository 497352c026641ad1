"""The GEMMs that are measured: layers of real models, awkward sizes, every regime of M, and experts of mixtures.

The lists are deterministic: random numbers of grouped GEMMs have a seed for each layer and number of tokens, which both
GEMMs of the layer share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import WeightMode
from gemm_eval.mapping import KernelConfig
from gemm_eval.moe import balanced_counts, most_loaded_rank_first, power_law_counts, uniform_counts
from gemm_eval.words import shown


class GemmShape(NamedTuple):
    """Sizes of one GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N], in elements."""

    G: int
    M: int
    K: int
    N: int

    @property
    def flop(self) -> int:
        """Floating-point (or integer) operations; a multiply-add is 2."""
        return 2 * self.G * self.M * self.K * self.N


class Candidate(NamedTuple):
    """A GEMM by an algorithm that its library proposes.

    Attributes:
        G, M, K, N: sizes.
        rank: place among the proposals; 0 is what the library would run.
        split_k: parts of K that the algorithm works on apart; 1: none.
    """

    G: int
    M: int
    K: int
    N: int
    rank: int
    split_k: int

    @property
    def shape(self) -> GemmShape:
        """The GEMM."""
        return GemmShape(*self[:4])

    @property
    def flop(self) -> int:
        """As of the GEMM."""
        return self.shape.flop


class KernelItem(NamedTuple):
    """A GEMM with 4-bit weights by a kernel of ours.

    Attributes:
        G, M, K, N: sizes; G is 1.
        mode, group_size: of the weights; the latter is 0 in mode COLUMN.
        config: the kernel, and how K is split.
    """

    G: int
    M: int
    K: int
    N: int
    mode: WeightMode
    group_size: int
    config: KernelConfig

    @property
    def shape(self) -> GemmShape:
        """The GEMM."""
        return GemmShape(*self[:4])

    @property
    def flop(self) -> int:
        """As of the GEMM."""
        return self.shape.flop


class GroupedShape(NamedTuple):
    """A grouped GEMM, C_i[m_i,N] = A_i[m_i,K] x B_i[K,N] for each of G groups, and what it is in a model.

    Attributes:
        G, M, K, N: groups, rows of the largest, and the sizes that all share.
        row_groups: rows of each group, m_i; 0 where a group has none.
        model: of which it is a layer.
        gemm: 1 (gate and up) or 2 (down).
        num_tokens, num_experts, topk: tokens that all ranks see together, experts of the layer, experts of a token.
        tp, ep: ranks that share each expert's columns, and ranks that experts are spread over. Groups are the experts
            of the rank that has most rows.
        distribution: of tokens over experts; `seed`: of its random numbers, -1 where there are none.
        take: counts up where the same is timed again.
    """

    G: int
    M: int
    K: int
    N: int
    row_groups: tuple[int, ...]
    model: str
    gemm: int
    num_tokens: int
    num_experts: int
    topk: int
    tp: int
    ep: int
    distribution: str
    seed: int
    take: int = 0

    @property
    def rows(self) -> int:
        """Rows of all groups."""
        return sum(self.row_groups)

    @property
    def num_active(self) -> int:
        """Groups that have a row: those whose weights are read."""
        return sum(rows > 0 for rows in self.row_groups)

    @property
    def flop(self) -> int:
        """Floating-point operations; a multiply-add is 2."""
        return 2 * self.rows * self.K * self.N


GemmItem: TypeAlias = GemmShape | Candidate | KernelItem | GroupedShape
"""A GEMM as its library runs it, by a certain algorithm or by a certain kernel of ours, or a grouped GEMM."""


def rows_of(item: GemmItem) -> int:
    """Return the rows that decide how an item is timed: M, or those of all groups."""
    return item.rows if isinstance(item, GroupedShape) else item.M


_MODEL_NK = (
    # Llama 3 8B, Mistral 7B, Mixtral 8x7B: qkv, o, gate_up, down, lm_head
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096),
    # Llama 2 7B and 13B
    (12288, 4096), (22016, 4096), (4096, 11008), (5120, 13824),
    # Llama 3 70B with tensor parallelism 1, 2, 4, 8
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (5120, 8192), (2560, 8192), (8192, 2048),
    (8192, 7168), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (16032, 8192),
    # Llama 3.1 405B, tensor parallelism 8
    (2304, 16384), (16384, 2048), (13312, 16384), (16384, 6656),
    # Qwen 2.5 7B and its lm_head; Qwen 3 0.6B, 32B, and an expert of 30B-A3B
    (4608, 3584), (37888, 3584), (3584, 18944), (152064, 3584), (4096, 1024), (5120, 25600), (51200, 5120),
    (1536, 2048), (2048, 768),
    # DeepSeek-V3: q_a and kv_a, q_b, kv_b, o, expert gate_up and down, router
    (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048), (256, 7168),
    # GPT-OSS (hidden size 2880): qkv, o, expert; Gemma 2 9B gate_up and o
    (5120, 2880), (2880, 4096), (5760, 2880), (28672, 3584), (3584, 4096),
)  # fmt: skip
_AWKWARD_NK = (
    # multiples of 8 that no tile divides
    (1000, 1000), (1000, 4096), (4104, 4104), (24, 4096), (72, 1024), (264, 4096), (4096, 520), (1032, 1032),
    (151936, 1024), (3000, 5000),
    # 8-byte and 2-byte aligned rows
    (4100, 4100), (4095, 4096), (4096, 4097), (1001, 999),
)  # fmt: skip
_ROWS = (
    1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 127, 128, 129, 160, 192, 256, 257, 320, 384, 448, 512,
    640, 768, 896, 1024, 1025, 1280, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
)  # fmt: skip

# Batched: scores (K is the head size), context (N is the head size), absorbed latent attention, experts.
_BATCHED_MKN = (
    (1, 128, 2048), (16, 128, 4096), (128, 128, 128), (512, 128, 512), (1024, 128, 1024), (2048, 64, 2048),
    (1, 2048, 128), (16, 4096, 128), (512, 512, 128), (1024, 1024, 128), (2048, 2048, 64),
    (1, 128, 512), (32, 512, 128), (127, 192, 257),
    (1, 2048, 1536), (8, 2048, 1536), (64, 768, 2048), (17, 4096, 14336), (128, 4096, 14336), (512, 7168, 4096),
    (33, 7168, 4096), (4, 2048, 7168), (256, 2048, 7168), (1025, 2880, 5760), (96, 2880, 2880), (1000, 1000, 1000),
)  # fmt: skip
_BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128)

# Of `candidates`: pairs of N and K, and rows; all regimes with few sizes, as each is timed several times.
_CANDIDATE_NK = (
    (4096, 4096), (12288, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1024, 8192), (8192, 8192),
    (28672, 8192), (8192, 28672), (2048, 7168), (7168, 2048), (512, 4096), (1536, 5120), (5120, 2560), (3072, 3072),
    (2560, 3584), (16384, 1024), (10240, 512), (768, 1024), (2048, 2560), (16384, 16384), (64, 65536), (128, 7168),
    (65536, 2560), (4104, 4096), (1000, 2048), (11008, 4096), (151936, 896), (3584, 5120), (256, 8192),
)  # fmt: skip
_CANDIDATE_ROWS = (
    1, 8, 16, 17, 32, 48, 64, 80, 96, 128, 160, 192, 256, 257, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip
_CANDIDATE_INPUT_ELEMS, _CANDIDATE_OUTPUT_ELEMS, _CANDIDATE_FLOP = 1 << 28, 1 << 29, 1 << 41

# Of `unaligned`: pairs of N and K, each with five of the steps that take N and K off a multiple of 8, in turn; rows.
_UNALIGNED_NK = (
    (256, 768), (512, 4096), (768, 256), (1024, 1024), (1536, 8192), (2048, 512), (2048, 2048), (3072, 5120),
    (4096, 1536), (5120, 3072), (7168, 16384), (8192, 1024), (12288, 4096), (28672, 2048),
)  # fmt: skip
_UNALIGNED_STEPS = (
    (1, 0), (0, -1), (-1, 3), (2, 0), (0, -2), (-2, 6), (-4, 0), (0, 4), (4, -4), (5, 4), (-4, 1), (0, 7), (-3, 0),
)  # fmt: skip
_UNALIGNED_ROWS = (
    1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128, 129, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192,
)  # fmt: skip
_UNALIGNED_FLOP = 6e11  # where they take ten times what others do

_MAX_FLOP = 2 * 16384**3
_MAX_LATENCY_US = 12_000.0
_MAX_WEIGHT_BYTES = 2_200_000_000
_MAX_OPERAND_ELEMS = 2_200_000_000
_NUM_FEW_PAIRS = 25


def rough_latency_us(shape: GemmItem, bytes_per_elem: float = 2.0) -> float:
    """Return the time on a GPU of the H200's class within a factor of two, in us: for limits and first guesses."""
    flop_per_us, bytes_per_us, launch_us = 1.3e9 / bytes_per_elem, 4.0e6, 2.5
    if isinstance(shape, GroupedShape):
        elems = shape.rows * (shape.K + shape.N) + shape.num_active * shape.K * shape.N
    else:
        elems = shape.G * (shape.M * shape.K + shape.K * shape.N + shape.M * shape.N)
    return launch_us + max(shape.flop / flop_per_us, elems * bytes_per_elem / bytes_per_us)


def _is_small_enough(shape: GemmShape, bytes_per_elem: float) -> bool:
    largest = shape.G * max(shape.M * shape.K, shape.M * shape.N)
    return (
        shape.flop <= _MAX_FLOP
        and shape.G * shape.K * shape.N * bytes_per_elem <= _MAX_WEIGHT_BYTES
        and largest <= _MAX_OPERAND_ELEMS
        and rough_latency_us(shape, bytes_per_elem) < _MAX_LATENCY_US
    )


def _rows_of(pair: int, num_of_three: int) -> list[int]:
    """Keep `num_of_three` of every three neighbouring values of M, others for each pair: all regimes are covered."""
    return [
        rows
        for index, rows in enumerate(_ROWS)
        if (index % 3 - pair - index // 3) % 3 < num_of_three or (num_of_three > 1 and rows == _ROWS[-1])
    ]


def _dense() -> list[GemmShape]:
    return [
        shape
        for index, (n, k) in enumerate((*_MODEL_NK, *_AWKWARD_NK))
        for m in _rows_of(index, 2)
        if _is_small_enough(shape := GemmShape(1, m, k, n), 2.0)
    ]


def _few(bytes_per_elem: float, multiple: int = 1, min_rows: int = 1) -> list[GemmShape]:
    """Return 25 of the pairs, evenly spread, with a third of the values of M."""
    pairs = [(n, k) for n, k in (*_MODEL_NK, *_AWKWARD_NK) if n % multiple == k % multiple == 0]
    chosen = [pairs[i * len(pairs) // _NUM_FEW_PAIRS] for i in range(_NUM_FEW_PAIRS)]
    return [
        shape
        for index, (n, k) in enumerate(chosen)
        for m in _rows_of(index, 1)
        if m >= min_rows and _is_small_enough(shape := GemmShape(1, m, k, n), bytes_per_elem)
    ]


def _batched() -> list[GemmShape]:
    return [
        shape for m, k, n in _BATCHED_MKN for g in _BATCH_SIZES if _is_small_enough(shape := GemmShape(g, m, k, n), 2.0)
    ]


def _candidates() -> list[GemmShape]:
    return [
        shape
        for n, k in _CANDIDATE_NK
        for m in _CANDIDATE_ROWS
        if (shape := GemmShape(1, m, k, n)).flop < _CANDIDATE_FLOP
        and m * k <= _CANDIDATE_INPUT_ELEMS
        and m * n <= _CANDIDATE_OUTPUT_ELEMS
    ]


def _unaligned() -> list[GemmShape]:
    steps = _UNALIGNED_STEPS
    pairs = [
        (n + dn, k + dk)
        for index, (n, k) in enumerate(_UNALIGNED_NK)
        for dn, dk in (steps[(5 * index + i) % len(steps)] for i in range(5))
    ]
    return [
        shape
        for index, (n, k) in enumerate(pairs)
        for m in _UNALIGNED_ROWS[index % 4 :: 4]
        if (shape := GemmShape(1, m, k, n)).flop < _UNALIGNED_FLOP
    ]


def list_shapes(shape_set: str, dtype: str) -> list[GemmShape]:
    """Return the GEMMs of a set, for a data type: sizes that its library refuses are left out.

    Args:
        shape_set: ``model-zoo`` (fp16, bf16: all pairs and two thirds of the values of M), ``model-zoo-few`` (25 pairs,
            a third of the values of M; what other types get under either name), ``batched`` (G > 1),
            ``candidates`` (30 pairs, 22 values of M: few enough to time several algorithms of each), ``unaligned`` (70
            pairs whose rows do not all start on 16 bytes in 16-bit types, a quarter of 26 values of M), ``experts``
            (batches: grouped GEMMs of the set ``grouped`` whose groups are equal) or ``smoke``.
        dtype: fp16, bf16, fp8 or int8.

    Raises:
        InvalidOptionError: no set of that name.
    """
    if shape_set not in SHAPE_SETS:
        raise InvalidOptionError(f"--set must be one of {', '.join(SHAPE_SETS)}, got {shown(shape_set)}")
    if shape_set == "smoke":
        return [GemmShape(1, 17, 4096, 1024), GemmShape(1, 512, 4096, 4096), GemmShape(1, 4096, 4096, 4096)]
    if shape_set in _OF_16_BITS:
        return _OF_16_BITS[shape_set]() if dtype in ("fp16", "bf16") else []
    if dtype == "fp8":  # rows of 16 bytes
        return _few(1.0, multiple=16)
    if dtype == "int8":  # torch._int_mm wants more than 16 rows of A
        return _few(1.0, multiple=8, min_rows=17)
    return _dense() if shape_set == "model-zoo" else _few(2.0)


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
_MODELS = tuple(
    _Experts(*row) for row in (
        ("mixtral-8x7b", 4096, 14336, 8, 2), ("mixtral-8x7b", 4096, 14336, 8, 2, 4),
        ("mixtral-8x22b", 6144, 16384, 8, 2), ("mixtral-8x22b", 6144, 16384, 8, 2, 8),
        ("phi-3.5-moe", 4096, 6400, 16, 2), ("llama-4-scout", 5120, 8192, 16, 1),
        ("llama-4-maverick", 5120, 8192, 128, 1, 1, 8), ("olmoe-1b-7b", 2048, 1024, 64, 8),
        ("deepseek-v2-lite", 2048, 1408, 64, 6), ("deepseek-v3", 7168, 2048, 256, 8, 1, 8),
        ("deepseek-v3", 7168, 2048, 256, 8, 1, 16), ("deepseek-v3", 7168, 2048, 256, 8, 1, 32),
        ("kimi-k2", 7168, 2048, 384, 8, 1, 16), ("qwen3-30b-a3b", 2048, 768, 128, 8),
        ("qwen3-235b-a22b", 4096, 1536, 128, 8), ("qwen3-235b-a22b", 4096, 1536, 128, 8, 4),
        ("qwen3-235b-a22b", 4096, 1536, 128, 8, 1, 8), ("qwen3-next-80b-a3b", 2048, 512, 512, 10),
        ("glm-4.5-air", 4096, 1408, 128, 8), ("gpt-oss-120b", 2880, 2880, 128, 4),
    )
)  # fmt: skip
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_POWERS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
_SKEWED = (*_POWERS, "uniform")
_SPARSE_STEP, _SPARSE_TOKENS = 8, (64, 512, 4096)  # one expert of eight has tokens
# Small ones, whose time is that of the call and of what each group costs.
_FLOOR_GROUPS, _FLOOR_ROWS, _FLOOR_NK = (1, 2, 8, 32, 128, 512), (0, 1, 64), ((128, 128), (256, 1024))
_REPEAT_STEP = 24


def _counts(of: _Experts, num_tokens: int, distribution: str, seed: int) -> tuple[int, ...]:
    """Return the rows of each expert of the rank that has most."""
    if distribution == "balanced":
        counts = balanced_counts(num_tokens, of.num_experts, of.topk)
    elif distribution == "sparse":
        counts = np.zeros(of.num_experts, np.int64)
        few = balanced_counts(num_tokens, of.num_experts // _SPARSE_STEP, of.topk)
        counts[::_SPARSE_STEP] = few
    elif distribution == "uniform":
        (counts,) = uniform_counts(num_tokens, of.num_experts, of.topk, np.random.default_rng(seed))
    else:
        rng = np.random.default_rng(seed)
        (counts,) = power_law_counts(num_tokens, of.num_experts, of.topk, _POWERS[distribution], of.ep, rng)
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
    for index, of in enumerate(_MODELS):
        for step, num_tokens in enumerate(_TOKENS):
            yield from _both_gemms(of, num_tokens, "balanced", -1)
            kinds = [_SKEWED[(index + step) % 3]]
            if (index + step) % 2:
                kinds.append(_SKEWED[(index + step + 1) % 3])
            for kind in kinds:
                yield from _both_gemms(of, num_tokens, kind, 1000 * index + 10 * step + _SKEWED.index(kind))
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


_OF_16_BITS: Mapping[str, Callable[[], list[GemmShape]]] = {
    "batched": _batched, "candidates": _candidates, "unaligned": _unaligned, "experts": list_expert_batches,
}  # fmt: skip
SHAPE_SETS = ("model-zoo", "model-zoo-few", *_OF_16_BITS, "smoke")
"""Names that `list_shapes` knows."""
