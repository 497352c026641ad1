"""Plots, and reports as HTML pages."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.report.compare import compare_report
    from gemm_eval.report.model_page import deployments_report, model_report
    from gemm_eval.report.page import Page, Section
    from gemm_eval.report.parts import Bar, Bars, Cell, Chart, Column, Facts, Figure, Panel, Table, Text, Verdict
    from gemm_eval.report.sweep_page import sweep_report

__all__ = [
    "Bar", "Bars", "Cell", "Chart", "Column", "Facts", "Figure", "Page", "Panel", "Section", "Table", "Text", "Verdict",
    "compare_report", "deployments_report", "model_report", "sweep_report",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
