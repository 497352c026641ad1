"""Laws that answers with a learned correction must keep too, for every correction that is committed.

Laws that compare two questions (types, L2 and clock states) or two chips are physics' own: what was learned of one of
them was not learned of the other. MODEL.md, "Correction", says so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemm_eval import GemmProblem
from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.models.gpu import Correction, load_correction
from gemm_eval.models.gpu.correction import MAX_LOG_FACTOR
from gemm_eval.workload import RunOptions
from tests.laws import draws
from tests.laws.gpu_physics import ROUNDING, Case, Sizes, bigger_is_not_faster, no_faster_than_the_data_sheet
from tests.laws.report import Report

__all__ = ["committed", "run"]

_DTYPES = {"f16": "bf16", "fp8": "fp8", "int8": "int8"}  # types in a question -> of a problem
_PROBLEMS = 250
_MOST_BLOCKS = 400  # of 64 rows or columns of B
_LEARNED = 0.2  # what a correction may add to the tolerances of physics where a GEMM grows


def committed() -> list[tuple[Path, Correction]]:
    """Return the corrections that are on."""
    paths = sorted((data_root() / "calibration").glob("*/corrections/*.yaml"))
    return [(path, found) for path in paths if (found := load_correction(path)[0]).is_on]


def run(seed: int, count: int) -> Report:
    """Check laws until `count` answers have been compared."""
    rng, report = random.Random(seed), Report()
    known = [found for _, found in committed() if found.question.split("-")[0] in _DTYPES and _is_dense(found)]
    while known and sum(report.checked.values()) < count:
        found = rng.choice(known)
        dtype, l2, clock = found.question.split("-")
        options = RunOptions(found.library, l2, clock, correction=True)
        types = GemmProblem(1, 1, 1, 1, _DTYPES[dtype])
        case = Case(load_arch(found.gpu, GpuSpec), types, options, _draw_sizes(rng), report)
        no_faster_than_the_data_sheet(case, rng)
        bigger_is_not_faster(case, rng, _LEARNED)
        _is_bounded(case, [other for other in known if _answers_alike(found, other)])
    return report


def _is_dense(found: Correction) -> bool:
    return len(found.question.split("-")) == 3


def _draw_sizes(rng: random.Random) -> Sizes:
    """Sizes as layers have them, or any."""
    sizes = draws.draw_sizes(rng, _PROBLEMS)
    if rng.random() < 0.7:
        sizes[:, 0] = 1
        sizes[:, 2:] = 64 * np.array([[rng.randint(1, _MOST_BLOCKS) for _ in "KN"] for _ in range(len(sizes))])
    return sizes


def _answers_alike(one: Correction, other: Correction) -> bool:
    """Whether both correct answers to the same question, of whichever family a problem has."""
    return (one.gpu, one.library, one.question) == (other.gpu, other.library, other.question)


def _is_bounded(case: Case, found: Sequence[Correction]) -> None:
    """The factor stays in the bounds of a family, but where the data sheet's floor is above that."""
    factor = case.found["correction_factor"]
    most = np.full(len(factor), np.exp(max(min(MAX_LOG_FACTOR, of.max_log_factor) for of in found)))
    case.check("a correction is at most its bound", factor, most, ROUNDING)
    least = np.full(len(factor), np.exp(min(max(-MAX_LOG_FACTOR, of.min_log_factor) for of in found)))
    case.check("a correction is at least its bound", least, factor, ROUNDING)
