"""Plots, and reports as HTML pages."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.report.compose import model_report, sweep_report
    from gemm_eval.report.page import Cell, Column, Facts, Page, Section, Table, Text

__all__ = ["Cell", "Column", "Facts", "Page", "Section", "Table", "Text", "model_report", "sweep_report"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".compose": ("model_report", "sweep_report"),
        ".page": ("Cell", "Column", "Facts", "Page", "Section", "Table", "Text"),
    },
)
