"""What each algorithm of a collective takes, term by term: plain formulas of numbers, or of arrays of them.

A rank's array of `size` bytes (`CollectiveProblem.buffer_bytes`) is cut into `ranks` shares. Times are in microseconds,
rates in bytes per microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import TWO_SOCKETS, Interconnect
from gemm_eval.units import bytes_per_us

__all__ = ["CollectiveTerms", "exchange", "link_rate", "nvls", "one_shot", "ring", "two_shot"]

_MESH_LINKS = 6  # of a GPU in the hybrid cube mesh of a DGX-1 (V100 whitepaper): four in its half, two to the other
_SOCKET_RANKS = 4  # GPUs at each socket of a server of eight

Coefficients = Mapping[str, float]


class CollectiveTerms(NamedTuple):
    """The time of an algorithm, or of several at once where they are arrays.

    Attributes:
        start_us: launch, meeting of the ranks, and what the protocol takes once: fences, barriers, a pipeline to fill.
        hops_us: latencies of the hops, one after the other.
        link_us: bytes over the rate of the link.
    """

    start_us: Any
    hops_us: Any
    link_us: Any

    @property
    def latency_us(self) -> Any:
        """All of them, in microseconds."""
        return self.start_us + self.hops_us + self.link_us


def link_rate(link: Interconnect, ranks: Any, contention: float, far_contention: Any = None) -> Any:
    """Return what a rank sends while all do, in bytes per microsecond: a share of this is what algorithms reach.

    Through a switch, or the bridges of one socket, it is the whole link. Of a mesh, the links to GPUs that take no part
    lie idle. Across two sockets the rate falls with each doubling of the ranks: more bridges, then the link between the
    sockets, are shared.

    Args:
        link: what joins the GPUs.
        ranks: GPUs that take part, or an array of them.
        contention: power of 2 / ranks at which the rate falls across two sockets.
        far_contention: the same of 4 / ranks, beyond four ranks; None: as `contention`.
    """
    rate = bytes_per_us(link.gb_per_s)
    if link.topology == TWO_SOCKETS:
        far = contention if far_contention is None else far_contention
        near_ranks, far_ranks = np.minimum(ranks, _SOCKET_RANKS), np.maximum(ranks, _SOCKET_RANKS)
        return rate * (2.0 / near_ranks) ** contention * (_SOCKET_RANKS / far_ranks) ** far
    if link.topology == "mesh":
        return rate * np.minimum(ranks, _MESH_LINKS) / _MESH_LINKS
    return rate + 0.0 * ranks


def ring(
    size: Any, ranks: Any, passes: Any, own_frac: Any, rate: Any, of: Coefficients
) -> tuple[CollectiveTerms, CollectiveTerms, CollectiveTerms]:
    """Return the terms of a ring in NCCL's protocols LL, LL128 and Simple.

    Shares go round `passes` times: once to gather or to reduce and scatter, twice to reduce to all. A hop of each pass
    waits for the one before. LL and LL128 carry flags among the data, so that nobody waits for a fence; Simple moves
    what is left of the link, and also copies a rank's own share at a part of the cost of sending it.
    """
    share = size / ranks
    hops = passes * (ranks - 1)
    sent = hops * share
    ll = CollectiveTerms(of["launch_us"], hops * of["hop_us"], sent / (rate * of["ll_frac"]))
    mid = CollectiveTerms(of["launch_us"] + of["mid_us"], hops * of["hop_us"], sent / (rate * of["mid_frac"]))
    simple = CollectiveTerms(
        of["launch_us"] + of["simple_us"],
        hops * of["simple_hop_us"],
        (sent + own_frac * share) / (rate * of["link_frac"]),
    )
    return ll, mid, simple


def nvls(size: Any, ranks: Any, rate: Any, of: Coefficients) -> CollectiveTerms:
    """Return the terms of an all-reduce in the switch: each rank loads sums of its share and stores them to all.

    Out of a GPU goes its whole array, for the sums of the others, and its share of the result.
    """
    sent = size * (1 + 1 / ranks)
    return CollectiveTerms(of["launch_us"] + of["nvls_us"], 0.0 * ranks, sent / (rate * of["nvls_frac"]))


def exchange(
    share: Any, peers: Any, kept: Any, rate: Any, of: Coefficients, *, is_host: bool
) -> tuple[CollectiveTerms, CollectiveTerms]:
    """Return the terms of sends of `share` bytes to each peer, of which `kept` stay, in the protocols LL and Simple.

    In LL each peer has channels of its own, on which its share alone counts; through the host all share one link.
    """
    sent = share * peers
    hops = (peers - 1) * of["peer_us"]
    ll_bytes = sent if is_host else share
    ll = CollectiveTerms(of["peer_launch_us"], hops, ll_bytes / (rate * of["peer_ll_frac"]))
    simple = CollectiveTerms(
        of["peer_launch_us"] + of["peer_simple_us"],
        hops,
        (sent + of["peer_own_frac"] * kept) / (rate * of["peer_link_frac"]),
    )
    return ll, simple


def one_shot(size: Any, ranks: Any, rate: Any, of: Coefficients) -> tuple[CollectiveTerms, CollectiveTerms]:
    """Return the terms of an all-reduce in which each rank reads the arrays of all others: by few CTAs, and by all."""
    others = ranks - 1
    hops, read = others * of["one_shot_peer_us"], others * size / rate
    short = CollectiveTerms(of["one_shot_us"], hops, read / of["one_shot_short_frac"])
    return short, CollectiveTerms(of["one_shot_us"] + of["one_shot_long_us"], hops, read / of["one_shot_frac"])


def two_shot(size: Any, ranks: Any, rate: Any, of: Coefficients) -> CollectiveTerms:
    """Return the terms of an all-reduce in which each rank adds up its share of all arrays, then reads all sums."""
    others = ranks - 1
    return CollectiveTerms(
        of["two_shot_us"], others * of["one_shot_peer_us"], 2 * others * size / ranks / (rate * of["two_shot_frac"])
    )
