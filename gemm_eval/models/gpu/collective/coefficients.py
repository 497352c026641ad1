"""The coefficients of collectives: what libraries do between GPUs that no spec sheet says. MODEL.md, "Collectives"."""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient, Neutral

__all__ = ["COLLECTIVE_COEFFICIENTS", "DIRECT", "EXCHANGE", "MULTICAST", "RING", "SOCKETS"]

_SOURCE = "round, within what fits of NCCL's and TensorRT-LLM's timings gave (arch/calibration, collective.yaml)"


def _item(name: str, unit: str, low: float, high: float, default: float, neutral: Neutral, meaning: str) -> Coefficient:
    return Coefficient(name, unit, low, high, default, neutral, meaning, _SOURCE)


RING = (
    _item("launch_us", "us", 0.5, 20.0, 5.0, FREE, "a kernel of a ring: launch, and the first meeting of the ranks"),
    _item("hop_us", "us", 0.1, 6.0, 1.0, FREE, "a hop of the ring, whatever it carries, flags among the data"),
    _item("ll_frac", "1", 0.003, 1.0, 0.1, NO_LIMIT, "share of the link of 8-byte stores with a flag each (LL)"),
    _item("mid_us", "us", 0.05, 30.0, 1.0, FREE, "what LL128, or on PCIe short Simple, takes longer than LL at once"),
    _item("mid_frac", "1", 0.02, 1.0, 0.35, NO_LIMIT, "share of the link that it reaches"),
    _item("simple_us", "us", 0.1, 90.0, 10.0, FREE, "what Simple takes longer than LL at once: its fences"),
    _item("simple_hop_us", "us", 0.05, 40.0, 3.0, FREE, "a hop of Simple"),
    _item("link_frac", "1", 0.05, 1.0, 0.8, SPEC, "share of the link that Simple reaches"),
    _item("own_frac", "1", 0.003, 1.0, 0.4, FREE, "a byte of its own share that a rank copies, over one it sends"),
    _item("own_sum_frac", "1", 0.003, 1.0, 0.3, FREE, "likewise, where elements are added up"),
    _item("switch_bytes", "B", 3e4, 1.7e7, 1e6, NO_LIMIT, "share of a rank (message / ranks) above which Simple runs"),
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
    _item("one_shot_long_us", "us", 0.02, 10.0, 0.5, FREE, "what long ones, by all CTAs, take longer at once"),
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
    _item("peer_contention", "1", 0.02, 3.0, 2.0, FREE, "as contention, of sends and receives"),
)  # fmt: skip
"""The topology of GPUs over PCIe whose traffic crosses two sockets."""

COLLECTIVE_COEFFICIENTS = (*RING, *MULTICAST, *EXCHANGE, *DIRECT, *SOCKETS)
"""All of them, in the order of files."""
