"""The GEMMs that are measured: layers of real models, awkward sizes, every regime of M, and experts of mixtures.

Their sizes stand in ``arch/shapes.yaml``. The lists are deterministic: random numbers of grouped GEMMs have a seed for
each layer and number of tokens, which both GEMMs of the layer share.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import Sizes, WeightMode, parse_activation, rank
from gemm_eval.mapping import KernelConfig
from gemm_eval.moe import balanced_counts, most_loaded_rank_first, power_law_counts, uniform_counts
from gemm_eval.words import check_word


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


class DrawnShape(NamedTuple):
    """A GEMM drawn at random (`draw_shapes`), and how its operands lie in memory (`gemm_eval.workload.LAYOUTS`)."""

    G: int
    M: int
    K: int
    N: int
    layout: str
    seed: int


class QuantShape(NamedTuple):
    """A GEMM with 4-bit weights; G is 1, and `group_size` 0 in mode COLUMN."""

    G: int
    M: int
    K: int
    N: int
    mode: WeightMode
    group_size: int

    @property
    def flop(self) -> int:
        return 2 * self.M * self.K * self.N


class KernelItem(NamedTuple):
    """A GEMM with 4-bit weights, as `QuantShape` has it, by a kernel of ours; `config` also says how K is split."""

    G: int
    M: int
    K: int
    N: int
    mode: WeightMode
    group_size: int
    config: KernelConfig


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
        return sum(self.row_groups)

    @property
    def num_active(self) -> int:
        """Groups that have a row: those whose weights are read."""
        return sum(rows > 0 for rows in self.row_groups)

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.K * self.N


GemmItem: TypeAlias = GemmShape | DrawnShape | KernelItem | GroupedShape
"""A GEMM as its library runs it or by a certain kernel of ours, or a grouped GEMM."""


def rows_of(item: GemmItem) -> int:
    """Return the rows that decide how an item is timed: M, or those of all groups."""
    return item.rows if isinstance(item, GroupedShape) else item.M


@cache
def _sizes() -> Mapping[str, Any]:
    return read_yaml(data_root() / "shapes.yaml")


def _dense_pairs() -> list[list[int]]:
    return [*itertools.chain.from_iterable(_sizes()["models"]), *_sizes()["awkward"]]


_UNALIGNED_FLOP = 6e11  # where they take ten times what others do
_MAX_FLOP = 2 * 16384**3
_MAX_LATENCY_US = 12_000.0
_MAX_WEIGHT_BYTES = 2_200_000_000
_MAX_OPERAND_ELEMS = 2_200_000_000
_NUM_FEW_PAIRS = 25


def rough_latency_us(item: GemmItem, bytes_per_elem: float = 2.0) -> float:
    """Return the time on a GPU of the H200's class within a factor of two, in us: for limits and first guesses."""
    flop_per_us, bytes_per_us, launch_us = 1.3e9 / bytes_per_elem, 4.0e6, 2.5
    rows, batches = (item.rows, item.num_active) if isinstance(item, GroupedShape) else (item.G * item.M, item.G)
    elems = rows * (item.K + item.N) + batches * item.K * item.N
    return launch_us + max(2 * rows * item.K * item.N / flop_per_us, elems * bytes_per_elem / bytes_per_us)


def _is_small_enough(shape: GemmShape, bytes_per_elem: float = 2.0) -> bool:
    G, M, K, N = shape
    has_small_operands = G * K * N * bytes_per_elem <= _MAX_WEIGHT_BYTES and G * M * max(K, N) <= _MAX_OPERAND_ELEMS
    is_short = shape.flop <= _MAX_FLOP and rough_latency_us(shape, bytes_per_elem) < _MAX_LATENCY_US
    return has_small_operands and is_short


def _rows_of_pair(pair: int, num_of_three: int) -> list[int]:
    """Keep `num_of_three` of every three neighbouring values of M, others for each pair: all regimes are covered."""
    values: list[int] = _sizes()["rows"]
    return [
        rows
        for index, rows in enumerate(values)
        if (index % 3 - pair - index // 3) % 3 < num_of_three or (num_of_three > 1 and rows == values[-1])
    ]


def _dense() -> Iterator[GemmShape]:
    for index, (n, k) in enumerate(_dense_pairs()):
        yield from (GemmShape(1, m, k, n) for m in _rows_of_pair(index, 2))


def _few(bytes_per_elem: float, multiple: int = 1, min_rows: int = 1) -> list[GemmShape]:
    """Return 25 of the pairs, evenly spread, with a third of the values of M."""
    pairs = [(n, k) for n, k in _dense_pairs() if n % multiple == k % multiple == 0]
    chosen = [pairs[i * len(pairs) // _NUM_FEW_PAIRS] for i in range(_NUM_FEW_PAIRS)]
    shapes = (GemmShape(1, m, k, n) for index, (n, k) in enumerate(chosen) for m in _rows_of_pair(index, 1))
    return [shape for shape in shapes if min_rows <= shape.M and _is_small_enough(shape, bytes_per_elem)]


def _batched() -> Iterator[GemmShape]:
    for m, k, n in _sizes()["batched"]:
        yield from (GemmShape(g, m, k, n) for g in _sizes()["batches"])


def _unaligned() -> Iterator[GemmShape]:
    steps = _sizes()["unaligned_steps"]
    pairs = [
        (n + dn, k + dk)
        for index, (n, k) in enumerate(_sizes()["unaligned"])
        for dn, dk in (steps[(5 * index + i) % len(steps)] for i in range(5))
    ]
    for index, (n, k) in enumerate(pairs):
        for m in _sizes()["unaligned_rows"][index % 4 :: 4]:
            if 2 * m * n * k < _UNALIGNED_FLOP:
                yield GemmShape(1, m, k, n)


def _expert_batches() -> Iterator[GemmShape]:
    """Yield, as batches, the grouped GEMMs of models whose groups are equal: batched kernels run these too."""
    return (GemmShape(*shape[:4]) for shape in _layers() if min(shape.row_groups) == shape.M)


_OF_16_BITS: Mapping[str, tuple[Callable[[], Iterator[GemmShape]], bool]] = {
    "batched": (_batched, True), "unaligned": (_unaligned, False), "experts": (_expert_batches, False)
}  # fmt: skip
SHAPE_SETS = ("model-zoo", "model-zoo-few", *_OF_16_BITS, "smoke")
"""Names that `list_shapes` knows."""


def list_shapes(shape_set: str, dtype: str) -> list[GemmShape]:
    """Return the GEMMs of a set, for a data type: sizes that its library refuses are left out.

    Args:
        shape_set: ``model-zoo`` (fp16, bf16: all pairs and two thirds of the values of M), ``model-zoo-few`` (25 pairs,
            a third of the values of M; what other types get under either name), ``batched`` (G > 1), ``unaligned`` (70
            pairs whose rows do not all start on 16 bytes in 16-bit types, a quarter of 26 values of M), ``experts``
            (batches: grouped GEMMs of the set ``grouped`` whose groups are equal) or ``smoke``.
        dtype: fp16, bf16, fp8 or int8.

    Raises:
        InvalidOptionError: no set of that name.
    """
    check_word("--set", shape_set, SHAPE_SETS)
    if shape_set == "smoke":
        return [GemmShape(1, 17, 4096, 1024), GemmShape(1, 512, 4096, 4096), GemmShape(1, 4096, 4096, 4096)]
    if shape_set in _OF_16_BITS:
        make, is_limited = _OF_16_BITS[shape_set]
        shapes = dict.fromkeys(make()) if dtype in ("fp16", "bf16") else ()
        return [shape for shape in shapes if not is_limited or _is_small_enough(shape)]
    if dtype == "fp8":  # rows of 16 bytes
        return _few(1.0, multiple=16)
    if dtype == "int8":  # torch._int_mm wants more than 16 rows of A
        return _few(1.0, multiple=8, min_rows=17)
    return [shape for shape in _dense() if _is_small_enough(shape)] if shape_set == "model-zoo" else _few(2.0)


class _Experts(NamedTuple):
    """Experts of a model's layer, as its published config has them, on ranks."""

    model: str
    hidden: int
    inter: int
    num_experts: int
    topk: int
    tp: int
    ep: int


_DRAWN = {"M": (1, 9000), "K": (16, 16000), "N": (16, 18000)}
_DRAWN_BATCH = {"G": (2, 256), "M": (1, 2048), "K": (16, 2048), "N": (16, 2048)}
_DRAWN_SET_BYTES = 3 << 30
_NARROW_MULTIPLE = {"fp8": 16, "int8": 8}  # of K and N, without which PyTorch refuses
_LAYOUTS_DRAWN = ("tn", "tn", "nn", "nt")


def draw_shapes(count: int, seed: int, dtype: str) -> list[DrawnShape]:
    """Draw GEMMs unlike those of any model: sizes log-uniform, round or odd, in three layouts, a fifth in batches.

    Args:
        count, seed: how many, and of which random numbers; each type has its own.
        dtype: as `TorchRunner` takes it. fp8 and int8 have one layout, no batches, and sizes that PyTorch takes.

    Raises:
        InvalidOptionError: `count` or `seed` is out of range.
    """
    if count < 1 or seed < 0:
        raise InvalidOptionError(f"--draw must be >= 1 and --seed >= 0, got {count} and {seed}")
    rng = random.Random(f"{seed} {dtype}")
    narrow = _NARROW_MULTIPLE.get(dtype.partition("-")[0], 0)
    elem_bytes = 1.0 if narrow else 4.0 if dtype.endswith("32") else 2.0
    drawn: dict[DrawnShape, None] = {}
    while len(drawn) < count:
        ranges = _DRAWN if narrow or rng.random() < 0.8 else _DRAWN_BATCH
        sizes = {name: int(low * (high / low) ** rng.random()) for name, (low, high) in ranges.items()}
        least = 17 if dtype == "int8" else 1
        columns = narrow or rng.choice((64, 64, 8, 8, 1))
        rows = rng.choice((1, 1, 8, 64))
        G, M = sizes.get("G", 1), max(least, _to_multiple(sizes["M"], rows))
        K, N = (_to_multiple(sizes[name], columns) for name in "KN")
        shape = DrawnShape(G, M, K, N, "tn" if narrow else rng.choice(_LAYOUTS_DRAWN), seed)
        set_bytes = elem_bytes * G * (M * K + K * N + M * N)
        if set_bytes < _DRAWN_SET_BYTES and rough_latency_us(shape, elem_bytes) < _MAX_LATENCY_US:
            drawn[shape] = None
    return list(drawn)


def _to_multiple(size: int, multiple: int) -> int:
    return max(1, round(size / multiple)) * multiple


_POWERS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
_SKEWED = (*_POWERS, "uniform")
_SPARSE_STEP, _SPARSE_TOKENS = 8, (64, 512, 4096)  # one expert of eight has tokens
# Small ones, whose time is that of the call and of what each group costs.
_FLOOR_GROUPS, _FLOOR_ROWS, _FLOOR_NK = (1, 2, 8, 32, 128, 512), (0, 1, 64), ((128, 128), (256, 1024))
_REPEAT_STEP = 24


def _counts(of: _Experts, num_tokens: int, distribution: str, seed: int) -> tuple[int, ...]:
    """Return the rows of each expert of the rank that has most."""
    rng = np.random.default_rng(max(seed, 0))
    if distribution == "balanced":
        counts = balanced_counts(num_tokens, of.num_experts, of.topk)
    elif distribution == "sparse":
        counts = np.zeros(of.num_experts, np.int64)
        counts[::_SPARSE_STEP] = balanced_counts(num_tokens, of.num_experts // _SPARSE_STEP, of.topk)
    elif distribution == "uniform":
        (counts,) = uniform_counts(num_tokens, of.num_experts, of.topk, rng)
    else:
        (counts,) = power_law_counts(num_tokens, of.num_experts, of.topk, _POWERS[distribution], of.ep, rng)
    if distribution != "balanced":
        counts = most_loaded_rank_first(counts, of.ep)
    return tuple(counts[: of.num_experts // of.ep].tolist())


def _both_gemms(of: _Experts, num_tokens: int, distribution: str, seed: int) -> Iterator[GroupedShape]:
    groups = _counts(of, num_tokens, distribution, seed)
    inter = of.inter // of.tp
    for gemm, (k, n) in enumerate(((of.hidden, 2 * inter), (inter, of.hidden)), 1):
        shape = GroupedShape(
            len(groups), max(groups), k, n, groups, of.model, gemm, num_tokens, *of[3:], distribution, seed
        )
        if any(groups) and rough_latency_us(shape) < _MAX_LATENCY_US:
            yield shape


def _layers() -> Iterator[GroupedShape]:
    for index, row in enumerate(_sizes()["experts"]):
        of = _Experts(*row)
        for step, num_tokens in enumerate(_sizes()["tokens"]):
            yield from _both_gemms(of, num_tokens, "balanced", -1)
            for more in range(1 + (index + step) % 2):
                kind = (index + step + more) % 3
                yield from _both_gemms(of, num_tokens, _SKEWED[kind], 1000 * index + 10 * step + kind)
        if of.num_experts // _SPARSE_STEP >= of.topk:
            for num_tokens in _SPARSE_TOKENS:
                yield from _both_gemms(of, num_tokens, "sparse", -1)


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
    check_word("--set", shape_set, GROUPED_SETS)
    shapes = list(_layers())
    for groups, rows, (k, n) in itertools.product(_FLOOR_GROUPS, _FLOOR_ROWS, _FLOOR_NK):
        counts = (max(rows, 1), *(groups - 1) * (rows,))
        shapes.append(
            GroupedShape(groups, max(counts), k, n, counts, "none", 1, sum(counts), groups, 1, 1, 1, "floor", -1)
        )
    shapes = list(dict.fromkeys(shapes))
    if shape_set == "grouped-repeat":
        return [shape._replace(take=1) for shape in shapes[::_REPEAT_STEP]]
    return shapes if shape_set == "grouped" else shapes[:: len(shapes) // 3]


_USUAL = (WeightMode.GROUP, 128)


def list_quant_shapes(shape_set: str) -> list[QuantShape]:
    """Return the GEMMs with 4-bit weights of a set (`spreads` in shapes.yaml); InvalidOptionError: no such set."""
    spreads: Mapping[str, Mapping[str, Any]] = _sizes()["spreads"]
    check_word("--set", shape_set, spreads)
    spread = spreads[shape_set]
    if "gemms" in spread:
        return [QuantShape(1, m, k, n, *_USUAL) for m, n, k in _sizes()[spread["gemms"]]]
    pairs, rows = (_sizes()[of] if isinstance(of, str) else of for of in (spread["pairs"], spread["rows"]))
    step, stride, most = spread.get("step", 1), spread.get("stride", 1), spread.get("max_flop", math.inf)
    gemms = [
        QuantShape(1, m, k, n, *mode)
        for pair, (n, k) in enumerate(pairs)
        for index, m in enumerate(rows)
        if (pair * stride + index) % step == 0 and 2 * m * n * k <= most
        for mode in _modes(spread.get("modes", ["GROUP 128"]))
    ]
    if "in_turn" in spread:
        in_turn = itertools.cycle(_modes(spread["in_turn"]))
        return [QuantShape(*gemm[:4], *mode) for gemm, mode in zip(gemms, in_turn, strict=False)]
    return gemms


def _modes(words: Sequence[str]) -> list[tuple[WeightMode, int]]:
    """Return modes and sizes of groups of words such as ``GROUP 32``."""
    return [(WeightMode[name], int(size)) for name, size in map(str.split, words)]


_SEED = 20_260
_MAX_OF_ONE_TILE = 3  # kernels of one tile and split promise the same: let others in


class Choice(NamedTuple):
    """The kernels of a GEMM that are timed.

    Attributes:
        top: so many that the cost model finds fastest; None: all.
        num_random: and so many others.
    """

    top: int | None = None
    num_random: int = 0

    def __str__(self) -> str:
        if self.top is None:
            return "every legal config"
        return f"{self.top} configs that the cost model finds fastest, {self.num_random} others at random"


def list_items(
    gemms: Sequence[QuantShape], dtype: str, arch: GpuSpec, choice: Choice, *, is_fp8: bool = False
) -> list[KernelItem]:
    """Return what is timed on a GPU, the model's fastest config first; the same for the same coefficients.

    `is_fp8`: kernels of `w4a8_gemm`, whose C has the type `dtype`.
    """
    items, activation = [], parse_activation(dtype)
    for gemm in gemms:
        types = activation, gemm.mode, gemm.group_size
        ranked = list(rank(Sizes(gemm.M, gemm.K, gemm.N), *types, arch, is_fp8=is_fp8))
        chosen = ranked if choice.top is None else _some(ranked, choice, f"{_SEED} {tuple(map(int, gemm))}")
        items += [KernelItem(*gemm, config) for config in chosen]
    return items


def _some(ranked: Sequence[KernelConfig], choice: Choice, seed: str) -> list[KernelConfig]:
    top: list[KernelConfig] = []
    of_tile: Counter[tuple[object, ...]] = Counter()
    for config in ranked:
        tile = (*config[:3], config.schedule, config.decomposition, config.split_k)
        if len(top) < (choice.top or 0) and of_tile[tile] < _MAX_OF_ONE_TILE:
            of_tile[tile] += 1
            top.append(config)
    rest = [config for config in ranked if config not in set(top)]
    return top + random.Random(seed).sample(rest, min(choice.num_random, len(rest)))
