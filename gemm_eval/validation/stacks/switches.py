"""Layers that were timed beside their operations alone: what operations take more in a step, and how well that is told.

Committed tables lie in ``arch/measured/<gpu>/switches``; `benchmarks/measure_switches.py` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu import SWITCH_COEFFICIENTS, SWITCH_DEFAULTS, switch_us
from gemm_eval.validation.fit import Ranges, Search, fit_logs
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats

__all__ = ["SwitchScore", "fit_switches", "read_switches", "score_switches"]

_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-2, evaluations=100)
_TIMED_ALONE = ("qkv_us", "o_us", "gate_up_us", "down_us", "attention_us")  # memory-bound ones: between others
_NUM_NORMS = 2


class SwitchScore(NamedTuple):
    """How far off layers are, in the mean.

    Attributes:
        num_layers: that were timed.
        alone_frac: their operations by themselves, added up, memory-bound ones as predicted.
        held_out_frac: and what switching takes, each size of layer by a fit on the others.
        coefficients: fitted on all.
    """

    num_layers: int
    alone_frac: float
    held_out_frac: float
    coefficients: Mapping[str, float]


def read_switches(gpu: str) -> pd.DataFrame | None:
    """Return the table of a GPU; None: there is none."""
    path = measured_root(gpu) / "switches" / "layers.csv"
    return pd.read_csv(path) if path.is_file() else None


def score_switches(gpu: str) -> SwitchScore | None:
    """Score a GPU; None: it has no such layers."""
    table = read_switches(gpu)
    if table is None:
        return None
    alone_us, layer_us = _alone_us(gpu, table), _column(table, "layer_us")
    held_us = np.empty(len(table))
    for hidden in np.unique(_column(table, "hidden")):
        held = _column(table, "hidden") == hidden
        held_us[held] = _more_us(gpu, table[held], fit_switches(gpu, table[~held]))
    return SwitchScore(
        len(table),
        float(np.abs(alone_us / layer_us - 1).mean()),
        float(np.abs((alone_us + held_us) / layer_us - 1).mean()),
        fit_switches(gpu, table),
    )


def fit_switches(gpu: str, table: pd.DataFrame) -> dict[str, float]:
    """Return the coefficients, fitted on the times of layers."""
    ranges = Ranges(SWITCH_COEFFICIENTS)
    alone_us = _alone_us(gpu, table)
    start = ranges.shares(SWITCH_DEFAULTS, _SEARCH.off_bounds)

    def predict(values: dict[str, float]) -> Floats:
        return alone_us + _more_us(gpu, table, values)

    return ranges.values(fit_logs(ranges, predict, _column(table, "layer_us"), start, _SEARCH))


def _more_us(gpu: str, table: pd.DataFrame, c: Mapping[str, float]) -> Floats:
    found: Floats = len(_TIMED_ALONE) * switch_us(load_arch(gpu, GpuSpec), _column(table, "batch"), c)
    return found


def _alone_us(gpu: str, table: pd.DataFrame) -> Floats:
    evaluator = GEMMEvaluator(gpu)

    def memory_us(row: Mapping[str, int]) -> float:
        batch, hidden, inner = row["batch"], row["hidden"], row["inner"]
        width = (row["heads"] + 2 * row["kv_heads"]) * 128
        turned, wide = 2 * batch * width, 2 * batch * inner
        norm = evaluator.evaluate_memory_bound(4 * batch * hidden, 4 * batch * hidden, hidden, batch, "add_rms_norm")
        turn = evaluator.evaluate_memory_bound(turned, turned, width, batch, "rotary_kv_write")
        act = evaluator.evaluate_memory_bound(2 * wide, wide, inner, batch, "act_mul")
        return _NUM_NORMS * norm.latency_us + turn.latency_us + act.latency_us

    memory = [memory_us(cast("dict[str, int]", row)) for row in table.to_dict("records")]
    return np.array(memory) + sum(_column(table, name) for name in _TIMED_ALONE)


def _column(table: pd.DataFrame, name: str) -> Floats:
    return cast("Floats", table[name].to_numpy(np.float64))
