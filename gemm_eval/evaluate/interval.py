"""Intervals around predicted times that hold 80% of measured ones: their text, those of sums, and those of chips."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from gemm_eval.arch import ArchSpec, MulticoreSpec, held_out_p90_frac
from gemm_eval.models.gpu import COVERAGE_FRAC, Origin
from gemm_eval.units import time_text

CORRECTION = "correction_us"
"""Term that timings showed beyond those of the model."""
CORRECTION_MEANING = "what timings showed beyond these terms"
CORRECTED = "corrected"
"""The source of answers that a learned correction changed; those of a changed GPU say as which one."""

SHARED_FRAC = 0.3
"""Share of the variance of errors that kernels of one step have in common: with it about 80% of the steps and layers
that were timed on an H200 lie inside their intervals (`gemm-eval validate stacks` prints the share that 80% need)."""

_UNFITTED_RATIO = 2.0  # of a chip that nothing was fitted on: assumed


def sum_interval(parts: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the interval of the sum of different operations, each given by its latency and interval, in us."""
    ends = [(us, us - low_us, high_us - us) for us, low_us, high_us in parts]
    latency_us = sum(us for us, *_ in ends)
    below, above = (_width([widths[side] for widths in ends]) for side in (1, 2))
    return max(0.0, latency_us - below), latency_us + above


def _width(widths_us: list[float]) -> float:
    """Return how far a sum lies off, of parts whose errors are partly the same: they add up in full, others in squares.

    Errors of a part that runs several times are the same each time: it is one part.
    """
    squares = sum(width * width for width in widths_us)
    return math.sqrt(SHARED_FRAC * sum(widths_us) ** 2 + (1.0 - SHARED_FRAC) * squares)


def shared_frac(sums: Sequence[tuple[float, Sequence[tuple[float, float, float]]]]) -> float:
    """Return the least `SHARED_FRAC` with which 80% of measured sums lie inside their intervals, at most 1.

    Args:
        sums: measured time of each, and the latency and interval of its parts as for `sum_interval`.
    """
    needed = []
    for measured_us, parts in sums:
        off_us = measured_us - sum(us for us, *_ in parts)
        widths_us = [high_us - us if off_us > 0.0 else us - low_us for us, low_us, high_us in parts]
        squares = sum(width * width for width in widths_us)
        rest = sum(widths_us) ** 2 - squares
        needed.append(min(1.0, max(0.0, (off_us * off_us - squares) / rest)) if rest > 0.0 else 1.0)
    return sorted(needed)[math.ceil(COVERAGE_FRAC * len(needed)) - 1]


def chip_interval(arch: ArchSpec, latency_us: Any) -> tuple[Any, Any]:
    """Return the interval around latencies of a multi-core chip, in the unit of these.

    It is that of the held-out errors of the chip's calibration; without one, half to twice the latency.
    """
    is_calibrated = isinstance(arch, MulticoreSpec) and arch.calibration
    p90 = held_out_p90_frac(arch.name) if is_calibrated else None
    ratio = _UNFITTED_RATIO if p90 is None else 1.0 + p90
    return latency_us / ratio, latency_us * ratio


def interval_line(low_us: float, high_us: float) -> str:
    """Return the interval as a line of text."""
    return f"80% of measured times are expected within {time_text(low_us)} to {time_text(high_us)}."


def source_of(origin: Origin, latency_us: float, physics_us: float) -> str:
    """Return the word for where a time comes from."""
    if not origin.is_calibrated:
        return "analytic"
    return "calibrated" if latency_us == physics_us else CORRECTED
