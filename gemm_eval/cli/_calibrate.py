"""The command `calibrate`: fits the coefficients of a library's kernel family, or of Triton kernels, on timings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemm_eval._words import shown
from gemm_eval.cli._words import refuse_others

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.arch import GpuSpec
    from gemm_eval.models.gpu import Calibration
    from gemm_eval.models.gpu.calibration import ErrorFigures
    from gemm_eval.models.gpu.triton import TritonCalibration

__all__ = ["calibrate"]


def calibrate(
    ctx: typer.Context,
    arch: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU preset or YAML file.", show_default=False)],
    family: Annotated[
        str | None,
        typer.Option(help="Kernel family whose coefficients are fitted, such as sm90_wgmma.", show_default=False),
    ] = None,
    library: Annotated[str, typer.Option(help="Whose kernels: cublas, trtllm, gemm-eval.")] = "cublas",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Timings: a .csv or .parquet file, or the name of a committed set or folder. Repeatable. Default: all "
            "committed sets of the library on this GPU with cold L2 and burst clock.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Types of a file that does not say them: fp16, w4a16, ...")] = None,
    triton: Annotated[
        bool,
        typer.Option(
            "--triton",
            help="Fit the model of Triton kernels instead of a family. --data: a table that measure_triton.py of "
            "examples wrote; default: the one that comes with the library.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="What deals the (N, K) pairs to the folds of the stated errors.")
    ] = 0,
    max_evaluations: Annotated[
        int | None, typer.Option(min=1, help="Rounds of search and fit.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to write. Default: its place in arch/calibration of a checkout.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fit the few coefficients of a library's kernel family on timings and write them.

    The file also has the hashes of the data, the date, the errors on held-out (N, K) pairs, and the versions. Rows that
    the library runs with another family, and rows of rough bands, are left out.
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.models.gpu.libraries import FAMILIES, LIBRARIES
    from gemm_eval.validation import fit
    from gemm_eval.validation.comparison import is_default_training
    from gemm_eval.validation.datasets import TABLE_SUFFIXES, calibration_out, find_timings

    spec = load_arch(arch, GpuSpec)
    if triton:
        refuse_others(ctx, "--triton", {"triton", "arch", "data", "seed", "out"})
        _calibrate_triton(spec, data or [], seed, out)
        return
    if family is None:
        raise InvalidOptionError(f"--family must be one of {', '.join(FAMILIES)}; or give --triton")
    for option, value, known in (("--family", family, FAMILIES), ("--library", library, LIBRARIES)):
        if value not in known:
            raise InvalidOptionError(f"{option} must be one of {', '.join(known)}, got {shown(value)}")
    if spec.sm_arch not in FAMILIES[family].sm_archs:
        raise InvalidOptionError(f"--family {family} does not run on {spec.name}, which is {spec.sm_arch}")
    path = calibration_out(spec.name, library, family) if out is None else out
    if FAMILIES[family].is_ours:
        # its tables say their types, and the fit is one of least squares: there are no rounds
        refuse_others(ctx, f"--family {family}", {"family", "library", "arch", "data", "seed", "out"})
        fitted, num_rows = _calibrate_ours(spec, library, family, data, seed)
        _write(fitted, path, _title(fitted), num_rows)
        return
    if dtype and not any(name.endswith(TABLE_SUFFIXES) for name in data or []):
        raise InvalidOptionError("--dtype goes with --data FILE: committed timings say theirs")
    sets = find_timings(spec.name, data or [], library=library, dtype=dtype)
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
    fitted = fit.calibrate(spec, library, family, sets, seed=seed, **limits)
    _write(fitted, path, _title(fitted), {timings.name: len(timings) for timings in sets})


def _calibrate_ours(
    spec: GpuSpec, library: str, family: str, data: list[str] | None, seed: int
) -> tuple[Calibration, dict[str, int]]:
    """Fit a family of our W4A16 kernels on tables that tell the config of each row."""
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.validation.kernel_fit import calibrate_kernel_family
    from gemm_eval.validation.kernel_timings import list_kernel_tables

    if library != "gemm-eval":
        raise InvalidOptionError(f"--family {family} is of --library gemm-eval, got {library}")
    paths = [Path(name) for name in data] if data else list_kernel_tables(spec.name)
    fitted = calibrate_kernel_family(spec, family, paths, seed=seed)
    return fitted, {errors.data: errors.num_rows for errors in fitted.errors}


def _calibrate_triton(spec: GpuSpec, data: list[str], seed: int, out: Path | None) -> None:
    """Fit the model of Triton kernels on a table that tells the config of each row."""
    from gemm_eval.cli._validate_triton import triton_table_of
    from gemm_eval.validation.datasets import triton_calibration_out
    from gemm_eval.validation.triton_fit import calibrate_triton

    path = triton_calibration_out(spec.name) if out is None else out
    fitted = calibrate_triton(spec, triton_table_of(spec.name, data), seed=seed)
    title = f"Triton kernels on {fitted.gpu}: errors {fitted.folds}"
    _write(fitted, path, title, {errors.data: errors.num_rows for errors in fitted.errors})


def _write(fitted: Calibration | TritonCalibration, path: Path, title: str, num_rows: dict[str, int]) -> None:
    from gemm_eval.cli._output import make_console

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fitted.to_yaml(), encoding="utf-8")
    console = make_console()
    console.print(_table(fitted.errors, title, num_rows))
    console.print(f"written to {path}", soft_wrap=True)


def _title(fitted: Calibration) -> str:
    return f"{fitted.family} kernels of {fitted.library} on {fitted.gpu}: errors {fitted.folds}"


def _table(figures: Sequence[ErrorFigures], title: str, num_rows: dict[str, int]) -> Table:
    """The sets, how many of their rows counted, and the held-out errors."""
    from gemm_eval.cli._output import make_table

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
