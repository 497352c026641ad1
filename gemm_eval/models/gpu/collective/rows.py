"""Many collectives at once, as columns: what fits and validations take. The answers are those of `collective_cost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import PCIE_BOXES, Interconnect
from gemm_eval.models.gpu.collective.algorithms import exchange, link_rate, nvls, one_shot, ring, two_shot
from gemm_eval.models.gpu.collective.costs import (
    CACHED_BYTES,
    FILLED_SHARE_BYTES,
    can_add_in_switch,
    has_direct_kernels,
    is_engine_all_reduce,
    num_passes,
)
from gemm_eval.workload import CollectiveProblem

__all__ = ["CollectiveRows", "collective_rows", "collectives_us"]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CollectiveRows:
    """Columns of problems, [rows] each.

    Attributes:
        size: `CollectiveProblem.buffer_bytes`.
        ranks, passes: devices, and how often a ring goes round.
        is_exchange, is_send, is_sum: what is asked.
        has_nvls, is_direct: algorithms that may run besides.
        is_engine: all-reduces of an engine.
    """

    size: Floats
    ranks: Floats
    passes: Floats
    is_exchange: Mask
    is_send: Mask
    is_sum: Mask
    has_nvls: Mask
    is_direct: Mask
    is_engine: Mask

    def take(self, mask: Mask) -> CollectiveRows:
        """Return some of the rows."""
        return CollectiveRows(*(column[mask] for column in vars(self).values()))


def collective_rows(link: Interconnect, library: str, problems: Sequence[CollectiveProblem]) -> CollectiveRows:
    """Return problems as columns, for a link and a library; see `collective_cost`."""

    def flags(values: Sequence[bool]) -> Mask:
        return np.array(values, np.bool_)

    return CollectiveRows(
        np.array([item.buffer_bytes for item in problems], np.float64),
        np.array([item.num_ranks for item in problems], np.float64),
        np.array([num_passes(item.what) for item in problems], np.float64),
        flags([item.what in ("all_to_all", "send") for item in problems]),
        flags([item.what == "send" for item in problems]),
        flags([item.is_sum for item in problems]),
        flags([can_add_in_switch(link, item.what, item.num_ranks, item.dtype) for item in problems]),
        flags([has_direct_kernels(link, library, item.what) for item in problems]),
        flags([is_engine_all_reduce(library, item.what) for item in problems]),
    )


def collectives_us(link: Interconnect, of: Mapping[str, float], rows: CollectiveRows) -> Floats:
    """Return the latency of each row, in microseconds."""
    share = rows.size / rows.ranks
    cached_rate, rate = (link_rate(link, rows.ranks, of[name]) for name in ("cached_contention", "contention"))
    rate = np.where(rows.size <= CACHED_BYTES, cached_rate, rate)
    own_frac, others = np.where(rows.is_sum, of["own_sum_frac"], of["own_frac"]), (rows.ranks, rows.passes)
    ll, mid, simple = (item.latency_us for item in ring(rows.size, *others, own_frac, rate, of))
    far_rate = link_rate(link, rows.ranks, of["contention"], of["engine_contention"])
    filled_bytes = np.maximum(rows.size, rows.ranks * FILLED_SHARE_BYTES)
    filled = ring(filled_bytes, *others, own_frac, far_rate, of)[2].latency_us
    simple = np.where(rows.is_engine, np.minimum(simple, filled), simple)
    ringed = np.where(share <= of["switch_bytes"], np.minimum(np.minimum(ll, mid), simple), simple)
    ringed = np.where(rows.has_nvls, np.minimum(ringed, nvls(rows.size, rows.ranks, rate, of).latency_us), ringed)
    sent, kept = np.where(rows.is_send, rows.size, share), np.where(rows.is_send, 0.0, share)
    peer_rate = link_rate(link, rows.ranks, of["peer_contention"])
    both = exchange(sent, rows.ranks - 1, kept, peer_rate, of, is_host=link.topology in PCIE_BOXES)
    found = np.where(rows.is_exchange, np.minimum(*(item.latency_us for item in both)), ringed)
    sizes = rows.size, rows.ranks, rate, of
    shots = np.minimum(two_shot(*sizes).latency_us, np.minimum(*(item.latency_us for item in one_shot(*sizes))))
    is_direct = rows.is_direct & (rows.size <= of["direct_bytes"])
    result: Floats = np.where(is_direct, np.minimum(found, shots), found)
    return result
