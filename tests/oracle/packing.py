"""Slow truth of what comes before the main loop: MODEL.md, "Packing and waking"."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.workload import GemmProblem
from tests.oracle.simulators import Block, bits_of


class Packed(NamedTuple):
    """A block that a core packs, and how many cores need its A and its B."""

    block: Block
    E_N: int
    E_M: int


def sync_us(arch: MulticoreSpec, active_cores: int) -> float:
    """Time to wake cores and to wait for them."""
    return arch.sync_us if active_cores > 1 else 0.0


def pack_us(arch: MulticoreSpec, problem: GemmProblem, runs: Iterable[Packed]) -> float:
    """Time in which a core packs the operands of its runs, each of equal groups."""
    if not arch.packs:
        return 0.0
    assert arch.pack_gb_per_s is not None
    how: dict[str, str] = {str(name): of for name, of in arch.packs.items()}
    total = 0.0
    for (g, m, n, k), E_N, E_M in runs:
        of_b = _bytes(g * k * n, bits_of(problem).b)
        if problem.is_weight_quantized:
            groups = 1 if problem.group_size is None else -(-k // problem.group_size)
            of_b += _bytes(g * groups * n, bits_of(problem).group)
        near = math.inf if arch.pack_near_bytes is None else g * arch.pack_near_bytes
        of_run = 0.0
        for name, size, cores in (("A", _bytes(g * m * k, bits_of(problem).a), E_N), ("B", of_b, E_M)):
            own = size / cores if how.get(name) == "shared" else size
            if name in how:
                of_run += own + max(0.0, own - near)
        total += of_run
    return total / (arch.pack_gb_per_s * 1e3)


def _bytes(elements: int, half_bits: int) -> int:
    return -(-elements * half_bits // 16)
