"""Laws that answers with a learned correction must keep too, for every correction that is committed.

Its factor is carried to other states and changed specs, so that laws of states and chips hold as they do for physics.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemm_eval import GemmProblem
from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.models.gpu import Correction, load_correction
from gemm_eval.models.gpu.correction import MAX_LOG_FACTOR
from gemm_eval.workload import GemmTypes, RunOptions
from tools.laws import draws
from tools.laws.gpu_physics import (
    ROUNDING,
    Case,
    Sizes,
    bigger_is_not_faster,
    clocks,
    less_hardware_is_not_faster,
    no_faster_than_the_data_sheet,
    states,
)
from tools.laws.report import Report

_TYPES: dict[str, dict[str, Any]] = {
    "f16": {"input_dtype": "bf16"},
    "fp8": {"input_dtype": "fp8"},
    "int8": {"input_dtype": "int8", "output_dtype": "bf16"},
    "int8-c32": {"input_dtype": "int8"},
    "tf32-c32": {"input_dtype": "tf32"},
    "fp32-c32": {"input_dtype": "fp32"},
    "f16-int4-gcolumn": {"input_dtype": "fp16", "weight_dtype": "int4"},
    "f16-int8-gcolumn": {"input_dtype": "fp16", "weight_dtype": "int8"},
    "fp8-g128x128": GemmTypes.parse("fp8_block").words,
    "fp4-g16": GemmTypes.parse("nvfp4").words,
    "fp4-g32": GemmTypes.parse("mxfp4").words,
    "fp8-g32": GemmTypes.parse("mxfp8").words,
}
"""Types in a question -> those of a problem."""
_PROBLEMS = 250
_MOST_BLOCKS = 400  # of 64 rows or columns of B


def committed() -> list[tuple[Path, Correction]]:
    """Return the corrections that are on."""
    paths = sorted((data_root() / "calibration").glob("*/corrections/*.yaml"))
    return [(path, found) for path in paths if (found := load_correction(path)[0]).is_on]


def run(seed: int, count: int) -> Report:
    """Check laws until `count` answers have been compared."""
    rng, report = random.Random(seed), Report()
    known = [found for _, found in committed() if _types_of(found) in _TYPES]
    while known and sum(report.checked.values()) < count:
        found = rng.choice(known)
        l2, clock, *quantize_from = found.question.removeprefix(f"{_types_of(found)}-").split("-")
        options = RunOptions(found.library, l2, clock, next(iter(quantize_from), None), correction=True)
        types = GemmProblem(1, 1, 1, 1, **_TYPES[_types_of(found)])
        case = Case(load_arch(found.gpu, GpuSpec), types, options, _draw_sizes(rng), report)
        no_faster_than_the_data_sheet(case, rng)
        bigger_is_not_faster(case, rng)
        states(case, rng)
        clocks(case, rng)
        less_hardware_is_not_faster(case, rng)
        _is_bounded(case, [other for other in known if _answer_alike(found, other)])
    return report


def _types_of(found: Correction) -> str:
    """The types in a question, before its L2 state."""
    return re.split("-(?=cold|warm)", found.question)[0]


def _draw_sizes(rng: random.Random) -> Sizes:
    """Sizes as layers have them, or any."""
    sizes = draws.draw_sizes(rng, _PROBLEMS)
    if rng.random() < 0.7:
        sizes[:, 0] = 1
        sizes[:, 2:] = 64 * np.array([[rng.randint(1, _MOST_BLOCKS) for _ in "KN"] for _ in range(len(sizes))])
    return sizes


def _answer_alike(one: Correction, other: Correction) -> bool:
    """Return whether both correct answers on a GPU for the same types, of whichever family and in whichever state."""
    return (one.gpu, _types_of(one)) == (other.gpu, _types_of(other))


def _is_bounded(case: Case, found: Sequence[Correction]) -> None:
    """The factor stays in the bounds of all families and states, but where the data sheet's floor is above that."""
    factor = case.found["correction_factor"]
    most = np.full(len(factor), np.exp(max(min(MAX_LOG_FACTOR, of.max_log_factor) for of in found)))
    case.check("a correction is at most its bound", factor, most, ROUNDING)
    least = np.full(len(factor), np.exp(min(max(-MAX_LOG_FACTOR, of.min_log_factor) for of in found)))
    case.check("a correction is at least its bound", least, factor, ROUNDING)
