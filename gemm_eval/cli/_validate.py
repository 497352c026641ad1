"""The command `validate`: errors of the GPU model, and of baselines, against measured timings."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemm_eval.cli._options import JsonOption
from gemm_eval.cli._words import refuse_others

if TYPE_CHECKING:
    from gemm_eval.validation.comparison import Compared

__all__ = ["validate"]

_DATA_HELP = (
    "Timings: a .csv or .parquet file, or the name of a committed set or folder, such as aiconfigurator/float16. "
    "Repeatable. Default: all that is committed for the arch."
)


_OF_KERNELS = ("arch", "data", "folds", "seed", "refit", "ablation", "worst", "csv", "json")
"""What --w4a16 and --triton obey."""


class RowGroup(enum.StrEnum):
    """Regimes of M that can be chosen."""

    DECODE = "decode"
    MID = "mid"
    PREFILL = "prefill"
    ALL = "all"


def validate(
    ctx: typer.Context,
    arch: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU preset or YAML file.")] = "h200-sxm",
    data: Annotated[list[str] | None, typer.Option(metavar="FILE|NAME", help=_DATA_HELP, show_default=False)] = None,
    folds: Annotated[
        int, typer.Option(min=2, help="Folds of the cross-validation, by (N, K) pair: at most as many as pairs.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="What deals the pairs to folds.")] = 0,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-fit",
            help="Fit the model on the held-in rows, or score the committed calibration as it is. Default: fit on a "
            "GPU that has a calibration of its own; elsewhere score the coefficients that carry over to it.",
            show_default=False,
        ),
    ] = None,
    joint: Annotated[
        bool,
        typer.Option("--joint", help="Fit the model on all cold burst sets of a library together, as calibrate does."),
    ] = False,
    regime: Annotated[
        list[RowGroup] | None,
        typer.Option(
            metavar="NAME",
            help="Regimes to print: decode, mid, prefill, all. Repeatable. Default: each.",
            show_default=False,
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst (N, K) pairs to print.")] = 5,
    library: Annotated[
        str | None, typer.Option(help="Kernel library of a file that does not say it: cublas, trtllm, gemm-eval.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Types of a file that does not say them: fp16, w4a16, ...")] = None,
    w4a16: Annotated[
        bool,
        typer.Option(
            "--w4a16",
            help="Score our W4A16 kernels instead, config by config, and the choice among them. --data: tables of "
            "gemm-eval measure --kernel w4a16; default: those that come with the library.",
        ),
    ] = False,
    triton: Annotated[
        bool,
        typer.Option(
            "--triton",
            help="Score the model of Triton kernels instead, config by config, and the choice among them. --data: a "
            "table of examples/measure_triton.py; default: the one that comes with the library.",
        ),
    ] = False,
    ablation: Annotated[
        bool,
        typer.Option(
            "--ablation",
            help="With --w4a16 or --triton: also what the error is without each term of the model; takes minutes.",
        ),
    ] = False,
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
    and nvMatmulHeuristics where it is installed. Regimes: decode M <= 16, mid M <= 256, prefill above. On a GPU without
    a calibration of its own nothing is fitted on its timings: the model and the fitted roofline carry over to it.
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli._output import write_csv
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.comparison import compare, is_calibrated_on
    from gemm_eval.validation.datasets import TABLE_SUFFIXES, find_timings
    from gemm_eval.validation.report import errors_frame, report_document

    if triton:
        from gemm_eval.cli._validate_triton import validate_triton

        refuse_others(ctx, "--triton", {"triton", *_OF_KERNELS})
        validate_triton(
            arch, data or [], folds, seed, refit=refit, is_ablated=ablation, worst=worst, csv=csv, as_json=json
        )
        return
    if w4a16:
        from gemm_eval.cli._validate_w4a16 import validate_w4a16

        refuse_others(ctx, "--w4a16", {"w4a16", "plots", *_OF_KERNELS})
        validate_w4a16(
            arch, data or [], folds, seed, refit=refit, is_ablated=ablation, worst=worst, plots=plots, csv=csv,
            as_json=json,
        )  # fmt: skip
        return
    if (library or dtype) and not any(name.endswith(TABLE_SUFFIXES) for name in data or []):
        raise InvalidOptionError("--library and --dtype go with --data FILE: committed timings say theirs")
    if ablation:
        raise InvalidOptionError("--ablation goes with --w4a16 or --triton")
    spec = load_arch(arch, GpuSpec)
    sets = find_timings(spec.name, data or [], library=library, dtype=dtype)
    if not sets:
        raise InvalidOptionError(f"no timings of {spec.name} are committed: give --data FILE")
    if joint and refit is False:
        raise InvalidOptionError("--joint fits, --no-fit does not: give one of them")
    if joint and refit is None and not all(is_calibrated_on(spec, timings) for timings in sets):
        raise InvalidOptionError(f"--joint would fit on timings of {spec.name}, which has no calibration: add --refit")
    compared: list[list[Compared]] = []
    for of_set in compare(spec, sets, folds, seed, refit=refit, is_joint=joint):
        compared.append(of_set)
        if plots is not None:
            for item in of_set:
                _save_plots(item, plots)
    groups = [str(group) for group in regime or []]
    scores = [item.score for of_set in compared for item in of_set]
    if csv is not None:
        write_csv(errors_frame(scores), csv)
    if json:
        from gemm_eval.cli._output import print_json

        notes = {of_set[0].score.timings.name: of_set[0].note for of_set in compared}
        print_json({"arch": spec.name, "coefficients": notes} | report_document(scores, worst, groups))
    else:
        _print(compared, groups, worst)


def _save_plots(item: Compared, folder: Path) -> None:
    from gemm_eval.validation import plots

    scored = item.score
    stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
    plots.save_figure(plots.plot_predicted(scored), folder / f"{stem}-predicted.png")
    plots.save_figure(plots.plot_error_by_rows(scored), folder / f"{stem}-error.png")
    plots.save_figure(plots.plot_latency_curves(item.fitted(), scored.timings), folder / f"{stem}-curves.png")


def _print(compared: list[list[Compared]], groups: list[str], worst: int) -> None:
    from gemm_eval.cli._output import make_console
    from gemm_eval.validation.report import errors_table, worst_table

    console = make_console()
    for place, of_set in enumerate(compared):
        if place:
            console.print()
        console.print(errors_table([item.score for item in of_set], groups, of_set[0].note))
        if worst:
            console.print()
            console.print(worst_table(of_set[0].score, worst))
