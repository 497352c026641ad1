"""Which algorithm a library runs for a collective, and what that takes. MODEL.md, "Collectives"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gemm_eval.arch import PCIE_BOXES, Interconnect
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.collective.algorithms import (
    CollectiveTerms,
    exchange,
    link_rate,
    nvls,
    one_shot,
    ring,
    two_shot,
)
from gemm_eval.workload import CollectiveProblem

__all__ = [
    "CACHED_BYTES",
    "COLLECTIVE_LIBRARIES",
    "FILLED_SHARE_BYTES",
    "NCCL",
    "NVLS_FROM_RANKS",
    "TRTLLM_DIRECT",
    "CollectiveCost",
    "can_add_in_switch",
    "collective_cost",
    "has_direct_kernels",
    "is_engine_all_reduce",
    "num_passes",
]

NCCL, TRTLLM_DIRECT = "nccl", "trtllm"
COLLECTIVE_LIBRARIES = (NCCL, TRTLLM_DIRECT)
"""Whose kernels: NCCL's alone, or TensorRT-LLM's own all-reduce where it has one and NCCL's for the rest."""

NVLS_FROM_RANKS = 5
"""Timings of H200 show NVLS with eight GPUs, and none with two and four."""

CACHED_BYTES = 3 << 19
"""Largest message, in bytes, whose copies in host memory stay in the caches of the CPUs: eight L40S move 1 MiB at 1.4
times the rate of 2 MiB, four at 1.2 times, in every ring."""

FILLED_SHARE_BYTES = 4 << 20
"""Share of a rank, in bytes, that fills NCCL's chunks: 2 channels over PCIe, each with half of its buffer of 4 MiB.

Source: NCCL 2.27, ALLREDUCE_CHUNKSTEPS of NCCL_STEPS in device.h, 4 MiB in init.cc. Timings of eight L40S turn there.
"""

_EXCHANGES = ("all_to_all", "send")
_SUMMED_IN_SWITCH = frozenset((DType.FP16, DType.BF16, DType.FP32))


class CollectiveCost(NamedTuple):
    """The algorithm that runs, and what it takes.

    Attributes:
        algorithm: with its protocol.
        launch_us: the part of `terms.start_us` that every kernel of the library has for this operation: it does not
            grow with the message.
        terms: of the algorithm.
    """

    algorithm: str
    launch_us: float
    terms: CollectiveTerms

    @property
    def breakdown(self) -> dict[str, float]:
        """Microseconds by term; they add up to the latency."""
        start_us, hops_us, link_us = map(float, self.terms)
        protocol_us = start_us - self.launch_us
        return {"launch_us": self.launch_us, "protocol_us": protocol_us, "hops_us": hops_us, "link_us": link_us}


def num_passes(what: str) -> int:
    """Return how often shares go round a ring."""
    return 2 if what == "all_reduce" else 1


def can_add_in_switch(link: Interconnect, what: str, ranks: int, dtype: DType) -> bool:
    """Return whether NCCL considers NVLS."""
    return link.has_multicast and what == "all_reduce" and ranks >= NVLS_FROM_RANKS and dtype in _SUMMED_IN_SWITCH


def is_engine_all_reduce(library: str, what: str) -> bool:
    """Return whether TensorRT-LLM's all-reduce runs, which over PCIe is NCCL's, from its processes and graphs."""
    return library == TRTLLM_DIRECT and what == "all_reduce"


def has_direct_kernels(link: Interconnect, library: str, what: str) -> bool:
    """Return whether TensorRT-LLM has a kernel of its own: of all-reduces, where GPUs read each other's memory."""
    return is_engine_all_reduce(library, what) and link.is_nvlink


def collective_cost(
    link: Interconnect, of: Mapping[str, float], library: str, problem: CollectiveProblem
) -> CollectiveCost:
    """Return what runs and what it takes, for two ranks or more.

    Args:
        link: what joins the GPUs.
        of: all coefficients.
        library: of `COLLECTIVE_LIBRARIES`.
        problem: the message.
    """
    options = _nccl(link, of, library, problem)
    is_direct = has_direct_kernels(link, library, problem.what)
    if is_direct and problem.message_bytes <= of["direct_bytes"]:
        rate = link_rate(link, problem.num_ranks, of["contention"])
        sizes = problem.buffer_bytes, problem.num_ranks, rate, of
        one = min(one_shot(*sizes), key=lambda terms: terms.latency_us)
        options = {"one-shot": one, "two-shot": two_shot(*sizes)} | options
    name = min(options, key=lambda name: options[name].latency_us)
    launches = ["peer_launch_us" if problem.what in _EXCHANGES else "launch_us"]
    launches += ["one_shot_us", "two_shot_us"] if is_direct else []
    return CollectiveCost(name, min(of[launch] for launch in launches), options[name])


def _nccl(
    link: Interconnect, of: Mapping[str, float], library: str, problem: CollectiveProblem
) -> dict[str, CollectiveTerms]:
    """The algorithms and protocols of NCCL that may run, of which the fastest does."""
    what, ranks = problem.what, problem.num_ranks
    share = problem.buffer_bytes / ranks
    if what in _EXCHANGES:
        is_send = what == "send"
        rate = link_rate(link, ranks, of["peer_contention"])
        sent, kept = (problem.message_bytes, 0.0) if is_send else (share, share)
        ll, simple = exchange(sent, ranks - 1, kept, rate, of, is_host=link.topology in PCIE_BOXES)
        return {"send/receive, LL": ll, "send/receive, Simple": simple}
    is_cached = problem.buffer_bytes <= CACHED_BYTES
    rate = link_rate(link, ranks, of["cached_contention" if is_cached else "contention"])
    own_frac = of["own_sum_frac"] if problem.is_sum else of["own_frac"]
    ll, mid, simple = ring(problem.buffer_bytes, ranks, num_passes(what), own_frac, rate, of)
    if is_engine_all_reduce(library, what):
        far_rate = link_rate(link, ranks, of["contention"], of["engine_contention"])
        filled_bytes = max(problem.buffer_bytes, ranks * FILLED_SHARE_BYTES)
        filled = ring(filled_bytes, ranks, num_passes(what), own_frac, far_rate, of)[2]
        simple = min(simple, filled, key=lambda terms: terms.latency_us)
    options = {"ring, Simple": simple}
    if share <= of["switch_bytes"]:
        options = {"ring, LL": ll, ("ring, LL128" if link.is_nvlink else "ring, short Simple"): mid} | options
    if can_add_in_switch(link, what, ranks, problem.dtype):
        options["NVLS"] = nvls(problem.buffer_bytes, ranks, rate, of)
    return options
