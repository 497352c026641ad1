"""`gemm-eval validate triton`: the model against timings of Triton kernels, config by config."""

from __future__ import annotations

from pathlib import Path

__all__ = ["triton_table_of", "validate_triton"]


def triton_table_of(gpu: str, data: Path | None) -> Path:
    """Return the table of timings that `--data` names, or the one that comes with the library."""
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.triton import triton_table

    if data is not None:
        return data
    path = triton_table(gpu)
    if not path.is_file():
        raise InvalidOptionError(f"no timings of Triton kernels on {gpu} are committed: give --data FILE")
    return path


def validate_triton(
    arch: str, data: Path | None, folds: int, seed: int, *, refit: bool | None, is_ablated: bool, worst: int,
    csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli._output import make_console, print_json, write_csv
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.models.gpu.triton import triton_coefficients
    from gemm_eval.validation import triton_report as report
    from gemm_eval.validation.triton import read_triton_timings
    from gemm_eval.validation.triton_ablation import ablate_triton
    from gemm_eval.validation.triton_scores import study_triton

    spec = load_arch(arch, GpuSpec)
    is_fit = triton_coefficients(spec)[1].is_calibrated if refit is None else refit
    if is_ablated and not is_fit:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")
    timings = read_triton_timings(spec, triton_table_of(spec.name, data))
    study = study_triton(timings, folds, seed, is_fit=is_fit)
    found = list(ablate_triton(timings, folds, seed)) if is_ablated else []
    if csv is not None:
        write_csv(report.triton_frame(study), csv)
    if as_json:
        document = report.triton_document(study, worst, found)
        print_json({"arch": spec.name, "num_folds": folds, "seed": seed} | document)
        return
    console = make_console()
    for table in (report.triton_errors_table(study), report.triton_choice_table(study)):
        console.print(table)
        console.print()
    if worst:
        console.print("slowest first choices of the model", style="bold")
        for line in report.triton_worst_lines(study, worst):
            console.print(line, highlight=False)
    if found:
        console.print()
        console.print(report.triton_ablation_table(found))
