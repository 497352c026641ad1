"""Collectives between the GPUs of a node: coefficients, algorithms, calibrations, times. OPERATIONS.md, "Collectives".

Between nodes: `gemm_eval.models.gpu.network`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import LINKS, PCIE_BOXES, TWO_SOCKETS, GpuSpec, Interconnect, data_root, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError, UnsupportedError
from gemm_eval.models.gpu.calibration import (
    Chip,
    Origin,
    SingleCalibration,
    chip_of,
    is_other_maker,
    nearest_first,
    origin_of,
)
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.learned import Features, answers_for
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import COLLECTIVES, MAX_MESSAGE_BYTES, CollectiveProblem

_SOURCE = "round, within what fits of NCCL's and TensorRT-LLM's timings gave (arch/calibration, collective.yaml)"


_item = partial(Coefficient, source=_SOURCE)

RING = (
    _item("launch_us", "us", 0.5, 20.0, 5.0, FREE, "a kernel of a ring: launch, and the first meeting of the ranks"),
    _item("hop_us", "us", 0.1, 6.0, 1.0, FREE, "a hop of the ring, whatever it carries, flags among the data"),
    _item("round_us", "us", 0.02, 20.0, 2.0, FREE, "what a share of many rounds of LL takes longer than one of one"),
    _item("ll_frac", "1", 0.003, 1.0, 0.1, NO_LIMIT, "share of the link of 8-byte stores with a flag each (LL)"),
    _item("mid_us", "us", 0.05, 30.0, 1.0, FREE, "what LL128 takes longer than LL at once"),
    _item("mid_frac", "1", 0.02, 1.0, 0.35, NO_LIMIT, "share of the link that it reaches"),
    _item("simple_us", "us", 0.1, 90.0, 10.0, FREE, "what Simple takes longer than LL at once: its fences"),
    _item("simple_hop_us", "us", 0.05, 40.0, 3.0, FREE, "a hop of Simple"),
    _item("link_frac", "1", 0.05, 1.0, 0.8, SPEC, "share of the link that Simple reaches"),
    _item("own_frac", "1", 0.003, 1.0, 0.4, FREE, "a byte of its own share that a rank copies, over one it sends"),
    _item("own_sum_frac", "1", 0.003, 1.0, 0.3, FREE, "likewise, where elements are added up"),
)  # fmt: skip
"""Of NCCL's rings: all-reduce, all-gather, reduce-scatter."""

MULTICAST = (
    _item("nvls_us", "us", 1.0, 300.0, 70.0, FREE, "what NVLS takes longer than launch_us at once"),
    _item("nvls_frac", "1", 0.1, 1.0, 0.65, SPEC, "share of the link that it reaches"),
)
"""Of NCCL's sums in the switch, where it has multicast."""

EXCHANGE = (
    _item("peer_launch_us", "us", 0.5, 30.0, 6.0, FREE, "a kernel of sends and receives: launch and meeting"),
    _item("peer_us", "us", 0.003, 6.0, 0.2, FREE, "each further peer of it"),
    _item("peer_round_us", "us", 0.02, 20.0, 2.0, FREE, "as round_us, of the share of a peer"),
    _item("peer_ll_frac", "1", 0.001, 1.0, 0.02, NO_LIMIT, "share of the link of one peer's channels in LL"),
    _item("peer_simple_us", "us", 0.05, 60.0, 6.0, FREE, "what Simple takes longer than LL at once"),
    _item("peer_link_frac", "1", 0.05, 1.0, 0.7, SPEC, "share of the link that Simple reaches"),
    _item("peer_own_frac", "1", 0.003, 1.0, 0.3, FREE, "a byte of the share that a rank keeps, over one that it sends"),
)
"""Of NCCL's sends and receives: all-to-all and send."""

DIRECT = (
    _item("one_shot_us", "us", 0.5, 20.0, 3.0, FREE, "a kernel of one shot: launch and barrier"),
    _item("one_shot_peer_us", "us", 0.003, 3.0, 0.1, FREE, "each rank that it reads"),
    _item("one_shot_short_frac", "1", 0.002, 1.0, 0.05, NO_LIMIT, "share of the link of short messages, by few CTAs"),
    _item("one_shot_long_us", "us", 0.02, 10.0, 0.5, FREE, "each rank that it reads by all CTAs, at once"),
    _item("one_shot_frac", "1", 0.02, 1.0, 0.6, SPEC, "share of the link at which a rank reads all others then"),
    _item("two_shot_us", "us", 0.5, 60.0, 8.0, FREE, "a kernel of two shots: launch and two barriers"),
    _item("two_shot_frac", "1", 0.1, 1.0, 0.5, SPEC, "share of the link that it reaches"),
    _item("direct_bytes", "B", 1e5, 1e9, 1.6e7, NO_LIMIT, "largest message of these kernels; above, NCCL runs"),
)
"""Of TensorRT-LLM's own all-reduce, over NVLink."""

SOCKETS = (
    _item(
        "contention", "1", 0.02, 3.0, 2.0, FREE,
        "power of 2/ranks at which the rate of a rank falls where traffic crosses two sockets",
    ),
    _item(
        "cached_contention", "1", 0.02, 3.0, 1.5, FREE,
        "as contention, of messages whose copies in host memory stay in the caches of the CPUs",
    ),
    _item(
        "engine_contention", "1", 0.02, 3.0, 1.2, FREE,
        "power of 4/ranks instead, beyond four ranks, of an engine's all-reduces that fill NCCL's chunks: a process "
        "for each rank, in a graph",
    ),
    _item("ll_contention", "1", 0.02, 3.0, 2.0, FREE, "as contention, of rings in LL, whose stores carry flags"),
    _item("peer_contention", "1", 0.02, 3.0, 2.0, FREE, "as contention, of sends and receives"),
)  # fmt: skip
"""The topology of GPUs over PCIe whose traffic crosses two sockets."""

COLLECTIVE_COEFFICIENTS = (*RING, *MULTICAST, *EXCHANGE, *DIRECT, *SOCKETS)
"""All of them, in the order of files."""


NCCL, TRTLLM_DIRECT = "nccl", "trtllm"
COLLECTIVE_LIBRARIES = (NCCL, TRTLLM_DIRECT)
"""Whose kernels: NCCL's alone, or TensorRT-LLM's own all-reduce where it has one and NCCL's for the rest."""

NVLS_FROM_RANKS = 5
"""Timings of H200 show NVLS with eight GPUs, and none with two and four."""

CACHED_BYTES = 3 << 19
"""Largest message, in bytes, whose copies in host memory stay in the caches of the CPUs: eight L40S move 1 MiB at 1.4
times the rate of 2 MiB, four at 1.2 times, in every ring."""

FILLED_SHARE_BYTES, FILLED_PEER_BYTES = 4 << 20, 12 << 20
"""Share of a rank, in bytes, that fills NCCL's chunks: 2 channels over PCIe, each with half of its buffer of 4 MiB; and
of a peer, above whose 8 MiB all-to-alls of eight L40S move 1.7 times as much.

Source: NCCL 2.27, ALLREDUCE_CHUNKSTEPS of NCCL_STEPS in device.h, 4 MiB in init.cc. Timings of eight L40S turn there.
"""

ROUND_BYTES = 512 * 8
"""Share of a rank, in bytes, that a CTA stores at once in LL: 512 threads, 8 bytes of data each.

Source: NCCL 2.27, NCCL_LL_MAX_NTHREADS in device.h. Times of rings on A100, H200 and B200 rise around it, then stay.
"""


PLANNED = ((6.6, 0.6, 1.0), (14.0, 1.9, 2.5), (8.4, 3.4, 5.7))
"""What NCCL takes LL, LL128 and Simple to cost in a node, in us: a start, a hop over NVLink, and one over PCIe.

It runs the one that it expects to end first (2.27, tuning.cc); trees never are, LL128 only over `LL128_LINKS`.
"""

LL128_LINKS = ("nvlink2", "nvlink3", "nvlink4", "xgmi3", "xgmi4")
"""Links over which LL128 runs. NCCL has it off over PCIe; B200's timings (NCCL 2.29) show none."""

PLANNED_LL_GB_PER_S = {"nvlink2": 39.0, "nvlink3": 87.7, "nvlink4": 141.0, "nvlink5": 282.0}
"""Most that NCCL takes LL to move, by link, in 1e9 bytes/s; and half of what Simple moves (llMaxBws of tuning.cc)."""

PLANNED_FRAC, PLANNED_MID_FRAC, PLANNED_PCIE_FRAC, PLANNED_FAR = 0.8, 0.92, 0.75, (0.84, 2.2)
"""Share of a link that NCCL's rings plan with, in Simple: 6 channels of 40 GB/s on A100, 6 of 60 on H200, 8 of 90 on
B200 (speed arrays of search.cc); of that in LL128; share of a PCIe slot, 24 GB/s of gen 4. Beyond four ranks across two
sockets the rate falls by one of these powers of 4/ranks, by passes, so that rings of eight L40S turn where they were
timed.
"""

SHARED_CHANNELS = ("nvlink2", "nvlink3")
"""Links over which all peers of a send share the channels of LL, as A100's timings show; over later ones each has its
own, as H200's and B200's do."""

PEER_LL_BYTES = {"pcie3": 2 << 14, "pcie4": 2 << 14, "pcie5": 2 << 14, "nvlink3": 32 << 14}
"""Largest share of a peer in LL, in bytes, where NCCL's rule is known: 16 KiB for each channel of a peer. Else the
faster of LL and Simple runs. Source: NCCL 2.27, NCCL_P2P_LL_THRESHOLD; timings of L40S and A100 turn there.
"""

_SUMMED_IN_SWITCH = frozenset((DType.FP16, DType.BF16, DType.FP32))

XGMI_FRAC = (48.0 / 64.0) / (20.6 / 25.0)
"""Payload of an xGMI link over that of an NVLink of the same published rate, on which shares of links were fitted.

RCCL counts 48 of 64 GB/s of a link (https://github.com/ROCm/rccl/issues/1210: protocol and error correction; AMD's
https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html agrees), NCCL 20.6 of 25 GB/s of one
of Hopper's (NCCL 2.27, src/graph/topo.h).
"""

MODELLED_AS = {"rccl": NCCL, "aiter": TRTLLM_DIRECT}
"""Libraries of AMD's GPUs, and whose kernels they are modelled as: RCCL has the rings of NCCL; engines' own all-reduces
read all other GPUs at once, as TensorRT-LLM's do. None was timed."""

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CollectiveRows:
    """Columns of problems, [rows] each."""

    size: Floats  # `CollectiveProblem.buffer_bytes`
    ranks: Floats
    passes: Floats  # how often a ring goes round
    is_exchange: Mask
    is_send: Mask
    is_sum: Mask
    has_nvls: Mask  # NCCL considers the switch
    is_direct: Mask  # TensorRT-LLM has a kernel of its own: GPUs read each other's memory
    is_engine: Mask  # all-reduces of an engine: over PCIe NCCL's, from its processes and graphs
    operation: Floats  # place in `COLLECTIVES`
    bits: Floats  # of an element

    def take(self, mask: Mask) -> CollectiveRows:
        """Return some of the rows."""
        return CollectiveRows(*(column[mask] for column in vars(self).values()))


def collective_rows(link: Interconnect, library: str, problems: Sequence[CollectiveProblem]) -> CollectiveRows:
    """Return problems as columns, for a link and a library; see `collective_cost`."""
    is_all_reduce, is_send, is_exchange = (
        np.array([item.what in names for item in problems], np.bool_)
        for names in (("all_reduce",), ("send",), ("all_to_all", "send"))
    )
    size, ranks = (
        np.array([getattr(item, name) for item in problems], np.float64) for name in ("buffer_bytes", "num_ranks")
    )
    can_switch = np.array([item.dtype in _SUMMED_IN_SWITCH for item in problems], np.bool_) & link.has_multicast
    is_engine = is_all_reduce & (library == TRTLLM_DIRECT)
    return CollectiveRows(
        size, ranks, np.where(is_all_reduce, 2.0, 1.0), is_exchange, is_send,
        np.array([item.is_sum for item in problems], np.bool_),
        is_all_reduce & can_switch & (ranks >= NVLS_FROM_RANKS), is_engine & link.has_peer_memory, is_engine,
        np.array([COLLECTIVES.index(item.what) for item in problems], np.float64),
        np.array([item.dtype.bits for item in problems], np.float64),
    )  # fmt: skip


def collectives_us(link: Interconnect, of: Mapping[str, float], rows: CollectiveRows) -> Floats:
    """Return the latency of each row, in microseconds."""
    return np.min([terms.latency_us for terms in _algorithms(link, of, rows).values()], axis=0)


def collective_terms(link: Interconnect, of: Mapping[str, float], rows: CollectiveRows) -> CollectiveTerms:
    """Return the terms of the algorithm that runs each row."""
    algorithms = list(_algorithms(link, of, rows).values())
    fastest = np.argmin([terms.latency_us for terms in algorithms], axis=0)
    return CollectiveTerms(*(np.choose(fastest, parts) for parts in zip(*algorithms, strict=True)))


def _algorithms(
    link: Interconnect, of: Mapping[str, float], rows: CollectiveRows, *, is_planned: bool = True
) -> dict[str, CollectiveTerms]:
    """Return the algorithms and protocols, of which the first of the fastest runs; infinite in rows that lack it.

    Of rings the protocol runs that NCCL plans with, or the fastest (`is_planned` False). A message takes no less time
    than the largest in the protocol before.
    """
    size, ranks, share, is_ring = rows.size, rows.ranks, rows.size / rows.ranks, ~rows.is_exchange
    algorithms: dict[str, tuple[Mask, CollectiveTerms]] = {}
    if is_ring.any():
        cached_rate, ll_rate, rate = (
            link_rate(link, ranks, of[name]) for name in ("cached_contention", "ll_contention", "contention")
        )
        if (is_direct := rows.is_direct & (size <= of["direct_bytes"])).any():
            algorithms["one-shot"] = is_direct, _faster(*one_shot(size, ranks, rate, of))
            algorithms["two-shot"] = is_direct, two_shot(size, ranks, rate, of)
        own_frac = np.where(rows.is_sum, of["own_sum_frac"], of["own_frac"])
        cached_rate = np.where(size <= CACHED_BYTES, cached_rate, rate)
        ll, mid, simple = ring(size, ranks, rows.passes, own_frac, ll_rate, of, cached_rate)
        if rows.is_engine.any():
            far_rate = link_rate(link, ranks, of["contention"], of["engine_contention"])
            filled_bytes = np.maximum(size, ranks * FILLED_SHARE_BYTES)
            filled = ring(filled_bytes, ranks, rows.passes, own_frac, far_rate, of)[2]
            simple = _only(rows.is_engine, _faster(simple, filled), simple)
        is_ll = is_mid = is_simple = is_ring
        if is_planned:
            last_ll, last_mid = planned_bytes(link, ranks, rows.passes)
            least_us = ring(last_ll, ranks, rows.passes, own_frac, ll_rate, of)[0].latency_us
            mid_us = ring(last_mid, ranks, rows.passes, own_frac, ll_rate, of)[1].latency_us
            mid, simple = mid.at_least(least_us), simple.at_least(np.maximum(least_us, (last_mid > last_ll) * mid_us))
            is_ll, is_mid = is_ring & (size <= last_ll), is_ring & (size > last_ll) & (size <= last_mid)
            is_simple = is_ring & (size > last_mid)
        algorithms["ring, LL"] = is_ll, ll
        if link.has_peer_memory:
            algorithms["ring, LL128"] = is_mid, mid
        algorithms["ring, Simple"] = is_simple, simple
        if rows.has_nvls.any():
            algorithms["NVLS"] = rows.has_nvls, nvls(size, ranks, rate, of)
    if rows.is_exchange.any():
        rate = link_rate(link, ranks, of["peer_contention"])
        sent, kept = np.where(rows.is_send, size, share), np.where(rows.is_send, 0.0, share)
        ll, simple = exchange(link, sent, ranks - 1, kept, rate, of)
        if link.topology == TWO_SOCKETS:
            far_rate = link_rate(link, ranks, of["peer_contention"], of["engine_contention"])
            filled_bytes = np.maximum(sent, FILLED_PEER_BYTES)
            simple = _faster(simple, exchange(link, filled_bytes, ranks - 1, kept, far_rate, of)[1])
        is_ll, is_simple = rows.is_exchange, rows.is_exchange
        if is_planned and (last := PEER_LL_BYTES.get(link.link)):
            last_us = exchange(link, last, ranks - 1, np.minimum(kept, last), rate, of)[0].latency_us
            simple, is_ll, is_simple = simple.at_least(last_us), is_ll & (sent <= last), is_simple & (sent > last)
        algorithms["send/receive, LL"] = is_ll, ll
        algorithms["send/receive, Simple"] = is_simple, simple
    return {name: _only(mask, terms, _NEVER) for name, (mask, terms) in algorithms.items()}


_MESH_LINKS = 6  # of a GPU in the hybrid cube mesh of a DGX-1 (V100 whitepaper): four in its half, two to the other
_SOCKET_RANKS = 4  # GPUs at each socket of a server of eight

Coefficients = Mapping[str, float]


class CollectiveTerms(NamedTuple):
    """The time of an algorithm, or of several at once where they are arrays.

    Attributes:
        start_us: launch, meeting of the ranks, and what the protocol takes once: fences, barriers, a pipeline to fill.
    """

    start_us: Any
    hops_us: Any  # latencies of the hops, one after the other
    link_us: Any  # bytes over the rate of the link

    @property
    def latency_us(self) -> Any:
        """All of them, in microseconds."""
        return self.start_us + self.hops_us + self.link_us

    def at_least(self, least_us: Any) -> CollectiveTerms:
        """Return terms with as much time on the link as makes the latency no less than `least_us`."""
        return self._replace(link_us=np.maximum(self.link_us, least_us - self.start_us - self.hops_us))


def link_rate(link: Interconnect, ranks: Any, contention: float, far_contention: Any = None) -> Any:
    """Return what a rank sends while all do, in bytes per microsecond: a share of this is what algorithms reach.

    Through a switch, or the bridges of one socket, it is the whole link. Of a mesh, and of links between any two GPUs,
    those to GPUs that take no part lie idle: rings and exchanges use all others at once. Across two sockets the rate
    falls with each doubling of the ranks: more bridges, then the link between the sockets, are shared.

    Args:
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
    if link.topology == "all-to-all":
        others = np.clip(ranks, 2.0, link.num_gpus) - 1.0  # of more ranks, those of other nodes have no link
        return rate * XGMI_FRAC * others / (link.num_gpus - 1)
    return rate + 0.0 * ranks


def ring(
    size: Any, ranks: Any, passes: Any, own_frac: Any, rate: Any, of: Coefficients, simple_rate: Any = None
) -> tuple[CollectiveTerms, CollectiveTerms, CollectiveTerms]:
    """Return the terms of a ring in NCCL's protocols LL, LL128 and Simple.

    Shares go round `passes` times: once to gather or to reduce and scatter, twice to reduce to all. A hop of each pass
    waits for the one before. LL and LL128 carry flags among the data, so that no rank waits for a fence; Simple moves
    what is left of the link, and also copies a rank's own share at a part of the cost of sending it. In LL its
    instructions limit, so that a byte costs the same whether it is sent or copied. `simple_rate`: None: as `rate`.
    """
    share = size / ranks
    hops = passes * (ranks - 1)
    sent = hops * share
    start_us = of["launch_us"] + of["round_us"] * share / (share + ROUND_BYTES)
    ll = CollectiveTerms(start_us, hops * of["hop_us"], passes * size / (rate * of["ll_frac"]))
    mid = CollectiveTerms(of["launch_us"] + of["mid_us"], hops * of["hop_us"], sent / (rate * of["mid_frac"]))
    simple = CollectiveTerms(
        of["launch_us"] + of["simple_us"], hops * of["simple_hop_us"],
        (sent + own_frac * share) / ((rate if simple_rate is None else simple_rate) * of["link_frac"]),
    )  # fmt: skip
    return ll, mid, simple


def planned_bytes(link: Interconnect, ranks: Any, passes: Any) -> tuple[Any, Any]:
    """Return the largest messages (the larger buffer of a rank, bytes) that NCCL sends around rings in LL and LL128."""
    is_nvlink, hops = link.has_peer_memory, passes * (ranks - 1)
    frac = PLANNED_FRAC if is_nvlink else PLANNED_PCIE_FRAC
    rate = frac * link_rate(link, ranks, 0.0, np.where(passes > 1, PLANNED_FAR[1], PLANNED_FAR[0]))
    ll_rate = np.minimum(rate / 2, bytes_per_us(PLANNED_LL_GB_PER_S.get(link.link, math.inf)))
    first_us, mid_us, last_us = (start + hops * (nvlink if is_nvlink else pcie) for start, nvlink, pcie in PLANNED)
    byte_us, mid_byte_us, last_byte_us = (hops / ranks / each for each in (ll_rate, PLANNED_MID_FRAC * rate, rate))
    last_ll = (last_us - first_us) / (byte_us - last_byte_us)
    if link.link not in LL128_LINKS:
        return last_ll, last_ll
    last_ll = np.minimum(last_ll, (mid_us - first_us) / (byte_us - mid_byte_us))
    return last_ll, np.maximum(last_ll, (last_us - mid_us) / (mid_byte_us - last_byte_us))


def nvls(size: Any, ranks: Any, rate: Any, of: Coefficients) -> CollectiveTerms:
    """Return the terms of an all-reduce in the switch: each rank loads sums of its share and stores them to all.

    Out of a GPU goes its whole array, for the sums of the others, and its share of the result.
    """
    sent = size * (1 + 1 / ranks)
    return CollectiveTerms(of["launch_us"] + of["nvls_us"], 0.0 * ranks, sent / (rate * of["nvls_frac"]))


def exchange(
    link: Interconnect, share: Any, peers: Any, kept: Any, rate: Any, of: Coefficients
) -> tuple[CollectiveTerms, CollectiveTerms]:
    """Return the terms of sends of `share` bytes to each peer, of which `kept` stay, in the protocols LL and Simple.

    In LL each peer has channels of its own, on which its share alone counts, or all share them (`SHARED_CHANNELS`), and
    what stays goes through them too. Through the host all share one link.
    """
    sent = share * peers
    hops = (peers - 1) * of["peer_us"]
    is_shared, is_host = link.link in SHARED_CHANNELS, link.topology in PCIE_BOXES
    ll_bytes = sent + kept if is_shared else sent if is_host else share
    start_us = of["peer_launch_us"] + of["peer_round_us"] * share / (share + ROUND_BYTES)
    ll = CollectiveTerms(start_us, hops, ll_bytes / (rate * of["peer_ll_frac"]))
    simple = CollectiveTerms(
        of["peer_launch_us"] + of["peer_simple_us"], hops,
        (sent + of["peer_own_frac"] * kept) / (rate * of["peer_link_frac"]),
    )  # fmt: skip
    return ll, simple


def one_shot(size: Any, ranks: Any, rate: Any, of: Coefficients) -> tuple[CollectiveTerms, CollectiveTerms]:
    """Return the terms of an all-reduce in which each rank reads the arrays of all others: by few CTAs, and by all."""
    others = ranks - 1
    hops, read = others * of["one_shot_peer_us"], others * size / rate
    short = CollectiveTerms(of["one_shot_us"], hops, read / of["one_shot_short_frac"])
    long_us = others * of["one_shot_long_us"]
    return short, CollectiveTerms(of["one_shot_us"] + long_us, hops, read / of["one_shot_frac"])


def two_shot(size: Any, ranks: Any, rate: Any, of: Coefficients) -> CollectiveTerms:
    """Return the terms of an all-reduce in which each rank adds up its share of all arrays, then reads all sums."""
    others = ranks - 1
    return CollectiveTerms(
        of["two_shot_us"], others * of["one_shot_peer_us"], 2 * others * size / ranks / (rate * of["two_shot_frac"])
    )


_NEVER = CollectiveTerms(math.inf, 0.0, 0.0)


def _only(mask: Mask, terms: CollectiveTerms, others: CollectiveTerms) -> CollectiveTerms:
    """Return terms in some rows, and others in the rest."""
    if not isinstance(mask, np.ndarray):  # of one row: a tenth of the time
        return terms if mask else others
    return CollectiveTerms(*(np.where(mask, own, other) for own, other in zip(terms, others, strict=True)))


def _faster(first: CollectiveTerms, second: CollectiveTerms) -> CollectiveTerms:
    """Return the terms of the faster of two in each row."""
    return _only(first.latency_us <= second.latency_us, first, second)


COLLECTIVE = "collective"
"""Name of the subject, in files of what was learned of it."""


COLLECTIVE_GROUPS = RINGS, EXCHANGES, ENGINES = "ring", "exchange", "engine"
"""Of kernels, in files of what was learned of them: NCCL's rings, its sends and receives, all-reduces of engines."""


def collective_group(rows: CollectiveRows) -> npt.NDArray[np.str_]:
    """Return which of `COLLECTIVE_GROUPS` each row is of."""
    return np.where(rows.is_exchange, EXCHANGES, np.where(rows.is_engine, ENGINES, RINGS))


def collective_features(rows: CollectiveRows, terms: CollectiveTerms, latency_us: Floats) -> Features:
    """Return what a correction knows of collectives [rows]: sizes, operation, latencies and shares of the terms."""
    size, ranks, latency = np.log2(rows.size), np.log2(rows.ranks), np.log2(latency_us)
    others = {
        "share": size - ranks, "latency": latency, "rate": size - latency, "operation": rows.operation,
        "bits": rows.bits, "hops_frac": terms.hops_us / terms.latency_us,
        "link_frac": terms.link_us / terms.latency_us,
    }  # fmt: skip
    return Features({"message_bytes": size, "num_ranks": ranks}, others)


def is_link_of(origin: Origin, link: Interconnect) -> bool:
    """Return True if coefficients were fitted on timings over the same kind of link, of the same topology and rate."""
    other = None if origin.gpu is None else _preset_link(origin.gpu)
    return other is not None and not any(_distance(other, link))


class CollectiveCost(NamedTuple):
    """The algorithm that runs, and what it takes."""

    algorithm: str  # with its protocol
    launch_us: float  # the part of `terms.start_us` that every kernel of the library has, whatever the message
    terms: CollectiveTerms  # of the algorithm

    @property
    def breakdown(self) -> dict[str, float]:
        """Microseconds by term; they add up to the latency."""
        start_us, hops_us, link_us = self.terms
        protocol_us = start_us - self.launch_us
        return {"launch_us": self.launch_us, "protocol_us": protocol_us, "hops_us": hops_us, "link_us": link_us}


def collective_cost(
    link: Interconnect, of: Mapping[str, float], library: str, problem: CollectiveProblem
) -> CollectiveCost:
    """Return what runs and what it takes, for two ranks or more."""
    row = _row(link, library, problem)
    algorithms = _algorithms(link, of, row)
    name = min(algorithms, key=lambda name: float(algorithms[name].latency_us))
    launches = ["peer_launch_us" if row.is_exchange else "launch_us"]
    launches += ["one_shot_us", "two_shot_us"] if row.is_direct else []
    return CollectiveCost(name, min(of[launch] for launch in launches), CollectiveTerms(*map(float, algorithms[name])))


def _row(link: Interconnect, library: str, problem: CollectiveProblem) -> CollectiveRows:
    row = _row_of_any_size(link, library, problem.what, problem.num_ranks, problem.dtype)
    return CollectiveRows(float(problem.buffer_bytes), *row)  # type: ignore[arg-type]  # numbers are faster


@lru_cache(maxsize=256)
def _row_of_any_size(link: Interconnect, library: str, what: str, num_ranks: int, dtype: DType) -> list[Any]:
    """Return the fields of `CollectiveRows` for a collective, as numbers; its size is left out."""
    problem = CollectiveProblem(what, 1, num_ranks, dtype)
    _, *columns = vars(collective_rows(link, library, [problem])).values()
    return [row[0] if row.dtype == bool else float(row[0]) for row in columns]


def algorithms_of(
    link: Interconnect, of: Mapping[str, float], library: str, problem: CollectiveProblem
) -> dict[str, CollectiveTerms]:
    """Return the terms of each algorithm and protocol in a node, fast or not; infinite where it cannot run."""
    return _algorithms(link, of, _row(link, library, problem), is_planned=False)


COLLECTIVE_MODEL_VERSION = "collective-4"


class CollectiveCurve(NamedTuple):
    """Corrected latencies of one collective, and their intervals, by log2 of `message_bytes`."""

    is_corrected: bool
    log_us: Floats  # [nodes], never falling
    low_log: Floats  # [nodes]
    high_log: Floats

    def at(self, message_bytes: int) -> tuple[float, float, float]:
        """Return the latency in microseconds, and the factors from it to both ends of its interval."""
        size = math.log2(message_bytes)
        after = min(max(1, bisect_right(_NODE_LIST, size)), len(_NODE_LIST) - 1)
        low, high = _NODE_LIST[after - 1 : after + 1]
        frac = min(1.0, max(0.0, (size - low) / (high - low)))
        log_us, low_log, high_log = (
            float(column[after - 1] + frac * (column[after] - column[after - 1])) for column in self[1:]
        )
        return math.exp(log_us), math.exp(low_log), math.exp(high_log)


_NODES = np.log2(np.unique(np.round(2.0 ** np.arange(0.0, math.log2(MAX_MESSAGE_BYTES) + 0.25, 0.25))))
_NODE_LIST = _NODES.tolist()


def collective_curve(arch: GpuSpec, link: Interconnect, library: str, problem: CollectiveProblem) -> CollectiveCurve:
    """Return what timings showed of a collective between two ranks or more, of all sizes.

    Trees have steps. A message takes no less time than a smaller one, and more ranks save no more than by the terms
    alone: so it is at four sizes an octave, and latencies in between are interpolated. Over another link than that of
    the timings, and for a send, which has no timings, nothing is corrected, and intervals are twice as wide in
    logarithms; those of another maker's GPUs are wide already (`OTHER_MAKER`).
    """
    curves = _curves(data_root(), chip_of(arch), link, library, problem.what, problem.dtype)
    return curves[problem.num_ranks - _FEWEST_RANKS]


@lru_cache(maxsize=256)
def _curves(
    root: Path, chip: Chip, link: Interconnect, library: str, what: str, dtype: DType
) -> tuple[CollectiveCurve, ...]:  # fmt: skip
    """Return the curves between two ranks, three, and so on, up to all GPUs of a node."""
    of, origin = _coefficients(root, chip, link)
    all_ranks = range(_FEWEST_RANKS, 1 + (_FEWEST_RANKS if what == "send" else link.num_gpus))
    row = collective_rows(link, library, [CollectiveProblem(what, 1, ranks, dtype) for ranks in all_ranks])
    rows = CollectiveRows(*(np.repeat(column, len(_NODES)) for column in vars(row).values()))
    rows = replace(rows, size=rows.size * np.tile(2.0**_NODES, len(all_ranks)))
    terms = collective_terms(link, of, rows)
    is_timed = is_link_of(origin, link) and what != "send"
    answers = answers_for(
        chip, COLLECTIVE, str(collective_group(row)[0]), origin, of, COLLECTIVE_MODEL_VERSION,
        collective_features(rows, terms, terms.latency_us), terms.latency_us, is_on=is_timed,
    )  # fmt: skip
    factors, lows, highs = (np.log(column).reshape(len(all_ranks), -1) for column in answers)
    is_wide = not is_timed and not (origin.gpu is not None and is_other_maker(chip, origin.gpu))
    physics, width = np.log(terms.latency_us).reshape(factors.shape), _UNTIMED_WIDTH if is_wide else 1.0
    log_us = np.maximum.accumulate(physics + factors, axis=1)
    for more in range(1, len(all_ranks)):
        change = np.pad(physics[more] - physics[more - 1], 1, mode="edge")  # of neighbours too: curves are joined
        least = log_us[more - 1] + np.minimum(0.0, np.maximum(np.maximum(change[:-2], change[2:]), change[1:-1]))
        log_us[more] = np.maximum.accumulate(np.maximum(log_us[more], least))
    is_corrected = np.any(factors != 0.0, axis=1).tolist()
    return tuple(map(CollectiveCurve, is_corrected, log_us, width * lows, width * highs))


_FEWEST_RANKS, _UNTIMED_WIDTH = 2, 2.0


class CollectiveCalibration(SingleCalibration):
    """Coefficients of collectives, as `gemm-eval calibrate collective` writes them."""

    command: ClassVar[str] = "gemm-eval calibrate collective"
    known: ClassVar[Sequence[Coefficient]] = COLLECTIVE_COEFFICIENTS
    libraries: tuple[str, ...] = Field(description="name and release of each library that was timed")
    model_version: str = Field(description="version of the model")
    fitted: tuple[str, ...] = Field(description="the coefficients that the data determine; the others are defaults")

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return "collective"


def collective_calibration_path(gpu: str) -> Path:
    """Return where the calibration of collectives between GPUs of a kind lies, if there is one."""
    return data_root() / "calibration" / gpu / "collective.yaml"


def link_of(arch: GpuSpec) -> Interconnect:
    """Return what joins a GPU to others.

    Raises:
        UnsupportedError: its spec does not say.
    """
    if arch.interconnect is None:
        raise UnsupportedError(
            f"{arch.name} does not say what joins it to other GPUs: give its YAML an interconnect (link, topology, "
            "gb_per_s, num_gpus)"
        )
    return arch.interconnect


def collective_coefficients(arch: GpuSpec, link: Interconnect | None = None) -> tuple[dict[str, float], Origin]:
    """Return all coefficients for a GPU, and where they come from.

    A calibration of this GPU is taken as it is. Without one, that of the GPU with the nearest link carries over
    (`nearest_first`, by links): of the same kind and topology, then of the nearest generation, then of the nearest
    rate. Rates are shares of the link, so that they scale with what the spec says of it; latencies do not.

    Args:
        link: what joins it to others; None: as its spec says.

    Raises:
        UnsupportedError: its spec does not say what joins it to others.
    """
    coefficients, origin = _coefficients(data_root(), chip_of(arch), link_of(arch) if link is None else link)
    return dict(coefficients), origin


@cache
def _coefficients(root: Path, chip: Chip, link: Interconnect) -> tuple[dict[str, float], Origin]:
    def distance(other: GpuSpec) -> tuple[float, ...]:
        return (math.inf,) if other.interconnect is None else _distance(other.interconnect, link)

    for path in nearest_first(root / "calibration", chip, collective_calibration_path(chip.name).name, (), distance):
        other, is_own = _preset_link(path.parent.name), path.parent.name == chip.name
        if is_own or (other is not None and other.has_peer_memory == link.has_peer_memory):
            found = CollectiveCalibration.load(path)
            return found.complete(), _origin(found, other, link, is_own=is_own)
    defaults = {item.name: item.default for item in COLLECTIVE_COEFFICIENTS}
    return defaults, Origin(False, None, "defaults, not fitted on this kind of link")


def _origin(found: CollectiveCalibration, other: Interconnect | None, link: Interconnect, *, is_own: bool) -> Origin:
    library = ", ".join(found.libraries)
    if is_own and other == link.model_copy(update={"network": None}):
        return origin_of(found.gpu, found.date, library, is_own=True)
    if is_own or other is None:
        text = f"those of {found.gpu}, whose link was changed: not fitted on it"
        return Origin(False, found.gpu, text, library)
    how = "of the same link" if other.link == link.link else f"of another link ({other.link}, this is {link.link})"
    text = f"carried over from {found.gpu}, {how}, rates scaled to {link.gb_per_s:g} GB/s: not fitted on this GPU"
    return Origin(False, found.gpu, text, library)


def _distance(other: Interconnect, link: Interconnect) -> tuple[bool, int, float]:
    generations = abs(LINKS.index(other.link) - LINKS.index(link.link))
    return other.topology != link.topology, generations, abs(math.log(other.gb_per_s / link.gb_per_s))


def _preset_link(gpu: str) -> Interconnect | None:
    try:
        link = load_arch(gpu, GpuSpec).interconnect
    except ArchError:
        return None
    return None if link is None else link.model_copy(update={"network": None})
