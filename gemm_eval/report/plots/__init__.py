"""Plots of what evaluations and sweeps found.

Every function returns a matplotlib Figure of its own (``figure.savefig("x.png")``; a notebook shows it) and leaves no
trace: no pyplot, no backend, no file. matplotlib comes with ``pip install 'gemm_eval[plot]'``.
"""

from gemm_eval.figures import axis_label
from gemm_eval.report.plots.breakdown import plot_breakdown, plot_heat_map, plot_pareto, plot_steps, plot_training_step
from gemm_eval.report.plots.mapping import plot_mapping
from gemm_eval.report.plots.roofline import plot_latency_over_m, plot_roofline
from gemm_eval.words import check_extra

check_extra("plotting", "plot", "matplotlib")

__all__ = [
    "axis_label", "plot_breakdown", "plot_heat_map", "plot_latency_over_m", "plot_mapping", "plot_pareto",
    "plot_roofline", "plot_steps", "plot_training_step",
]  # fmt: skip
