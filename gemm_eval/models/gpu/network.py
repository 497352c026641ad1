"""Collectives between nodes: inside a node by its link, between nodes by a network. OPERATIONS.md, "Between nodes".

Nothing between nodes was timed: rates and latencies are those that makers and NCCL publish.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gemm_eval.arch import Interconnect, Network
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.collective import NCCL, CollectiveTerms, algorithms_of, exchange, link_rate
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import CollectiveProblem

NETWORK_FRAC = 0.96
"""Share of the rate of a NIC that messages reach: NCCL plans 48 GB/s for a NIC of 50, 24 for one of 25.

Source: NCCL 2.27, src/graph/search.cc (sm90SpeedArrayInter, speedArrayInter). DeepEP reports 45 of 50 GB/s in its
README, where it subtracts nothing for the share of a node's own ranks (90 GB/s with two nodes).
"""

NETWORK_SPREAD = 1.6
"""Factor to both ends of the interval of a collective between nodes, which is assumed, not fitted.

Published figures differ by as much: a hop of Simple is 9.6 us in NCCL 2.8 and 14 in 2.27 (tuning.cc), and DeepEP's
low-latency kernels reach 39 to 63 GB/s, counted alike, on one network (docs/legacy.md in its repository).
"""


DEEPEP = "deepep"
"""The library of tokens to experts between nodes: https://github.com/deepseek-ai/DeepEP."""


class Protocol(NamedTuple):
    """A protocol of NCCL between nodes. Source: NCCL 2.27, src/graph/tuning.cc (hwLatencies of NET, bandwidths)."""

    ring_hop_us: float  # a hop of a ring, beyond the latency of the network
    tree_hop_us: float  # a hop of a tree, likewise
    network_frac: float  # share of the rate: flags take the rest


PROTOCOLS: Mapping[str, Protocol] = {
    "LL": Protocol(0.0, 2.3, 0.5),  # 2.7 and 5.0 us in all on InfiniBand; half of the bytes are flags
    "LL128": Protocol(1.3, 5.8, 0.92),  # 4.0 and 8.5; 120 of 128 bytes are data
    "Simple": Protocol(11.3, 11.3, 1.0),  # 14.0 and 14.0
}
"""Protocols by the end of the name of an algorithm; algorithms that end otherwise run in Simple."""

TREE_FRAC = 0.92
"""Share of the rate that trees between nodes reach, relative to rings. Source: NCCL 2.27, src/graph/tuning.cc."""


class Nodes(NamedTuple):
    """The nodes in which the ranks of a collective lie, equally many in each."""

    num_nodes: int
    ranks_per_node: int


def nodes_of(problem: CollectiveProblem, link: Interconnect, arch_name: str) -> Nodes:
    """Return the fewest nodes that hold the ranks, or those that the problem asks for.

    Raises:
        UnsupportedError: ranks do not fit into nodes, or there is no network.
    """
    ranks, per_node = problem.num_ranks, problem.ranks_per_node
    if per_node is not None and per_node > link.num_gpus:
        raise UnsupportedError(
            f"the {link.link} of {arch_name} joins at most {link.num_gpus} GPUs, got ranks_per_node {per_node}"
        )
    num_nodes = -(-ranks // (per_node or link.num_gpus))
    if num_nodes > 1 and link.network is None:
        given = f"{ranks} ranks" + ("" if per_node is None else f" in nodes of {per_node}")
        raise UnsupportedError(
            f"the {link.link} of {arch_name} joins at most {link.num_gpus} GPUs, got {given}: give its YAML an "
            "interconnect.network (kind, gb_per_s, latency_us), which joins nodes"
        )
    if ranks % num_nodes:
        raise UnsupportedError(
            f"{ranks} ranks do not lie equally in {num_nodes} nodes of at most {link.num_gpus} GPUs ({arch_name}): "
            "give a multiple of the nodes, or ranks_per_node"
        )
    return Nodes(num_nodes, ranks // num_nodes)


class NetworkCost(NamedTuple):
    """The algorithm that runs between nodes, and its terms in microseconds.

    Messages go in pieces, so that the link of a node and the network work at the same time: of `link_us` and
    `network_us` the shorter is 0.
    """

    library: str
    algorithm: str
    launch_us: float
    protocol_us: float  # fences, barriers
    hops_us: float  # in a node
    link_us: float
    net_hops_us: float
    network_us: float

    @property
    def latency_us(self) -> float:
        """All terms together."""
        return sum(self[2:])

    @property
    def breakdown(self) -> dict[str, float]:
        """Microseconds by term; they add up to the latency."""
        return {name: getattr(self, name) for name in self._fields[2:]}


def network_cost(link: Interconnect, of: Mapping[str, float], problem: CollectiveProblem, nodes: Nodes) -> NetworkCost:
    """Return the fastest algorithm between two nodes or more, and its terms.

    Args:
        link: the link in a node, with its network.
        of: coefficients of collectives in a node.
    """
    network = link.network
    assert network is not None
    if problem.network_bytes is not None:
        return _expert_cost(link, network, of, problem, nodes)
    if problem.what in ("all_to_all", "send"):
        costs = _exchange_costs(link, network, of, problem, nodes)
    else:
        costs = ring_costs(link, network, of, problem, nodes)
    return min(costs, key=lambda cost: cost.latency_us)


def _cost(
    algorithm: str, launch_us: float, terms: CollectiveTerms, net_hops_us: float, network_us: float, library: str = NCCL
) -> NetworkCost:
    start_us, hops_us, link_us = map(float, terms)
    is_network = network_us >= link_us
    return NetworkCost(
        library, algorithm, launch_us, start_us - launch_us, hops_us, 0.0 if is_network else link_us, net_hops_us,
        network_us if is_network else 0.0,
    )  # fmt: skip


def _rate(network: Network) -> float:
    return bytes_per_us(network.gb_per_s) * NETWORK_FRAC


def _protocol(algorithm: str) -> Protocol:
    return PROTOCOLS.get(algorithm.rpartition(", ")[2], PROTOCOLS["Simple"])


def ring_costs(
    link: Interconnect, network: Network, of: Mapping[str, float], problem: CollectiveProblem, nodes: Nodes
) -> Iterator[NetworkCost]:
    """Yield the costs of all-reduces, all-gathers and reduce-scatters: one ring through all ranks, or two levels.

    A ring enters and leaves each node once for each of its ranks, by the NICs of that rank. On two levels shares are
    reduced or gathered inside a node by any of its algorithms, and between nodes by trees on each rail. What NCCL plans
    with is known in a node alone: here the fastest protocol runs.
    """
    num_nodes, per_node = nodes
    ranks, size = problem.num_ranks, float(problem.buffer_bytes)
    passes = 2 if problem.what == "all_reduce" else 1
    rate, launch_us = _rate(network), of["launch_us"]
    flat = algorithms_of(link, of, NCCL, replace(problem, ranks_per_node=None))
    for name, terms in flat.items():
        if not name.startswith("ring") or math.isinf(terms.latency_us):
            continue
        protocol = _protocol(name)
        inner = terms._replace(hops_us=terms.hops_us * (ranks - num_nodes) / (ranks - 1))
        sent = passes * (ranks - 1) / ranks * size / per_node
        hops_us = passes * (num_nodes - 1) * (network.latency_us + protocol.ring_hop_us)
        yield _cost(f"flat {name}", launch_us, inner, hops_us, sent / (rate * protocol.network_frac))
    message = problem.message_bytes * (num_nodes if problem.what == "all_gather" else 1)
    inside = replace(problem, message_bytes=message, num_ranks=per_node, ranks_per_node=None)
    for name, terms in algorithms_of(link, of, NCCL, inside).items():
        if math.isinf(terms.latency_us):
            continue
        protocol = _protocol(name)
        sent = passes * (num_nodes - 1) / num_nodes * size / per_node
        hops_us = passes * math.ceil(math.log2(num_nodes)) * (network.latency_us + protocol.tree_hop_us)
        yield _cost(
            f"{name} + trees", launch_us, terms, hops_us,
            sent / (rate * TREE_FRAC * protocol.network_frac),
        )  # fmt: skip


def _exchange_costs(
    link: Interconnect, network: Network, of: Mapping[str, float], problem: CollectiveProblem, nodes: Nodes
) -> Iterator[NetworkCost]:
    """Yield the costs of sends and receives: shares for ranks of the node over the link, all others over rails."""
    ranks, per_node = problem.num_ranks, nodes.ranks_per_node
    is_send = problem.what == "send"
    share = float(problem.message_bytes) / (1 if is_send else ranks)
    rate = link_rate(link, per_node, of["peer_contention"])
    kept = 0.0 if is_send else share
    both = exchange(link, share, per_node - 1, kept, rate, of)
    for name, terms in zip(("LL", "Simple"), both, strict=True):
        inner = terms._replace(
            hops_us=terms.hops_us + (ranks - per_node) * of["peer_us"], link_us=terms.link_us * (per_node > 1)
        )
        protocol = PROTOCOLS[name]
        network_us = share * (ranks - per_node) / (_rate(network) * protocol.network_frac)
        hop_us = network.latency_us + protocol.ring_hop_us
        yield _cost(f"send/receive, {name}", of["peer_launch_us"], inner, hop_us, network_us)


def _expert_cost(
    link: Interconnect, network: Network, of: Mapping[str, float], problem: CollectiveProblem, nodes: Nodes
) -> NetworkCost:
    """Return the cost of tokens to experts and back, in the mode of DeepEP that the bytes over the network tell.

    Low latency: each copy goes to its expert's rank by itself. Normal, where fewer bytes than those leave a node: a
    token goes once to each node, to the rank of its own rail, which hands copies on over the link; counts go first.
    """
    assert problem.network_bytes is not None
    ranks, (num_nodes, per_node) = problem.num_ranks, nodes
    copies, sent = float(problem.message_bytes), float(problem.network_bytes)
    link_bytes_per_us = link_rate(link, per_node, of["peer_contention"]) * of["peer_link_frac"]
    launch_us = of["peer_launch_us"]
    if sent >= copies * (num_nodes - 1) // num_nodes:
        terms = CollectiveTerms(launch_us, 0.0, copies * (per_node - 1) / ranks / link_bytes_per_us)
        return _cost("direct to experts", launch_us, terms, network.latency_us, sent / _rate(network), DEEPEP)
    terms = CollectiveTerms(
        launch_us + of["peer_simple_us"], (num_nodes + per_node - 2) * of["peer_us"],
        copies * (per_node - 1) / per_node / link_bytes_per_us,
    )  # fmt: skip
    name = "once to each node, forwarded"
    return _cost(name, launch_us, terms, 2 * network.latency_us, sent / _rate(network), DEEPEP)
