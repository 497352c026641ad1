"""What is known of kernels whose time is that of their bytes by their names: how serving engines write them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MemoryKernel", "has_cta_for_each_row", "memory_kernel"]


class MemoryKernel(NamedTuple):
    """How a kernel goes over its rows.

    Attributes:
        trips: to memory and back that a row takes one after the other, where it is alone: loads, and sums of a CTA.
        loads: the same, of a thread that handles 16 bytes of each tensor, where all SMs are full.
        row_threads: of a row; 0: one for every 16 bytes of it.
        is_dealt: elements are dealt to all SMs; else each row is one CTA's.
    """

    trips: float = 1.0
    loads: float = 1.0
    row_threads: int = 0
    is_dealt: bool = False


_NORM = MemoryKernel(trips=1.5, loads=2)  # the sum of a row comes between; weights come while a residual does
_POSITIONS = MemoryKernel(trips=2, loads=1.2)  # queries and keys have angles to wait for, values have not
_KERNELS = {
    "act": MemoryKernel(),
    "act_mul": MemoryKernel(),
    "rms_norm": _NORM,
    "layer_norm": _NORM,
    "add_rms_norm": _NORM,
    "add_layer_norm": _NORM,
    "rotary_kv_write": _POSITIONS,
    "rotary": _POSITIONS,
    "qk_norm": MemoryKernel(trips=2.5, loads=0.8),  # heads of a row one after the other, by some 256 threads
    "kv_write": MemoryKernel(),
    "gather": MemoryKernel(loads=2),  # the place of a row, then the row
    "permute": MemoryKernel(loads=5),  # a row is stored at the places of all choices
    "weighted_sum": MemoryKernel(trips=2, loads=2),
    "top_k": MemoryKernel(trips=7, loads=5, row_threads=32),  # a warp picks one choice after the other
    "cast": MemoryKernel(trips=4, loads=2.5, is_dealt=True),  # PyTorch's: elements one by one, as types differ
    "sort": MemoryKernel(trips=6, loads=5, row_threads=2),  # counts, places in a CTA, places of CTAs, stores
}
_OTHER = MemoryKernel(trips=3, is_dealt=True)


def memory_kernel(what: str) -> MemoryKernel:
    """Return how a kernel of this name goes over its rows; of another name, that its elements are dealt."""
    return _KERNELS.get(what, _OTHER)


def has_cta_for_each_row(what: str) -> bool:
    """Whether serving engines have one CTA for each row (token) in it; others deal elements to all SMs."""
    return not memory_kernel(what).is_dealt
