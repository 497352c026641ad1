"""`gemm-eval validate triton`: the model against timings of Triton kernels, config by config."""

from __future__ import annotations

from pathlib import Path

__all__ = ["triton_table_of", "validate_triton"]

_KIND = "data_set"


def triton_table_of(gpu: str, data: Path | None) -> Path:
    """Return the table of timings that `--data` names, or the one that comes with the library."""
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation import triton_table

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
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli._output import make_console, print_json, write_csv
    from gemm_eval.errors import InvalidOptionError

    spec = load_arch(arch, GpuSpec)
    is_fit = validation.is_triton_calibrated(spec) if refit is None else refit
    if is_ablated and not is_fit:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")
    timings = validation.read_triton_timings(spec, triton_table_of(spec.name, data))
    study = validation.study_triton(spec, timings, folds, seed, is_fit=is_fit)
    model = validation.TritonModel(spec)
    found = list(validation.ablate(model, timings, folds, seed, is_screened=False)) if is_ablated else []
    if csv is not None:
        write_csv(validation.study_frame([study]), csv)
    if as_json:
        document = {"arch": spec.name, "num_folds": folds, "seed": seed} | validation.study_document(study, worst)
        print_json(document | validation.ablation_document(_KIND, found))
        return
    console = make_console()
    for table in (validation.study_errors_table(study), validation.speed_table(study)):
        console.print(table)
        console.print()
    if worst:
        console.print("slowest first choices of the model", style="bold")
        for line in validation.worst_choice_lines(study, worst):
            console.print(line, highlight=False)
    if found:
        console.print()
        console.print(validation.ablation_table(_KIND, found))
