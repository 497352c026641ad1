"""The old forms of `validate` and `calibrate`, one command each with flags for kinds of kernels: for one release.

To take them out, delete this module and what names it in `_app` and in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from gemm_eval.cli.calibrate import calibrate_dense, calibrate_triton, calibrate_w4a16, check_one_of
from gemm_eval.cli.options import GpuOption, JsonOption, SeedOption
from gemm_eval.cli.validate import GPU_OPTION, CsvOption, FoldsOption, PlotsOption, RefitOption, RegimeOption
from gemm_eval.cli.words import Command, refuse_others
from gemm_eval.errors import InvalidOptionError

__all__ = ["resolve_old_form"]

_HELP = {"--help", "-h"}
_OF_KERNELS = ("arch", "data", "folds", "seed", "refit", "ablation", "worst", "csv", "json")
"""What `validate` obeys with --w4a16 and with --triton."""


def resolve_old_form(name: str, command: Any, words: list[str]) -> tuple[Any, list[str]]:
    """Return the command for an old form, and the words for it to read; `command` and `words` where it is none.

    An old form had options alone: a first word that is no option names a sub-command, or is mistyped.

    Args:
        name: what stands on the command line, such as ``validate``.
        command: what has this name now.
        words: those after the name.
    """
    # without words `validate` ran; `calibrate`, which could not, printed its help
    if name not in _OLD or words[:1] == [GPU_OPTION] or not (words[0].startswith("-") if words else name == "validate"):
        return command, words
    return (command, ["--help"]) if _HELP & set(words) else (_command(name), words)


@cache
def _command(name: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name, cls=Command)(_OLD[name])
    return typer.main.get_command(app)


def _validate(
    ctx: typer.Context,
    arch: GpuOption = "h200-sxm",
    data: list[str] | None = None,
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    refit: RefitOption = None,
    joint: Annotated[bool, typer.Option("--joint")] = False,
    regime: RegimeOption = None,
    worst: Annotated[int, typer.Option(min=0)] = 5,
    library: str | None = None,
    dtype: str | None = None,
    w4a16: Annotated[bool, typer.Option("--w4a16")] = False,
    triton: Annotated[bool, typer.Option("--triton")] = False,
    ablation: Annotated[bool, typer.Option("--ablation")] = False,
    plots: PlotsOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Run `validate dense`, `validate w4a16` or `validate triton`."""
    from gemm_eval.cli.validate_dense import validate_dense
    from gemm_eval.cli.validate_kernels import validate_triton, validate_w4a16

    names = data or []
    if triton:
        refuse_others(ctx, "--triton", {"triton", *_OF_KERNELS})
        validate_triton(
            arch, _only_table(names), folds, seed, refit=refit, is_ablated=ablation, worst=worst, csv=csv, as_json=json
        )
        _print_note("validate --triton", "validate triton")
    elif w4a16:
        refuse_others(ctx, "--w4a16", {"w4a16", "plots", *_OF_KERNELS})
        validate_w4a16(
            arch, [Path(name) for name in names], folds, seed, refit=refit, is_ablated=ablation, worst=worst,
            plots=plots, csv=csv, as_json=json,
        )  # fmt: skip
        _print_note("validate --w4a16", "validate w4a16")
    elif ablation:
        raise InvalidOptionError("--ablation goes with --w4a16 or --triton")
    else:
        validate_dense(
            arch, names, folds, seed, refit=refit, is_joint=joint, groups=[str(group) for group in regime or []],
            worst=worst, library=library, dtype=dtype, plots=plots, csv=csv, as_json=json,
        )  # fmt: skip
        _print_note("validate", "validate dense")


def _calibrate(
    ctx: typer.Context,
    arch: GpuOption,
    family: str | None = None,
    library: str = "cublas",
    data: list[str] | None = None,
    dtype: str | None = None,
    triton: Annotated[bool, typer.Option("--triton")] = False,
    seed: SeedOption = 0,
    max_evaluations: Annotated[int | None, typer.Option(min=1)] = None,
    out: Path | None = None,
) -> None:
    """Run `calibrate dense`, `calibrate w4a16` or `calibrate triton`."""
    from gemm_eval.models.gpu import LIBRARIES, OURS
    from gemm_eval.models.gpu.families import FAMILIES

    names = data or []
    if triton:
        refuse_others(ctx, "--triton", {"triton", "arch", "data", "seed", "out"})
        calibrate_triton(arch, _only_table(names), seed, out)
        _print_note("calibrate --triton", "calibrate triton")
        return
    if family is None:
        raise InvalidOptionError(f"--family must be one of {', '.join(FAMILIES)}; or give --triton")
    for option, value, known in (("--family", family, FAMILIES), ("--library", library, LIBRARIES)):
        check_one_of(option, value, known)
    if FAMILIES[family].is_ours:
        # its tables say their types, and the fit is one of least squares: there are no rounds
        refuse_others(ctx, f"--family {family}", {"family", "library", "arch", "data", "seed", "out"})
        if library != OURS:
            raise InvalidOptionError(f"--family {family} is of --library {OURS}, got {library}")
        calibrate_w4a16(arch, family, [Path(name) for name in names], seed, out)
        _print_note(f"calibrate --library {OURS} --family {family}", f"calibrate w4a16 --family {family}")
    else:
        calibrate_dense(arch, library, family, names, dtype, seed, max_evaluations, out)
        _print_note("calibrate", "calibrate dense")


_OLD: dict[str, Callable[..., None]] = {"validate": _validate, "calibrate": _calibrate}


def _only_table(names: list[str]) -> Path | None:
    if len(names) > 1:
        raise InvalidOptionError(f"--triton takes one --data FILE, got {len(names)}")
    return Path(names[0]) if names else None


def _print_note(old: str, new: str) -> None:
    """Name the new form. It comes after the work, as an error is one line, and with --json one document."""
    from gemm_eval.cli.output import print_line

    print_line(f"note: gemm-eval {old} is now gemm-eval {new}", err=True)
