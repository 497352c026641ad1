"""One page of each kind, and every plot, for tests and pictures."""

from collections.abc import Callable
from functools import partial
from typing import Any

from gemm_eval import GEMMEvaluator, estimate_model
from gemm_eval.report import Figure, Page, Section, compare_report, model_report, plots, sweep_report
from gemm_eval.report.model_page import deployments_report
from gemm_eval.serving import find_deployments
from gemm_eval.serving.deployments import engine_commands
from gemm_eval.sweep import LogRange, Space, SweepResult, sweep

GEMMS = [(1, 1, 4096, 4096), (1, 64, 4096, 4096), (1, 1024, 4096, 14336), (8, 100, 128, 77)]
AREA = "= num_cores * (2 + sram_bytes / 2**20) + 0.02 * dram_gb_per_s"


def make_sweep() -> SweepResult:
    """Ninety chips and two objectives, of which the front has a dozen."""
    fields = {"num_cores": [4, 8, 16, 32, 64], "sram_bytes": LogRange(2**18, 2**22, 5)}
    space = Space("demo-8core", fields, dram_gb_per_s=[100.0, 200.0, 400.0, 800.0], area_mm2=AREA)
    loads = [(1, 16, 1024, 1024), (1, 256, 1024, 2048)]
    return sweep(space, loads, ["latency_us", "area_mm2"], ["area_mm2 <= 200"], progress=False)


def sweep_page() -> Page:
    """The report on `make_sweep`."""
    return sweep_report(make_sweep())


def model_page() -> Page:
    """A model on a GPU, both phases."""
    return model_report("llama-3-70b", _on("h200-sxm"), batch=16, tensor_parallel=4)


def compare_page() -> Page:
    """A model on three GPUs."""
    archs = [_on(name) for name in ("a100-sxm-80gb", "h200-sxm", "b200")]
    return compare_report("llama-3-70b", archs, batch_size=16, seq_len=1024, tensor_parallel=4)


def gemms_page() -> Page:
    """GEMMs on a GPU and on chips of other kinds."""
    return compare_report(GEMMS, [_on(name) for name in ("h200-sxm", "sg2260", "tpu-v5e")])


def serve_page() -> Page:
    """Deployments on a few GPUs, with the commands that start the best one."""
    deployments = find_deployments("llama-3-8b", _on("h200-sxm"), 2, engines="trtllm", concurrencies=(1, 8, 64))
    return deployments_report(deployments, engine_commands(deployments.best, "llama-3-8b"))


def plot_page(name: str) -> Page:
    """A page with a plot alone."""
    return Page(name.replace("_", " "), sections=[Section("Plot", [Figure(PLOTS[name](), caption=name)])])


def _on(arch: str) -> GEMMEvaluator:
    return GEMMEvaluator(arch, disk_cache=False)


def _breakdown(arch: str) -> Any:
    return plots.plot_breakdown(_on(arch).evaluate_many(GEMMS, progress=False))


def _mapping(arch: str) -> Any:
    return plots.plot_mapping(_on(arch).evaluate(1, 1024, 4096, 4096))


def _steps() -> Any:
    return plots.plot_steps(estimate_model("llama-3-8b", "h200-sxm", batch=16, prompt_len=1024, dtype="bf16"))


def _latency() -> Any:
    return plots.plot_latency_over_m([_on("h200-sxm"), _on("b200")], 4096, 14336, M=[1, 16, 64, 256, 1024, 4096])


def _pareto() -> Any:
    return plots.plot_pareto(make_sweep(), "area_mm2", "latency_us")


def _heat_map() -> Any:
    return plots.plot_heat_map(make_sweep().to_pandas(), "num_cores", "sram_bytes", "latency_us")


PLOTS: dict[str, Callable[[], Any]] = {
    "roofline_gpu": lambda: plots.plot_roofline(_on("h200-sxm"), GEMMS),
    "roofline_multicore": lambda: plots.plot_roofline(_on("sg2260"), GEMMS),
    "breakdown_gpu": partial(_breakdown, "h200-sxm"),
    "breakdown_multicore": partial(_breakdown, "sg2260"),
    "mapping_gpu": partial(_mapping, "h200-sxm"),
    "mapping_multicore": partial(_mapping, "sg2260"),
    "steps": _steps,
    "latency_over_m": _latency,
    "pareto": _pareto,
    "heat_map": _heat_map,
}
"""Every plot, by name."""
