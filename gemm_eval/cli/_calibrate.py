"""The command `calibrate`: fits the coefficients of a kernel library on measured timings and writes them as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["calibrate"]


def calibrate(
    arch: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU preset or YAML file.", show_default=False)],
    family: Annotated[
        str,
        typer.Option(
            help="Kernel library whose coefficients are fitted: cublas, trtllm, gemm-eval.", show_default=False
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE|NAME",
            help="Timings: a .csv or .parquet file, or the name of a committed set or folder. Repeatable.",
            show_default=False,
        ),
    ],
    dtype: Annotated[str | None, typer.Option(help="Types of a file that does not say them: fp16, w4a16, ...")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    max_evaluations: Annotated[
        int | None, typer.Option(min=1, help="Most evaluations of all rows.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to write. Default: arch/calibration of a checkout, <gpu>/<family>.yaml.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fit a kernel library's few coefficients on timings and write them, with data hash, date, error and version.

    Data of another library or another GPU are refused. Rows of rough bands are left out.
    """
    from gemm_eval.validation.extras import check_extra

    check_extra("gemm-eval calibrate", "calibrate", "pandas", "scipy")
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.errors import InvalidOptionError, UnsupportedError
    from gemm_eval.validation.datasets import calibration_path, find_timings
    from gemm_eval.validation.predictors import load_calibrate

    spec = load_arch(arch, GpuSpec)
    sets = find_timings(spec.name, data, library=family, dtype=dtype)
    for timings in sets:
        if (timings.library, timings.gpu) != (family, spec.name):
            raise InvalidOptionError(
                f"--data must be timings of {family} on {spec.name}, got {timings.name}, "
                f"which is of {timings.library} on {timings.gpu}"
            )
    path = calibration_path(spec.name, family) if out is None else out
    fit = load_calibrate()
    if fit is None:
        raise UnsupportedError("this version of gemm_eval has no GPU model to calibrate")
    limits = {} if max_evaluations is None else {"max_evaluations": max_evaluations}
    fitted = fit(spec, family, [timings.select(~timings.in_band) for timings in sets], seed=seed, **limits)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fitted.to_yaml(), encoding="utf-8")
    typer.echo(fitted.summary())
    typer.echo(f"written to {path}")
