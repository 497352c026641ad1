"""Which GEMMs are timed on this machine: rows from 1 to 2048 for layers of models, squares and odd sizes."""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["HostShape", "pick_host_shapes"]


class HostShape(NamedTuple):
    """C[M,N] = A[M,K] x B[K,N]."""

    M: int
    K: int
    N: int

    @property
    def num_macs(self) -> int:
        """Multiplications and additions, as pairs."""
        return self.M * self.K * self.N


_ROWS = (
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    (1, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536),
)
"""Rows, of every other pair the second set: powers of two and what lies between."""
_PAIRS = (
    (64, 64), (128, 512), (256, 256), (512, 512),  # heads of attention, small squares
    (768, 768), (768, 3072), (3072, 768),  # BERT base, GPT-2
    (1024, 1024), (1024, 4096), (4096, 1024),  # BERT large, grouped-query keys
    (2048, 256), (2048, 2048), (4096, 4096),
    (1000, 3000), (577, 1153),  # no multiples of a vector
)  # fmt: skip
"""(K, N) of layers and others."""
_SEED = 0


def pick_host_shapes(mac_per_us: float, budget_s: float, num_samples: int = 5) -> list[HostShape]:
    """Return GEMMs that can be timed within a budget, shuffled, always in the same order.

    What would take more than its share, the largest on a slow machine, is left out.

    Args:
        mac_per_us: speed of the machine, as a large GEMM shows it.
        budget_s: seconds for all of them.
        num_samples: fewest times that each runs.
    """
    shapes = [HostShape(M, K, N) for place, (K, N) in enumerate(_PAIRS) for M in _ROWS[place % 2]]
    shapes.sort(key=lambda shape: shape.num_macs)
    left_s, picked = budget_s * 0.6, []  # the rest is for small GEMMs, whose time is what they are given
    for shape in shapes:
        left_s -= (num_samples + 1) * shape.num_macs / mac_per_us / 1e6
        if left_s < 0.0:
            break
        picked.append(shape)
    random.Random(_SEED).shuffle(picked)
    return picked
