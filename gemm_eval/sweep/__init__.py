"""Design-space exploration: sweeps of chips against workloads, Pareto fronts, rankings, sensitivity."""

from gemm_eval.sweep.fields import Choices, Dependent, LogRange, Range
from gemm_eval.sweep.metrics import MAXIMIZED, METRICS, Constraint, Workload, transformer_workloads
from gemm_eval.sweep.pareto import pareto_front, pareto_rank
from gemm_eval.sweep.result import SweepResult, load_sweep
from gemm_eval.sweep.run import sweep, what_if
from gemm_eval.sweep.sensitivity_analysis import SensitivityResult, sensitivity
from gemm_eval.sweep.space import ARCH, Adaptive, Grid, LatinHypercube, Random, Space
from gemm_eval.sweep.sweep_file import SweepFile, read_sweep_file

__all__ = [
    "ARCH", "MAXIMIZED", "METRICS", "Adaptive", "Choices", "Constraint", "Dependent", "Grid", "LatinHypercube",
    "LogRange", "Random", "Range", "SensitivityResult", "Space", "SweepFile", "SweepResult", "Workload", "load_sweep",
    "pareto_front", "pareto_rank", "read_sweep_file", "sensitivity", "sweep", "transformer_workloads", "what_if",
]  # fmt: skip
