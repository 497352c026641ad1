"""From which M on a dense GEMM beats our W4A16 kernels: predicted, measured, plotted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.errors import InvalidInputError, UnsupportedError
from gemm_eval.evaluate import Crossover, GEMMEvaluator, w4a16_crossover
from gemm_eval.extras import needs_extra
from gemm_eval.figures import (
    DASHES,
    MARKERS,
    SERIES,
    TEXT,
    add_grid,
    add_legend,
    add_title,
    new_figure,
    scale_axis,
    set_rows_axis,
    styled,
)
from gemm_eval.validation.plots import MEASURED
from gemm_eval.validation.predictors.w4a16 import list_w4a16_tables

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLEAR_FRAC = 0.03
"""A measured win or loss is clear beyond this share: timings of another day move by some 2%."""

_GEMM = ["N", "K", "M"]
_PAIR = ["table", "N", "K"]


class Bracket(NamedTuple):
    """Neighbouring measured M between which something changes; None: beyond what was measured."""

    after: int | None
    by: int | None

    def __str__(self) -> str:
        if self.by is None:
            return f"> {self.after}"
        return f"<= {self.by}" if self.after is None else f"{self.after}..{self.by}"


def measured_speedups(gpu: str, group_size: int = 128, dense_dtype: str = "fp16") -> pd.DataFrame:
    """Return the measured GEMMs that have both sides, from all tables of a GPU, those that were held back included.

    Args:
        gpu: arch name.
        group_size: weights along K that share a scale; -1: one scale a column.
        dense_dtype: of the dense weights and of the activations.

    Returns:
        Columns table, is_held_back (no coefficient was fitted on it), N, K, M, w4a16_us (least of the configs),
        dense_us, speedup (dense / W4A16) and num_configs, by table, N, K and M.

    Raises:
        InvalidInputError: no such timings come with the library.
    """
    parts = [
        _read(path, is_held_back, group_size, dense_dtype)
        for is_held_back in (False, True)
        for path in list_w4a16_tables(gpu, is_held_back=is_held_back)
        if path.with_name(f"{path.stem}-cublas.parquet").is_file()
    ]
    found = [part for part in parts if len(part)]
    if not found:
        raise InvalidInputError(
            f"no timings of W4A16 (group_size {group_size}) beside {dense_dtype} on {gpu} come with the library"
        )
    return pd.concat(found, ignore_index=True)


def _read(path: Path, is_held_back: bool, group_size: int, dense_dtype: str) -> pd.DataFrame:
    ours = pd.read_parquet(path)
    is_asked = (ours["group_size"] == group_size) & (ours["input_dtype"] == dense_dtype)
    ours = ours[is_asked & ours["mode"].isin(["group", "column"])]
    dense = pd.read_parquet(path.with_name(f"{path.stem}-cublas.parquet"))
    dense = dense[dense["input_dtype"] == dense_dtype]
    best = ours.groupby(_GEMM)["latency_us"].agg(w4a16_us="min", num_configs="size")
    frame = best.join(dense.groupby(_GEMM)["latency_us"].median().rename("dense_us"), how="inner").reset_index()
    frame = frame.astype(dict.fromkeys(_GEMM, "int64")).assign(
        table=path.stem, is_held_back=is_held_back, speedup=frame["dense_us"] / frame["w4a16_us"]
    )
    columns = ["table", "is_held_back", *_GEMM, "w4a16_us", "dense_us", "speedup", "num_configs"]
    return pd.DataFrame(frame[columns]).sort_values(_GEMM, ignore_index=True)


def predict_speedups(
    arch: GEMMEvaluator | str, measured: pd.DataFrame, group_size: int = 128, dense_dtype: str = "fp16"
) -> pd.DataFrame:
    """Return `measured` with predictions: cold L2 and burst clock, as measured, and the committed calibration.

    Args:
        arch: the GPU, or an evaluator of it.
        measured: what `measured_speedups` returns, or rows of it.
        group_size, dense_dtype: those of `measured`.

    Returns:
        With the columns predicted_w4a16_us, predicted_dense_us, predicted_speedup, is_sign_right (both speedups are
        above 1, or neither) and is_clear (the measured one is more than `CLEAR_FRAC` off 1).
    """
    evaluator = arch if isinstance(arch, GEMMEvaluator) else GEMMEvaluator(arch)
    sizes = measured.assign(G=1)[["G", "M", "K", "N"]].to_numpy(np.int64)
    types: dict[str, Any] = {"input_dtype": dense_dtype, "output_dtype": dense_dtype, "l2": "cold", "clock": "burst"}
    types["correction"] = False  # as the crossover itself: of the model alone, on both sides
    ours = evaluator.evaluate_many(
        sizes, weight_dtype="int4", group_size=group_size, library="gemm-eval", progress=False, **types
    )
    dense = evaluator.evaluate_many(sizes, weight_dtype=dense_dtype, library="cublas", progress=False, **types)
    predicted = dense["latency_us"] / ours["latency_us"]
    return measured.assign(
        predicted_w4a16_us=ours["latency_us"],
        predicted_dense_us=dense["latency_us"],
        predicted_speedup=predicted,
        is_sign_right=(predicted > 1.0) == (measured["speedup"] > 1.0),
        is_clear=(measured["speedup"] - 1.0).abs() > CLEAR_FRAC,
    )


def sign_shares(predicted: pd.DataFrame) -> pd.DataFrame:
    """Say how often the predicted winner is the measured one.

    Args:
        predicted: what `predict_speedups` returns.

    Returns:
        A row for each table: num points and right_frac; num_clear and clear_right_frac of those whose measured speedup
        is more than `CLEAR_FRAC` off 1; always_frac: the share of clear points that are wins, which is what "W4A16
        always pays" gets right; lost_frac: how much longer than the measured best the predicted winner takes, in the
        mean over all points; always_lost_frac and never_lost_frac: the same of always, and never, taking W4A16.
    """
    rows = []
    for (is_held_back, table), points in predicted.groupby(["is_held_back", "table"], sort=True):
        clear = points[points["is_clear"]]
        takes_w4a16 = points["predicted_speedup"] > 1.0
        taken_us = points["w4a16_us"].where(takes_w4a16, points["dense_us"])
        best_us = points[["w4a16_us", "dense_us"]].min(axis=1)
        rows.append(
            {
                "table": table,
                "is_held_back": is_held_back,
                "num": len(points),
                "right_frac": points["is_sign_right"].mean(),
                "num_clear": len(clear),
                "clear_right_frac": clear["is_sign_right"].mean(),
                "always_frac": (clear["speedup"] > 1.0).mean(),
                "lost_frac": (taken_us / best_us - 1.0).mean(),
                "always_lost_frac": (points["w4a16_us"] / best_us - 1.0).mean(),
                "never_lost_frac": (points["dense_us"] / best_us - 1.0).mean(),
            }
        )
    return pd.DataFrame(rows)


def first_loss_bracket(M: Sequence[int], speedup: Sequence[float]) -> Bracket:
    """Return between which measured M, rising, W4A16 first stops winning."""
    losses = [place for place, value in enumerate(speedup) if value <= 1.0]
    if not losses:
        return Bracket(M[-1], None)
    return Bracket(M[losses[0] - 1] if losses[0] else None, M[losses[0]])


def last_win_bracket(M: Sequence[int], speedup: Sequence[float]) -> Bracket:
    """Return after which measured M, rising, W4A16 does not win again: the last win and the M after it."""
    wins = [place for place, value in enumerate(speedup) if value > 1.0]
    if not wins:
        return Bracket(None, M[0])
    return Bracket(M[wins[-1]], M[wins[-1] + 1] if wins[-1] + 1 < len(M) else None)


def compare_crossovers(
    arch: GEMMEvaluator | str, predicted: pd.DataFrame, group_size: int = 128, dense_dtype: str = "fp16"
) -> pd.DataFrame:
    """Return the predicted crossover of each measured pair beside the measured one; M is looked at as far as measured.

    Args:
        arch: the GPU, or an evaluator of it.
        predicted: what `predict_speedups` returns; rows of pairs with several M.
        group_size, dense_dtype: those of `predicted`.

    Returns:
        A row for each table and pair: table, N, K, num (measured M), max_M (the largest), predicted first_loss_M and
        last_win_M of all M up to max_M (missing: no loss, no win); as a `Bracket` of measured M each:
        measured_first_loss and measured_last_win, predicted_first_loss and predicted_last_win; num_right (measured M
        with the right winner), num_clear and num_clear_right, agrees (all winners are right) and agrees_clearly (all
        that are clear). first_loss_M may well lie off its bracket: tiles end at the M that people measure, and the
        first loss is often one row beyond.
    """
    evaluator = arch if isinstance(arch, GEMMEvaluator) else GEMMEvaluator(arch)
    rows = []
    groups: Iterator[tuple[Any, pd.DataFrame]] = iter(predicted.groupby(_PAIR, sort=False))
    for (table, N, K), points in groups:
        ordered = points.sort_values("M")
        M, speedup, predicted_speedup = (ordered[name].tolist() for name in ("M", "speedup", "predicted_speedup"))
        found = w4a16_crossover(
            evaluator, int(K), int(N), group_size=group_size, dense_dtype=dense_dtype, max_M=int(M[-1])
        )
        right, clear = ordered["is_sign_right"], ordered["is_clear"]
        rows.append(
            {
                "table": table, "N": N, "K": K, "num": len(M), "max_M": M[-1],
                "first_loss_M": found.first_loss_M, "last_win_M": found.last_win_M,
                "measured_first_loss": first_loss_bracket(M, speedup),
                "predicted_first_loss": first_loss_bracket(M, predicted_speedup),
                "measured_last_win": last_win_bracket(M, speedup),
                "predicted_last_win": last_win_bracket(M, predicted_speedup),
                "num_right": int(right.sum()), "num_clear": int(clear.sum()),
                "num_clear_right": int((right & clear).sum()), "agrees": bool(right.all()),
                "agrees_clearly": bool(right[clear].all()),
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.astype({"first_loss_M": "Int64", "last_win_M": "Int64"})


_SPEEDUP_TICKS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_FASTER_ALPHA = 0.15


@styled
def plot_crossover(crossover: Crossover, measured: pd.DataFrame | None = None) -> Figure:
    """Plot the speedup of W4A16 over M, and below it both latencies, whose steps are tiles and waves.

    Args:
        crossover: the predicted lines.
        measured: rows of `measured_speedups`, of which those of this N and K are drawn as points.

    Raises:
        GemmEvalError: matplotlib is not installed.
        UnsupportedError: `measured` has the pair, but the crossover is not of cold weights in bursts.
    """
    points = None
    if measured is not None:
        points = measured[(measured["N"] == crossover.N) & (measured["K"] == crossover.K)]
        if not len(points):
            points = None
        elif (crossover.l2, crossover.clock) != ("cold", "burst"):
            raise UnsupportedError(
                f"timings are of cold L2 and burst clock, the crossover is of {crossover.l2} and {crossover.clock}"
            )
    figure = new_figure(7.6, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    area = _draw_speedup(upper, crossover, points)
    handles = _draw_latencies(lower, crossover, points)
    M = crossover.M if points is None else np.concatenate([crossover.M, points["M"]])
    set_rows_axis(lower, M.min(), M.max())
    group = "one scale a column" if crossover.group_size < 0 else f"groups of {crossover.group_size}"
    add_title(
        figure,
        f"W4A16 ({group}) against {crossover.dense_dtype}: K={crossover.K} N={crossover.N} on {crossover.arch_name}\n"
        f"{crossover.l2} L2, {crossover.clock} clock",
    )
    add_legend(figure, handles + area)
    figure.align_ylabels()
    return figure


def _draw_speedup(axes: Axes, crossover: Crossover, points: pd.DataFrame | None) -> list[Artist]:
    """Draw speedups in the colour of W4A16; returns the area where it is faster, if there is one, for the legend."""
    is_faster = crossover.speedup >= 1.0
    area = axes.fill_between(
        crossover.M, crossover.speedup, 1.0, where=is_faster, color=SERIES[0], alpha=_FASTER_ALPHA, linewidth=0,
        label="W4A16 is faster",
    )  # fmt: skip
    axes.axhline(1.0, color=TEXT, linewidth=0.8)
    axes.plot(crossover.M, crossover.speedup, color=SERIES[0], linewidth=1.0)
    values: npt.NDArray[np.float64] = crossover.speedup
    if points is not None:
        axes.scatter(points["M"], points["speedup"], color=SERIES[0], marker=MARKERS[0], **MEASURED)
        values = np.concatenate([values, points["speedup"]])
    axes.set(yscale="log", ylabel=f"speedup of W4A16: {crossover.dense_dtype} time / W4A16 time")
    add_grid(axes)
    _set_speedup_ticks(axes, float(values.min()), float(values.max()))
    return [area] if is_faster.any() else []


def _draw_latencies(axes: Axes, crossover: Crossover, points: pd.DataFrame | None) -> list[Artist]:
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    handles: list[Artist] = []
    drawn_us = []
    sides = ((crossover.w4a16_us, "w4a16_us", "W4A16"), (crossover.dense_us, "dense_us", crossover.dense_dtype))
    for place, (latency_us, column, words) in enumerate(sides):
        color, marker = SERIES[place], MARKERS[place]
        handles += axes.plot(
            crossover.M, latency_us, color=color, linestyle=DASHES[place], linewidth=1.0, label=f"{words}, predicted"
        )
        drawn_us.append(latency_us)
        if points is not None:
            axes.scatter(points["M"], points[column], color=color, marker=marker, **MEASURED)
            handles.append(Line2D([], [], linestyle="", color=color, marker=marker, label=f"{words}, measured"))
            drawn_us.append(points[column].to_numpy(np.float64))
    axes.set_yscale("log")
    add_grid(axes)
    scale_axis(axes.yaxis, "latency_us", np.concatenate(drawn_us), is_log=True)
    return handles


def _set_speedup_ticks(axes: Axes, low: float, high: float) -> None:
    """Few ticks, as plain numbers: on a log axis of less than a decade matplotlib would print powers of ten."""
    kept = [tick for tick in _SPEEDUP_TICKS if 0.9 * low <= tick <= 1.1 * high]
    axes.set_yticks(kept, labels=[f"{tick:g}" for tick in kept])
    axes.set_yticks([], minor=True)
