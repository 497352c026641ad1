"""Scores and calibrations of GEMMs on GPUs: a library's own choices, learned corrections, and single configs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from gemm_eval import validation
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu import LIBRARIES, OURS, TRTLLM, Calibration, Correction, load_correction
from gemm_eval.models.gpu.families import FAMILIES, GENERIC, QUANTIZE
from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES
from gemm_eval.validation.subjects import Fitted, Report
from gemm_eval.validation.subjects.reports import fitted, plain_lines, tau_cell, text_table, write_csv
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.validation import Ablation, GpuLine, Score, Study

Files = Sequence[Path] | None
Names = Sequence[str] | None


def validate_dense(
    arch: str, data: Names, folds: int, seed: int, refit: bool | None, joint: bool, regime: Names, worst: int,
    library: str | None, dtype: str | None, plots: Path | None, csv: Path | None,
) -> Report:  # fmt: skip
    """Score a library's own choices; parameters are the options of the command.

    Raises:
        InvalidOptionError: options that do not go together, or no timings.
    """
    data, groups = data or [], list(regime or [])
    if (library or dtype) and not any(name.endswith(validation.TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--library and --dtype go with --data FILE: committed timings say theirs")
    spec = load_arch(arch, GpuSpec)
    sets = validation.find_timings(spec.name, data, library=library, dtype=dtype)
    if not sets:
        raise InvalidOptionError(f"no timings of {spec.name} are committed: give --data FILE")
    if joint and refit is False:
        raise InvalidOptionError("--joint fits, --no-fit does not: give one of them")
    if joint and refit is None and not all(validation.is_calibrated_on(spec, timings) for timings in sets):
        raise InvalidOptionError(f"--joint would fit on timings of {spec.name}, which has no calibration: add --refit")
    compared: list[list[Score]] = []
    for of_set in validation.compare(spec, sets, folds, seed, refit=refit, is_joint=joint):
        compared.append(of_set)
        if plots is not None:
            for item in of_set:
                _save_plots(item, plots)
    scores = [scored for of_set in compared for scored in of_set]
    if csv is not None:
        write_csv(validation.errors_frame(scores), csv)

    def document() -> dict[str, Any]:
        notes = {of_set[0].timings.name: of_set[0].note for of_set in compared}
        return {"arch": spec.name, "coefficients": notes} | validation.report_document(scores, worst, groups)

    def parts() -> Iterator[RenderableType]:
        for index, of_set in enumerate(compared):
            if index:
                yield ""
            yield validation.errors_table(of_set, groups, of_set[0].note)
            if worst:
                yield ""
                yield validation.worst_table(of_set[0], worst)

    return Report(document, parts)


def _save_plots(scored: Score, folder: Path) -> None:
    stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
    figures = {
        "predicted": validation.plot_predicted(scored),
        "error": validation.plot_error_by_rows(scored),
    }
    for name, figure in figures.items():
        validation.save_figure(figure, folder / f"{stem}-{name}.png")


_HEADERS = ("regime", "n", "roofline", "table", "physics", "corrected", "median", "p90", "bias", "tau", "in 80%")


_PREDICTORS = (validation.ROOFLINE, validation.INTERPOLATION, validation.PHYSICS, validation.CORRECTED)


def validate_gpu(names: Sequence[str], folds: int, seed: int, regime: Names) -> Report:
    """Score whole GPUs; parameters are the options of the command."""
    lines = [line for line in validation.compare_gpus(names, folds, seed) if not regime or line.regime in regime]

    def parts() -> Iterator[RenderableType]:
        for is_fitted, title in (
            (True, f"held out by (N, K), {folds}-fold: MAPE of each, then more of the last one's errors"),
            (False, "carried over from another GPU, nothing fitted on this one"),
        ):
            chosen = [line for line in lines if line.is_fitted == is_fitted]
            if chosen:
                yield f"\n{title}"
            for _, of_set in groupby(chosen, lambda line: (line.gpu, line.data)):
                yield _gpu_table(list(of_set))

    return Report(lambda: {"folds": folds, "seed": seed, "lines": plain_lines(lines)}, parts)


def _gpu_table(lines: Sequence[GpuLine]) -> Table:
    table = validation.report_table(_HEADERS, f"{lines[0].gpu}, {lines[0].data}: {lines[0].types}")
    for line in lines:
        last = list(line.errors.values())[-1]
        mapes = (
            line.errors.get(name)
            for name in (validation.ROOFLINE, validation.INTERPOLATION, validation.PHYSICS, validation.CORRECTED)
        )
        table.add_row(
            line.regime, f"{last.num:,}", *("-" if errors is None else f"{errors.mape_frac:.1%}" for errors in mapes),
            f"{last.median_frac:.1%}", f"{last.p90_frac:.1%}", f"{last.bias_frac:+.1%}", tau_cell(last),
            f"{line.coverage_frac:.0%}",
        )  # fmt: skip
    return table


_INT4_WO = "aiconfigurator/int4_wo"


def validate_w4a16(
    arch: str, data: Files, folds: int, seed: int, refit: bool | None, ablation: bool, worst: int, plots: Path | None,
    csv: Path | None,
) -> Report:  # fmt: skip
    """Score our kernels config by config; parameters are the options of the command.

    TensorRT-LLM's public timings stand below, by the model as it is: a fit of that library searches its configs again
    and again, and `gemm-eval validate dense` does it.
    """
    spec = load_arch(arch, GpuSpec)
    of_folds, as_it_is = validation.find_w4a16_tables(spec, data or [], is_fit=refit)
    if not of_folds and not as_it_is:
        raise InvalidOptionError(f"no timings of W4A16 kernels on {spec.name} are committed: give --data FILE")
    _check_ablation(is_ablated=ablation, is_fit=bool(of_folds))
    studies = [validation.study_w4a16(spec, of_folds, folds, seed)] if of_folds else []
    studies += [validation.study_w4a16(spec, [path], folds, seed, of_folds) for path in as_it_is]
    ablated = (
        validation.run_ablation(validation.W4A16Model(spec), studies[0].timings, folds, seed) if ablation else None
    )
    sets = [] if data else [timings for timings in validation.list_timings(spec.name) if timings.name == _INT4_WO]
    public = [item for of_set in validation.compare(spec, sets, folds, seed, refit=False) for item in of_set]
    if plots is not None:
        validation.save_study_plots(studies, plots)
    if csv is not None:
        write_csv(validation.study_frame(studies), csv)

    def document() -> dict[str, Any]:
        head = {"arch": spec.name, "num_folds": folds, "seed": seed}
        head |= {"parts": [validation.study_document(study, worst) for study in studies]}
        return head | _ablation_document(ablated) | {"int4_wo": validation.report_document(public, worst)}

    def parts() -> Iterator[RenderableType]:
        yield from _study_parts(studies, ablated, worst)
        if public:
            note = f"{public[0].note}\n{validation.describe_held_out(spec.name, TRTLLM, _INT4_WO)}".rstrip()
            yield validation.errors_table(public, note=note)

    return Report(document, parts)


def validate_triton(
    arch: str, data: Path | None, folds: int, seed: int, refit: bool | None, ablation: bool, worst: int,
    csv: Path | None,
) -> Report:  # fmt: skip
    """Score Triton's kernels config by config; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    is_fit = validation.is_triton_calibrated(spec) if refit is None else refit
    _check_ablation(is_ablated=ablation, is_fit=is_fit)
    timings = validation.read_triton_timings(spec, _triton_table_of(spec.name, data))
    study = validation.study_triton(spec, timings, folds, seed, is_fit=is_fit)
    ablated = validation.run_ablation(validation.TritonModel(spec), timings, folds, seed) if ablation else None
    if csv is not None:
        write_csv(validation.study_frame([study]), csv)

    def document() -> dict[str, Any]:
        head = {"arch": spec.name, "num_folds": folds, "seed": seed}
        return head | validation.study_document(study, worst) | _ablation_document(ablated)

    return Report(document, lambda: _study_parts([study], ablated, worst))


def _check_ablation(*, is_ablated: bool, is_fit: bool) -> None:
    if is_ablated and not is_fit:
        raise InvalidOptionError("--ablation fits, and there is nothing to fit on: leave out --no-fit, or add --refit")


def _ablation_document(ablation: Ablation | None) -> dict[str, Any]:
    return {} if ablation is None else validation.ablation_document(ablation)


def _study_parts(studies: Sequence[Study], ablation: Ablation | None, worst: int) -> Iterator[RenderableType]:
    for study in studies:
        yield from validation.study_report(study, worst)
    yield from validation.ablation_report(ablation) if ablation else ()


def _triton_table_of(gpu: str, data: Path | None) -> Path:
    """Return the table of timings that `--data` names, or the one that comes with the library."""
    if data is not None:
        return data
    path = validation.triton_table(gpu)
    if not path.is_file():
        raise InvalidOptionError(f"no timings of Triton kernels on {gpu} are committed: give --data FILE")
    return path


def calibrate_dense(
    arch: str, family: str, library: str, data: Names, dtype: str | None, seed: int, max_evaluations: int | None,
    out: Path | None, correction: bool,
) -> Iterator[Fitted]:  # fmt: skip
    """Fit a kernel family on a library's own choices; parameters are the options of the command.

    Raises:
        InvalidOptionError: options that do not go together, or no timings.
    """
    _check_one_of("--family", family, GENERIC)
    _check_library(library)
    if correction and out is not None:
        raise InvalidOptionError("--correction corrects the committed calibration: leave out --out")
    data = data or []
    spec = _load_gpu_of(arch, family)
    path = out or validation.calibration_out(spec.name, library, family)
    if dtype and not any(name.endswith(validation.TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--dtype goes with --data FILE: committed timings say theirs")
    sets = validation.find_timings(spec.name, data, library=library, dtype=dtype)
    if not data:
        sets = [timings for timings in sets if timings.library == library and validation.is_default_training(timings)]
    for timings in sets:
        if (timings.library, timings.gpu) != (library, spec.name):
            raise InvalidOptionError(
                f"--data must be timings of {library} on {spec.name}, got {timings.name}, "
                f"which is of {timings.library} on {timings.gpu}"
            )
    if not sets:
        raise InvalidOptionError(f"no cold burst timings of {library} on {spec.name} are committed: give --data FILE")
    limits = {} if max_evaluations is None else {"max_evaluations": max_evaluations}
    calibration = validation.calibrate(spec, library, family, sets, seed=seed, **limits)
    yield fitted(calibration, path, family_title(calibration), {timings.name: len(timings) for timings in sets})
    if correction:  # of what was written by now
        yield from calibrate_correction(arch, family, library, None, seed)


def calibrate_correction(arch: str, family: str, library: str, data: Names, seed: int) -> Iterator[Fitted]:
    """Learn the corrections of a kernel family; parameters are the options of the command."""
    _check_one_of("--family", family, [name for name, of in FAMILIES.items() if not of.is_ours])
    _check_library(library)
    spec = _load_gpu_of(arch, family)
    folder = validation.calibration_out(spec.name, library, family).parent / "corrections"
    sets = validation.find_timings(spec.name, data) if data else validation.list_training(spec, library, family)
    sets = [timings for timings in sets if timings.library == library]
    if not sets:
        raise InvalidOptionError(f"no timings of {library} on {spec.name} are committed: give --data FILE")
    for result in validation.calibrate_correction(spec, library, family, sets, seed=seed):
        path = folder / f"{_correction_name(result.correction)}.yaml"
        yield Fitted(path, result.write, (_correction_table(result.correction),))


def calibrate_intervals(arch: str, family: str | None, seed: int) -> Iterator[Fitted]:
    """Fit the intervals of corrections anew, and write them into their files."""
    spec = load_arch(arch, GpuSpec)
    folder = validation.calibration_out(spec.name, "cublas", "").parent / "corrections"
    committed = [load_correction(path)[0] for path in sorted(folder.glob("*.yaml"))]
    table = text_table(("correction", "regime", "low", "high"), f"80% intervals on {spec.name}", num_left=4)
    families = {item.family for item in committed}
    if family is not None:
        _check_one_of("--family", family, sorted(families))
        families = {family}
    for library, fitted_family in dict.fromkeys((item.library, item.family) for item in committed):
        if fitted_family not in families:
            continue
        of_library = validation.list_training(spec, library, fitted_family)
        for learned in validation.refit_intervals(spec, library, fitted_family, of_library, seed=seed):
            name = _correction_name(learned)
            (folder / f"{name}.yaml").write_text(learned.to_yaml(), encoding="utf-8")
            for item in learned.intervals:
                table.add_row(name, item.regime, f"{item.low_log:+.3f}", f"{item.high_log:+.3f}")
    yield Fitted(None, lambda _: None, (table,))


def _correction_name(learned: Correction) -> str:
    return f"{learned.library}-{learned.family}-{learned.question}"


def _correction_table(learned: Correction) -> Table:
    verdict = "on" if learned.is_on else "off: not better in every regime, or too few pairs"
    title = f"{learned.library} {learned.family} on {learned.gpu}, {learned.question}: MAPE {learned.folds}; {verdict}"
    table = text_table(("rows of", "rows", "model", "corrected"), title)
    named = [(item.regime, item) for item in learned.errors] + [(item.data, item) for item in learned.data]
    for name, item in named:
        errors = (item.physics_mape_percent, item.corrected_mape_percent)
        table.add_row(name, f"{item.num_rows:,}", *(f"{error:.2f}%" for error in errors))
    return table


def calibrate_quantization(arch: str, data: Names, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit the kernels that quantize A; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    path = out or validation.calibration_out(spec.name, TRTLLM, QUANTIZE.name)
    calibration = validation.calibrate_quantization(
        spec, validation.find_timings(spec.name, data or [], has_held_back=True), seed=seed
    )
    yield fitted(calibration, path, family_title(calibration))


def calibrate_w4a16(arch: str, family: str, data: Files, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit a family of our kernels; parameters are the options of the command."""
    _check_one_of("--family", family, W4A16_FAMILIES)
    spec = _load_gpu_of(arch, family)
    path = out or validation.calibration_out(spec.name, OURS, family)
    calibration = validation.calibrate_w4a16(spec, family, data or validation.list_w4a16_tables(spec.name), seed=seed)
    yield fitted(calibration, path, family_title(calibration))


def calibrate_triton(arch: str, data: Path | None, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit the model of Triton's kernels; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    path = out or validation.calibration_out(spec.name, "triton", "")
    calibration = validation.calibrate_triton(spec, _triton_table_of(spec.name, data), seed=seed)
    yield fitted(calibration, path, f"Triton kernels on {calibration.gpu}: errors {calibration.folds}")


def family_title(calibration: Calibration) -> str:
    """Return the title of the errors of a kernel family."""
    return (
        f"{calibration.family} kernels of {calibration.library} on {calibration.gpu}: errors {calibration.folds}"
    )  # fmt: skip


def _check_one_of(option: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise InvalidOptionError(f"{option} must be one of {', '.join(known)}, got {shown(value)}")


def _check_library(library: str) -> None:
    # what the model chooses was not timed, or stands in tables that tell the config
    _check_one_of("--library", library, [name for name, of in LIBRARIES.items() if of.has_plain_timings])


def _load_gpu_of(arch: str, family: str) -> GpuSpec:
    """Return the spec of a GPU that runs a family."""
    spec = load_arch(arch, GpuSpec)
    if spec.sm_arch not in FAMILIES[family].sm_archs:
        raise InvalidOptionError(f"--family {family} does not run on {spec.name}, which is {spec.sm_arch}")
    return spec
