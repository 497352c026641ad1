"""Mappings of a GEMM onto a GPU: kernel configs."""

from __future__ import annotations

import enum
from typing import NamedTuple

from gemm_eval.words import shown

__all__ = ["Decomposition", "KernelConfig", "RasterOrder", "Schedule"]


class Decomposition(enum.IntEnum):
    """How the work is cut into CTAs."""

    DATA_PARALLEL = 0
    """One CTA computes one tile of C over the whole of K."""
    SPLIT_K = 1
    """`split_k` CTAs share a tile of C; partial sums in fp32 are added by a second kernel or the last CTA."""
    STREAM_K = 2
    """As many CTAs as fit the GPU at once share all k-steps of all tiles evenly; cut tiles are fixed up."""


class Schedule(enum.IntEnum):
    """How the warps of a CTA share its work."""

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
    """What a GPU GEMM kernel is launched with.

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
