"""The least bytes that a GEMM moves on a chip under other rules of tiling than our model's, one rule at a time.

Our rules (gemm_eval/models/multicore/MODEL.md): one tile (tile_m, tile_n, tile_k) for all operands, of any size in
whole steps of the array, in two buffers each. What another rule gains or costs is the difference of two searches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.validation.simulators.work import INPUT_BYTES, OUTPUT_BYTES, Chip, Gemm

__all__ = ["OURS", "Rules", "least_bytes", "least_factored_bytes", "merge_factors", "prime_factors"]

_BUFFERS = 2
_OPERANDS = {"a": "mk", "b": "kn", "c": "mn"}
_BYTES = {"a": INPUT_BYTES, "b": INPUT_BYTES, "c": OUTPUT_BYTES}


class Rules(NamedTuple):
    """What a search may do that ours may not.

    Attributes:
        once: an operand that is in SRAM as a whole, and never replaced, needs one buffer and not two.
        per_operand: dimensions, of "mnk", along which the tiles of the two operands that have it may differ, one being
            a multiple of the other; along one of them at a time.
    """

    once: bool = False
    per_operand: str = ""


OURS = Rules()
"""Those of our model: the search agrees with it to the byte."""


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
    """All tiles as vectors by dimension, and the thin one. Of sizes with equal trip counts the smallest does."""
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
    """Bytes of a loop order, outermost first: an operand moves once per iteration of every loop down to its last."""
    times = {}
    for operand, dims in _OPERANDS.items():
        is_thin = split in dims and operand != deeper
        times[operand] = _repeats(order, trips, (*dims, "thin") if is_thin else tuple(dims))
    once = gemm.once
    return times["a"] * once.a_bytes + times["b"] * once.b_bytes + (2 * times["c"] - 1) * once.c_bytes


def _repeats(order: tuple[str, ...], trips: dict[str, Any], own: tuple[str, ...]) -> Any:
    """How often an operand that only the loops `own` change moves: the product of the other loops outside."""
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
    """Ascending; none of 1."""
    found, divisor = [], 2
    while number > 1:
        if number % divisor:
            divisor += 1
        else:
            number //= divisor
            found.append(divisor)
    return found


def merge_factors(factors: dict[str, list[int]], most: int) -> list[tuple[str, int]]:
    """At most `most` factors of all dimensions together."""
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
    """One part of A, one of B and one of C: the sums of all choices."""
    a, b, c = parts
    return a[:, None, None] + b[None, :, None] + c[None, None, :]
