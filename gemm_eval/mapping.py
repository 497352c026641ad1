"""The space of mappings: what a search chooses from and a user may replay, on multi-core chips and GPUs."""

import enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MAX_CORES
from gemm_eval.words import as_integer, check_flag, shown

__all__ = [
    "AttentionMapping", "AttentionOrder", "AttentionPartition", "AttentionTile", "Decomposition", "KernelConfig",
    "LoopOrder", "MulticoreMapping", "Partition", "RasterOrder", "Schedule", "Tile", "enumerate_partitions",
]  # fmt: skip


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


class AttentionOrder(enum.IntEnum):
    """The operand that stays in SRAM while the other streams past it: the outer of the two tile loops of a core."""

    QK = 0
    KQ = 1


class AttentionPartition(NamedTuple):
    """Split over cores: P_U by units (KV heads of sequences), P_Q by their rows, P_KV by their keys."""

    P_U: int
    P_Q: int
    P_KV: int


class AttentionTile(NamedTuple):
    """Rows of queries, and keys with their values, that a core works on at a time."""

    tile_q: int
    tile_kv: int


class AttentionMapping(NamedTuple):
    """All choices together; `is_folded`: a core has a strip of early rows and one of late rows."""

    partition: AttentionPartition
    tile: AttentionTile
    loop_order: AttentionOrder
    is_folded: bool = False

    def to_dict(self) -> dict[str, int | str | bool]:
        """Return plain values, ready for JSON."""
        parts = self.partition._asdict() | self.tile._asdict()
        return {**parts, "loop_order": self.loop_order.name.lower(), "is_folded": self.is_folded}

    def __str__(self) -> str:
        p, t = self.partition, self.tile
        folded = " folded" if self.is_folded else ""
        parts = f"U{p.P_U} Q{p.P_Q}{folded} KV{p.P_KV}"
        return f"{parts}, {t.tile_q}x{t.tile_kv} rows x keys, {self.loop_order.name.lower()}"


class Decomposition(enum.IntEnum):
    """A way to cut the work into CTAs."""

    DATA_PARALLEL = 0
    """Each CTA computes one tile of C over all of K."""
    SPLIT_K = 1
    """`split_k` CTAs share a tile of C; partial sums in fp32 are added by a second kernel or the last CTA."""
    STREAM_K = 2
    """As many CTAs as fit the GPU at once share all k-steps of all tiles evenly; cut tiles are fixed up."""


class Schedule(enum.IntEnum):
    """A way in which the warps of a CTA share its work."""

    PINGPONG = 0
    """Two groups of warps work on two tiles of C in turn: one's epilogue hides behind the other's main loop."""
    COOPERATIVE = 1
    """All warps work on one tile of C."""
    MULTISTAGE = 2
    """Every warp loads and computes; several CTAs of an SM hide each other's waits."""
    VECTOR = 3
    """No tensor cores: every thread multiplies and adds on its own."""


class RasterOrder(enum.IntEnum):
    """The dimension of C along which successive CTAs lie."""

    ALONG_M = 0
    ALONG_N = 1


class KernelConfig(NamedTuple):
    """The configuration that a GPU GEMM kernel is launched with.

    Attributes:
        family: the kernel's kind, e.g. ``"sm90_wgmma"``; see `gemm_eval.models.gpu`.
        cta_m, cta_n, cta_k: tile of C that a CTA computes, and the K elements of one main-loop step.
        cluster_m, cluster_n: CTAs of a cluster along M and N; they share loads by multicast.
        num_warps: warps of a CTA that issue tensor-core instructions.
        num_stages: shared-memory buffers of the main loop's ring.
        schedule: how the warps of a CTA share its work.
        decomposition: how the work is cut into CTAs.
        split_k: CTAs that share a tile of C (1 unless decomposition is SPLIT_K).
        raster_order: the dimension along which successive CTAs lie.
        raster_swizzle: tiles across, before the raster takes its next step: 1 is a plain raster.
    """

    family: str
    cta_m: int
    cta_n: int
    cta_k: int
    cluster_m: int
    cluster_n: int
    num_warps: int
    num_stages: int
    schedule: Schedule
    decomposition: Decomposition
    split_k: int
    raster_order: RasterOrder
    raster_swizzle: int

    def __repr__(self) -> str:
        """All fields in their order; also of a config that a user filled with something else."""
        values = (value.name if isinstance(value, enum.Enum) else shown(value) for value in self)
        return f"KernelConfig({', '.join(values)})"

    def __str__(self) -> str:
        text = (
            f"{self.family} CTA {self.cta_m}x{self.cta_n}x{self.cta_k} (m x n x k), cluster "
            f"{self.cluster_m}x{self.cluster_n}, {self.num_warps} warps {self.schedule.name.lower()}, "
            f"{self.num_stages} stages"
        )
        if self.decomposition is Decomposition.SPLIT_K:
            text += f", split-K {self.split_k}"
        elif self.decomposition is Decomposition.STREAM_K:
            text += ", stream-K"
        return text + f", raster along {'MN'[self.raster_order]} by {self.raster_swizzle}"
