"""The GEMMs with 4-bit weights that our kernels are timed on, and the kernels that are timed on each of them."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import Sizes, WeightMode, parse_activation, rank
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure.shapes import GemmShape, KernelItem
from gemm_eval.words import shown

_NK = (
    # Llama 3 8B: o, qkv, gate_up, down; Llama 2 7B: qkv
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (12288, 4096),
    # Llama 3 70B: qkv, o, gate or up, down, and qkv on one of eight GPUs
    (10240, 8192), (8192, 8192), (28672, 8192), (8192, 28672), (1280, 8192),
    # Qwen3 4B: q and k; Qwen2 7B: gate_up
    (5120, 2560), (37888, 3584),
)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Many sizes, a few values of M of each: sizes that no tile divides, experts, vocabularies, long and short K.
_WIDE_NK = (
    (2048, 2048), (1024, 4096), (3072, 3072), (4096, 1024), (2560, 8192), (512, 7168), (7168, 2048), (1536, 7168),
    (11008, 4096), (4096, 11008), (22016, 4096), (13824, 5120), (5120, 13824), (57344, 8192), (8192, 7168),
    (16384, 16384), (18432, 7168), (7168, 18432), (24576, 1536), (32768, 512), (2112, 7168), (5760, 2880),
    (2880, 4096), (18944, 3584), (3584, 18944), (4608, 3584), (3584, 4096), (9216, 4608), (2304, 16384),
    (14336, 4096), (2048, 768), (768, 2048), (1000, 3000), (3000, 5000), (4104, 4104), (264, 4096), (640, 10240),
    (21504, 6144), (6144, 16384), (128256, 2048),
)  # fmt: skip
_WIDE_ROWS = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64, 72, 80, 96, 100, 112, 128, 144, 160, 192,
    200, 224, 256, 320, 384, 448, 512, 640, 768, 1000, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
)  # fmt: skip

# Held back: no coefficient is ever fitted on these.
_BLIND_NK = (
    (5120, 5120), (6912, 5120), (27648, 5120), (5120, 27648), (13696, 4096), (4096, 13696), (2048, 5632), (11264, 2048),
    (3584, 7168), (1792, 3584), (8960, 1536), (1536, 8960), (2560, 9728), (19456, 2560), (6400, 12800), (12288, 12288),
    (36864, 12288), (8192, 1024), (512, 4096), (896, 4864), (3072, 8192), (2056, 3080), (1600, 6400), (49152, 1024),
)  # fmt: skip
_BLIND_ROWS = (
    1, 2, 4, 7, 8, 11, 16, 19, 24, 32, 36, 48, 64, 90, 128, 150, 176, 240, 256, 360, 512, 700, 1024, 1300, 2048, 3500,
    4096,
)  # fmt: skip
_BLIND_2_NK = (
    (7168, 7168), (2048, 4096), (4096, 2048), (14336, 3584), (3584, 14336), (8192, 3584), (3584, 8192), (20480, 7168),
    (7168, 20480), (16384, 6144), (6144, 6144), (4544, 18176), (16384, 7168), (4096, 7168), (2048, 8192), (8192, 2048),
    (3072, 2048), (8192, 3072), (5120, 3072), (9216, 3072), (2880, 2880), (5120, 2880), (4096, 12288), (17408, 5120),
    (5120, 17408), (25600, 5120), (53248, 16384), (1024, 8192), (2304, 6144), (32000, 4096), (1368, 5000), (728, 3072),
)  # fmt: skip
_BLIND_2_ROWS = (
    1, 2, 3, 5, 6, 8, 9, 13, 16, 20, 27, 32, 40, 50, 64, 77, 96, 128, 160, 192, 256, 300, 400, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6000,
)  # fmt: skip

# As many regimes as there are GEMMs, few enough to time every config on each; held back as well.
_FULL = (
    (1, 35840, 5120), (4, 5120, 17920), (16, 24576, 4096), (24, 5120, 4096), (40, 22528, 8192), (64, 6144, 5120),
    (100, 12800, 4096), (192, 28672, 3584), (320, 5120, 32768), (512, 7680, 5120), (768, 1024, 5120),
    (1200, 3072, 24576), (2048, 4096, 12800), (3500, 24576, 3072),
)  # fmt: skip

_MODES_NK, _MODES_ROWS = ((4096, 4096), (28672, 8192)), (1, 16, 64, 256, 2048)
_MODES = (
    (WeightMode.GROUP, 32), (WeightMode.GROUP, 64), (WeightMode.COLUMN, 0), (WeightMode.GROUP_ZERO, 128),
)  # fmt: skip
_FP4_MODES = ((WeightMode.MXFP4, 32), (WeightMode.NVFP4, 16))
_USUAL = (WeightMode.GROUP, 128)


class QuantShape(NamedTuple):
    """A GEMM with 4-bit weights; G is 1, and `group_size` 0 in mode COLUMN."""

    G: int
    M: int
    K: int
    N: int
    mode: WeightMode
    group_size: int

    @property
    def shape(self) -> GemmShape:
        """Its sizes."""
        return GemmShape(*self[:4])


class _Spread(NamedTuple):
    """Values of M on pairs (N, K): on each pair every `step`-th, which `stride` shifts from pair to pair."""

    pairs: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    step: int = 1
    stride: int = 1
    max_flop: float = math.inf
    modes: tuple[tuple[WeightMode, int], ...] = (_USUAL,)


_SETS = {
    "w4a16": _Spread(_NK, _ROWS),
    "w4a16-spread": _Spread(_NK, _ROWS, step=4),
    "w4a16-wide": _Spread(_WIDE_NK, _WIDE_ROWS, step=6, max_flop=1 << 41),
    "w4a16-blind": _Spread(_BLIND_NK, _BLIND_ROWS, step=13, stride=5),
    "w4a16-blind-modes": _Spread(_BLIND_NK, _BLIND_ROWS, step=13, stride=5),
    "w4a16-blind-2": _Spread(_BLIND_2_NK, _BLIND_2_ROWS, step=15, stride=7, max_flop=1 << 40),
    "w4a16-full": None,
    "w4a16-check": _Spread(((4096, 4096), (12288, 4096), (28672, 8192), (8192, 28672)), (1, 16, 64, 256, 1024, 4096)),
    "w4a16-modes": _Spread(_MODES_NK, _MODES_ROWS, modes=_MODES),
    "w4a16-fp4": _Spread(_MODES_NK, _MODES_ROWS, modes=_FP4_MODES),
    "w4a16-smoke": _Spread(((4096, 4096),), (1, 64)),
}
KERNEL_SETS = tuple(_SETS)
"""Names that `list_quant_shapes` knows."""


def list_quant_shapes(shape_set: str) -> list[QuantShape]:
    """Return the GEMMs of a set.

    Args:
        shape_set: ``w4a16`` (12 pairs of N and K, 14 values of M), ``w4a16-spread`` (a quarter of them: few enough to
            time all kernels on each), ``w4a16-wide`` (40 other pairs, 46 values of M, a sixth of them on each pair),
            ``w4a16-blind`` (24 more pairs, two values of M each, held back from every fit), ``w4a16-blind-modes`` (the
            same in other modes, in turn), ``w4a16-blind-2`` (32 more pairs, held back as well), ``w4a16-full`` (14 more
            pairs with one value of M each, held back: every config can be timed), ``w4a16-check`` (the GEMMs that
            other engines are timed on), ``w4a16-modes`` (groups of 32 and 64, one scale a column, zero
            points), ``w4a16-fp4`` (MXFP4 and NVFP4) or ``w4a16-smoke``. All but the modes have a scale for each group
            of 128 weights.

    Raises:
        InvalidOptionError: no set of that name.
    """
    if shape_set not in _SETS:
        raise InvalidOptionError(
            f"--set must be one of {', '.join(KERNEL_SETS)} for our kernels, got {shown(shape_set)}"
        )
    spread = _SETS[shape_set]
    if spread is None:
        return [QuantShape(1, m, k, n, *_USUAL) for m, n, k in _FULL]
    gemms = [
        QuantShape(1, m, k, n, *mode)
        for pair, (n, k) in enumerate(spread.pairs)
        for index, m in enumerate(spread.rows)
        if (pair * spread.stride + index) % spread.step == 0 and 2 * m * n * k <= spread.max_flop
        for mode in spread.modes
    ]
    if shape_set == "w4a16-blind-modes":
        modes = itertools.cycle(_MODES)
        return [gemm._replace(mode=mode, group_size=group) for gemm, (mode, group) in zip(gemms, modes, strict=False)]
    return gemms


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


def rank_configs(gemm: QuantShape, dtype: str, arch: GpuSpec) -> list[KernelConfig]:
    """Return every legal config of a GEMM, by what the cost model predicts, best first."""
    return list(rank(Sizes(gemm.M, gemm.K, gemm.N), parse_activation(dtype), gemm.mode, gemm.group_size, arch))


def list_items(gemms: Sequence[QuantShape], dtype: str, arch: GpuSpec, choice: Choice) -> list[KernelItem]:
    """Return what is timed on a GPU; always the same for the same coefficients of the model."""
    items = []
    for gemm in gemms:
        ranked = rank_configs(gemm, dtype, arch)
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
