"""What is known of kernels whose time is that of their bytes by their names."""

from __future__ import annotations

__all__ = ["has_cta_for_each_row", "is_sum_of_rows"]

_OF_ROWS = frozenset({"act_mul", "silu_mul", "rotary", "rotary_kv_write", "kv_write", "gather", "weighted_sum"})


def is_sum_of_rows(what: str) -> bool:
    """Whether a kernel sums up a row before it writes any of it: norms do."""
    return what.endswith("norm")


def has_cta_for_each_row(what: str) -> bool:
    """Whether serving engines have one CTA for each row (token) in it; others deal elements to all SMs."""
    return is_sum_of_rows(what) or what in _OF_ROWS
