"""Why two simulators differ: rules that predict the difference, and are checked on numbers.

A rule changes one thing in what we count. Rule after rule, our number becomes the other one's: what a rule moves it by
is its amount. What then is still missing is nobody's, and said so. Rules of bytes and of the array know the chip and
the GEMM only; those of cycles also take the other one's traffic, and what it loads before and stores after all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemm_eval.validation.simulators.scalesim import buffer_words
from gemm_eval.validation.simulators.spaces import Rules, least_bytes, least_factored_bytes
from gemm_eval.validation.simulators.work import Chip, Counted, Gemm, Traffic
from gemm_eval.validation.simulators.zigzag import LOOP_FACTORS

__all__ = [
    "LARGE_FRAC", "Cause", "Reason", "explain", "scalesim_bytes", "scalesim_compute", "scalesim_cycles", "zigzag_bytes",
    "zigzag_cycles",
]  # fmt: skip

LARGE_FRAC = 0.05
"""Of our number: differences up to this are not explained. Of the larger number: what rules may leave over."""
_NAMED_FRAC = 0.01
"""Of our number: a rule that moves it by less is not named."""
_EXACT_FRAC = 0.02
"""How far a count may be from what its rule predicts: SCALE-Sim rounds buffers to hundredths and counts whole lines."""


class Cause(NamedTuple):
    """A rule, and by how much it moves our number towards the other one's."""

    name: str
    amount: float


class Reason(NamedTuple):
    """Why two numbers differ by more than `LARGE_FRAC`; empty where they do not.

    Attributes:
        causes: the rules that matter, in the order in which they are applied.
        unexplained: what is left of the difference; 0 where it is small.
    """

    causes: tuple[Cause, ...] = ()
    unexplained: float = 0.0

    def __str__(self) -> str:
        names = [cause.name for cause in self.causes]
        return "; ".join([*names, "unexplained"] if self.unexplained else names)


def explain(ours: float, theirs: float, causes: Iterable[Cause]) -> Reason:
    """Return the rules that matter, and what they leave over."""
    if abs(theirs - ours) <= LARGE_FRAC * ours:
        return Reason()
    named = tuple(cause for cause in causes if abs(cause.amount) > _NAMED_FRAC * ours)
    left = theirs - ours - sum(cause.amount for cause in named)
    return Reason(named, left if abs(left) > LARGE_FRAC * max(ours, theirs) else 0.0)


def _steps(start: float, steps: Iterable[tuple[str, float]]) -> Iterator[Cause]:
    """Causes, from what our number has become after each of them."""
    for name, value in steps:
        yield Cause(name, value - start)
        start = value


# --- ZigZag ----------------------------------------------------------------------------------------------------------


def zigzag_bytes(chip: Chip, gemm: Gemm, ours: Counted) -> list[Cause]:
    """Why its best mapping moves other bytes: what its space has and ours lacks, then what its search leaves out."""
    steps = (
        ("one buffer for a whole operand", least_bytes(chip, gemm, Rules(once=True))),
        ("tile_k per operand", least_bytes(chip, gemm, Rules(once=True, per_operand="k"))),
        ("tile_m or tile_n per operand", least_bytes(chip, gemm, Rules(once=True, per_operand="mnk"))),
        (f"{LOOP_FACTORS} whole loop factors", least_factored_bytes(chip, gemm, LOOP_FACTORS)),
        ("first partial sums read too", least_factored_bytes(chip, gemm, LOOP_FACTORS, reads_first=True)),
    )
    return list(_steps(ours.least.total, steps))


def zigzag_cycles(chip: Chip, ours: Counted, theirs: Counted) -> list[Cause]:
    """Why its fastest mapping takes other cycles: it moves other bytes, and loads first what stays."""
    wire = theirs.moved.total / chip.dram_bytes_per_cycle
    compute, exposed = theirs.compute_cycles, theirs.exposed_cycles
    assert ours.cycles is not None  # they say both
    steps = (
        ("other traffic", max(compute, wire) + ours.exposed_cycles),
        ("first load and last store wait", max(compute, wire - exposed) + exposed),
    )
    return list(_steps(ours.cycles, steps))


# --- SCALE-Sim -------------------------------------------------------------------------------------------------------


def _folds(chip: Chip, gemm: Gemm) -> tuple[int, int]:
    """Along K and along N: each is one set of weights in the array."""
    return -(-gemm.K // chip.rows), -(-gemm.N // chip.columns)


def scalesim_bytes(chip: Chip, gemm: Gemm, ours: Counted, theirs: Counted) -> list[Cause]:
    """Why it moves other bytes: what each operand moves in folds of still weights, where the count agrees with that."""
    k_folds, n_folds = _folds(chip, gemm)
    once = gemm.once
    half = buffer_words(chip, "IFMAP") // 2
    stays = half >= gemm.M * gemm.K
    a_name, a_times = ("A whole in its own SRAM", 1) if stays else ("A reloaded for its own SRAM", n_folds)
    predicted = (
        (a_name, a_times * once.a_bytes, theirs.least.a_bytes, ours.least.a_bytes),
        ("weights loaded once", once.b_bytes, theirs.least.b_bytes, ours.least.b_bytes),
        ("partial sums spilled", k_folds * once.c_bytes, theirs.least.c_bytes, ours.least.c_bytes),
    )
    return [
        Cause(name, their_bytes - our_bytes)
        for name, expected, their_bytes, our_bytes in predicted
        if abs(their_bytes - expected) <= _EXACT_FRAC * expected
    ]


def scalesim_compute(chip: Chip, gemm: Gemm, ours: Counted, theirs: Counted) -> list[Cause]:
    """Why its array takes more cycles: in each fold weights go in, and the last row of A and C go through."""
    k_folds, n_folds = _folds(chip, gemm)
    lost = k_folds * n_folds * (2 * chip.rows + chip.columns - 2)
    more = theirs.compute_cycles - ours.compute_cycles
    return [Cause("fill and drain of each fold", more)] if abs(more - lost) <= _EXACT_FRAC * lost else []


def scalesim_cycles(chip: Chip, gemm: Gemm, ours: Counted, theirs: Counted) -> list[Cause]:
    """Why all of it takes other cycles: the array's, its traffic, and on how many ports that lies.

    Ports that are busy longer than the array stall it each for itself: at once, or, at worst, in turn. How much of that
    is at once follows from no count, so the last rule takes what is left where it lies between the two.
    """
    if ours.cycles is None or theirs.cycles is None:
        return []
    compute = ours.compute_cycles + sum(cause.amount for cause in scalesim_compute(chip, gemm, ours, theirs))

    def cycles(traffic: Traffic) -> float:
        return max(compute, traffic.total / chip.dram_bytes_per_cycle) + ours.exposed_cycles

    ports = [moved / chip.dram_bytes_per_cycle for moved in theirs.moved]
    exposed = theirs.exposed_cycles
    side_by_side = max(compute, max(ports) - exposed) + exposed
    in_turn = compute + sum(max(0.0, port - compute) for port in ports) + exposed
    steps = (
        ("fill and drain of each fold", cycles(ours.moved)),
        ("traffic of still weights", cycles(theirs.least)),
        ("prefetch runs around", cycles(theirs.moved)),
        ("a DRAM port per operand", max(compute, *ports) + ours.exposed_cycles),
        ("first load and last store wait", side_by_side),
    )
    found = list(_steps(ours.cycles, steps))
    if sum(port > compute for port in ports) > 1 and side_by_side < theirs.cycles <= in_turn:
        found.append(Cause("ports stall in turn", theirs.cycles - side_by_side))
    return found
