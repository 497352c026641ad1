"""Columns of tables of GEMMs, for reports of models and of sweeps."""

from __future__ import annotations

from gemm_eval.evaluate import GEMMResult
from gemm_eval.report.parts import Cell, Column

__all__ = ["GEMM_COLUMNS", "gemm_cells"]

GEMM_COLUMNS = (
    Column("types", kind="text"),
    *(Column(name) for name in "GMKN"),
    Column("count"),
    Column("latency", kind="time"),
    Column("in all", kind="time"),
    Column("share", "%", digits=3),
    Column("bound", kind="text"),
    Column("of peak", "%", digits=3),
    Column("DRAM", "GB/s"),
    Column("mapping", kind="text"),
)
"""What `gemm_cells` gives; a table has a column for the name before them."""


def gemm_cells(result: GEMMResult, count: int, total_us: float) -> list[Cell]:
    """Return the cells of a GEMM.

    Args:
        result: of one run of it.
        count: how often it runs.
        total_us: time of all GEMMs, of which `share` is a part.
    """
    problem = result.problem
    # of groups with rows of their own the mean, for G x M to be the rows that there are
    M = problem.M if problem.row_groups is None else problem.rows / problem.G
    return [
        problem.types.inputs,
        problem.G,
        M,
        problem.K,
        problem.N,
        count,
        result.latency_us,
        count * result.latency_us,
        100.0 * count * result.latency_us / total_us,
        result.bound,
        100.0 * result.utilization_frac,
        result.dram_gb_per_s,
        str(result.mapping),
    ]
