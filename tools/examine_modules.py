"""How far predictions of modules are from measured times that no rule was made from.

    python -m tools.examine_modules                                 # drawn modules, ninth report: eager, compiled,
                                                                    # and with gradients
    python -m tools.examine_modules --arch h100-sxm --split fit     # those that rules were made from
    python -m tools.examine_modules --arch h100-sxm --real          # models of torchvision, timm and transformers
    python -m tools.examine_modules --arch h100-sxm --inductor-ir   # compiled ones by the kernels that Inductor makes
    python -m tools.examine_modules --fit-intervals                 # factors of intervals, by the interval splits

Times are those of arch/measured/GPU/modules, replays of CUDA graphs; predictions are what `predict_module` says of the
module and its inputs, with nothing else given.
"""

import argparse
import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.errors import GemmEvalError
from gemm_eval.models.gpu import COVERAGE_FRAC
from gemm_eval.torch import predict_module
from gemm_eval.torch.graph import INDUCTOR_IR
from gemm_eval.torch.prediction import interval_path
from tools.draw_modules import REAL_SEED, SEEDS, drawn, drawn_real

_TABLES = (("eager", "eager"), ("compiled", "inductor"), ("eager-backward", "eager"))
_INTERVAL_SPLITS = "second interval", "seventh report", "eighth report"
"""Splits on whose modules no constant was fitted whole; some rules were chosen with these errors in view."""
_IN_VIEW_FRAC = 0.04
"""Share of modules that fall out of their intervals beyond those in view of whoever makes rules: fitted to hold 80% of
these, intervals held 74 to 85%, 77% in the mean, of the seventh and eighth report when these were opened."""
_COMPILED_SPLITS = {"h100-sxm": ("interval",), "h200-sxm": ("seventh report", "eighth report")}
"""Splits of compiled modules, of which few others were timed: rules were made from some of them."""
_REAL_TABLES = (("real", "eager"), ("real-compiled", "inductor"))


class Answer(NamedTuple):
    """A module, its measured time, and what was predicted; nan: it was refused.

    `needed` is the factor by which the interval would have to be wider to hold the measured time just so.
    """

    name: str
    group: str
    measured_us: float
    predicted_us: float
    needed: float
    num_unpriced: int

    @property
    def is_inside(self) -> bool:
        """Return whether the interval holds the measured time."""
        return self.needed <= 1.0


def answers(path: Path, fusion: str, split: str, arch: str) -> list[Answer]:
    """Return the answers to the modules of a split that have a time."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split and not row["error"]]
    return [_answer(row, fusion, arch, path.stem.endswith("backward")) for row in rows]


def _answer(row: dict[str, str], fusion: str, arch: str, backward: bool) -> Answer:
    if int(row["seed"]) == REAL_SEED:
        draw = drawn_real(row["family"], row["text"])
    else:
        draw = drawn(int(row["seed"]), int(row["number"]), attempt=int(row["attempt"]))
    measured_us = float(row["graph_us"])
    try:
        with draw.settings(), torch.set_grad_enabled(backward):
            result = predict_module(draw.module, draw.tensors(), arch, fusion=fusion, backward=backward)
    except (GemmEvalError, RuntimeError) as error:  # of torch, where another version of a library is installed
        Console(stderr=True).print(f"refused: {row['text'][:80]}: {error}", markup=False)
        return Answer(row["text"], row["family"], measured_us, float("nan"), math.inf, 0)
    off_us = measured_us - result.latency_us
    needed = off_us / ((result.high_us if off_us > 0.0 else result.low_us) - result.latency_us)
    unpriced = sum(each.bound == "unpriced" for each in result.operations)
    return Answer(row["text"], row["family"], measured_us, result.latency_us, needed, unpriced)


def add_row(table: Table, label: str, some: list[Answer]) -> None:
    """Add the figures of some answers to a table."""
    errors = np.array([one.predicted_us / one.measured_us - 1.0 for one in some])
    known = errors[~np.isnan(errors)]
    size = np.abs(known)
    figures = (size.mean(), np.median(size), np.quantile(size, 0.9), known.mean()) if len(known) else (np.nan,) * 4
    inside = sum(one.is_inside for one in some) / len(some)
    unpriced = sum(one.num_unpriced > 0 for one in some)
    words = [f"{100.0 * value:.1f}%" for value in figures]
    table.add_row(label, str(len(some)), *words, f"{inside:.0%}", str(len(errors) - len(known)), str(unpriced))


def fit_intervals(arch: str) -> None:
    """Write the factors of intervals with which 80% of other modules lie inside, by table.

    A table without modules of `_INTERVAL_SPLITS` on this GPU keeps its factor.
    """
    path, measured = interval_path(), data_root() / "measured"
    lines = path.read_text(encoding="utf-8").splitlines()
    before = read_yaml(path)
    for name, fusion in (*_TABLES, ("compiled", INDUCTOR_IR)):
        key, splits = (fusion, _COMPILED_SPLITS) if name == "compiled" else (name, {arch: _INTERVAL_SPLITS})
        needed = sorted(
            row.needed
            for gpu, of_gpu in splits.items()
            for split in of_gpu
            for row in answers(measured / gpu / "modules" / f"{name}.csv", fusion, split, gpu)
        )
        if not needed:
            continue
        factor = float(before.get(key, before.get(fusion, 1.0)))
        factor *= needed[min(len(needed), math.ceil((COVERAGE_FRAC + _IN_VIEW_FRAC) * (len(needed) + 1))) - 1]
        lines = [line for line in lines if not line.startswith(f"{key}:")]
        lines.append(f"{key}: {factor:.3g}  # {len(needed)} modules on {' and '.join(splits)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Print a table for each set of timings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="h200-sxm", help="GPU whose times are compared")
    parser.add_argument("--split", default="ninth report", choices=tuple(SEEDS))
    parser.add_argument("--real", action="store_true", help="models of other libraries instead")
    parser.add_argument("--worst", type=int, default=0, help="also name so many of the worst")
    parser.add_argument("--inductor-ir", action="store_true", help="compiled modules by Inductor's own kernels")
    parser.add_argument("--fit-intervals", action="store_true", help="only fit the factors of intervals")
    options = parser.parse_args()
    folder = data_root() / "measured" / options.arch / "modules"
    if options.fit_intervals:
        fit_intervals(options.arch)
        return
    tables = (("compiled", INDUCTOR_IR),) if options.inductor_ir else _TABLES
    for name, fusion in _REAL_TABLES if options.real else tables:
        path = folder / f"{name}.csv"
        if not path.is_file():
            continue
        table = Table(title=f"{name} modules on {options.arch}, {'report' if options.real else options.split}")
        for column in ("", "modules", "MAPE", "median", "p90", "bias", "inside 80%", "refused", "with unpriced work"):
            table.add_column(column, justify="right" if column else "left")
        rows = answers(path, fusion, "report" if options.real else options.split, options.arch)
        if not rows:
            continue
        for group in sorted({row.group for row in rows}):
            add_row(table, group, [row for row in rows if row.group == group])
        add_row(table, "all", rows)
        console = Console(width=110)
        console.print(table)
        rows.sort(key=lambda row: -abs(row.predicted_us / row.measured_us - 1.0))
        for row in rows[: options.worst]:
            console.print(f"{row.predicted_us:10.0f} {row.measured_us:10.0f} us  {row.name[:90]}")


if __name__ == "__main__":
    main()
