"""Collectives on an arch: a library's algorithms over the link of its spec."""

from __future__ import annotations

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import check_word
from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate.collective_result import COLLECTIVE_TERMS, CollectiveResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.collective import (
    COLLECTIVE_LIBRARIES,
    COLLECTIVE_MODEL_VERSION,
    TRTLLM_DIRECT,
    collective_coefficients,
    collective_cost,
    link_of,
)
from gemm_eval.workload import CollectiveProblem

_DEFAULT_LIBRARY = TRTLLM_DIRECT  # serving engines have kernels of their own for the short all-reduces of a decode step
_NOTHING = FrozenDict(dict.fromkeys(COLLECTIVE_TERMS, 0.0))


def find_collective(
    arch: ArchSpec, problem: CollectiveProblem, library: str | None, interconnect: str | None
) -> CollectiveResult:
    """Return what a collective takes.

    Raises:
        InvalidOptionError: no such library or interconnect.
        UnsupportedError: the spec does not say what joins its chips, it joins fewer, or not by PCIe.
    """
    library = _DEFAULT_LIBRARY if library is None else library
    check_word("library", library, COLLECTIVE_LIBRARIES)
    if not isinstance(arch, GpuSpec):
        raise UnsupportedError(
            f"{arch.name} does not say what joins it to other chips: messages are modelled between GPUs of a node"
        )
    link = link_of(arch)
    if interconnect is not None:
        link = link.in_box(interconnect)
    if problem.num_ranks > link.num_gpus:
        raise UnsupportedError(
            f"the {link.link} of {arch.name} joins at most {link.num_gpus} GPUs, got {problem.num_ranks} ranks: "
            "networks between nodes are not modelled"
        )
    coefficients, origin = collective_coefficients(arch, link)
    if problem.num_ranks == 1:
        algorithm, latency_us, breakdown = "none", 0.0, _NOTHING
    else:
        cost = collective_cost(link, coefficients, library, problem)
        algorithm, latency_us = cost.algorithm, float(cost.terms.latency_us)
        breakdown = FrozenDict(cost.breakdown)
    is_calibrated = origin.is_calibrated and problem.what != "send"
    return CollectiveResult(
        problem, arch.name, library, latency_us, algorithm, breakdown, link.gb_per_s, link.topology,
        "calibrated" if is_calibrated else "analytic", origin.text, COLLECTIVE_MODEL_VERSION,
    )  # fmt: skip
