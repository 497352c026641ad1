"""Laws of collectives in a node and between nodes, on random messages of every preset, through the public call.

A larger message never takes less time, nor a smaller launch. No term is below its bytes over the rate of the link. More
ranks may take less time only where a rule says so, and by a part that is stated for each rule:

- mesh: links lead to single GPUs, so more ranks use more of them (V100); no more than the links used grow.
- own channels: in the protocol LL each peer of an exchange has channels of its own, and its share falls with the ranks.
  With twice the ranks, H200 was timed at 0.83 of the time.
- protocol: NCCL turns to Simple by the share of a rank, which falls with the ranks. A100 was timed at 0.63.
- NVLS: switches add up from five ranks on, and a rank sends size x (1 + 1 / ranks). H200 was timed at 0.88.

Between nodes, a node more of as many ranks is no faster but for an all-to-all, whose shares fall, and no slower than by
its hops, its peers, and (nodes - 1) / nodes of the bytes, which leave a node.
"""

import random
from functools import cache
from typing import Any

from gemm_eval import CollectiveResult, GEMMEvaluator
from gemm_eval.arch import PCIE_BOXES, SM_ARCHS, GpuSpec, Interconnect
from gemm_eval.models.gpu.collective import MODELLED_AS, link_rate
from gemm_eval.models.gpu.network import PROTOCOLS
from gemm_eval.workload import COLLECTIVES
from tools.laws.draws import GPUS
from tools.laws.report import Report

ROUNDING = 1e-9
MAX_LOG2_BYTES = 34
"""Messages are of 16 GiB at most."""

HELPS = {"own channels": 0.3, "protocol": 0.45, "NVLS": 0.25}
"""Rule -> the largest part of the time that more ranks may save by it."""

_LINKED = tuple(arch for arch in GPUS if arch.interconnect is not None)
_WIDER = (1.001, 1.3, 2.0, 16.0)


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random messages."""
    rng, report = random.Random(seed), Report()
    for _ in range(count):
        _check(rng, report)
    return report


@cache
def _evaluator(arch: GpuSpec) -> GEMMEvaluator:
    return GEMMEvaluator(arch, disk_cache=False)


def _check(rng: random.Random, report: Report) -> None:
    arch = rng.choice(_LINKED)
    link = arch.interconnect
    assert link is not None
    what = rng.choice(COLLECTIVES)
    size, ranks = round(2.0 ** rng.uniform(0.0, MAX_LOG2_BYTES)), 2 if what == "send" else rng.randint(2, link.num_gpus)
    options: dict[str, Any] = {
        "dtype": rng.choice(("bf16", "int8")),
        "library": rng.choice(("nccl", "trtllm") if arch.sm_arch in SM_ARCHS else tuple(MODELLED_AS)),
        "interconnect": rng.choice((None, *PCIE_BOXES)) if link.topology in PCIE_BOXES else None,
    }

    def evaluate(message_bytes: int, num_ranks: int) -> CollectiveResult:
        return _evaluator(arch).evaluate_collective(what, message_bytes, num_ranks, **options)

    base = evaluate(size, ranks)
    _check_terms(base, report)
    larger = evaluate(max(size + 1, round(size * rng.choice(_WIDER))), ranks)
    for law, grows in (
        ("a larger message is not faster", larger.latency_us >= base.latency_us * (1.0 - ROUNDING)),
        ("a launch does not grow with the message", larger.breakdown["launch_us"] == base.breakdown["launch_us"]),
    ):
        report.checked[law] += 1
        if not grows:
            report.violations.append(f"{law}: {base}, {larger}")
    for num in (ranks + 1, 2 * ranks):
        if num <= link.num_gpus and what != "send":
            _check_ranks(base, evaluate(size, num), link, report)
    if link.network is not None and what != "send":
        _check_nodes(rng, arch, link, what, size, report)


def _check_nodes(rng: random.Random, arch: GpuSpec, link: Interconnect, what: str, size: int, report: Report) -> None:
    per_node, num_nodes = rng.randint(1, min(8, link.num_gpus)), rng.randint(2, 64)

    def evaluate(message_bytes: int, nodes: int) -> CollectiveResult:
        return _evaluator(arch).evaluate_collective(what, message_bytes, nodes * per_node, ranks_per_node=per_node)

    base, more = evaluate(size, num_nodes), evaluate(size, num_nodes + 1)
    larger = evaluate(max(size + 1, round(size * rng.choice(_WIDER))), num_nodes)
    terms, network = base.breakdown, link.network
    assert network is not None
    passes = 2 if what == "all_reduce" else 1
    ranks_sharing = 1 if what == "all_to_all" else per_node  # the NICs of a node move one array
    least_us = passes * (num_nodes - 1) / num_nodes * base.problem.buffer_bytes / ranks_sharing / network.gb_per_s / 1e3
    hop_us = network.latency_us + max(max(item.ring_hop_us, item.tree_hop_us) for item in PROTOCOLS.values())
    grown = num_nodes**2 / (num_nodes**2 - 1)
    peers_us = max(0.0, more.breakdown["hops_us"] - terms["hops_us"])
    gathered = (num_nodes + 1) / num_nodes if what == "all_gather" else 1.0  # there is more to end with
    most_us = (base.latency_us * grown * gathered + passes * hop_us + peers_us) * (1.0 + ROUNDING)
    adds_up = abs(sum(terms.values()) - base.latency_us) <= ROUNDING * base.latency_us
    for law, holds in (
        ("between nodes, a larger message is not faster", larger.latency_us >= base.latency_us * (1.0 - ROUNDING)),
        (
            "between nodes, terms add up, and bytes take their time on the network",
            adds_up and min(terms.values()) >= 0.0 and base.latency_us >= least_us,
        ),
        ("a node more is not faster", what == "all_to_all" or more.latency_us >= base.latency_us * (1.0 - ROUNDING)),
        ("a node more is slower by its hops, peers and share of bytes alone", more.latency_us <= most_us),
    ):
        report.checked[law] += 1
        if not holds:
            report.violations.append(f"{law}: {base}, {more}, {larger}")


def _check_terms(result: CollectiveResult, report: Report) -> None:
    law = "terms add up, and none is below its bytes over the rate of the link"
    report.checked[law] += 1
    problem, terms = result.problem, result.breakdown
    low_us, high_us = result.low_us, result.high_us
    if not low_us <= result.latency_us <= high_us:
        report.violations.append(f"an interval holds its latency: {result}, {low_us} to {high_us} us")
    in_switch = problem.buffer_bytes * (1 + 1 / problem.num_ranks)
    least_bytes = in_switch if result.algorithm == "NVLS" else problem.wire_bytes
    adds_up = abs(sum(terms.values()) - result.latency_us) <= ROUNDING * result.latency_us
    least_us = least_bytes / result.link_gb_per_s / 1e3
    least_term_us = min(us for name, us in terms.items() if name != "correction_us")
    if not adds_up or least_term_us < 0.0 or terms["link_us"] < least_us * (1.0 - ROUNDING):
        report.violations.append(f"{law}: {result}, {terms}, at least {least_us} us")


def _check_ranks(fewer: CollectiveResult, more: CollectiveResult, link: Interconnect, report: Report) -> None:
    law = "more ranks are not faster"
    report.checked[law] += 1
    gain = 1.0 - more.latency_us / fewer.latency_us
    if gain <= ROUNDING:
        return
    rule = _rule(fewer, more, link.topology)
    rates = [link_rate(link, result.problem.num_ranks, 0.0) for result in (fewer, more)]
    if rule is not None:
        report.except_(f"{law}: {rule}", gain)
    if gain > 1.0 - (1.0 - HELPS.get(rule or "", 0.0)) * rates[0] / rates[1] + ROUNDING:
        report.violations.append(f"{law}, {rule}: {fewer}, {more}, by {gain:.3f}")


def _rule(fewer: CollectiveResult, more: CollectiveResult, topology: str) -> str | None:
    if more.algorithm == "NVLS":
        return "NVLS"
    if more.algorithm == "send/receive, LL":
        return "own channels"
    if fewer.algorithm != more.algorithm:
        return "protocol"
    return "mesh" if topology == "mesh" else None
