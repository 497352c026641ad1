"""Which kernels are timed on a GEMM: all of them, or those that promise most and a few at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.kernels._family import DeviceLimits, Sizes, ceil_div
from gemm_eval.kernels._heuristic import choose
from gemm_eval.kernels._registry import families, legal_configs, make_variant
from gemm_eval.mapping import Decomposition, KernelConfig, Schedule
from gemm_eval.measure._kernel_shapes import QuantShape
from gemm_eval.measure._shapes import KernelItem

__all__ = ["Choice", "choose_static", "list_items", "rank_configs"]

_SEED = 20_260
_MAX_OF_ONE_TILE = 3  # kernels of one tile and split promise the same: let others in

# A first guess only, from figures of an H200: it decides what is timed, never what is written.
_LAUNCH_US = 2.0
_REDUCTION_US = 1.5
_CYCLES_PER_US = 1_750.0
_BYTES_PER_US = 4.3e6
_L2_BYTES_PER_US = 6.8e6
_LEAST_TOKENS_OF_WGMMA = 26  # an instruction for fewer takes as long
_MMA_SYNC_FRAC = 0.62  # of the rate of wgmma
_FMA_PER_CYCLE = 128
_WGMMA_MAC_PER_CYCLE = 2_048


class Choice(NamedTuple):
    """Which kernels of a GEMM are timed.

    Attributes:
        top: so many that promise most, the heuristic's choice first; None: all.
        num_random: and so many others.
    """

    top: int | None = None
    num_random: int = 0

    def __str__(self) -> str:
        if self.top is None:
            return "every legal config"
        return (
            f"{self.top} configs: the heuristic's choice and what a rough estimate likes best; {self.num_random} random"
        )


def choose_static(gemm: QuantShape, dtype: str, limits: DeviceLimits) -> KernelConfig:
    """Return what the static heuristic takes for a GEMM."""
    sizes = Sizes(gemm.M, gemm.K, gemm.N)
    any_kernel = next(config for family in families().values() for config in family.configs())
    return choose(sizes, make_variant(any_kernel, dtype, gemm.mode, gemm.group_size), limits)


def rank_configs(gemm: QuantShape, dtype: str, limits: DeviceLimits) -> list[KernelConfig]:
    """Return every legal config of a GEMM: the static heuristic's choice, then the others by a rough estimate."""
    sizes = Sizes(gemm.M, gemm.K, gemm.N)
    configs = list(legal_configs(sizes, limits, dtype, gemm.mode, gemm.group_size))
    if not configs:
        return []
    first = choose_static(gemm, dtype, limits)
    return sorted(configs, key=lambda config: (config != first, _rough_us(config, sizes, limits.num_sms)))


def list_items(gemms: Sequence[QuantShape], dtype: str, limits: DeviceLimits, choice: Choice) -> list[KernelItem]:
    """Return what is timed; always the same."""
    items = []
    for gemm in gemms:
        ranked = rank_configs(gemm, dtype, limits)
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


def _rough_us(config: KernelConfig, sizes: Sizes, num_sms: int) -> float:
    """Waves of CTAs, each bound by its multiplications or by its share of the memory; and the sum of parts of K."""
    tiles = ceil_div(sizes.M, config.cta_m) * ceil_div(sizes.N, config.cta_n)
    k = sizes.K / config.split_k
    ctas = tiles * config.split_k
    waves = ctas / num_sms if config.decomposition is Decomposition.STREAM_K else ceil_div(ctas, num_sms)
    compute_us = config.cta_m * config.cta_n * k / _macs_per_cycle(config) / _CYCLES_PER_US
    busy = min(ctas, num_sms)
    loaded_bytes = config.cta_n * k / 2 + 2 * config.cta_m * k
    memory_us = max(
        waves * loaded_bytes * busy / _L2_BYTES_PER_US, sizes.N * sizes.K / 2 / (_BYTES_PER_US * busy / num_sms)
    )
    is_split = config.decomposition is not Decomposition.DATA_PARALLEL
    return _LAUNCH_US + max(max(waves, 1) * compute_us, memory_us) + _REDUCTION_US * is_split


def _macs_per_cycle(config: KernelConfig) -> float:
    """Of an SM, for tokens of the tile whether they are there or not."""
    if config.schedule is Schedule.VECTOR:
        return _FMA_PER_CYCLE
    if config.schedule is Schedule.MULTISTAGE:
        return _WGMMA_MAC_PER_CYCLE * _MMA_SYNC_FRAC
    return _WGMMA_MAC_PER_CYCLE * min(1.0, config.cta_m / _LEAST_TOKENS_OF_WGMMA)
