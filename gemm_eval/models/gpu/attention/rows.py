"""`AttentionRows`: many attention problems as columns of numbers, which is what the kernels' models compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.workload import AttentionProblem

__all__ = ["AttentionRows", "TileCounts", "all_tile_counts", "attention_rows", "tile_counts"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """Problems, one a row; all columns are [rows], floats.

    Attributes:
        batch, q_len, kv_len, num_heads, num_kv_heads, head_dim, value_dim: as of `AttentionProblem`.
        window: positions that a query attends to at most; `kv_len` where it is all.
        is_causal: 1.0 or 0.0.
        q_bits, kv_bits: of an element.
        is_latent: 1.0 where values are elements of the keys, which are read once for both.
        is_aliased: 1.0 where keys and values of a measured row lie in the same memory, by an oversight of who timed it.
    """

    batch: Floats
    q_len: Floats
    kv_len: Floats
    num_heads: Floats
    num_kv_heads: Floats
    head_dim: Floats
    value_dim: Floats
    window: Floats
    is_causal: Floats
    q_bits: Floats
    kv_bits: Floats
    is_latent: Floats
    is_aliased: Floats

    def __len__(self) -> int:
        return int(self.batch.size)

    def take(self, some: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> AttentionRows:
        """Return some of the rows."""
        return AttentionRows(*(getattr(self, item.name)[some] for item in fields(self)))

    @property
    def group(self) -> Floats:
        """Query heads that share a KV head."""
        return self.num_heads / self.num_kv_heads

    @property
    def keys(self) -> Floats:
        """Keys of a sequence that any of its queries attends to."""
        return np.minimum(self.kv_len, self.window + self.q_len - 1.0)

    @property
    def kv_bytes(self) -> Floats:
        """Bytes of the keys and values that are attended to, each once."""
        elements = self.head_dim + self.value_dim * (1.0 - self.is_latent)
        return self.batch * self.keys * self.num_kv_heads * elements * self.kv_bits / 8.0


def attention_rows(problems: Sequence[AttentionProblem]) -> AttentionRows:
    """Return problems as rows."""
    values = [
        (
            item.batch, item.q_len, item.kv_len, item.num_heads, item.num_kv_heads, item.head_dim, item.value_dim,
            item.window or item.kv_len, item.causal, item.dtype.half_bits / 2, item.kv_type.half_bits / 2,
            item.is_latent, False,
        )
        for item in problems
    ]  # fmt: skip
    return AttentionRows(*np.array(values, np.float64).reshape(len(values), -1).T.copy())


class TileCounts(NamedTuple):
    """Tiles of keys that the CTAs of one head and sequence visit.

    Attributes:
        num_ctas: tiles of queries.
        total: visits of all of them.
        most: visits of the one that has most.
    """

    num_ctas: int
    total: int
    most: int


@lru_cache(maxsize=4)  # a fit asks for the same rows again and again
def all_tile_counts(rows: AttentionRows, q_tile: int, k_tiles: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the fields of `TileCounts` of each row, each [rows].

    Args:
        rows: the problems.
        q_tile: queries of a tile.
        k_tiles: keys of a tile of each row.
    """
    columns = zip(rows.q_len, rows.kv_len, rows.window, rows.is_causal, k_tiles, strict=True)
    counts = [
        tile_counts(int(q), int(kv), int(window), bool(causal), q_tile, k_tile)
        for q, kv, window, causal, k_tile in columns
    ]
    num_ctas, total, most = np.array(counts, np.float64).reshape(-1, 3).T
    return num_ctas, total, most


@lru_cache(maxsize=1 << 14)
def tile_counts(q_len: int, kv_len: int, window: int, is_causal: bool, q_tile: int, k_tile: int) -> TileCounts:
    """Count, exactly, the tiles of keys that are not masked as a whole.

    Tile i of queries holds positions from `first` + i*q_tile on, `first` = kv_len - q_len being cached before; it
    visits all tiles of keys from that of its first query's window to that of its last query.
    """
    num = -(-q_len // q_tile)
    if not is_causal:
        most = -(-kv_len // k_tile)
        return TileCounts(num, num * most, most)
    first = kv_len - q_len
    # ends of tiles but the last, ceil((first + (i + 1) * q_tile) / k_tile), and that of the last
    ends = _floor_sum(num - 1, k_tile, q_tile, first + q_tile + k_tile - 1) + -(-kv_len // k_tile)
    # starts, floor(max(0, first + i * q_tile - window + 1) / k_tile): those before `begun` are 0
    shift = first - window + 1
    begun = min(num, max(0, (q_tile - 1 - shift) // q_tile))
    starts = _floor_sum(num - begun, k_tile, q_tile, shift + begun * q_tile)

    def visits(i: int) -> int:
        last = min(first + (i + 1) * q_tile, kv_len)
        return -(-last // k_tile) - max(0, shift + i * q_tile) // k_tile

    period = k_tile // gcd(k_tile, q_tile)  # after which the count repeats, once windows are full
    most = max(visits(i) for i in range(max(0, num - 1 - period), num))
    return TileCounts(num, ends - starts, most)


def _floor_sum(num: int, modulus: int, slope: int, start: int) -> int:
    """Return the sum of floor((slope*i + start) / modulus) over i = 0..num-1, by Euclid's algorithm; all >= 0."""
    total = 0
    while num > 0:
        total += (num - 1) * num // 2 * (slope // modulus) + num * (start // modulus)
        slope, start = slope % modulus, start % modulus
        reach = slope * num + start
        if reach < modulus:
            break
        num, start, modulus, slope = reach // modulus, reach % modulus, slope, modulus
    return total
