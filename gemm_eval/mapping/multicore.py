"""Mappings of a GEMM onto a multi-core chip: partition, tile and loop order."""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MAX_CORES
from gemm_eval.checks import as_integer, check_flag

__all__ = ["LoopOrder", "MulticoreMapping", "Partition", "Tile", "enumerate_partitions"]


class LoopOrder(enum.IntEnum):
    """Nesting of the tile loops inside a core, outermost first. The batch loop is outside all of them."""

    MNK = 0
    MKN = 1
    NMK = 2
    NKM = 3
    KMN = 4
    KNM = 5


class Partition(NamedTuple):
    """Split of the problem over cores: P_G*P_M*P_N*P_K cores at most work."""

    P_G: int
    P_M: int
    P_N: int
    P_K: int


class Tile(NamedTuple):
    """The block of a core's work that lies in SRAM, in elements."""

    tile_m: int
    tile_n: int
    tile_k: int


class MulticoreMapping(NamedTuple):
    """All choices together: which core computes what, in which tiles, in which order."""

    partition: Partition
    tile: Tile
    loop_order: LoopOrder

    def __str__(self) -> str:
        p, t = self.partition, self.tile
        return (
            f"partition G{p.P_G} M{p.P_M} N{p.P_N} K{p.P_K}, tile {t.tile_m}x{t.tile_n}x{t.tile_k} (m x n x k), "
            f"order {self.loop_order.name.lower()}"
        )


def enumerate_partitions(num_cores: int, *, allow_idle_cores: bool = False) -> npt.NDArray[np.int64]:
    """All ordered factorizations of `num_cores` into (P_G, P_M, P_N, P_K).

    20 for 8 cores, 84 for 64. With `allow_idle_cores` also those of every smaller number of cores.

    Returns:
        Read-only array [num_partitions, 4] of P_G, P_M, P_N, P_K, sorted by (P_K, P_G, P_M, P_N), their rank in ties.

    Raises:
        InvalidOptionError: `num_cores` is no integer of 1..2**20.
    """
    check_flag("allow_idle_cores", allow_idle_cores)
    return _enumerate(as_integer("num_cores", num_cores, 1, MAX_CORES), allow_idle_cores)


@lru_cache(maxsize=64)
def _enumerate(num_cores: int, allow_idle_cores: bool) -> npt.NDArray[np.int64]:
    rows: list[tuple[int, int, int, int]] = []
    for used in range(1 if allow_idle_cores else num_cores, num_cores + 1):
        for p_k in _divisors(used):
            for p_g in _divisors(used // p_k):
                rest = used // p_k // p_g
                rows.extend((p_g, p_m, rest // p_m, p_k) for p_m in _divisors(rest))
    rows.sort(key=lambda row: (row[3], row[0], row[1], row[2]))
    # on immutable bytes, so that nobody can make the shared table writeable again
    return np.frombuffer(np.array(rows, dtype=np.int64).tobytes(), dtype=np.int64).reshape(-1, 4)


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
