"""Rules that say why two simulators differ, that predict the difference, and are checked on numbers.

A rule changes one thing in what we count. Rule after rule, our number becomes the other one's; the amount of a rule is
by how much it moves our number. The rest is called unexplained. Rules of bytes and of the array know the chip and the
GEMM only; rules of cycles also take the other one's traffic, and its first load and last store.

Some rules ask for the least bytes that a GEMM moves under other rules of tiling than our model's, one at a time. Our
rules (gemm_eval/models/multicore/MODEL.md): one tile (tile_m, tile_n, tile_k) for all operands, of any size in whole
steps of the array, in two buffers each. What another rule gains or costs is the difference of two searches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.simulators.chips import INPUT_BYTES, OUTPUT_BYTES, Chip, Counted, Gemm, Traffic
from benchmarks.simulators.scalesim import buffer_words
from benchmarks.simulators.zigzag import LOOP_FACTORS

_BUFFERS = 2
_OPERANDS = {"a": "mk", "b": "kn", "c": "mn"}
_BYTES = {"a": INPUT_BYTES, "b": INPUT_BYTES, "c": OUTPUT_BYTES}


class Rules(NamedTuple):
    """Freedom that a search has and ours has not.

    Attributes:
        once: an operand that is in SRAM as a whole, and never replaced, needs one buffer and not two.
        per_operand: dimensions, of "mnk", along which the tiles of the two operands that have it may differ, one being
            a multiple of the other; along one of them at a time.
    """

    once: bool = False
    per_operand: str = ""


OURS = Rules()
"""The rules of our model: the search agrees with it to the byte."""


def least_bytes(chip: Chip, gemm: Gemm, rules: Rules = OURS) -> int:
    """Return the least DRAM bytes of any tiles and loop order.

    The loop of one dimension is cut twice: the tile of one operand spans `deep` elements, that of the other `thin` of
    them. Our own space is `thin == deep`.
    """
    spaces = [("k", "a", False)]
    spaces += [(split, own, True) for split in rules.per_operand for own, has in _OPERANDS.items() if split in has]
    return int(min(_least(chip, gemm, rules, *space) for space in spaces))


def _least(chip: Chip, gemm: Gemm, rules: Rules, split: str, deeper: str, is_split: bool) -> float:
    tiles, thin = _tiles(chip, gemm, split, is_split)
    used = 0
    for operand, dims in _OPERANDS.items():
        own = [thin if dim == split and operand != deeper else tiles[dim] for dim in dims]
        is_whole = (own[0] == _size(gemm, dims[0])) & (own[1] == _size(gemm, dims[1]))
        used = used + own[0] * own[1] * _BYTES[operand] * np.where(is_whole & rules.once, 1, _BUFFERS)
    fits = used <= chip.sram_bytes
    trips = {dim: np.ceil(_size(gemm, dim) / tiles[dim][fits]) for dim in "mnk"}
    trips["thin"] = np.ceil(tiles[split][fits] / thin[fits])
    best = np.inf
    for order in itertools.permutations(trips):
        if order.index(split) < order.index("thin"):
            best = min(best, _moved(gemm, order, trips, split, deeper).min(initial=np.inf))
    return float(best)


def _size(gemm: Gemm, dim: str) -> int:
    return {"m": gemm.M, "n": gemm.N, "k": gemm.K}[dim]


def _tiles(chip: Chip, gemm: Gemm, split: str, is_split: bool) -> tuple[dict[str, Any], Any]:
    """Return all tiles as vectors by dimension, and the thin one: the smallest of sizes with equal trip counts."""
    units = {"m": 1, "n": chip.columns, "k": chip.rows}
    sizes = {dim: _sizes(_size(gemm, dim), unit) for dim, unit in units.items()}
    if not is_split:
        grid = [axis.ravel() for axis in np.meshgrid(*sizes.values(), indexing="ij")]
        tiles = dict(zip(sizes, grid, strict=True))
        return tiles, tiles[split]
    *grid, thin = (axis.ravel() for axis in np.meshgrid(*sizes.values(), sizes[split], indexing="ij"))
    deep = dict(zip(sizes, grid, strict=True))
    nested = (thin <= deep[split]) & ((deep[split] % thin == 0) | (deep[split] == _size(gemm, split)))
    return {dim: axis[nested] for dim, axis in deep.items()}, thin[nested]


def _sizes(size: int, unit: int) -> Any:
    units = -(-size // unit)
    per_tile = {-(-units // trips) for trips in range(1, units + 1)}
    return np.array(sorted({min(size, of_tile * unit) for of_tile in per_tile}))


def _moved(gemm: Gemm, order: tuple[str, ...], trips: dict[str, Any], split: str, deeper: str) -> Any:
    """Return bytes of a loop order: an operand moves once per iteration of every loop down to its last."""
    times = {}
    for operand, dims in _OPERANDS.items():
        is_thin = split in dims and operand != deeper
        times[operand] = _repeats(order, trips, (*dims, "thin") if is_thin else tuple(dims))
    once = gemm.once
    return times["a"] * once.a_bytes + times["b"] * once.b_bytes + (2 * times["c"] - 1) * once.c_bytes


def _repeats(order: tuple[str, ...], trips: dict[str, Any], own: tuple[str, ...]) -> Any:
    """Return how often an operand of the loops `own` moves: the product of the other loops outside."""
    inner = np.ones_like(trips["m"])  # trips of its own loops that lie further in
    repeats = np.ones_like(inner)
    for loop in reversed(order):
        if loop in own:
            inner = inner * trips[loop]
        else:
            repeats = repeats * np.where(inner > 1, trips[loop], 1)
    return repeats


# --- whole loop factors ----------------------------------------------------------------------------------------------


class _Loops(NamedTuple):
    """An order of loop factors, innermost first, with the elements that the innermost 0, 1, 2, ... of them span."""

    order: tuple[tuple[str, int], ...]
    spans: dict[str, Any]


def least_factored_bytes(chip: Chip, gemm: Gemm, num_factors: int, *, reads_first: bool = False) -> int:
    """Return the least DRAM bytes where loops are cut into at most `num_factors` factors, each operand kept as deep as
    SRAM allows, and an operand that is there as a whole needs one buffer.

    Args:
        chip, gemm: what runs where.
        num_factors: of the trip counts of M, of K in steps of the array's rows, and of N in steps of its columns;
            of the dimension with most factors the two smallest are merged until they are no more.
        reads_first: partial results are read as often as written, the first time too, when there are none yet.
    """
    steps = {"m": gemm.M, "k": -(-gemm.K // chip.rows), "n": -(-gemm.N // chip.columns)}
    even = {dim: _size(gemm, dim) / count for dim, count in steps.items()}
    factors = merge_factors({dim: prime_factors(count) for dim, count in steps.items()}, num_factors)
    return int(min(_factored(chip, loops, reads_first) for loops in _orders(factors, even)))


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number, ascending; none of 1."""
    factors, divisor = [], 2
    while number > 1:
        if number % divisor:
            divisor += 1
        else:
            number //= divisor
            factors.append(divisor)
    return factors


def merge_factors(factors: dict[str, list[int]], most: int) -> list[tuple[str, int]]:
    """Return at most `most` factors of all dimensions together."""
    factors = {name: sorted(of) for name, of in factors.items()}
    while sum(map(len, factors.values())) > most:
        longest = max(factors, key=lambda name: len(factors[name]))
        first, second, *rest = factors[longest]
        factors[longest] = sorted([first * second, *rest])
    return [(name, factor) for name, of in factors.items() for factor in of]


def _orders(factors: list[tuple[str, int]], even: dict[str, float]) -> Iterator[_Loops]:
    for order in set(itertools.permutations(factors)):
        spans = {
            name: even[name] * np.cumprod([1] + [factor if loop == name else 1 for loop, factor in order])
            for name in "mkn"
        }
        yield _Loops(order, spans)


def _factored(chip: Chip, loops: _Loops, reads_first: bool) -> float:
    outside = [math.prod(factor for _, factor in loops.order[depth:]) for depth in range(len(loops.order) + 1)]
    used, moved = [], []
    for operand, dims in _OPERANDS.items():
        elements = loops.spans[dims[0]] * loops.spans[dims[1]]
        sizes = elements * _BYTES[operand]
        used.append(sizes * np.where(np.isclose(elements, elements[-1]), 1, _BUFFERS))
        one_way = sizes * outside
        if operand == "c":  # written each time, read each time but the first, which is one whole C
            is_partial = one_way > sizes[-1] * (1 + 1e-9)
            one_way = 2 * one_way - np.where(is_partial & reads_first, 0, sizes[-1])
        moved.append(one_way)
    return float(np.where(_sum(used) <= chip.sram_bytes, _sum(moved), np.inf).min())


def _sum(parts: list[Any]) -> Any:
    """Return the sums of all choices of a part of A, of B and of C."""
    a, b, c = parts
    return a[:, None, None] + b[None, :, None] + c[None, None, :]


LARGE_FRAC = 0.05
"""Share of our number up to which differences are not explained, and of the larger number that rules may leave over."""
_NAMED_FRAC = 0.01
"""Share of our number: a rule that moves it by less is not named."""
_EXACT_FRAC = 0.02
"""Largest distance of a count from its rule's: SCALE-Sim rounds buffers to hundredths and counts whole lines."""


class Cause(NamedTuple):
    """A rule, and by how much it moves our number towards the other one's."""

    name: str
    amount: float


class Reason(NamedTuple):
    """The causes of a difference by more than `LARGE_FRAC`; empty where there is none.

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
    """Yield causes, from the values of our number after each of them."""
    for name, value in steps:
        yield Cause(name, value - start)
        start = value


# --- ZigZag ----------------------------------------------------------------------------------------------------------


def zigzag_bytes(chip: Chip, gemm: Gemm, ours: Counted) -> list[Cause]:
    """Return why its best mapping moves other bytes: by freedom of its space, then by limits of its search."""
    steps = (
        ("one buffer for a whole operand", least_bytes(chip, gemm, Rules(once=True))),
        ("tile_k per operand", least_bytes(chip, gemm, Rules(once=True, per_operand="k"))),
        ("tile_m or tile_n per operand", least_bytes(chip, gemm, Rules(once=True, per_operand="mnk"))),
        (f"{LOOP_FACTORS} whole loop factors", least_factored_bytes(chip, gemm, LOOP_FACTORS)),
        ("first partial sums read too", least_factored_bytes(chip, gemm, LOOP_FACTORS, reads_first=True)),
    )
    return list(_steps(ours.least.total, steps))


def zigzag_cycles(chip: Chip, ours: Counted, theirs: Counted) -> list[Cause]:
    """Return why its fastest mapping takes other cycles: it moves other bytes, and loads first what stays."""
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
    """Return the folds along K and along N: each is one set of weights in the array."""
    return -(-gemm.K // chip.rows), -(-gemm.N // chip.columns)


def scalesim_bytes(chip: Chip, gemm: Gemm, ours: Counted, theirs: Counted) -> list[Cause]:
    """Return why it moves other bytes: the traffic of each operand in folds of still weights, where counts agree."""
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
    """Return why its array takes more cycles: in each fold weights go in, and the last rows of A and C go through."""
    k_folds, n_folds = _folds(chip, gemm)
    lost = k_folds * n_folds * (2 * chip.rows + chip.columns - 2)
    more = theirs.compute_cycles - ours.compute_cycles
    return [Cause("fill and drain of each fold", more)] if abs(more - lost) <= _EXACT_FRAC * lost else []


def scalesim_cycles(chip: Chip, gemm: Gemm, ours: Counted, theirs: Counted) -> list[Cause]:
    """Return why all of it takes other cycles: by its array, its traffic and its ports.

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
    causes = list(_steps(ours.cycles, steps))
    if sum(port > compute for port in ports) > 1 and side_by_side < theirs.cycles <= in_turn:
        causes.append(Cause("ports stall in turn", theirs.cycles - side_by_side))
    return causes
