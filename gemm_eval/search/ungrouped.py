"""The refusal of grouped GEMMs by searches that know no groups of different rows."""

from __future__ import annotations

from gemm_eval.errors import UnsupportedError
from gemm_eval.workload import GemmProblem, Layouts

__all__ = ["check_all_ungrouped", "check_ungrouped"]


def check_ungrouped(problem: GemmProblem) -> None:
    """Check that all groups of a problem have the same rows.

    Raises:
        UnsupportedError: they differ.
    """
    if problem.is_grouped:
        raise UnsupportedError(f"groups must have equally many rows here, got {problem}; evaluate them one by one")


def check_all_ungrouped(layouts: Layouts) -> None:
    """Check that no problem has row groups of its own.

    Raises:
        UnsupportedError: one has.
    """
    if (layouts.of >= 0).any():
        raise UnsupportedError("groups must have equally many rows here; evaluate groups one by one")
