"""The commands of `calibrate`: fits of coefficients on timings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gemm_eval.cli import options as opt
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.arch import GpuSpec
    from gemm_eval.models.gpu import Calibration, CalibrationFile, Correction, ErrorFigures, HeldOut


app = opt.group(
    "Fit the few coefficients of a kernel family, or of Triton kernels, on timings, and write them.\n\n"
    "The file also has the hashes of the data, the date, the errors on held-out (N, K) pairs, and the versions.",
)

OutOption = Annotated[
    Path | None,
    opt.option(
        "Where to write. Default: its place in arch/calibration of a checkout.", metavar="FILE", show_default=False
    ),
]


@opt.command(app)
def dense(
    arch: opt.GpuOption,
    family: Annotated[
        str, opt.option("Kernel family whose coefficients are fitted, such as sm90_wgmma.", show_default=False)
    ],
    library: Annotated[str, opt.option("Whose kernels: cublas, trtllm.")] = "cublas",
    data: Annotated[
        list[str] | None,
        opt.dense_data("all committed sets of the library on this GPU with cold L2 and burst clock"),
    ] = None,
    dtype: opt.FileDtypeOption = None,
    seed: opt.SeedOption = 0,
    max_evaluations: Annotated[int | None, opt.option("Rounds of search and fit.", min=1, show_default=False)] = None,
    out: OutOption = None,
    correction: Annotated[
        bool, opt.option("Then fit its corrections too, as `calibrate correction` does.", "--correction")
    ] = False,
) -> None:
    """Fit a kernel family of cuBLAS, or of TensorRT-LLM for narrow weights.

    Rows that the library runs with another family, and rows of rough bands, are left out.

    Examples:

    gemm-eval calibrate dense --arch h200-sxm --family sm90_wgmma

    gemm-eval calibrate dense --arch l4 --family sm80_mma --data timings.csv --dtype fp16 --out l4.yaml
    """
    from gemm_eval.models.gpu import LIBRARIES
    from gemm_eval.models.gpu.families import GENERIC

    check_one_of("--family", family, GENERIC)
    # what the model chooses was not timed, or stands in tables that tell the config
    check_one_of("--library", library, [name for name, of in LIBRARIES.items() if of.has_plain_timings])
    if correction and out is not None:
        raise InvalidOptionError("--correction corrects the committed calibration: leave out --out")
    from gemm_eval.validation import TABLE_SUFFIXES, calibrate, calibration_out, find_timings, is_default_training

    data = data or []
    spec = _load_gpu_of(arch, family)
    path = calibration_out(spec.name, library, family) if out is None else out
    if dtype and not any(name.endswith(TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--dtype goes with --data FILE: committed timings say theirs")
    sets = find_timings(spec.name, data, library=library, dtype=dtype)
    if not data:
        sets = [timings for timings in sets if timings.library == library and is_default_training(timings)]
    for timings in sets:
        if (timings.library, timings.gpu) != (library, spec.name):
            raise InvalidOptionError(
                f"--data must be timings of {library} on {spec.name}, got {timings.name}, "
                f"which is of {timings.library} on {timings.gpu}"
            )
    if not sets:
        raise InvalidOptionError(f"no cold burst timings of {library} on {spec.name} are committed: give --data FILE")
    limits = {} if max_evaluations is None else {"max_evaluations": max_evaluations}
    fitted = calibrate(spec, library, family, sets, seed=seed, **limits)
    _write(fitted, path, _title(fitted), {timings.name: len(timings) for timings in sets})
    if correction:
        calibrate_corrections(arch, library, family, [], seed, None)


@opt.command(app, "correction")
def learn(
    arch: opt.GpuOption,
    family: Annotated[
        str, opt.option("Kernel family whose answers are corrected, such as sm90_wgmma.", show_default=False)
    ],
    library: Annotated[str, opt.option("Whose kernels: cublas, trtllm.")] = "cublas",
    data: Annotated[
        list[str] | None,
        opt.dense_data("all committed sets of the library on this GPU, and those held back that say is_corrected"),
    ] = None,
    seed: opt.SeedOption = 0,
    out: Annotated[
        Path | None,
        opt.option("Where to write. Default: arch/calibration of a checkout.", metavar="DIR", show_default=False),
    ] = None,
) -> None:
    """Learn what the timings of a kernel family show beyond the terms of the model: one correction for each question.

    A question is of types, L2 and clock state. A correction that is not better than the model alone in every regime of
    M, on held-out (N, K) pairs, is written as off. Needs scikit-learn.

    Examples:

    gemm-eval calibrate correction --arch h200-sxm --family sm90_wgmma
    """
    from gemm_eval.models.gpu import LIBRARIES
    from gemm_eval.models.gpu.families import FAMILIES

    check_one_of("--family", family, [name for name, of in FAMILIES.items() if not of.is_ours])
    check_one_of("--library", library, [name for name, of in LIBRARIES.items() if of.has_plain_timings])
    calibrate_corrections(arch, library, family, data or [], seed, out)


@opt.command(app, "intervals")
def widths(
    arch: opt.GpuOption,
    family: Annotated[
        str | None, opt.option("Kernel family, such as sm90_wgmma. Default: all.", show_default=False)
    ] = None,
    seed: opt.SeedOption = 0,
) -> None:
    """Fit the 80% intervals of the corrections of a GPU anew, on the sets of `calibrate correction`; takes a minute.

    Coefficients and corrections stay as they are: for what these intervals hold, corrections are learned on four fifths
    of the (N, K) pairs at a time. Needs scikit-learn.

    Examples:

    gemm-eval calibrate intervals --arch h200-sxm
    """
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli.output import make_console, make_table
    from gemm_eval.models.gpu import load_correction

    spec = load_arch(arch, GpuSpec)
    sets = validation.list_correction_timings(spec.name)
    folder = validation.calibration_out(spec.name, "cublas", "").parent / "corrections"
    committed = [load_correction(path)[0] for path in sorted(folder.glob("*.yaml"))]
    table = make_table(("correction", "regime", "low", "high"), title=f"80% intervals on {spec.name}")
    families = {item.family for item in committed}
    if family is not None:
        check_one_of("--family", family, sorted(families))
        families = {family}
    for library, name_of_family in dict.fromkeys((item.library, item.family) for item in committed):
        if name_of_family not in families:
            continue
        of_library = [timings for timings in sets if timings.library == library]
        for learned in validation.refit_intervals(spec, library, name_of_family, of_library, seed=seed):
            name = f"{library}-{learned.family}-{learned.question}"
            (folder / f"{name}.yaml").write_text(learned.to_yaml(), encoding="utf-8")
            for item in learned.intervals:
                table.add_row(name, item.regime, f"{item.low_log:+.3f}", f"{item.high_log:+.3f}")
    make_console().print(table)


@opt.command(app)
def quantization(
    arch: opt.GpuOption,
    data: Annotated[list[str] | None, opt.dense_data("all that is committed for the arch")] = None,
    seed: opt.SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Fit the kernels that quantize A by one scale, on timings of them alone (column quant_us).

    Examples:

    gemm-eval calibrate quantization --arch b200
    """
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu import TRTLLM
    from gemm_eval.models.gpu.families import QUANTIZE

    data = data or []
    spec = load_arch(arch, GpuSpec)
    path = validation.calibration_out(spec.name, TRTLLM, QUANTIZE.name) if out is None else out
    sets = validation.find_timings(spec.name, data, has_held_back=True)
    fitted = validation.calibrate_quantization(spec, sets, seed=seed)
    _write(fitted, path, _title(fitted))


@opt.command(app)
def moe(
    arch: opt.GpuOption,
    data: Annotated[
        str,
        opt.option("Committed table, such as triton-bf16 or grouped/bf16.", metavar="NAME", show_default=False),
    ],
    seed: Annotated[int, opt.option("What draws loads of experts, and the rows of fits.", min=0)] = 0,
    out: OutOption = None,
) -> None:
    """Fit a family of grouped kernels on measured layers of experts, or on grouped GEMMs; whole models are held out.

    Examples:

    gemm-eval calibrate moe --arch h200-sxm --data triton-bf16
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli.output import make_console
    from gemm_eval.validation import calibration_out
    from gemm_eval.validation.subjects.experts import calibrate_layers, find_tables

    spec = load_arch(arch, GpuSpec)
    (timings,) = find_tables(spec.name, [data])
    fitted = calibrate_layers(spec, timings, seed)
    path = calibration_out(spec.name, fitted.library, fitted.family) if out is None else out
    _write(fitted, path, _title(fitted), {timings.name: len(timings)})
    for name, source in fitted.shared.items():
        make_console().print(f"{name} = {fitted.coefficients[name]:.6g}, {source}", soft_wrap=True)


@opt.command(app)
def attention(
    arch: opt.GpuOption,
    library: Annotated[
        str, opt.option("Whose kernels: trtllm, cudnn, flash or flashinfer.", metavar="WORD")
    ] = "trtllm",
    seed: opt.SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Fit a library's families of attention kernels on committed tables; heads are held out for the errors.

    Examples:

    gemm-eval calibrate attention --arch h200-sxm
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu.attention import attention_calibration_path
    from gemm_eval.validation.subjects import attention as measured

    spec = load_arch(arch, GpuSpec)
    fitted = measured.calibrate_attention(spec, library, seed)
    path = attention_calibration_path(spec.name, library) if out is None else out
    _write(fitted, path, f"Attention by {fitted.library} on {fitted.gpu}: errors {fitted.folds}")


@opt.command(app)
def collective(arch: opt.GpuOption, out: OutOption = None) -> None:
    """Fit collectives between the GPUs of a node on committed tables; blocks of sizes and ranks are held out.

    Examples:

    gemm-eval calibrate collective --arch h200-sxm
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu.collective import collective_calibration_path
    from gemm_eval.validation.subjects import collective as measured

    spec = load_arch(arch, GpuSpec)
    fitted = measured.calibrate_collectives(spec)
    path = collective_calibration_path(spec.name) if out is None else out
    _write(fitted, path, f"Collectives of {fitted.gpu}: errors of blocks held out")


@opt.command(app, "memory-bound")
def memory_bound(
    arch: opt.GpuOption,
    library: Annotated[str, opt.option("Whose kernels: engines or torch.", metavar="WORD")] = "engines",
    out: OutOption = None,
) -> None:
    """Fit kernels whose time is that of their bytes, such as norms, on committed tables; widths are held out.

    Examples:

    gemm-eval calibrate memory-bound --arch h200-sxm
    """
    from gemm_eval.workload import ENGINES, TORCH

    check_one_of("--library", library, (ENGINES, TORCH))
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu.memory_bound import memory_bound_calibration_path
    from gemm_eval.validation.subjects import memory_bound as measured

    spec = load_arch(arch, GpuSpec)
    fitted = measured.calibrate_memory_bound(spec, library)
    path = memory_bound_calibration_path(spec.name, library) if out is None else out
    _write(fitted, path, f"Memory-bound kernels of {library} on {fitted.gpu}: errors of what was held out")


@opt.command(app)
def w4a16(
    arch: opt.GpuOption,
    family: Annotated[
        str, opt.option("Kernel family whose coefficients are fitted, such as w4a16_sm90.", show_default=False)
    ],
    data: Annotated[
        list[Path] | None, opt.w4a16_data("those that come with the library, but for those held back")
    ] = None,
    seed: opt.SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Fit a family of our W4A16 kernels, each row at the config that ran.

    Examples:

    gemm-eval calibrate w4a16 --arch h200-sxm --family w4a16_sm90
    """
    from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES

    check_one_of("--family", family, W4A16_FAMILIES)
    from gemm_eval import validation
    from gemm_eval.models.gpu import OURS

    data = data or []
    spec = _load_gpu_of(arch, family)
    path = validation.calibration_out(spec.name, OURS, family) if out is None else out
    fitted = validation.calibrate_w4a16(spec, family, data or validation.list_w4a16_tables(spec.name), seed=seed)
    _write(fitted, path, _title(fitted))


@opt.command(app)
def multicore(
    arch: opt.MulticoreArchOption,
    data: opt.ChipDataOption = None,
    fit: Annotated[list[str] | None, opt.option(
        "What is fitted: a field such as launch_us, or in a table load_clock_frac.bf16 (.* all types). "
        "Repeatable. Default: the coefficients that the YAML of the chip names.", metavar="PATH", show_default=False
    )] = None,
    folds: Annotated[int, opt.option("Folds of the cross-validation, by (N, K) pair.", min=2)] = 5,
    seed: opt.SeedOption = 0,
    out: OutOption = None,
) -> None:  # fmt: skip
    """Fit the few numbers of a multi-core chip that only timings tell: launch, clock, bandwidths, overlap.

    They are laid over the YAML of the chip whenever it is loaded; answers then say source: calibrated.

    Examples:

    gemm-eval calibrate multicore --arch tpu-v5e --out tpu-v5e.yaml
    """
    from gemm_eval.cli.score_subjects import calibrate_multicore

    calibrate_multicore(arch, data, fit or [], folds, seed, out)


@opt.command(app)
def triton(
    arch: opt.GpuOption,
    data: opt.TritonDataOption = None,
    seed: opt.SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Fit the model of Triton kernels, each row at the config that ran.

    Examples:

    gemm-eval calibrate triton --arch h200-sxm
    """
    from gemm_eval import validation
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.cli.score import triton_table_of

    spec = load_arch(arch, GpuSpec)
    path = validation.calibration_out(spec.name, "triton", "") if out is None else out
    fitted = validation.calibrate_triton(spec, triton_table_of(spec.name, data), seed=seed)
    title = f"Triton kernels on {fitted.gpu}: errors {fitted.folds}"
    _write(fitted, path, title)


def calibrate_corrections(
    arch: str, library: str, family: str, data: Sequence[str], seed: int, out: Path | None
) -> None:
    """Fit the corrections of a family, write and print them."""
    from gemm_eval import validation
    from gemm_eval.cli.output import make_console

    spec = _load_gpu_of(arch, family)
    folder = validation.calibration_out(spec.name, library, family).parent / "corrections" if out is None else out
    sets = validation.find_timings(spec.name, data) if data else validation.list_correction_timings(spec.name)
    sets = [timings for timings in sets if timings.library == library]
    if not sets:
        raise InvalidOptionError(f"no timings of {library} on {spec.name} are committed: give --data FILE")
    console = make_console()
    for fitted in validation.calibrate_correction(spec, library, family, sets, seed=seed):
        learned = fitted.correction
        path = folder / f"{learned.library}-{learned.family}-{learned.question}.yaml"
        fitted.write(path)
        console.print(_correction_table(learned))
        console.print(f"written to {path}", soft_wrap=True)


def _correction_table(learned: Correction) -> Table:
    from gemm_eval.cli.output import make_table

    verdict = "on" if learned.is_on else "off: not better in every regime, or too few pairs"
    headers = ("rows of", "rows", "model", "corrected")
    title = f"{learned.library} {learned.family} on {learned.gpu}, {learned.question}: MAPE {learned.folds}; {verdict}"
    table = make_table(headers, title=title, right=headers[1:])
    named: list[tuple[str, HeldOut]] = [
        *((item.regime, item) for item in learned.errors),
        *((item.data, item) for item in learned.data),
    ]
    for name, item in named:
        errors = (item.physics_mape_percent, item.corrected_mape_percent)
        table.add_row(name, f"{item.num_rows:,}", *(f"{error:.2f}%" for error in errors))
    return table


def check_one_of(option: str, value: str, known: Collection[str]) -> None:
    """Refuse a value of an option that is not known."""
    if value not in known:
        raise InvalidOptionError(f"{option} must be one of {', '.join(known)}, got {shown(value)}")


def _load_gpu_of(arch: str, family: str) -> GpuSpec:
    """Return the spec of a GPU that runs a family."""
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.models.gpu.families import FAMILIES

    spec = load_arch(arch, GpuSpec)
    if spec.sm_arch not in FAMILIES[family].sm_archs:
        raise InvalidOptionError(f"--family {family} does not run on {spec.name}, which is {spec.sm_arch}")
    return spec


def _write(
    fitted: CalibrationFile,
    path: Path, title: str, num_rows: dict[str, int] | None = None,
) -> None:  # fmt: skip
    from gemm_eval.cli.output import make_console

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fitted.to_yaml(), encoding="utf-8")
    console = make_console()
    num_rows = num_rows or {errors.data: errors.num_rows for errors in fitted.errors}
    console.print(_table(fitted.errors, title, num_rows))
    console.print(f"written to {path}", soft_wrap=True)


def _title(fitted: Calibration) -> str:
    return f"{fitted.family} kernels of {fitted.library} on {fitted.gpu}: errors {fitted.folds}"


def _table(figures: Sequence[ErrorFigures], title: str, num_rows: dict[str, int]) -> Table:
    """Return the sets, how many of their rows counted, and the held-out errors."""
    from gemm_eval.cli.output import make_table

    headers = ("data", "rows", "used", "MAPE", "median", "p90", "bias", "tau")
    table = make_table(headers, title=title, right=headers[1:])
    of_set = {errors.data: errors for errors in figures}
    for name, num in num_rows.items():
        errors = of_set.get(name)
        if errors is None:
            table.add_row(name, f"{num:,}", "0", *("-" for _ in headers[3:]))
            continue
        sizes = [f"{size:.1f}%" for size in (errors.mape_percent, errors.median_percent, errors.p90_percent)]
        tau = "-" if errors.kendall_tau is None else f"{errors.kendall_tau:.3f}"
        table.add_row(name, f"{num:,}", f"{errors.num_rows:,}", *sizes, f"{errors.bias_percent:+.1f}%", tau)
    return table
