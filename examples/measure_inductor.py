"""torch.compile's max-autotune with and without `prune_inductor`: how long it compiles, how fast what it chooses is.

    python examples/measure_inductor.py --out FOLDER          # a GPU and PyTorch; about six minutes
    python examples/measure_inductor.py --out FOLDER --show   # the summary of what is there, without a GPU

Forty linear layers of ten models (inductor_layers.py), bf16. The four of a model are one graph, which is compiled from
nothing with all candidates and with those that stay: caches are fresh, and models take turns in what comes first. Then
each layer is compiled alone out of the same caches, and what was chosen is timed in a CUDA graph over copies of the
weights that L2 does not hold, both choices in turns (inductor_bench.py).

Results are written after each model: compile.csv, layers.csv, and candidates.csv with Inductor's own timing of each
candidate. A model that is there already is not measured again, so that a run that was cut off goes on.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from inductor_layers import LAYERS, Layer, models

VARIANTS = ("all", "pruned")
MOST_COMPILE_FRAC, LEAST_SPEED, LEAST_WORST_SPEED = 0.30, 0.99, 0.95
LARGEST_ERROR = 0.01


class Compiled(NamedTuple):
    """One model, compiled in one way.

    Attributes:
        compile_s: of the graph of its layers, from nothing to the end of its first call.
        runs: what runs each layer, for `Bench.times_us`.
        choices: names of the kernels that run each layer.
        candidates: Inductor's own timings, a row for each candidate.
        num_candidates: of all its GEMMs.
        errors: largest error of each layer against float64, over the largest value.
    """

    compile_s: float
    runs: Sequence[Any]
    choices: Sequence[str]
    candidates: Sequence[Mapping[str, Any]]
    num_candidates: int
    errors: Sequence[float]


class Bench(Protocol):
    """Compiles and times; `inductor_bench.GpuBench` is one."""

    def compile_model(self, layers: Sequence[Layer], variant: str) -> Compiled:
        """Compile the layers of a model from nothing."""

    def times_us(self, runs: Sequence[Any]) -> list[float]:
        """Time several ways to run a layer, in turns."""


class Table:
    """A CSV file that grows row by row, each on disk before the next."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, str]]:
        """Return what is there."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows, all of the same columns."""
        rows = list(rows)
        if not rows:
            return
        is_new = not self.path.is_file()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            if is_new:
                writer.writeheader()
            writer.writerows(rows)


def measure_model(bench: Bench, folder: Path, model: str, top_k: int, *, is_pruned_first: bool) -> None:
    """Measure one model, and append what was found; layers.csv last, which says that it is done."""
    layers = [layer for layer in LAYERS if layer.model == model]
    order = VARIANTS[::-1] if is_pruned_first else VARIANTS
    compiled = {variant: bench.compile_model(layers, variant) for variant in order}
    every, pruned = compiled["all"], compiled["pruned"]
    rows = []
    for i, layer in enumerate(layers):
        all_us, pruned_us = bench.times_us([every.runs[i], pruned.runs[i]])
        rows.append(
            {
                **layer._asdict(), "top_k": top_k, "all_us": all_us, "pruned_us": pruned_us,
                "speed": all_us / pruned_us, "all_choice": every.choices[i], "pruned_choice": pruned.choices[i],
                "all_error": every.errors[i], "pruned_error": pruned.errors[i],
            }
        )  # fmt: skip
    for variant, one in compiled.items():
        Table(folder / "candidates.csv").append({"model": model, "variant": variant, **row} for row in one.candidates)
    Table(folder / "compile.csv").append(
        [
            {
                "model": model, "top_k": top_k, "first": order[0], "all_s": every.compile_s,
                "pruned_s": pruned.compile_s, "all_candidates": every.num_candidates,
                "pruned_candidates": pruned.num_candidates,
            }
        ]
    )  # fmt: skip
    Table(folder / "layers.csv").append(rows)


def measure(bench: Bench, folder: Path, names: Sequence[str], top_k: int, budget_s: float) -> list[str]:
    """Measure models until all are done, or the next might not end within the budget; return those that are left."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {row["model"] for row in Table(folder / "layers.csv").rows()}
    left = [name for name in names if name not in done]
    start, longest_s = time.monotonic(), 0.0
    while left:
        begin = time.monotonic()
        if begin - start + longest_s > budget_s:
            break
        model = left[0]
        measure_model(bench, folder, model, top_k, is_pruned_first=names.index(model) % 2 == 1)
        longest_s = max(longest_s, time.monotonic() - begin)
        row = Table(folder / "compile.csv").rows()[-1]
        print(f"{model}: {float(row['all_s']):.1f} s and {float(row['pruned_s']):.1f} s", flush=True)
        left.pop(0)
    return left


def summary(folder: Path) -> str:
    """Return what the files of a folder say, and whether it is what must hold."""
    done = {
        row["model"]: row for row in Table(folder / "compile.csv").rows()
    }  # a model cut off and done anew: the last
    layers = Table(folder / "layers.csv").rows()
    compiles = [done[model] for model in dict.fromkeys(row["model"] for row in layers)]
    if not layers:
        return f"nothing is measured in {folder}"
    all_s, pruned_s = (sum(float(row[name]) for row in compiles) for name in ("all_s", "pruned_s"))
    fracs = [float(row["pruned_s"]) / float(row["all_s"]) for row in compiles]
    speeds = {f"{row['model']} {row['name']}": float(row["speed"]) for row in layers}
    mean = math.exp(statistics.mean(math.log(speed) for speed in speeds.values()))
    worst = min(speeds, key=speeds.__getitem__)
    errors = [float(row[name]) for row in layers for name in ("all_error", "pruned_error")]
    candidates = [sum(int(row[name]) for row in compiles) for name in ("all_candidates", "pruned_candidates")]
    same = sum(row["all_choice"] == row["pruned_choice"] for row in layers)
    kept = ", ".join(sorted({row["top_k"] for row in layers}))
    lines = [
        f"{len(layers)} layers of {len(compiles)} models, top_k = {kept}",
        f"compiled in {pruned_s:.1f} s instead of {all_s:.1f}: {pruned_s / all_s:.1%}, by model {min(fracs):.1%} to "
        f"{max(fracs):.1%}; {candidates[1]} candidates instead of {candidates[0]}",
        f"speed: geometric mean {mean:.2%}, worst {speeds[worst]:.2%} ({worst}); {same} choices are the same",
        f"largest error against float64: {max(errors):.4f}",
    ]
    for what, holds in (
        (f"compile time at most {MOST_COMPILE_FRAC:.0%}", pruned_s <= MOST_COMPILE_FRAC * all_s),
        (f"speed at least {LEAST_SPEED:.0%} in the geometric mean", mean >= LEAST_SPEED),
        (f"no layer below {LEAST_WORST_SPEED:.0%}", speeds[worst] >= LEAST_WORST_SPEED),
        (f"errors at most {LARGEST_ERROR}", max(errors) <= LARGEST_ERROR),
    ):
        lines.append(f"{'holds' if holds else 'FAILS'}: {what}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--top-k", type=int, help="candidates of a template that stay; default: that of prune_inductor")
    parser.add_argument("--models", nargs="+", choices=models(), default=models(), metavar="MODEL", help="only these")
    parser.add_argument("--budget-s", type=float, default=480.0, help="begin no model that might not end by then")
    parser.add_argument("--show", action="store_true", help="only the summary of what is there")
    options = parser.parse_args(argv)
    if not options.show:
        from inductor_bench import GpuBench

        from gemm_eval.torch.inductor import DEFAULT_TOP_K

        top_k = options.top_k or DEFAULT_TOP_K
        left = measure(GpuBench(top_k), options.out, options.models, top_k, options.budget_s)
        if left:
            print(f"not measured, for time ran out: {', '.join(left)}")
    print(summary(options.out))


if __name__ == "__main__":
    main()
