"""The documents of docs/figures: which command makes each, how it is kept, and how it is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
BENCH = "bench"
"""The document of `make bench`: medians, and what benchmarks add to them."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "gpu": ("validate", "gpu", "all"),
    "moe": ("validate", "moe", "all"),
    "w4a16": ("validate", "w4a16"),
    "triton": ("validate", "triton", "--arch", "h200-sxm"),
    "attention": ("validate", "attention", "all"),
    "collective": ("validate", "collective"),
    "memory-bound": ("validate", "memory-bound"),
    "stacks": ("validate", "stacks"),
    "crossover": ("crossover", "--measured", "--all"),
    "asm-aware": ("examples/benchmark_asm_aware.py", "--show"),
    "modules": ("examples/measure_modules.py", "--out", "arch/measured/h200-sxm/torch", "--show"),
}
"""Documents by name: arguments of gemm-eval, or a script of examples and its own, without --json.

`modules` needs torch, torchvision and the transformers of its meta file.
"""
_NOT_KEPT = frozenset(("worst", "worst_pairs", "pairs", "operations", "predicted_us", "terms_us", "cost"))
"""Lists and tables that no page shows."""
_DIGITS = 6


def run(name: str) -> Any:
    """Run the command of a document, and return what it prints; some take minutes.

    Raises:
        SystemExit: it failed.
    """
    if name == BENCH:
        return _run_benchmarks()
    command = COMMANDS[name]
    program = [] if command[0].endswith(".py") else ["-m", "gemm_eval"]
    ran = subprocess.run(
        [sys.executable, *program, *command, "--json"], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return json.loads(ran.stdout)


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
