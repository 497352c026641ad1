"""Plots of what evaluations and sweeps found.

Every function returns a figure of its own and leaves no trace: no pyplot, no backend, no file. The static ones are
matplotlib Figures (``figure.savefig("x.png")``; a notebook shows them), and with ``interactive=True`` the same picture
comes as a plotly figure, which tells more when the mouse rests on a point. Both packages come with
``pip install 'gemm_eval[plot]'`` and are imported when a plot is asked for.
"""

from gemm_eval.figures import axis_label
from gemm_eval.report.plots.breakdown import plot_breakdown, plot_steps
from gemm_eval.report.plots.heat_map import plot_heat_map
from gemm_eval.report.plots.latency import plot_latency_over_m
from gemm_eval.report.plots.mapping import plot_mapping
from gemm_eval.report.plots.pareto import plot_pareto
from gemm_eval.report.plots.roofline import plot_roofline

__all__ = [
    "axis_label", "plot_breakdown", "plot_heat_map", "plot_latency_over_m", "plot_mapping", "plot_pareto",
    "plot_roofline", "plot_steps",
]  # fmt: skip
