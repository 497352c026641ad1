"""`gemm-eval validate w4a16`: the model against timings of our W4A16 kernels, config by config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec
    from gemm_eval.validation.comparison import Compared
    from gemm_eval.validation.kernel_ablation import Ablated, Removed
    from gemm_eval.validation.kernel_study import KernelStudy

__all__ = ["validate_w4a16"]

_INT4_WO = "aiconfigurator/int4_wo"


def validate_w4a16(
    arch: str, data: Sequence[Path], folds: int, seed: int, *, refit: bool | None, is_ablated: bool, worst: int,
    plots: Path | None, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli._output import write_csv
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.kernel_ablation import ablate, remove_in_turn
    from gemm_eval.validation.kernel_report import kernel_document, kernel_frame
    from gemm_eval.validation.kernel_study import find_kernel_tables, study_kernels
    from gemm_eval.validation.kernel_timings import read_kernel_timings

    spec = load_arch(arch, GpuSpec)
    fitted, as_it_is = find_kernel_tables(spec, data, is_fit=refit)
    if not fitted and not as_it_is:
        raise InvalidOptionError(f"no timings of W4A16 kernels on {spec.name} are committed: give --data FILE")
    if is_ablated and not fitted:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")
    studies = [study_kernels(spec, fitted, folds, seed)] if fitted else []
    studies += [study_kernels(spec, [path], folds, seed, fitted) for path in as_it_is]
    found: list[Ablated] = []
    removed: list[Removed] = []
    if is_ablated:
        timings = read_kernel_timings(spec, fitted)
        found = list(ablate(timings, folds, seed))
        removed = remove_in_turn(timings, found, folds, seed)
    public = _score_int4_wo(spec, folds, seed) if not data else []
    if plots is not None:
        from gemm_eval.validation.kernel_plots import save_kernel_plots

        save_kernel_plots(studies, found, plots)
    if csv is not None:
        write_csv(kernel_frame(studies), csv)
    if as_json:
        from gemm_eval.cli._output import print_json
        from gemm_eval.validation.report import report_document

        document = {"arch": spec.name, "num_folds": folds, "seed": seed} | kernel_document(
            studies, worst, found, removed
        )
        print_json(document | {"int4_wo": report_document([item.score for item in public], worst)})
    else:
        _print(studies, found, removed, public, worst)


def _score_int4_wo(spec: GpuSpec, folds: int, seed: int) -> list[Compared]:
    """TensorRT-LLM's W4A16 GEMMs of the public timings, where they exist for this GPU, by the model as it is.

    A fit of that library searches its configs again and again; what it gives in cross-validation stands in the
    calibration, and `gemm-eval validate dense` repeats it.
    """
    from gemm_eval.validation.comparison import compare
    from gemm_eval.validation.datasets import list_timings

    sets = [timings for timings in list_timings(spec.name) if timings.name == _INT4_WO]
    return [item for of_set in compare(spec, sets, folds, seed, refit=False) for item in of_set]


def _describe_held_out(gpu: str) -> str:
    """The held-out errors that the calibrations of this GPU give for that set."""
    from gemm_eval.arch import data_root
    from gemm_eval.models.gpu.calibration import load_calibration

    files = sorted((data_root() / "calibration" / gpu).glob("trtllm-*.yaml"))
    found = [
        f"{calibration.family}: held out {errors.mape_percent:.1f}% MAPE, {errors.median_percent:.1f}% median, "
        f"{errors.p90_percent:.1f}% p90 ({calibration.folds})"
        for calibration in map(load_calibration, files)
        for errors in calibration.errors
        if errors.data == _INT4_WO
    ]
    return "\n".join(found)


def _print(
    studies: Sequence[KernelStudy], found: Sequence[Ablated], removed: Sequence[Removed], public: Sequence[Compared],
    worst: int,
) -> None:  # fmt: skip
    from gemm_eval.cli._output import make_console
    from gemm_eval.validation.kernel_report import (
        ablation_table,
        choice_tables,
        cost_lines,
        kernel_errors_table,
        outlier_lines,
        removed_lines,
    )
    from gemm_eval.validation.report import errors_table

    console = make_console()
    for study in studies:
        for table in (kernel_errors_table(study), *choice_tables(study)):
            console.print(table)
            console.print()
        for line in cost_lines(study):
            console.print(line)
        console.print()
        if worst:
            console.print("largest errors of the model near the best of a GEMM, with its terms in us", style="bold")
            for line in outlier_lines(study, worst):
                console.print(line, highlight=False)
            console.print()
    if found:
        console.print(ablation_table(found))
        for line in removed_lines(removed):
            console.print(line)
        console.print()
    if public:
        note = f"{public[0].note}\n{_describe_held_out(public[0].score.timings.gpu)}".rstrip()
        console.print(errors_table([item.score for item in public], note=note))
