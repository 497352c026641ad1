"""Numba kernels that count what a core moves, from block sizes, trip counts and loop order, as MODEL.md defines."""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import kernel


@kernel
def ceil_div(a: int, b: int) -> int:
    """Integer division rounded up."""
    return (a + b - 1) // b


@kernel
def bytes_of(elems: int, half_bits: int) -> int:
    """Bytes of `elems` elements of so many half bits each, rounded up; in two parts, which do not overflow."""
    return (elems >> 4) * half_bits + (((elems & 15) * half_bits + 15) >> 4)


@kernel
def reload_factors(order: int, T_m: int, T_n: int, T_k: int) -> tuple[int, int, int]:
    """Return how often each element of A and B is loaded, and each element of C leaves SRAM, per batch element.

    A loop that does not index an operand repeats its loads if a loop that does, with more than one trip, is inside it.
    """
    if order == 0:  # MNK
        return (T_n if T_k > 1 else 1, T_m if T_k > 1 or T_n > 1 else 1, 1)
    if order == 1:  # MKN
        return (1, T_m if T_k > 1 or T_n > 1 else 1, T_k if T_n > 1 else 1)
    if order == 2:  # NMK
        return (T_n if T_k > 1 or T_m > 1 else 1, T_m if T_k > 1 else 1, 1)
    if order == 3:  # NKM
        return (T_n if T_k > 1 or T_m > 1 else 1, 1, T_k if T_m > 1 else 1)
    if order == 4:  # KMN
        return (1, T_m if T_n > 1 else 1, T_k if T_m > 1 or T_n > 1 else 1)
    return (T_n if T_m > 1 else 1, 1, T_k if T_m > 1 or T_n > 1 else 1)  # KNM


@kernel
def scale_rows(p: Any, k: int, T_k: int) -> int:
    """Rows of scales that one pass over B loads: one for each group that a tile touches."""
    return ceil_div(k, p["group_size"]) if p["group_size"] > 0 else T_k


@kernel
def store_half_bits(p: Any, E_K: int) -> int:
    """Half bits of an element of C as the main loop stores it: a partial result when K is split over cores."""
    if E_K == 1:
        return p["c_half_bits"]
    return p["spill_half_bits"] if p["reduction"] == 1 else 0  # over the network it is sent on, not stored
