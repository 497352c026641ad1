"""Plots, and reports as HTML pages."""

from gemm_eval.report.compose import model_report, sweep_report

__all__ = ["model_report", "sweep_report"]
