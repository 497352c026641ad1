"""The output of `gemm-eval validate` on dense GEMMs, on whole GPUs, and on kernels config by config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gemm_eval import validation
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.cli.output import make_console, plain_lines, print_json, write_csv
from gemm_eval.errors import InvalidOptionError

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.arch import GpuSpec
    from gemm_eval.validation import Ablation, Compared, GpuLine, Metrics, Study


def error_cells(errors: Mapping[str, Metrics], model: str, others: Sequence[str]) -> Iterator[str]:
    """Yield the number of rows, the MAPE of `others`, and all errors of `model`: MAPE, median, p90, bias, tau."""
    metrics = errors[model]
    yield f"{metrics.num:,}"
    yield from (f"{errors[name].mape_frac:.1%}" for name in others)
    yield from (
        f"{metrics.mape_frac:.1%}",
        f"{metrics.median_frac:.1%}",
        f"{metrics.p90_frac:.1%}",
        f"{metrics.bias_frac:+.1%}",
    )
    yield "-" if metrics.kendall_tau is None else f"{metrics.kendall_tau:.3f}"


def validate_dense(
    arch: str, data: Sequence[str], folds: int, seed: int, *, refit: bool | None, is_joint: bool,
    groups: Sequence[str], worst: int, library: str | None, dtype: str | None, plots: Path | None, csv: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""

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
        notes = {of_set[0].score.timings.name: of_set[0].note for of_set in compared}
        print_json({"arch": spec.name, "coefficients": notes} | validation.report_document(scores, worst, groups))
    else:
        _print_compared(compared, groups, worst)


def _save_plots(item: Compared, folder: Path) -> None:

    scored = item.score
    stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
    validation.save_figure(validation.plot_predicted(scored), folder / f"{stem}-predicted.png")
    validation.save_figure(validation.plot_error_by_rows(scored), folder / f"{stem}-error.png")
    validation.save_figure(validation.plot_latency_curves(item.fitted(), scored.timings), folder / f"{stem}-curves.png")


def _print_compared(compared: Sequence[Sequence[Compared]], groups: Sequence[str], worst: int) -> None:
    from gemm_eval.validation import errors_table, worst_table

    console = make_console()
    for place, of_set in enumerate(compared):
        if place:
            console.print()
        console.print(errors_table([item.score for item in of_set], groups, of_set[0].note))
        if worst:
            console.print()
            console.print(worst_table(of_set[0].score, worst))


_HEADERS = ("regime", "n", "roofline", "table", "physics", "corrected", "median", "p90", "bias", "tau", "in 80%")


def validate_gpus(names: Sequence[str], folds: int, seed: int, *, groups: Sequence[str], as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""

    lines = [line for line in validation.compare_gpus(names, folds, seed) if not groups or line.regime in groups]
    if as_json:
        print_json({"folds": folds, "seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    for is_fitted, title in (
        (True, f"held out by (N, K), {folds}-fold: MAPE of each, then more of the last one's errors"),
        (False, "carried over from another GPU, nothing fitted on this one"),
    ):
        chosen = [line for line in lines if line.is_fitted == is_fitted]
        if chosen:
            console.print(f"\n{title}")
        for _, of_set in groupby(chosen, lambda line: (line.gpu, line.data)):
            console.print(_table(list(of_set)))


def _table(lines: Sequence[GpuLine]) -> Table:
    from gemm_eval.validation import report_table

    first = lines[0]
    table = report_table(_HEADERS, f"{first.gpu}, {first.data}: {first.types}")
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: GpuLine) -> Iterator[str]:

    last = list(line.errors.values())[-1]
    yield line.regime
    yield f"{last.num:,}"
    for name in (validation.ROOFLINE, validation.INTERPOLATION, validation.PHYSICS, validation.CORRECTED):
        errors = line.errors.get(name)
        yield "-" if errors is None else f"{errors.mape_frac:.1%}"
    yield from (f"{last.median_frac:.1%}", f"{last.p90_frac:.1%}", f"{last.bias_frac:+.1%}")
    yield "-" if last.kendall_tau is None else f"{last.kendall_tau:.3f}"
    yield f"{line.coverage_frac:.0%}"


_INT4_WO = "aiconfigurator/int4_wo"


def validate_w4a16(
    arch: str, data: Sequence[Path], folds: int, seed: int, *, refit: bool | None, is_ablated: bool, worst: int,
    plots: Path | None, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score, and print or write what was asked for; arguments as the options of the command."""

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
    _print_studies(studies, ablation, worst)
    if public:
        note = f"{public[0].note}\n{validation.describe_held_out(spec.name, 'trtllm', _INT4_WO)}".rstrip()
        make_console().print(validation.errors_table(scores, note=note))


def _score_int4_wo(spec: GpuSpec, folds: int, seed: int) -> list[Compared]:
    """TensorRT-LLM's W4A16 GEMMs of the public timings, where they exist for this GPU, by the model as it is.

    A fit of that library searches its configs again and again; what it gives in cross-validation stands in the
    calibration, and `gemm-eval validate dense` repeats it.
    """

    sets = [timings for timings in validation.list_timings(spec.name) if timings.name == _INT4_WO]
    return [item for of_set in validation.compare(spec, sets, folds, seed, refit=False) for item in of_set]


def triton_table_of(gpu: str, data: Path | None) -> Path:
    """Return the table of timings that `--data` names, or the one that comes with the library."""
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
        _print_studies([study], ablation, worst)


def _check_ablation(*, is_ablated: bool, is_fit: bool) -> None:

    if is_ablated and not is_fit:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")


def _print_studies(studies: Sequence[Study], ablation: Ablation | None, worst: int) -> None:

    console = make_console()
    for study in studies:
        for part in validation.study_report(study, worst):
            console.print(part)
    for part in validation.ablation_report(ablation) if ablation else ():
        console.print(part)
