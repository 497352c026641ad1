"""The algorithms of collectives: by hand, which one is taken, and columns of many."""

import itertools

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, Interconnect, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.collective import (
    COLLECTIVE_COEFFICIENTS,
    collective_coefficients,
    collective_cost,
    collective_rows,
    collectives_us,
    link_rate,
    nvls,
    one_shot,
    planned_bytes,
    ring,
    two_shot,
)
from gemm_eval.workload import COLLECTIVES, CollectiveProblem

GPUS = [name for name in list_archs() if getattr(load_arch(name), "sm_arch", "").startswith("sm_")]
DEFAULTS = {item.name: item.default for item in COLLECTIVE_COEFFICIENTS}
SWITCH = Interconnect(link="nvlink4", topology="switch", gb_per_s=400.0, num_gpus=8)
SOCKET = Interconnect(link="pcie4", topology="pcie-one-socket", gb_per_s=32.0, num_gpus=8)
SOCKETS = SOCKET.in_box("pcie-two-sockets")
MESH = Interconnect(link="nvlink2", topology="mesh", gb_per_s=150.0, num_gpus=8)
SIZES = [2**power for power in range(4, 33)]


def problems(link: Interconnect) -> list[CollectiveProblem]:
    ranks = [num for num in (2, 3, 4, 6, 8, 72) if num <= link.num_gpus]
    return [
        CollectiveProblem(what, size, num, dtype)
        for what, size, num, dtype in itertools.product(COLLECTIVES, SIZES, ranks, (DType.BF16, DType.INT8))
        if what != "send" or num == 2
    ]


def test_a_ring_by_hand() -> None:
    of = DEFAULTS | {
        "launch_us": 5.0, "hop_us": 1.0, "ll_frac": 0.1, "mid_us": 2.0, "mid_frac": 0.5, "simple_us": 10.0,
        "simple_hop_us": 3.0, "link_frac": 0.8, "round_us": 2.0,
    }  # fmt: skip
    ll, mid, simple = ring(8e6, 4, 2, 0.4, 400e3, of)  # a share is 2 MB, of which 6 go out, twice
    assert tuple(ll) == (5.0 + 2.0 * 2e6 / (2e6 + 4096), 6.0, pytest.approx(16e6 / 40e3))  # its own share, too
    assert tuple(mid) == (7.0, 6.0, pytest.approx(12e6 / 200e3))
    assert tuple(simple) == (15.0, 18.0, pytest.approx((12e6 + 0.8e6) / 320e3))
    assert simple.latency_us == pytest.approx(33.0 + 40.0)


def test_all_reduces_without_a_ring_by_hand() -> None:
    of = DEFAULTS | {
        "launch_us": 5.0, "nvls_us": 70.0, "nvls_frac": 0.5, "one_shot_us": 3.0, "one_shot_peer_us": 0.1,
        "one_shot_short_frac": 0.1, "one_shot_long_us": 1.0, "one_shot_frac": 0.5, "two_shot_us": 8.0,
        "two_shot_frac": 0.25,
    }  # fmt: skip
    assert nvls(8e6, 8, 400e3, of).latency_us == pytest.approx(75.0 + 9e6 / 200e3)
    short, long = one_shot(1e6, 8, 400e3, of)
    assert short.latency_us == pytest.approx(3.7 + 7e6 / 40e3)
    assert long.latency_us == pytest.approx(10.7 + 7e6 / 200e3)
    assert two_shot(8e6, 8, 400e3, of).latency_us == pytest.approx(8.7 + 14e6 / 100e3)


def test_protocols_switch_where_nccl_plans_to() -> None:
    """By hand, of NCCL 2.27's constants; timings of an A100 step between 1 and 2 MiB of two and four ranks."""
    a100, l40s = (load_arch(name, GpuSpec).interconnect for name in ("a100-sxm-80gb", "l40s"))
    assert a100 is not None
    assert l40s is not None
    last_ll, last_mid = planned_bytes(a100, 2, 1)  # LL 6.6 + 0.6 us, 87.7 GB/s; Simple 8.4 + 3.4 us, 240 GB/s
    assert last_ll == last_mid == pytest.approx(2 * 4.6 / (1 / 87.7e3 - 1 / 240e3))
    last_ll, last_mid = planned_bytes(a100, 8, 2)  # 14 hops, of an eighth; LL128 14 + 14 x 1.9 us
    assert last_ll == pytest.approx((40.6 - 15.0) / (14 / 8 / 87.7e3 - 14 / 8 / 220.8e3))
    assert last_mid == pytest.approx((56.0 - 40.6) / (14 / 8 / 220.8e3 - 14 / 8 / 240e3))
    assert planned_bytes(l40s, 2, 2)[0] == pytest.approx((19.8 - 8.6) / (1 / 12e3 - 1 / 24e3))


def test_rates_of_links() -> None:
    assert [link_rate(SWITCH, num, 2.0) for num in (2, 8)] == [400e3, 400e3]
    assert [link_rate(SOCKET, num, 2.0) for num in (2, 4, 8)] == [32e3, 32e3, 32e3]
    assert [link_rate(SOCKETS, num, 2.0) for num in (2, 4, 8)] == [32e3, 8e3, 2e3]
    assert [link_rate(SOCKETS, num, 2.0, 1.0) for num in (2, 4, 8)] == [32e3, 8e3, 4e3]
    assert [link_rate(MESH, num, 2.0) for num in (2, 4, 8)] == [50e3, 100e3, 150e3]


@pytest.mark.parametrize("name", GPUS)
def test_columns_say_what_single_calls_say(name: str) -> None:
    """Laws of size, ranks and link are those of tools/laws/collective."""
    arch = load_arch(name, GpuSpec)
    link, of = arch.interconnect, collective_coefficients(arch)[0]
    assert link is not None
    for library in ("nccl", "trtllm"):
        found = problems(link)
        costs = [collective_cost(link, of, library, problem) for problem in found]
        us = np.array([cost.terms.latency_us for cost in costs])
        np.testing.assert_allclose(collectives_us(link, of, collective_rows(link, library, found)), us, rtol=1e-12)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "b200", "h200-sxm"])
def test_a_direct_kernel_is_never_slower_than_nccl(name: str) -> None:
    arch = load_arch(name, GpuSpec)
    link, of = arch.interconnect, collective_coefficients(arch)[0]
    assert link is not None
    rows = [problem for problem in problems(link) if problem.what == "all_reduce"]
    own, nccl = (collectives_us(link, of, collective_rows(link, library, rows)) for library in ("trtllm", "nccl"))
    assert (own <= nccl).all()
    assert (own < nccl).any()
