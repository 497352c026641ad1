"""Tests of each module, quick ones first."""

from typing import NamedTuple


class Area(NamedTuple):
    """Test files of some modules.

    Attributes:
        asked: which kinds of questions of `tools.corpus` can tell a mutant of theirs.
        plain: run first, with the kernels as plain Python: seconds, where a compile takes half a minute.
        compiled: run when those pass.
    """

    asked: tuple[str, ...]
    plain: tuple[str, ...]
    compiled: tuple[str, ...]


_PLANS = Area(("chips",), ("search/test_plans.py",), ("search/test_plans.py", "evaluate/test_evaluator.py"))
_MULTICORE = Area(
    ("chips", "multicore"),
    ("property/test_short_laws.py", "property/test_multicore_exact.py"),
    (
        "golden/test_golden.py", "property/test_short_laws.py",
        "property/test_multicore_exact.py", "property/test_laws.py", "search/test_plans.py",
        "evaluate/test_evaluator.py", "evaluate/test_evaluate_many.py", "evaluate/test_costs_on_disk.py",
    ),
)  # fmt: skip
_TRITON = Area(
    ("triton",),
    ("models/test_triton_cost.py", "property/test_triton_cost.py"),
    ("autotune/test_asm_model.py", "autotune/test_triton_rules.py", "validation/test_validation_triton.py"),
)
_W4A16 = Area(
    ("gpu", "top"),
    ("models/test_w4a16_cost.py", "models/test_w4a16_candidates.py"),
    ("golden/test_golden.py", "property/test_w4a16_search.py", "evaluate/test_gpu_evaluator.py"),
)  # fmt: skip
_GPU = Area(
    ("gpu", "top", "triton"),
    (
        "property/test_gpu_cost.py", "models/test_gpu_candidates.py", "models/test_calibration.py",
        "models/test_gpu_kernels.py",
    ),
    (
        "golden/test_golden.py", "property/test_gpu_search_exact.py",
        "property/test_short_laws.py", "property/test_w4a16_search.py", "evaluate/test_gpu_evaluator.py",
        "models/test_cublas_rules.py",
    ),
)  # fmt: skip

_BY_PART_OF_PATH = (
    ("search/plan", _PLANS),
    ("multicore", _MULTICORE),
    ("triton", _TRITON),
    ("w4a16", _W4A16),
    ("gpu", _GPU),
)


def area_of(path: str) -> Area:
    """Return the tests of a module, by its path; of what all models share, those of both."""
    for part, area in _BY_PART_OF_PATH:
        if part in path:
            return area
    return Area((*_MULTICORE.asked, *_GPU.asked), _MULTICORE.plain, (*_MULTICORE.compiled, *_GPU.compiled))
