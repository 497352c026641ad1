"""The M from which on a dense GEMM beats our W4A16 kernels: predicted, measured, plotted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError, UnsupportedError
from gemm_eval.evaluate import Crossover, GEMMEvaluator, w4a16_crossover
from gemm_eval.validation.subjects.w4a16 import list_w4a16_tables
from gemm_eval.words import needs_extra

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLEAR_FRAC = 0.03
"""A measured win or loss is clear beyond this share: timings of another day move by some 2%."""

_GEMM = ["N", "K", "M"]


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

    Weights share a scale along `group_size` of K (-1: one scale a column); `dense_dtype` is that of the dense weights
    and of the activations. Columns are table, is_held_back (no coefficient was fitted on it), N, K, M, w4a16_us (least
    of the configs), dense_us, speedup (dense / W4A16) and num_configs.

    Raises:
        InvalidInputError: no such timings come with the library.
    """
    parts = []
    for is_held_back in (False, True):
        for path in list_w4a16_tables(gpu, is_held_back=is_held_back):
            beside = path.with_name(f"{path.stem}-cublas.parquet")
            if not beside.is_file():
                continue
            ours, dense = pd.read_parquet(path), pd.read_parquet(beside)
            is_asked = (ours["group_size"] == group_size) & (ours["input_dtype"] == dense_dtype)
            best = ours[is_asked & ours["mode"].isin(["group", "column"])].groupby(_GEMM)["latency_us"]
            dense_us = dense[dense["input_dtype"] == dense_dtype].groupby(_GEMM)["latency_us"].median()
            frame = best.agg(w4a16_us="min", num_configs="size").join(dense_us.rename("dense_us"), how="inner")
            frame = frame.reset_index().assign(table=path.stem, is_held_back=is_held_back)
            parts.append(frame.sort_values(_GEMM))
    if not any(map(len, parts)):
        raise InvalidInputError(
            f"no timings of W4A16 (group_size {group_size}) beside {dense_dtype} on {gpu} come with the library"
        )
    frame = pd.concat([part for part in parts if len(part)], ignore_index=True).astype(dict.fromkeys(_GEMM, "int64"))
    frame = frame.assign(speedup=frame["dense_us"] / frame["w4a16_us"])
    return pd.DataFrame(frame[["table", "is_held_back", *_GEMM, "w4a16_us", "dense_us", "speedup", "num_configs"]])


def predict_speedups(
    arch: GEMMEvaluator | str, measured: pd.DataFrame, group_size: int = 128, dense_dtype: str = "fp16"
) -> pd.DataFrame:
    """Return rows of `measured_speedups` with predictions: cold L2 and burst clock, and the committed calibration.

    More columns are predicted_w4a16_us, predicted_dense_us, predicted_speedup, is_sign_right (both speedups are above
    1, or neither) and is_clear (the measured one is more than `CLEAR_FRAC` off 1).
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
    """Return how often the predicted winner is the measured one, of what `predict_speedups` returns, table by table.

    Columns are num and right_frac; num_clear and clear_right_frac of points whose measured speedup is more than
    `CLEAR_FRAC` off 1; always_frac, the share of these that are wins; lost_frac, how much longer than the measured best
    the predicted winner takes in the mean; always_lost_frac and never_lost_frac: by always or never W4A16.
    """
    rows = []
    for (is_held_back, table), points in predicted.groupby(["is_held_back", "table"], sort=True):
        clear = points[points["is_clear"]]
        taken_us = points["w4a16_us"].where(points["predicted_speedup"] > 1.0, points["dense_us"])
        best_us = points[["w4a16_us", "dense_us"]].min(axis=1)
        lost = (float((us / best_us - 1.0).mean()) for us in (taken_us, points["w4a16_us"], points["dense_us"]))
        shares = points["is_sign_right"].mean(), len(clear), clear["is_sign_right"].mean()
        rows.append((table, is_held_back, len(points), *shares, (clear["speedup"] > 1.0).mean(), *lost))
    columns = ["table", "is_held_back", "num", "right_frac", "num_clear", "clear_right_frac", "always_frac"]
    return pd.DataFrame(rows, columns=[*columns, "lost_frac", "always_lost_frac", "never_lost_frac"])


def brackets(M: Sequence[int], speedup: Sequence[float]) -> tuple[Bracket, Bracket]:
    """Return between which measured M, rising, W4A16 first stops winning, and after which it does not win again."""
    losses = [index for index, value in enumerate(speedup) if value <= 1.0]
    wins = [index for index, value in enumerate(speedup) if value > 1.0]

    def bracket(index: int) -> Bracket:
        return Bracket(M[index - 1] if index else None, M[index] if index < len(M) else None)

    return bracket(min(losses, default=len(M))), bracket(1 + max(wins, default=-1))


def compare_crossovers(
    arch: GEMMEvaluator | str, predicted: pd.DataFrame, group_size: int = 128, dense_dtype: str = "fp16"
) -> pd.DataFrame:
    """Return the predicted crossover of each measured pair beside the measured one, up to the largest M measured.

    `predicted` is what `predict_speedups` returns, of pairs with several M. A row for each table and pair has table, N,
    K, num (measured M), max_M; predicted first_loss_M and last_win_M of all M up to it (missing: no loss, no win); as a
    `Bracket` of measured M measured_first_loss, measured_last_win, predicted_first_loss and predicted_last_win;
    num_right (measured M with the right winner), num_clear, num_clear_right, agrees (all winners are right) and
    agrees_clearly (all that are clear). Tiles end at the M that people measure: first_loss_M is often one row off.
    """
    evaluator = arch if isinstance(arch, GEMMEvaluator) else GEMMEvaluator(arch)
    rows = []
    pair: Any
    for pair, points in predicted.groupby(["table", "N", "K"], sort=False):
        (table, N, K), ordered = pair, points.sort_values("M")
        M, right, clear = ordered["M"].tolist(), ordered["is_sign_right"], ordered["is_clear"]
        of = w4a16_crossover(evaluator, int(K), int(N), group_size=group_size, dense_dtype=dense_dtype, max_M=M[-1])
        row = {
            "table": table, "N": N, "K": K, "num": len(M), "max_M": M[-1],
            "first_loss_M": of.first_loss_M, "last_win_M": of.last_win_M,
        }  # fmt: skip
        for place, name in enumerate(("first_loss", "last_win")):
            row[f"measured_{name}"] = brackets(M, ordered["speedup"].tolist())[place]
            row[f"predicted_{name}"] = brackets(M, ordered["predicted_speedup"].tolist())[place]
        row |= {"num_right": int(right.sum()), "num_clear": int(clear.sum())}
        row |= {"num_clear_right": int((right & clear).sum())}
        rows.append(row | {"agrees": bool(right.all()), "agrees_clearly": bool(right[clear].all())})
    return pd.DataFrame(rows).astype({"first_loss_M": "Int64", "last_win_M": "Int64"})


_MEASURED: dict[str, Any] = {"s": 24, "edgecolors": figures.SURFACE, "linewidths": 0.4, "zorder": 3}
_SPEEDUP_TICKS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@figures.styled
def plot_crossover(crossover: Crossover, measured: pd.DataFrame | None = None) -> Figure:
    """Plot the speedup of W4A16 over M, and below it both latencies, whose steps are tiles and waves.

    Of `measured`, rows of `measured_speedups`, those of this N and K are drawn as points.

    Raises:
        UnsupportedError: `measured` has the pair, but the crossover is not of cold weights in bursts.
    """
    points = None
    if measured is not None:
        of_pair = measured[(measured["N"] == crossover.N) & (measured["K"] == crossover.K)]
        points = of_pair if len(of_pair) else None
    if points is not None and (crossover.l2, crossover.clock) != ("cold", "burst"):
        raise UnsupportedError(
            f"timings are of cold L2 and burst clock, the crossover is of {crossover.l2} and {crossover.clock}"
        )
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    figure = figures.new_figure(7.6, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    is_faster = crossover.speedup >= 1.0
    area = upper.fill_between(
        crossover.M, crossover.speedup, 1.0, where=is_faster, color=figures.SERIES[0], alpha=0.15, linewidth=0,
        label="W4A16 is faster",
    )  # fmt: skip
    upper.axhline(1.0, color=figures.TEXT, linewidth=0.8)
    handles: list[Artist] = []
    drawn: dict[Axes, list[npt.NDArray[np.float64]]] = {upper: [], lower: []}
    for axes, side, values, column, label in (
        (upper, 0, crossover.speedup, "speedup", ""),
        (lower, 0, crossover.w4a16_us, "w4a16_us", "W4A16"),
        (lower, 1, crossover.dense_us, "dense_us", crossover.dense_dtype),
    ):
        color, marker = figures.SERIES[side], figures.MARKERS[side]
        lines = axes.plot(
            crossover.M, values, color=color, linestyle=figures.DASHES[side], linewidth=1.0, label=f"{label}, predicted"
        )
        handles += lines if label else []
        drawn[axes].append(values)
        if points is not None:
            axes.scatter(points["M"], points[column], color=color, marker=marker, **_MEASURED)
            measured_label = f"{label}, measured"
            handles += [Line2D([], [], linestyle="", color=color, marker=marker, label=measured_label)] if label else []
            drawn[axes].append(points[column].to_numpy(np.float64))
    for axes in (upper, lower):
        axes.set_yscale("log")
        figures.add_grid(axes)
    upper.set_ylabel(f"speedup of W4A16: {crossover.dense_dtype} time / W4A16 time")
    figures.scale_axis(lower.yaxis, "latency_us", np.concatenate(drawn[lower]), is_log=True)
    # few ticks, as plain numbers: on a log axis of less than a decade matplotlib would print powers of ten
    speedups = np.concatenate(drawn[upper])
    kept = [tick for tick in _SPEEDUP_TICKS if 0.9 * speedups.min() <= tick <= 1.1 * speedups.max()]
    upper.set_yticks(kept, labels=[f"{tick:g}" for tick in kept])
    upper.set_yticks([], minor=True)
    M = crossover.M if points is None else np.concatenate([crossover.M, points["M"]])
    figures.set_rows_axis(lower, M.min(), M.max())
    group = "one scale a column" if crossover.group_size < 0 else f"groups of {crossover.group_size}"
    figures.add_title(
        figure,
        f"W4A16 ({group}) against {crossover.dense_dtype}: K={crossover.K} N={crossover.N} on {crossover.arch_name}\n"
        f"{crossover.l2} L2, {crossover.clock} clock",
    )
    figures.add_legend(figure, [*handles, *([area] if is_faster.any() else [])])
    figure.align_ylabels()
    return figure
