"""torch.compile's max-autotune with and without `prune_inductor`: how long it compiles, how fast what it chooses is.

    python -m benchmarks.measure_inductor --out FOLDER --top-k 3 2   # a GPU and PyTorch; about six minutes
    python -m benchmarks.measure_inductor --out FOLDER --drawn       # twelve drawn layers in the place of models
    python -m benchmarks.measure_inductor --out FOLDER --show        # the summary of what is there, without a GPU

Forty linear layers of ten models (inductor_layers.py), bf16. The four of a model are one graph, which is compiled from
nothing with all candidates, and with those that stay for each `top_k`: caches are fresh, and models take turns in what
comes first. Then each layer is compiled alone out of the same caches, and what was chosen is timed in a CUDA graph over
copies of the weights that L2 does not hold, all choices in turns (inductor_bench.py). Pruned, candidates that the
library surely beats are not compiled, and Inductor chooses among the others by timings in CUDA graphs; without pruning
it times as ever.

Results are written after each model: compile.csv, layers.csv, and candidates.csv with the timings that Inductor chose
by. A model that is there already is not measured again, so that a run that was cut off goes on.
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

from benchmarks.inductor_layers import DRAWN_LAYERS, LAYERS, Layer, models

MOST_COMPILE_FRAC, LEAST_SPEED, LEAST_WORST_SPEED = 0.30, 0.99, 0.95
LARGEST_ERROR = 0.01
NOT_TIMED = "library, not timed"


class Compiled(NamedTuple):
    """One model, compiled in one way.

    Attributes:
        compile_s: of the graph of its layers, from nothing to the end of its first call.
        runs: what runs each layer, for `Bench.times_us`.
        choices: names of the kernels that run each layer; ``library, not timed`` where no other candidate was left.
        candidates: the timings by which Inductor chose, a row for each candidate.
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

    def compile_model(self, layers: Sequence[Layer], top_k: int | None) -> Compiled:
        """Compile the layers of a model from nothing, pruned to `top_k` unless that is None."""

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


def measure_model(bench: Bench, folder: Path, model: str, top_ks: Sequence[int], turn: int) -> None:
    """Measure one model, and append what was found; layers.csv last, which says that it is done.

    Args:
        bench: compiles and times.
        folder: of the results.
        model: its name.
        top_ks: each is compared with all candidates.
        turn: which of all and `top_ks` is compiled first, modulo their number.
    """
    layers = [layer for layer in (*LAYERS, *DRAWN_LAYERS) if layer.model == model]
    variants = [None, *top_ks]
    order = [variants[(turn + i) % len(variants)] for i in range(len(variants))]
    compiled = {variant: bench.compile_model(layers, variant) for variant in order}
    every = compiled[None]
    rows = []
    for i, layer in enumerate(layers):
        times = dict(zip(variants, bench.times_us([compiled[variant].runs[i] for variant in variants]), strict=True))
        for top_k in top_ks:
            pruned = compiled[top_k]
            rows.append(
                {
                    **layer._asdict(), "top_k": top_k, "all_us": times[None], "pruned_us": times[top_k],
                    "speed": times[None] / times[top_k], "all_choice": every.choices[i],
                    "pruned_choice": pruned.choices[i], "all_error": every.errors[i], "pruned_error": pruned.errors[i],
                }
            )  # fmt: skip
    for variant, one in compiled.items():
        what = {"model": model, "top_k": variant or "all"}
        Table(folder / "candidates.csv").append({**what, **row} for row in one.candidates)
    Table(folder / "compile.csv").append(
        {
            "model": model, "top_k": top_k, "first": order[0] or "all", "all_s": every.compile_s,
            "pruned_s": compiled[top_k].compile_s, "all_candidates": every.num_candidates,
            "pruned_candidates": compiled[top_k].num_candidates,
        }
        for top_k in top_ks
    )  # fmt: skip
    Table(folder / "layers.csv").append(rows)


def measure(bench: Bench, folder: Path, names: Sequence[str], top_ks: Sequence[int], budget_s: float) -> list[str]:
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
        measure_model(bench, folder, model, top_ks, names.index(model))
        longest_s = max(longest_s, time.monotonic() - begin)
        rows = Table(folder / "compile.csv").rows()[-len(top_ks) :]
        pruned = ", ".join(f"{float(row['pruned_s']):.1f} with {row['top_k']}" for row in rows)
        print(f"{model}: {float(rows[0]['all_s']):.1f} s with all candidates, {pruned}", flush=True)
        left.pop(0)
    return left


def summary(folder: Path) -> str:
    """Return what the files of a folder say, and whether it is what must hold."""
    layers = Table(folder / "layers.csv").rows()
    if not layers:
        return f"nothing is measured in {folder}"
    # of a model that was cut off and done anew, the last counts
    compiles = {(row["top_k"], row["model"]): row for row in Table(folder / "compile.csv").rows()}
    texts = []
    for top_k in dict.fromkeys(row["top_k"] for row in layers):
        mine = [row for row in layers if row["top_k"] == top_k]
        names = dict.fromkeys(row["model"] for row in mine)
        texts.append(_summary_of(top_k, mine, [compiles[top_k, name] for name in names]))
    return "\n\n".join(texts)


def _summary_of(top_k: str, layers: Sequence[Mapping[str, str]], compiles: Sequence[Mapping[str, str]]) -> str:
    all_s, pruned_s = (sum(float(row[name]) for row in compiles) for name in ("all_s", "pruned_s"))
    fracs = [float(row["pruned_s"]) / float(row["all_s"]) for row in compiles]
    speeds = {f"{row['model']} {row['name']}": float(row["speed"]) for row in layers}
    mean = math.exp(statistics.mean(math.log(speed) for speed in speeds.values()))
    worst = min(speeds, key=speeds.__getitem__)
    errors = [float(row[name]) for row in layers for name in ("all_error", "pruned_error")]
    candidates = [sum(int(row[name]) for row in compiles) for name in ("all_candidates", "pruned_candidates")]
    same = sum(row["all_choice"] == row["pruned_choice"] for row in layers)
    untimed = sum(row["pruned_choice"] == NOT_TIMED for row in layers)
    lines = [
        f"top_k = {top_k}: {len(layers)} layers of {len(compiles)} models",
        f"compiled in {pruned_s:.1f} s instead of {all_s:.1f}: {pruned_s / all_s:.1%}, by model {min(fracs):.1%} to "
        f"{max(fracs):.1%}; {candidates[1]} candidates instead of {candidates[0]}",
        f"speed: geometric mean {mean:.2%}, worst {speeds[worst]:.2%} ({worst}); {same} choices are the same",
        f"{untimed} layers have no candidate left but the library's, which is not timed",
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
    parser.add_argument("--top-k", type=int, nargs="+", default=[3], help="candidates of a template that stay")
    parser.add_argument("--models", nargs="+", choices=models(), default=models(), metavar="MODEL", help="only these")
    parser.add_argument("--drawn", action="store_true", help="layers of drawn sizes in the place of models")
    parser.add_argument("--budget-s", type=float, default=480.0, help="begin no model that might not end by then")
    parser.add_argument("--show", action="store_true", help="only the summary of what is there")
    options = parser.parse_args(argv)
    if not options.show:
        from benchmarks.inductor_bench import GpuBench

        names = list(dict.fromkeys(layer.model for layer in DRAWN_LAYERS)) if options.drawn else options.models
        left = measure(GpuBench(), options.out, names, options.top_k, options.budget_s)
        if left:
            print(f"not measured, for time ran out: {', '.join(left)}")
    print(summary(options.out))


if __name__ == "__main__":
    main()
