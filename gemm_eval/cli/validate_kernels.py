"""`gemm-eval validate w4a16` and `validate triton`: models against timings of single configs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec
    from gemm_eval.validation import Ablation, Compared, Study

__all__ = ["triton_table_of", "validate_triton", "validate_w4a16"]

_INT4_WO = "aiconfigurator/int4_wo"


def validate_w4a16(
    arch: str, data: Sequence[Path], folds: int, seed: int, *, refit: bool | None, is_ablated: bool, worst: int,
    plots: Path | None, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli.output import print_json, write_csv
    from gemm_eval.errors import InvalidOptionError

    spec = load_arch(arch, GpuSpec)
    fitted, as_it_is = validation.find_w4a16_tables(spec, data, is_fit=refit)
    if not fitted and not as_it_is:
        raise InvalidOptionError(f"no timings of W4A16 kernels on {spec.name} are committed: give --data FILE")
    _check_ablation(is_ablated=is_ablated, is_fit=bool(fitted))
    studies = [validation.study_w4a16(spec, fitted, folds, seed)] if fitted else []
    studies += [validation.study_w4a16(spec, [path], folds, seed, fitted) for path in as_it_is]
    ablation = None
    if is_ablated:
        ablation = validation.run_ablation(validation.W4A16Model(spec), studies[0].timings, folds, seed)
    public = _score_int4_wo(spec, folds, seed) if not data else []
    if plots is not None:
        validation.save_study_plots(studies, ablation, plots)
    if csv is not None:
        write_csv(validation.study_frame(studies), csv)
    scores = [item.score for item in public]
    if as_json:
        document = {"arch": spec.name, "num_folds": folds, "seed": seed}
        document |= {"parts": [validation.study_document(study, worst) for study in studies]}
        document |= validation.ablation_document(ablation) if ablation else {}
        print_json(document | {"int4_wo": validation.report_document(scores, worst)})
        return
    _print(studies, ablation, worst)
    if public:
        from gemm_eval.cli.output import make_console

        note = f"{public[0].note}\n{validation.describe_held_out(spec.name, 'trtllm', _INT4_WO)}".rstrip()
        make_console().print(validation.errors_table(scores, note=note))


def _score_int4_wo(spec: GpuSpec, folds: int, seed: int) -> list[Compared]:
    """TensorRT-LLM's W4A16 GEMMs of the public timings, where they exist for this GPU, by the model as it is.

    A fit of that library searches its configs again and again; what it gives in cross-validation stands in the
    calibration, and `gemm-eval validate dense` repeats it.
    """
    from gemm_eval import validation

    sets = [timings for timings in validation.list_timings(spec.name) if timings.name == _INT4_WO]
    return [item for of_set in validation.compare(spec, sets, folds, seed, refit=False) for item in of_set]


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
    from gemm_eval.cli.output import print_json, write_csv

    spec = load_arch(arch, GpuSpec)
    is_fit = validation.is_triton_calibrated(spec) if refit is None else refit
    _check_ablation(is_ablated=is_ablated, is_fit=is_fit)
    timings = validation.read_triton_timings(spec, triton_table_of(spec.name, data))
    study = validation.study_triton(spec, timings, folds, seed, is_fit=is_fit)
    ablation = validation.run_ablation(validation.TritonModel(spec), timings, folds, seed) if is_ablated else None
    if csv is not None:
        write_csv(validation.study_frame([study]), csv)
    if as_json:
        document = {"arch": spec.name, "num_folds": folds, "seed": seed} | validation.study_document(study, worst)
        print_json(document | (validation.ablation_document(ablation) if ablation else {}))
    else:
        _print([study], ablation, worst)


def _check_ablation(*, is_ablated: bool, is_fit: bool) -> None:
    from gemm_eval.errors import InvalidOptionError

    if is_ablated and not is_fit:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")


def _print(studies: Sequence[Study], ablation: Ablation | None, worst: int) -> None:
    from gemm_eval import validation
    from gemm_eval.cli.output import make_console

    console = make_console()
    for study in studies:
        for part in validation.study_report(study, worst):
            console.print(part)
    for part in validation.ablation_report(ablation) if ablation else ():
        console.print(part)
