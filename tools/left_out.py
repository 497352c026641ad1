"""How far predictions are off on a GPU that nothing was fitted on: each GPU by the calibrations of all others.

python -m tools.left_out [NAME..]

For each table of attention, and of 16-bit GEMMs: errors of log(measured / predicted), the share that lies in the 80%
interval, its half width, and the share of the errors' variance that all rows have in common.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LEAST_ROWS = 100
_CALIBRATED = ("a100-sxm-80gb", "b200", "h200-sxm", "l40s", "rtx-pro-6000-server")


def without(gpu: str, folder: Path) -> None:
    """Copy the package into a folder, with its data but for the calibrations of a GPU."""
    arch = folder / "arch"
    (arch / "calibration").mkdir(parents=True)
    shutil.copytree(ROOT / "gemm_eval", folder / "gemm_eval", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "arch").iterdir():
        if path.name != "calibration":
            (arch / path.name).symlink_to(path)
    for path in (ROOT / "arch" / "calibration").iterdir():
        if path.name != gpu:
            (arch / "calibration" / path.name).symlink_to(path)


def print_errors(gpu: str) -> None:
    """Print a line for each table of a GPU, predicted by the library that is imported here."""
    import numpy as np

    from gemm_eval import GEMMEvaluator
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu import attention
    from gemm_eval.validation.subjects.attention import tables
    from gemm_eval.validation.tables import list_timings

    arch, evaluator = load_arch(gpu, GpuSpec), GEMMEvaluator(gpu)
    rows = []
    for table in tables(gpu):
        coefficients = attention.attention_coefficients(arch, table.library)
        costs = attention.attention_costs(arch, coefficients.values, table.rows, table.library)
        answers = attention.attention_answers(arch, table.library, table.rows, costs)
        factor, low, high, _ = answers.T
        us = costs.latency_us * factor
        rows.append((f"{table.library} {table.phase}", table.measured_us, us, us * low, us * high))
    for timings in list_timings(gpu, has_held_back=True):
        types = {str(problem.types.a) for problem in timings.problems()}
        if timings.library == "cublas" and types <= {"bf16", "fp16"} and len(timings) >= _LEAST_ROWS:
            table_of = evaluator.evaluate_many(
                list(timings.problems()), library="cublas", l2=timings.l2, clock=timings.clock, progress=False
            )
            ends = (table_of[name] for name in ("latency_us", "low_us", "high_us"))
            rows.append((timings.name, timings.kernel_us, *ends))
    for name, measured_us, us, low_us, high_us in rows:
        logs = np.log(measured_us / us)
        inside = np.mean((measured_us >= low_us) & (measured_us <= high_us))
        width = np.mean(np.log(high_us / low_us)) / 2.0
        shared = logs.mean() ** 2 / np.mean(logs**2)
        within = np.quantile(np.abs(logs), 0.8)
        print(
            f"{gpu:20} {name:42} n {len(us):5} mean {logs.mean():6.3f} 80% within {within:.3f} inside {inside:4.0%} "
            f"half width {width:.3f} shared {shared:.2f}"
        )


def main() -> None:
    """Predict each GPU in a process of its own, whose library does not know the GPU's calibrations."""
    for gpu in sys.argv[1:] or _CALIBRATED:
        with tempfile.TemporaryDirectory() as name:
            without(gpu, Path(name))
            code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['print_errors']({gpu!r})"
            subprocess.run([sys.executable, "-c", code], cwd=name, env={**os.environ, "PYTHONPATH": name}, check=True)


if __name__ == "__main__":
    main()
