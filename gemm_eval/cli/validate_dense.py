"""`gemm-eval validate dense`: the model, and baselines, against timings of cuBLAS and TensorRT-LLM kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemm_eval.validation import Compared

__all__ = ["validate_dense"]


def validate_dense(
    arch: str, data: Sequence[str], folds: int, seed: int, *, refit: bool | None, is_joint: bool,
    groups: Sequence[str], worst: int, library: str | None, dtype: str | None, plots: Path | None, csv: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli.output import write_csv
    from gemm_eval.errors import InvalidOptionError

    if (library or dtype) and not any(name.endswith(validation.TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--library and --dtype go with --data FILE: committed timings say theirs")
    spec = load_arch(arch, GpuSpec)
    sets = validation.find_timings(spec.name, data, library=library, dtype=dtype)
    if not sets:
        raise InvalidOptionError(f"no timings of {spec.name} are committed: give --data FILE")
    if is_joint and refit is False:
        raise InvalidOptionError("--joint fits, --no-fit does not: give one of them")
    if is_joint and refit is None and not all(validation.is_calibrated_on(spec, timings) for timings in sets):
        raise InvalidOptionError(f"--joint would fit on timings of {spec.name}, which has no calibration: add --refit")
    compared: list[list[Compared]] = []
    for of_set in validation.compare(spec, sets, folds, seed, refit=refit, is_joint=is_joint):
        compared.append(of_set)
        if plots is not None:
            for item in of_set:
                _save_plots(item, plots)
    scores = [item.score for of_set in compared for item in of_set]
    if csv is not None:
        write_csv(validation.errors_frame(scores), csv)
    if as_json:
        from gemm_eval.cli.output import print_json

        notes = {of_set[0].score.timings.name: of_set[0].note for of_set in compared}
        print_json({"arch": spec.name, "coefficients": notes} | validation.report_document(scores, worst, groups))
    else:
        _print(compared, groups, worst)


def _save_plots(item: Compared, folder: Path) -> None:
    from gemm_eval import validation

    scored = item.score
    stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
    validation.save_figure(validation.plot_predicted(scored), folder / f"{stem}-predicted.png")
    validation.save_figure(validation.plot_error_by_rows(scored), folder / f"{stem}-error.png")
    validation.save_figure(validation.plot_latency_curves(item.fitted(), scored.timings), folder / f"{stem}-curves.png")


def _print(compared: Sequence[Sequence[Compared]], groups: Sequence[str], worst: int) -> None:
    from gemm_eval.cli.output import make_console
    from gemm_eval.validation import errors_table, worst_table

    console = make_console()
    for place, of_set in enumerate(compared):
        if place:
            console.print()
        console.print(errors_table([item.score for item in of_set], groups, of_set[0].note))
        if worst:
            console.print()
            console.print(worst_table(of_set[0].score, worst))
