"""`gemm-eval validate w4a16`: the model against timings of our W4A16 kernels, config by config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec
    from gemm_eval.validation import Ablated, Compared, Removed, Study

__all__ = ["validate_w4a16"]

_KIND = "family"
_INT4_WO = "aiconfigurator/int4_wo"


def validate_w4a16(
    arch: str, data: Sequence[Path], folds: int, seed: int, *, refit: bool | None, is_ablated: bool, worst: int,
    plots: Path | None, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli._output import print_json, write_csv
    from gemm_eval.errors import InvalidOptionError

    spec = load_arch(arch, GpuSpec)
    fitted, as_it_is = validation.find_w4a16_tables(spec, data, is_fit=refit)
    if not fitted and not as_it_is:
        raise InvalidOptionError(f"no timings of W4A16 kernels on {spec.name} are committed: give --data FILE")
    if is_ablated and not fitted:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")
    studies = [validation.study_w4a16(spec, fitted, folds, seed)] if fitted else []
    studies += [validation.study_w4a16(spec, [path], folds, seed, fitted) for path in as_it_is]
    found: list[Ablated] = []
    removed: list[Removed] = []
    if is_ablated:
        model, timings, points = validation.W4A16Model(spec), studies[0].timings, validation.BUYS_NOTHING_POINTS[_KIND]
        found = list(validation.ablate(model, timings, folds, seed))
        useless = validation.useless_terms(found, points)
        removed = validation.remove_in_turn(model, timings, useless, points, folds, seed)
    public = _score_int4_wo(spec, folds, seed) if not data else []
    if plots is not None:
        validation.save_study_plots(studies, found, plots)
    if csv is not None:
        write_csv(validation.study_frame(studies), csv)
    if as_json:
        parts = [validation.study_document(study, worst) for study in studies]
        document = {"arch": spec.name, "num_folds": folds, "seed": seed, "parts": parts}
        document |= validation.ablation_document(_KIND, found, removed)
        print_json(document | {"int4_wo": validation.report_document([item.score for item in public], worst)})
    else:
        _print(studies, found, removed, public, worst)


def _score_int4_wo(spec: GpuSpec, folds: int, seed: int) -> list[Compared]:
    """TensorRT-LLM's W4A16 GEMMs of the public timings, where they exist for this GPU, by the model as it is.

    A fit of that library searches its configs again and again; what it gives in cross-validation stands in the
    calibration, and `gemm-eval validate dense` repeats it.
    """
    from gemm_eval import validation

    sets = [timings for timings in validation.list_timings(spec.name) if timings.name == _INT4_WO]
    return [item for of_set in validation.compare(spec, sets, folds, seed, refit=False) for item in of_set]


def _print(
    studies: Sequence[Study], found: Sequence[Ablated], removed: Sequence[Removed], public: Sequence[Compared],
    worst: int,
) -> None:  # fmt: skip
    from gemm_eval import validation
    from gemm_eval.cli._output import make_console

    console = make_console()
    for study in studies:
        for table in (validation.study_errors_table(study), *validation.choice_tables(study)):
            console.print(table)
            console.print()
        for line in validation.cost_lines(study):
            console.print(line)
        console.print()
        if worst:
            console.print("largest errors of the model near the best of a GEMM, with its terms in us", style="bold")
            for line in validation.outlier_lines(study, worst):
                console.print(line, highlight=False)
            console.print()
    if found:
        console.print(validation.ablation_table(_KIND, found))
        for line in validation.removed_lines(removed):
            console.print(line)
        console.print()
    if public:
        gpu = public[0].score.timings.gpu
        note = f"{public[0].note}\n{validation.describe_held_out(gpu, 'trtllm', _INT4_WO)}".rstrip()
        console.print(validation.errors_table([item.score for item in public], note=note))
