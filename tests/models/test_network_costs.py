"""Collectives between nodes: terms by hand, laws, and figures that were published of the same kernels."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, Interconnect, Network, load_arch
from gemm_eval.models.gpu.collective import COLLECTIVE_COEFFICIENTS
from gemm_eval.models.gpu.network import (
    NETWORK_FRAC,
    NETWORK_SPREAD,
    NetworkCost,
    network_cost,
    nodes_of,
    ring_costs,
)
from gemm_eval.transformer import load_model
from gemm_eval.workload import CollectiveProblem
from tests.models.deepep_published import LOW_LATENCY, NORMAL

DEFAULTS = {item.name: item.default for item in COLLECTIVE_COEFFICIENTS}
NETWORK = Network(kind="infiniband-ndr", gb_per_s=50.0, latency_us=2.7)
LINK = Interconnect(link="nvlink4", topology="switch", gb_per_s=400.0, num_gpus=8, network=NETWORK)
REACHED = 50e3 * NETWORK_FRAC
SUMS = ("all_reduce", "all_gather", "reduce_scatter")


def cost(what: str, message_bytes: int, ranks: int, per_node: int | None = None, **more: Any) -> NetworkCost:
    problem = CollectiveProblem(what, message_bytes, ranks, ranks_per_node=per_node, **more)
    return network_cost(LINK, DEFAULTS, problem, nodes_of(problem, LINK, "toy"))


def test_terms_by_hand() -> None:
    short = cost("all_reduce", 64, 32)  # in a node up and down LL's ring of 8, between 4 nodes up and down a tree
    assert short.algorithm == "ring, LL + trees"
    assert short.hops_us == pytest.approx(14 * DEFAULTS["hop_us"])
    assert short.net_hops_us == pytest.approx(2 * 2 * 5.0)
    alone = cost("all_gather", 1 << 30, 4, per_node=1)  # each rank in a node of its own: one ring, once round
    assert alone.algorithm == "flat ring, Simple"
    assert alone.net_hops_us == pytest.approx(3 * 14.0)
    assert alone.network_us == pytest.approx(3 * (1 << 30) / REACHED)
    send = cost("send", 1 << 20, 2, per_node=1)
    assert send.network_us == pytest.approx((1 << 20) / REACHED)
    spread = cost("all_to_all", 1 << 30, 16)  # half of the message leaves the node
    assert spread.network_us == pytest.approx((1 << 29) / REACHED)
    assert spread.link_us == 0.0
    once = cost("all_to_all", 1 << 30, 16, network_bytes=1 << 28)
    assert (once.library, once.algorithm) == ("deepep", "once to each node, forwarded")
    assert once.link_us == 0.0  # the link hands copies on meanwhile, in 3.4 ms
    assert once.network_us == pytest.approx((1 << 28) / REACHED)
    few = cost("all_to_all", 1 << 10, 16, network_bytes=1 << 9)
    assert few.algorithm == "direct to experts"


@given(st.sampled_from(SUMS), st.integers(0, 33), st.integers(2, 64), st.sampled_from((1, 3, 8)))
def test_two_levels_are_taken_only_where_they_are_faster(what: str, power: int, num_nodes: int, per_node: int) -> None:
    problem = CollectiveProblem(what, 1 << power, num_nodes * per_node, ranks_per_node=per_node)
    nodes = nodes_of(problem, LINK, "toy")
    costs = list(ring_costs(LINK, NETWORK, DEFAULTS, problem, nodes))
    flat = min(item.latency_us for item in costs if item.algorithm.startswith("flat"))
    assert network_cost(LINK, DEFAULTS, problem, nodes).latency_us <= flat


def h800() -> GEMMEvaluator:
    """Return an H100 with the NVLink of an H800, of which DeepEP's README has figures."""
    arch = load_arch("h100-sxm", GpuSpec)
    assert arch.interconnect is not None
    return GEMMEvaluator(arch.with_(interconnect=arch.interconnect.model_dump() | {"gb_per_s": 200.0}))


def test_figures_that_deepep_publishes() -> None:
    """Nothing was fitted on these: they are held against the model here alone."""
    evaluator, ratios = h800(), []
    for ranks, num_tokens, elem_bytes, published_us in LOW_LATENCY:
        copies = num_tokens * 8 * 7168 * elem_bytes
        leaving = copies * (ranks - 8) // ranks
        result = evaluator.evaluate_collective("all_to_all", copies, ranks, network_bytes=leaving)
        assert result.algorithm == "direct to experts"
        ratios.append(result.latency_us / published_us)
    deepseek = load_model("deepseek-v3").moe
    assert deepseek is not None
    for ranks, num_tokens, elem_bytes, published_gb_per_s in NORMAL:
        token, num_nodes = 7168 * elem_bytes, ranks // 8
        num_used = deepseek.nodes_of_token(num_nodes)  # its own counts too in the published bandwidth
        leaving = round(num_tokens * token * num_used * (num_nodes - 1) / num_nodes)
        result = evaluator.evaluate_collective(
            "all_to_all", num_tokens * 8 * token, ranks, network_bytes=leaving
        )  # fmt: skip
        assert result.algorithm == "once to each node, forwarded"
        ratios.append(result.latency_us / (num_tokens * token * num_used / published_gb_per_s / 1e3))
    assert all(1 / NETWORK_SPREAD <= ratio <= NETWORK_SPREAD for ratio in ratios)
    assert sum(abs(ratio - 1) for ratio in ratios) / len(ratios) < 0.2
