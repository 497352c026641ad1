"""The documents of docs/figures: which command makes each, how it is kept, and how it is read."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.validation.subjects.gemms import gpus_with_timings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
BENCH = "bench"
"""The document of `make bench`: medians, and what benchmarks add to them."""
DENSE = "dense"
"""The document of `gemm-eval validate dense`, of each GPU with timings: who stands beside the model, and coverage."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "gpu": ("gemm_eval", "validate", "gpu", "all"),
    "moe": ("gemm_eval", "validate", "moe", "all"),
    "w4a16": ("gemm_eval", "validate", "w4a16"),
    "triton": ("gemm_eval", "validate", "triton", "--arch", "h200-sxm"),
    "attention": ("gemm_eval", "validate", "attention", "all"),
    "collective": ("gemm_eval", "validate", "collective"),
    "memory-bound": ("gemm_eval", "validate", "memory-bound"),
    "stacks": ("gemm_eval", "validate", "stacks"),
    "crossover": ("gemm_eval", "crossover", "--measured", "--all"),
    "multicore": ("gemm_eval", "validate", "multicore", "all"),
    "tpu-v4": ("gemm_eval", "validate", "multicore", "tpu-v4", "--data", os.environ.get("TPU_V4_CSV", "tpu-v4.csv")),
    "simulators": ("benchmarks.simulators",),
    "host": ("gemm_eval", "measure", "host", "--out", f"{tempfile.gettempdir()}/gemm_eval-host"),
    "asm-aware": ("examples/benchmark_asm_aware.py", "--show"),
    "modules": ("benchmarks.measure_modules", "--out", "arch/measured/h200-sxm/torch", "--show"),
    "training": ("tools.examine_training",),
    "served": ("gemm_eval", "validate", "served"),
    "published": ("gemm_eval", "validate", "training"),
    "rates": ("tools.sweep_rates",),
    "size": ("tools.size", "--install"),
}
"""Documents by name: a script or a module, and its arguments without --json.

`training` needs torch, `modules` torch, torchvision and the transformers of its meta file, `simulators` the environment
of `make compare`, `host` a quiet machine, and `tpu-v4` the timings of the TPU, which have no licence, in a file that
TPU_V4_CSV names.
"""
_PYTHON = {"simulators": str(ROOT / ".venv-simulators" / "bin" / "python")}
"""Of documents with an environment of their own."""
_NOT_KEPT = frozenset(
    (
        "worst", "worst_pairs", "pairs", "operations", "predicted_us", "terms_us", "folds", "bandwidth", "files",
        "moved", "differences",
    )
)  # fmt: skip
"""Lists and tables that no page shows."""
_BESIDE = frozenset(("gemm_eval", "corrected", "nvMatmulHeuristics", "nvMMH, refitted"))
"""Predictors of `validate dense` that no other document has as pages show them."""
_DIGITS = 6


def run(name: str) -> Any:
    """Run the command of a document, and return what it prints; some take minutes.

    Raises:
        SystemExit: it failed.
    """
    made = {BENCH: _run_benchmarks, DENSE: _run_dense}
    return made[name]() if name in made else _printed(COMMANDS[name], _PYTHON.get(name, sys.executable))


def _printed(command: Sequence[str], python: str = sys.executable) -> Any:
    program, *options = command
    words = [program, *options] if program.endswith(".py") else ["-m", program, *options]
    ran = subprocess.run([python, *words, "--json"], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return json.loads(ran.stdout)


def _run_dense() -> Any:
    """Errors by GPU, set, predictor and regime; nvMatmulHeuristics stands there with the extra compare."""
    return {
        gpu: _errors_by_set(_printed(("gemm_eval", "validate", "dense", "--arch", gpu))) for gpu in gpus_with_timings()
    }


def _errors_by_set(document: Any) -> dict[str, dict[str, Any]]:
    """Return the errors of each predictor by set, some of which stand in several tables: net of quantization or not."""
    errors: dict[str, dict[str, Any]] = {}
    for table in document["sets"]:
        of_set = errors.setdefault(table["data"], {})
        of_set |= {who["name"]: who["errors"] for who in table["predictors"] if who["name"] in _BESIDE}
    return errors


def _run_benchmarks() -> Any:
    """Run all benchmarks twice, and take of each the faster run: others may use the machine."""
    runs = [_run_benchmarks_once() for _ in range(2)]
    found = runs[0]["benchmarks"]
    for name, of in runs[1]["benchmarks"].items():
        found[name] = min(found[name], of, key=lambda one: one["median_us"])
    return runs[0]


def _run_benchmarks_once() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        options = ("--benchmark-enable", "--benchmark-only", f"--benchmark-json={out}", "-q", "-p", "no:xdist")
        subprocess.run([sys.executable, "-m", "pytest", "tests/benchmarks", *options], cwd=ROOT, check=True)
        found = json.loads(out.read_text(encoding="utf-8"))
    return {
        "cpu": found["machine_info"]["cpu"]["brand_raw"], "num_cpus": os.cpu_count(),
        "benchmarks": {
            one["fullname"].removeprefix("tests/benchmarks/"): {"median_us": 1e6 * one["stats"]["median"]}
            | one["extra_info"]
            for one in found["benchmarks"]
        },
    }  # fmt: skip


def keep(name: str, document: Any) -> None:
    """Write what pages show of a document."""
    text = json.dumps(_kept(document), separators=(",", ":"), ensure_ascii=False)
    # a line for each entry of a list, so that a change can be read
    (FOLDER / f"{name}.json").write_text(text.replace('},{"', '},\n{"') + "\n", encoding="utf-8")


def load(name: str) -> Any:
    """Read a document."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _kept(of) for key, of in value.items() if key not in _NOT_KEPT or not isinstance(of, Mapping | list)
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_kept(of) for of in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
