"""Which kernels are timed on a GEMM: all of them, or those that promise most and a few at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.kernels import Sizes, parse_activation, rank
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure.kernel_shapes import QuantShape
from gemm_eval.measure.shapes import KernelItem

__all__ = ["Choice", "list_items", "rank_configs"]

_SEED = 20_260
_MAX_OF_ONE_TILE = 3  # kernels of one tile and split promise the same: let others in


class Choice(NamedTuple):
    """Which kernels of a GEMM are timed.

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
