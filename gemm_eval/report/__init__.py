"""Plots, and reports as HTML pages."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.report.compare import compare_report
    from gemm_eval.report.compose import model_report, sweep_report
    from gemm_eval.report.page import Page, Section
    from gemm_eval.report.parts import Bar, Bars, Cell, Chart, Column, Facts, Figure, Panel, Table, Text, Verdict

__all__ = [
    "Bar", "Bars", "Cell", "Chart", "Column", "Facts", "Figure", "Page", "Panel", "Section", "Table", "Text", "Verdict",
    "compare_report", "model_report", "sweep_report",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".compare": ("compare_report",),
        ".compose": ("model_report", "sweep_report"),
        ".page": ("Page", "Section"),
        ".parts": (
            *("Bar", "Bars", "Cell", "Chart", "Column", "Facts", "Figure", "Panel", "Table", "Text", "Verdict"),
        ),
    },
)
