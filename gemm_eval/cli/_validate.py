"""The command `validate`: errors of the GPU model, and of baselines, against measured timings."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemm_eval.cli._options import JsonOption

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec
    from gemm_eval.validation.predictors import Predictor
    from gemm_eval.validation.scoring import Score
    from gemm_eval.validation.timings import TimingSet

__all__ = ["validate"]

_DATA_HELP = (
    "Timings: a .csv or .parquet file, or the name of a committed set or folder, such as aiconfigurator/float16. "
    "Repeatable. Default: all that is committed for the arch."
)


class RowGroup(enum.StrEnum):
    """Regimes of M that can be chosen."""

    DECODE = "decode"
    MID = "mid"
    PREFILL = "prefill"
    ALL = "all"


def validate(
    arch: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU preset or YAML file.")] = "h200-sxm",
    data: Annotated[list[str] | None, typer.Option(metavar="FILE|NAME", help=_DATA_HELP, show_default=False)] = None,
    folds: Annotated[
        int, typer.Option(min=2, help="Folds of the cross-validation, by (N, K) pair: at most as many as pairs.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="What deals the pairs to folds.")] = 0,
    fit: Annotated[
        bool, typer.Option("--fit/--no-fit", help="--no-fit: score the committed calibration without refitting it.")
    ] = True,
    regime: Annotated[
        list[RowGroup] | None,
        typer.Option(
            metavar="REGIME",
            help="Regimes to print: decode, mid, prefill, all. Repeatable. Default: each.",
            show_default=False,
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst (N, K) pairs to print.")] = 5,
    library: Annotated[
        str | None, typer.Option(help="Kernel library of a file that does not say it: cublas, trtllm, gemm-eval.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Types of a file that does not say them: fp16, w4a16, ...")] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plots (PNG) to this folder.", show_default=False)
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the errors as CSV.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predicted with measured latencies, on rows that were held out by (N, K) pair.

    Beside the model stand baselines on the same rows: the roofline of the data sheet, a roofline with fitted constants,
    and nvMatmulHeuristics where it is installed. Regimes: decode M <= 16, mid M <= 256, prefill above.
    """
    from gemm_eval.validation.extras import check_extra

    check_extra("gemm-eval validate", "calibrate", "pandas", "scipy")
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.datasets import find_timings

    spec = load_arch(arch, GpuSpec)
    sets = find_timings(spec.name, data or [], library=library, dtype=dtype)
    if not sets:
        raise InvalidOptionError(f"no timings of {spec.name} are committed: give --data FILE")
    scores: list[Score] = []
    for timings in sets:
        num_pairs = len(timings.frame[["N", "K"]].drop_duplicates())
        for predictor, num_folds in _predictors(spec, timings, min(folds, num_pairs), is_refit=fit):
            scores.append(_score(predictor, timings, num_folds, seed))
            if plots is not None:
                _save_plots(predictor, scores[-1], plots)
    if csv is not None:
        from gemm_eval.validation.report import errors_frame

        errors_frame(scores).to_csv(csv, index=False)
    if json:
        from gemm_eval.cli._output import print_json
        from gemm_eval.validation.report import report_document

        print_json({"arch": spec.name} | report_document(scores, worst))
    else:
        _print(scores, [str(group) for group in regime or []], worst)


def _predictors(spec: GpuSpec, timings: TimingSet, folds: int, *, is_refit: bool) -> list[tuple[Predictor, int]]:
    """Return (predictor, folds): the model first, if it is built in; a baseline is always refitted."""
    from gemm_eval.validation.predictors import load_model_predictor
    from gemm_eval.validation.scoring import make_baselines

    model = load_model_predictor(spec, timings.library)
    first = [] if model is None else [(model, folds if is_refit else 0)]
    return [*first, *((baseline, folds) for baseline in make_baselines(spec, timings))]


def _score(predictor: Predictor, timings: TimingSet, num_folds: int, seed: int) -> Score:
    from gemm_eval.validation.scoring import score

    return score(predictor, timings, num_folds, seed)


def _save_plots(predictor: Predictor, scored: Score, folder: Path) -> None:
    from gemm_eval.validation import plots

    stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
    plots.save_figure(plots.plot_predicted(scored), folder / f"{stem}-predicted.png")
    plots.save_figure(plots.plot_error_by_rows(scored), folder / f"{stem}-error.png")
    fitted = predictor.fit(scored.timings) if scored.num_folds else predictor
    plots.save_figure(plots.plot_latency_curves(fitted, scored.timings), folder / f"{stem}-curves.png")


def _print(scores: list[Score], groups: list[str], worst: int) -> None:
    from itertools import groupby

    from gemm_eval.cli._output import make_console
    from gemm_eval.validation.report import errors_table, worst_table

    console = make_console()
    for place, (_, of_set) in enumerate(groupby(scores, key=lambda scored: id(scored.timings))):
        same = list(of_set)
        if place:
            console.print()
        console.print(errors_table(same, groups))
        if worst:
            console.print()
            console.print(worst_table(same[0], worst))
