"""Print how often measured GEMMs break the order of sizes: one is larger in M, N or K, smaller in none, and faster.

python -m tools.measured_order

Beside it stands the least mean error of any answers in that order, even of those that know all timings: a linear
program over the measured GEMMs of a set. The second table holds GEMMs that were timed twice: the difference of both
timings, and of pairs that break the order in the first, the share that breaks it in the second too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, eye_array, hstack, vstack

from gemm_eval.models.gpu import LOAD_BYTES, load_bytes_of
from gemm_eval.validation.metrics import regime_of
from gemm_eval.validation.tables import Mask, Timings, find_timings

SETS = (
    ("h200-sxm", "torch/bf16"), ("h200-sxm", "torch/fp16"), ("h200-sxm", "torch/fp8"), ("h200-sxm", "torch/int8"),
    ("h200-sxm", "torch/tf32"), ("h200-sxm", "torch/fp32"), ("h100-sxm", "torch/bf16"),
    ("h200-sxm", "aiconfigurator-0.12/bf16"), ("h200-sxm", "aiconfigurator-0.12/fp8"),
    ("a100-sxm-80gb", "aiconfigurator-0.12/bf16"), ("a100-sxm-80gb", "aiconfigurator-0.12/int4_wo"),
    ("a100-sxm-80gb", "aiconfigurator-0.12/int8"), ("l40s", "aiconfigurator-0.12/bf16"),
    ("rtx-pro-6000-server", "aiconfigurator-0.12/bf16"), ("b200", "aiconfigurator-0.12/bf16"),
    ("b200", "aiconfigurator-0.12/nvfp4"),
)  # fmt: skip
TWICE = (
    (("h200-sxm", "torch/bf16"), ("h100-sxm", "torch/bf16")),
    (("h200-sxm", "aiconfigurator/float16"), ("h200-sxm", "aiconfigurator-0.12/bf16")),
)
"""The same GEMMs on the H100, whose SMs are alike; and by another version of the library, in another 16-bit type."""
FASTER = (0.01, 0.02, 0.05)
MOST_WORK = 2.0
"""Times the multiplications of the smaller GEMM, up to which pairs are compared."""
LEAST_PAIRS = 20
_AXES = ["M", "N", "K"]


class Pairs(NamedTuple):
    """Pairs of rows of a set: `larger` is larger in one size at least, and smaller in none."""

    smaller: npt.NDArray[np.intp]
    larger: npt.NDArray[np.intp]


def read(gpu: str, name: str) -> Timings:
    """Return a committed set; of several states of L2 and clock that of most rows."""
    return max(_read(gpu, name), key=len)


@cache
def _read(gpu: str, name: str) -> list[Timings]:
    return find_timings(gpu, [name])


def list_orders(timings: Timings) -> Iterator[tuple[npt.NDArray[np.intp], Mask]]:
    """Yield rows of one G and layout, and which is at most which in all sizes, [rows, rows]."""
    frame = timings.frame.drop_duplicates(["G", *_AXES, *(["layout"] if "layout" in timings.frame else [])])
    for _, rows in frame.groupby(["G", "layout"] if "layout" in frame else ["G"]):
        sizes = rows[_AXES].to_numpy(np.int64)
        is_at_most = np.all(sizes[:, None] <= sizes[None], axis=2) & ~np.eye(len(rows), dtype=bool)
        yield rows.index.to_numpy(np.intp), is_at_most


def pairs_of(timings: Timings) -> Pairs:
    """Return the pairs whose larger GEMM has at most `MOST_WORK` times the multiplications."""
    parts = []
    for rows, is_at_most in list_orders(timings):
        flop = timings.flop[rows]
        smaller, larger = np.nonzero(is_at_most & (flop[None] <= MOST_WORK * flop[:, None]))
        parts.append((rows[smaller], rows[larger]))
    return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def least_error(timings: Timings) -> float:
    """Return the least mean of abs(answer / measured - 1) over answers that never fall where a size grows."""
    errors = []
    for rows, is_at_most in list_orders(timings):
        measured, num = timings.measured_us[rows], len(rows)
        as_numbers = is_at_most.astype(np.float32)
        before, after = np.nonzero(is_at_most & (as_numbers @ as_numbers == 0.0))  # the rest follows from these
        edges = np.arange(len(before))
        one = eye_array(num)
        order = coo_array((np.repeat([1.0, -1.0], len(edges)), (np.tile(edges, 2), np.concatenate([before, after]))),
                          shape=(len(edges), num))  # fmt: skip
        # unknown: answers over their scale, then their errors
        bounds: Any = vstack([hstack([order, coo_array((len(edges), num))]), hstack([one, -one]), hstack([-one, -one])])
        limits = np.concatenate([np.zeros(len(edges)), measured, -measured])
        found = linprog(np.concatenate([np.zeros(num), 1.0 / measured]), A_ub=bounds, b_ub=limits, method="highs")
        errors.append(float(found.fun or 0.0))
    return sum(errors) / len(timings)


def groups_of(timings: Timings, pairs: Pairs) -> Iterator[tuple[str, Mask]]:
    """Yield all pairs, and those of a group: by the larger one's M, by the bytes that rows start on, by kernel."""
    yield "all", np.ones(len(pairs.larger), bool)
    regimes = regime_of(timings)[pairs.larger]
    for name in ("decode", "mid", "prefill"):
        yield name, regimes == name
    is_aligned = are_aligned(timings)
    if not is_aligned.all():
        yield "both with rows on 16 bytes", is_aligned[pairs.smaller] & is_aligned[pairs.larger]
        yield "the smaller one's rows off 16 bytes", ~is_aligned[pairs.smaller] & is_aligned[pairs.larger]
    if "kernel" in timings.frame:
        kernels = timings.frame["kernel"].to_numpy()
        parts = timings.frame["grid_z"].to_numpy()
        is_one = kernels[pairs.smaller] == kernels[pairs.larger]
        yield "one kernel", is_one & (parts[pairs.smaller] == parts[pairs.larger])


def are_aligned(timings: Timings) -> Mask:
    """Return which GEMMs have rows of A, B and C that all start on 16 bytes."""
    return np.array([load_bytes_of(problem) == LOAD_BYTES[0] for problem in timings.problems()])


def table_of_orders(sets: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of the first table; groups of few pairs are left out."""
    yield "| GPU, set, pairs | pairs | larger one faster by 1, 2, 5% | least error in order |"
    yield "|---|---|---|---|"
    for gpu, name in sets:
        timings = read(gpu, name)
        pairs = pairs_of(timings)
        ratio = timings.measured_us[pairs.larger] / timings.measured_us[pairs.smaller]
        least = {"all": timings, "both with rows on 16 bytes": timings.select(are_aligned(timings))}
        for group, mask in groups_of(timings, pairs):
            if mask.sum() >= LEAST_PAIRS:
                broken = ", ".join(f"{float((ratio[mask] < 1.0 - most).mean()):.1%}" for most in FASTER)
                error = f"{least_error(least[group]):.1%}" if group in least else ""
                yield f"| {gpu}, {name}: {group} | {int(mask.sum()):,} | {broken} | {error} |"


def table_of_repeats(twice: Sequence[tuple[tuple[str, str], tuple[str, str]]]) -> Iterator[str]:
    """Yield the lines of the second table."""
    yield "| first, second | GEMMs | median difference | pairs broken in the first by 1, 2, 5% | in the second |"
    yield "|---|---|---|---|---|"
    for first, second in twice:
        both = [read(*name) for name in (first, second)]
        keys = ["G", *_AXES, *(["layout"] if "layout" in both[0].frame else [])]
        joined = both[0].frame.drop_duplicates(keys)[keys].merge(both[1].frame.drop_duplicates(keys)[keys])
        one, other = (
            replace(item, frame=joined[keys].merge(item.frame.drop_duplicates(keys), on=keys)) for item in both
        )
        pairs = pairs_of(one)
        ratios = [item.measured_us[pairs.larger] / item.measured_us[pairs.smaller] for item in (one, other)]
        masks = [ratios[0] < 1.0 - most for most in FASTER]
        nums = ", ".join(f"{int(mask.sum()):,}" for mask in masks)
        again = ", ".join(f"{float((ratios[1][mask] < 1.0).mean()):.0%}" for mask in masks)
        differs = float(np.median(np.abs(other.measured_us / one.measured_us - 1.0)))
        yield f"| {' '.join(first)}, {' '.join(second)} | {len(one):,} | {differs:.1%} | {nums} | {again} |"


if __name__ == "__main__":
    for line in chain(table_of_orders(SETS), ("",), table_of_repeats(TWICE)):
        print(line, flush=True)
