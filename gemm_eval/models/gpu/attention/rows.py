"""Columns of attention problems, and the coefficients of its kernels. OPERATIONS.md, "Attention"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, fields
from functools import lru_cache, partial
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.workload import AttentionProblem

_SOURCE = "round, within what fits of TensorRT-LLM's timings gave (arch/calibration, attention.yaml)"
HEAD_DIMS = (64, 128, 192, 256)
"""For which kernels on mma.sync are compiled; others are padded to the next."""


fitted = partial(Coefficient, source=_SOURCE)
"""A coefficient of attention, whose default comes from its fits."""

_MEMORY = (
    fitted("fixed_us", "us", 1.0, 30.0, 8.0, FREE, "start and end of the operation's kernels"),
    fitted("l2_frac", "1", 0.05, 1.0, 0.8, NO_LIMIT, "share of the L2 bandwidth that its bytes reach"),
    fitted("dram_frac", "1", 0.4, 1.0, 0.92, SPEC, "share of the DRAM bandwidth that they reach where they miss"),
    fitted("hold_frac", "1", 0.1, 2.0, 0.3, FREE, "of L2: in which bytes of the call before are still there"),
)

_CONTEXT_SHARED = (
    *_MEMORY,
    fitted("cta_cycles", "cycles", 0.0, 2e4, 4000.0, FREE, "a tile of queries besides its tiles of keys"),
    fitted("step_cycles", "cycles", 0.0, 600.0, 100.0, FREE, "a tile of keys besides its products and exponentials"),
    fitted("exp_frac", "1", 0.05, 8.0, 1.0, FREE, "time of the exponentials over that of the units' rate"),
    fitted("tail_frac", "1", 0.0, 3.0, 0.7, FREE, "of the longest CTA, which the others wait for at the end"),
    fitted("narrow_frac", "1", 0.9, 3.0, 1.0, SPEC, "bytes of the kernel that fills a narrow cache, over their number"),
)
CONTEXT = (
    *_CONTEXT_SHARED,
    fitted("matrix16_frac", "1", 0.05, 1.0, 0.7, SPEC, "share of the rate of 16-bit products"),
    fitted("matrix8_frac", "1", 0.05, 1.0, 0.5, SPEC, "share of the rate of 8-bit products"),
    fitted("window8_cycles", "cycles", 0.0, 2e4, 0.0, FREE, "a tile of queries more where 8 bits go with a window"),
)
CONTEXT_MMA = (
    *_CONTEXT_SHARED,
    *(
        fitted(f"matrix{bits}_frac_{size}", "1", 0.02, 1.0, default, SPEC, f"likewise, {bits} bits, heads of {size}")
        for bits, defaults in ((16, (0.5, 0.46, 0.3, 0.5)), (8, (0.13, 0.45, 0.26, 0.115)))
        for size, default in zip(HEAD_DIMS, defaults, strict=True)
    ),
)
CONTEXT_PLAIN = (
    *(item for item in _CONTEXT_SHARED if item.name != "narrow_frac"),
    *(
        fitted(f"matrix16_frac_{size}", "1", 0.02, 1.0, 0.6, SPEC, f"share of the rate, heads of {size}")
        for size in HEAD_DIMS
    ),
)
"""Of kernels for 16 bits, which do nothing but attention."""

BACKWARD = (
    fitted("fixed_us", "us", 1.0, 60.0, 15.0, FREE, "start and end of the operation's kernels"),
    *(item for item in _MEMORY if item.name != "fixed_us"),
    fitted("cta_cycles", "cycles", 0.0, 4e4, 4000.0, FREE, "a tile of keys besides its tiles of queries"),
    fitted("step_cycles", "cycles", 0.0, 4e3, 300.0, FREE, "a tile of queries besides its products and exponentials"),
    fitted("exp_frac", "1", 0.05, 20.0, 4.0, FREE, "time of the exponentials over that of the units' rate"),
    fitted("tail_frac", "1", 0.0, 3.0, 0.7, FREE, "of the longest CTA, which the others wait for at the end"),
    *(item for item in CONTEXT_PLAIN if item.name.startswith("matrix")),
    fitted("atomic_frac", "1", 0.05, 2.0, 0.5, NO_LIMIT, "share of the L2 bandwidth of sums into gradients of queries"),
)
"""Of kernels for gradients, in 16 bits."""

PACKED_HEADS = (
    *_MEMORY,
    fitted(
        "pre_l2_frac", "1", 0.02, 1.0, 0.4, NO_LIMIT, "share of the L2 bandwidth of the kernel that writes the cache"
    ),
    fitted("cta_us", "us", 0.0, 20.0, 2.0, FREE, "a CTA besides its keys"),
    fitted("head_us", "us", 0.0, 10.0, 0.3, FREE, "likewise, for 1,024 elements of its query heads"),
    fitted("step_us", "us", 0.0, 20.0, 1.0, FREE, "128 keys of 128 elements, of a CTA"),
    fitted("rows_frac", "1", 0.0, 8.0, 0.4, FREE, "of that, for each further tile of query heads"),
    fitted("ctas_per_sm", "1", 0.2, 8.0, 1.0, SPEC, "CTAs that an SM works on at once"),
    fitted("idle_us", "us", 0.0, 20.0, 1.0, FREE, "a CTA whose keys lie before the window"),
    fitted("sum_us", "us", 0.0, 15.0, 2.0, FREE, "sum of the parts where keys are cut"),
    fitted("sum64_us", "us", 0.0, 25.0, 2.0, FREE, "likewise, more for 64 parts, in proportion"),
    fitted("small_us", "us", 0.0, 6.0, 0.0, FREE, "more where heads have less than 128 elements"),
    fitted("spill_frac", "1", 1.0, 6.0, 1.0, SPEC, "cost of a CTA with 3,072 elements of query heads or more"),
)
PACKED_PLAIN = (
    *(item for item in PACKED_HEADS if item.name not in ("pre_l2_frac", "idle_us")),
    fitted(
        "late_frac", "1", 0.0, 1.0, 0.15, FREE, "of the bytes' time, that of those who come last, as if a CTA an SM"
    ),
)
"""Of kernels that do nothing but attention, without windows."""

SINGLE_HEADS = (
    *_MEMORY, fitted("cta_us", "us", 0.0, 25.0, 5.5, FREE, "a CTA besides its keys"),
    fitted("key_ns", "ns", 0.0, 400.0, 42.0, FREE, "a key of 128 elements, of a CTA of 256 threads"),
    fitted("sm_key_ns", "ns", 0.0, 400.0, 8.0, FREE, "likewise, of an SM that is full"),
    fitted("sum_us", "us", 0.0, 15.0, 4.0, FREE, "sum of the parts where keys are cut"),
)  # fmt: skip


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """Problems, one a row; all columns are [rows], floats, and as of `AttentionProblem` where nothing is said."""

    batch: Floats
    q_len: Floats
    kv_len: Floats
    num_heads: Floats
    num_kv_heads: Floats
    head_dim: Floats
    value_dim: Floats
    window: Floats  # positions that a query attends to at most; `kv_len` where it is all
    is_causal: Floats  # 1.0 or 0.0
    q_bits: Floats  # of an element
    kv_bits: Floats
    is_latent: Floats  # 1.0 where values are elements of the keys, which are read once for both
    is_aliased: Floats  # 1.0 where whoever timed a row had its keys and values in the same memory, by an oversight
    is_backward: Floats  # 1.0 where it is of gradients
    columns: InitVar[Floats | None] = None  # `table`, where it is there already
    table: Floats = field(init=False)  # these columns in this order, [14, rows]

    def __post_init__(self, columns: Floats | None) -> None:
        if columns is None:
            columns = np.array([getattr(self, item.name) for item in fields(self) if item.init])
        object.__setattr__(self, "table", columns)

    def __len__(self) -> int:
        return int(self.batch.size)

    def take(self, some: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> AttentionRows:
        """Return some of the rows."""
        if some.dtype == bool and some.all():
            return self
        return _rows_of(np.ascontiguousarray(self.table[:, some]))

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
            item.is_latent, False, item.backward,
        )
        for item in problems
    ]  # fmt: skip
    return _rows_of(np.array(values, np.float64).reshape(len(values), -1).T.copy())


def _rows_of(table: Floats) -> AttentionRows:
    columns: list[Floats] = [*table, table]
    return AttentionRows(*columns)


class TileCounts(NamedTuple):
    """Tiles of keys that the CTAs of one head and sequence visit."""

    num_ctas: int  # tiles of queries
    total: int  # visits of all of them
    most: int  # visits of the one that has most


@lru_cache(maxsize=4)  # a fit asks for the same rows again and again
def all_tile_counts(rows: AttentionRows, q_tile: int, k_tiles: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the fields of `TileCounts` of each row, each [rows]; `k_tiles` are the keys of a tile of each."""
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
