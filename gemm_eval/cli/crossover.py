"""The command `crossover`: up to which M our W4A16 kernels beat a dense GEMM, predicted and measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.options import ClockOption, GpuOption, JsonOption, L2Option
from gemm_eval.cli.sizes import ColumnsOption, ReductionOption, one_of_each, sizes_argument
from gemm_eval.cli.words import refuse_others

if TYPE_CHECKING:
    import pandas as pd

    from gemm_eval.evaluate import Crossover, GEMMEvaluator

__all__ = ["crossover"]

_NUM_NAMED = 4
_ORDER = "K N"
_WHAT = "gemm-eval crossover --measured or --plot"


def crossover(
    ctx: typer.Context,
    sizes: Annotated[list[str] | None, sizes_argument(_ORDER)] = None,
    k: ReductionOption = None,
    n: ColumnsOption = None,
    arch: GpuOption = "h200-sxm",
    group_size: Annotated[
        int, typer.Option(help="Weights along K that share a scale: 32, 64 or 128; -1: one scale a column.")
    ] = 128,
    dense_dtype: Annotated[str, typer.Option(help="Type of the dense weights and of all activations: fp16, bf16.")] = (
        "fp16"
    ),
    l2: L2Option = None,
    clock: ClockOption = None,
    max_m: Annotated[int, typer.Option(help="The largest M that is looked at.")] = 16384,
    min_speedup: Annotated[
        float, typer.Option(help="What counts as a win: 1.05 asks W4A16 for 5%. Predictions of one K and N only.")
    ] = 1.0,
    measured: Annotated[
        bool, typer.Option("--measured", help="Beside it what was measured, by timings that come with the library.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="All measured K and N: goes with --measured, and without K and N.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot of one K and N (PNG).", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say at which M W4A16 pays: our kernels against cuBLAS with dense weights, for C[M,N] = A[M,K] x B[K,N].

    There is rarely one M up to which it does: both sides climb in steps. Shown are the ranges, the first loss, the last
    win, and what bounds each side. A speedup is the time of the dense GEMM over that of W4A16.

    Examples:

    gemm-eval crossover 4096 12288 --arch h200-sxm --measured

    gemm-eval crossover 4096 12288 --plot crossover.png
    """
    from gemm_eval.evaluate import GEMMEvaluator

    if all_:
        refuse_others(ctx, "--all", {"all_", "measured", "arch", "group_size", "dense_dtype", "l2", "clock", "json"})
    _check_options(is_all=all_, is_measured=measured, l2=l2, clock=clock)
    of_one = [] if all_ else one_of_each(_ORDER, sizes, {"K": k, "N": n}, ", or --all --measured")
    evaluator = GEMMEvaluator(arch)
    if all_:
        _print_all(evaluator, group_size, dense_dtype, as_json=json)
        return
    from gemm_eval.evaluate import w4a16_crossover

    K, N = of_one
    found = w4a16_crossover(
        evaluator, K, N, group_size=group_size, dense_dtype=dense_dtype, l2=l2 or "cold", clock=clock or "burst",
        max_M=max_m, min_speedup=min_speedup,
    )  # fmt: skip
    points = _measured_points(evaluator, found) if measured else None
    if plot is not None:
        from gemm_eval.validation import plot_crossover, save_figure

        save_figure(plot_crossover(found, points), plot)
    if json:
        from gemm_eval.cli.output import print_json

        extra = {} if points is None else {"measured": points.to_dict("records")}
        print_json(found.to_dict() | extra)
    else:
        _print_one(found, points)


def _check_options(*, is_all: bool, is_measured: bool, l2: str | None, clock: str | None) -> None:
    from gemm_eval.errors import InvalidOptionError

    if is_all and not is_measured:
        raise InvalidOptionError("--all goes with --measured: add it, or give one K and N")
    if is_measured and (l2 not in (None, "cold") or clock not in (None, "burst")):
        raise InvalidOptionError(
            f"--measured goes with --l2 cold and --clock burst, got {l2 or 'cold'}, {clock or 'burst'}"
        )


def _measured_points(evaluator: GEMMEvaluator, found: Crossover) -> pd.DataFrame:
    from gemm_eval.errors import InvalidInputError
    from gemm_eval.validation import measured_speedups, predict_speedups

    frame = measured_speedups(evaluator.arch.name, found.group_size, found.dense_dtype)
    points = frame[(frame["N"] == found.N) & (frame["K"] == found.K)].reset_index(drop=True)
    if not len(points):
        off = (frame["N"] / found.N).map(math.log2).abs() + (frame["K"] / found.K).map(math.log2).abs()
        nearest = frame.assign(off=off).sort_values("off")[["K", "N"]].drop_duplicates().head(_NUM_NAMED)
        known = ", ".join(f"K={k} N={n}" for k, n in zip(nearest["K"], nearest["N"], strict=True))
        raise InvalidInputError(
            f"K={found.K} N={found.N} was not measured on {evaluator.arch.name}; the nearest that were: {known}"
        )
    return predict_speedups(evaluator, points, found.group_size, found.dense_dtype)


def _print_one(found: Crossover, points: pd.DataFrame | None) -> None:
    from gemm_eval.cli.output import format_number, make_console, make_table

    console = make_console()
    console.print(found.explain())
    if points is None:
        return
    from gemm_eval.validation import CLEAR_FRAC

    tables = ", ".join(points["table"].unique())
    fitted = (
        "held back from the fit" if points["is_held_back"].all() else "W4A16 was fitted on it, cuBLAS on other tables"
    )
    headers = ["M", "W4A16", "pred.", found.dense_dtype, "pred.", "speedup", "pred.", "winner"]
    title = f"measured on {found.arch_name} and predicted, us: {tables}; {fitted}"
    table = make_table(headers, title=title, right=headers[:-1])
    for row in points.to_dict("records"):
        times = (row[name] for name in ("w4a16_us", "predicted_w4a16_us", "dense_us", "predicted_dense_us"))
        table.add_row(
            f"{row['M']:,}", *map(format_number, times), f"{row['speedup']:.2f}", f"{row['predicted_speedup']:.2f}",
            _verdict(row),
        )  # fmt: skip
    console.print()
    console.print(table)
    console.print(f"winner: predicted right, wrong, or wrong within {CLEAR_FRAC:.0%} of a draw (close).")


def _verdict(row: dict[Any, Any]) -> str:
    if row["is_sign_right"]:
        return "right"
    return "wrong" if row["is_clear"] else "close"


def _print_all(evaluator: GEMMEvaluator, group_size: int, dense_dtype: str, *, as_json: bool) -> None:
    from gemm_eval.validation import compare_crossovers, measured_speedups, predict_speedups, sign_shares

    measured = measured_speedups(evaluator.arch.name, group_size, dense_dtype)
    predicted = predict_speedups(evaluator, measured, group_size, dense_dtype)
    pairs = compare_crossovers(evaluator, predicted, group_size, dense_dtype)
    shares = sign_shares(predicted)
    if as_json:
        from gemm_eval.cli.output import print_json

        whole = pairs.astype({"first_loss_M": object, "last_win_M": object})
        records = whole.where(whole.notna(), None).to_dict("records")
        print_json({"arch": evaluator.arch.name, "pairs": records, "shares": shares.to_dict("records")})
    else:
        _print_pairs(pairs, shares, evaluator.arch.name, dense_dtype)


def _print_pairs(pairs: pd.DataFrame, shares: pd.DataFrame, arch_name: str, dense_dtype: str) -> None:
    from gemm_eval.cli.output import make_console, make_table
    from gemm_eval.validation import CLEAR_FRAC

    console = make_console()
    held_back = set(shares.loc[shares["is_held_back"], "table"])
    for name, of_table in pairs.groupby("table", sort=False):
        note = "held back from the fit" if name in held_back else "W4A16 was fitted on it, cuBLAS on other tables"
        headers = ["N", "K", "M up to", "first loss", "measured", "last win", "measured", "right"]
        title = f"{name}: W4A16 against {dense_dtype} on {arch_name}; {note}"
        table = make_table(headers, title=title, right=headers)
        for row in of_table.to_dict("records"):
            table.add_row(
                f"{row['N']:,}", f"{row['K']:,}", f"{row['max_M']:,}", _whole(row["first_loss_M"]),
                str(row["measured_first_loss"]), _whole(row["last_win_M"]), str(row["measured_last_win"]),
                f"{row['num_right']}/{row['num']}" + (" " if row["agrees_clearly"] else "*"),
            )  # fmt: skip
        console.print(table)
        console.print()
    console.print(
        "first loss, last win: predicted, of every M; measured: between which measured M. Tiles end at the M that were "
        "measured, so the first loss is often just beyond one. right: measured M with the right winner; * wrong at one "
        f"that is more than {CLEAR_FRAC:.0%} off a draw."
    )
    console.print()
    headers = ["table", "points", "right", "clear", "right", "wins", "lost", "always", "never"]
    table = make_table(headers, title="how often the predicted winner is the measured one", right=headers[1:])
    for row in shares.to_dict("records"):
        fracs = (row[name] for name in ("clear_right_frac", "always_frac"))
        lost = (row[name] for name in ("lost_frac", "always_lost_frac", "never_lost_frac"))
        table.add_row(
            row["table"], f"{row['num']:,}", f"{row['right_frac']:.1%}", f"{row['num_clear']:,}",
            *(f"{frac:.1%}" for frac in (*fracs, *lost)),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"clear: measured more than {CLEAR_FRAC:.0%} off a draw; wins: of W4A16 among these. lost: mean time lost by "
        "taking the predicted winner, over the faster of both; always, never: by always or never taking W4A16."
    )


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "none"
