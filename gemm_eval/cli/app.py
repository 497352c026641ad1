"""The application: its commands, and the one place where errors become a line on stderr and an exit code."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from gemm_eval.cli import (
    arch,
    checkpoint,
    configs,
    gemm,
    kernels,
    measure,
    model,
    operations,
    schema,
    serve,
    space,
    train,
    validate,
)
from gemm_eval.cli.options import EXIT_CODES, command, option
from gemm_eval.cli.words import Group, usage_message, with_flags
from gemm_eval.errors import GemmEvalError, InfeasibleError, StorageError, UnsupportedError
from gemm_eval.words import visible

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_NO_ANSWER = 3
_EXIT_OF = {StorageError: EXIT_FAILED, InfeasibleError: EXIT_NO_ANSWER, UnsupportedError: EXIT_NO_ANSWER}


class _Application(Group):
    """Turns errors of the library and of the command line into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit; see `EXIT_CODES`. Any exception that is not ours is a bug and goes through."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
        try:
            code = super().main(given, *rest, **extra)
        except GemmEvalError as error:
            _print_error(type(error).__name__, str(error), is_json="--json" in given)
            code = next((code for kind, code in _EXIT_OF.items() if isinstance(error, kind)), EXIT_INPUT)
        except OSError as error:  # a full disk, a folder that may not be written: the machine's trouble, no bug
            _print_error(type(error).__name__, str(error), is_json="--json" in given)
            code = EXIT_FAILED
        except Exception as error:  # typer brings its own copy of click, or not, by its version: no class to name
            if not hasattr(error, "format_message"):
                raise
            if type(error).__name__ != "NoArgsIsHelpError":  # whose help typer has printed already
                _print_error("UsageError", usage_message(error, given), is_json="--json" in given)
            code = EXIT_INPUT
        sys.exit(code or 0)


def _print_error(kind: str, message: str, *, is_json: bool) -> None:
    line = with_flags(" ".join(message.split()))
    document = json.dumps({"error": {"type": kind, "message": line}})
    sys.stderr.write((document if is_json else f"error: {visible(line)}") + "\n")


app = typer.Typer(
    cls=_Application,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Analytical cost model for GEMM: the best mapping of C[G,M,N] = A[G,M,K] x B[G,K,N] on an accelerator, its "
    "latency, and why; whole models, servers and training runs too. Predictions are checked against timings of GPUs "
    "(A100, L40S, H100, H200, B200, RTX PRO 6000, MI300X, MI355X) and of five multi-core chips. Each answer names its "
    "source and an 80% interval; `gemm-eval validate` prints measured errors."
    "\n\nExamples:\n\ngemm-eval arch list\n\ngemm-eval evaluate --arch h200-sxm 1 4096 4096 14336 --dtype fp8"
    "\n\ngemm-eval model llama-3-8b --arch h200-sxm --batch 16 --prompt 4096",
    epilog=EXIT_CODES,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "evaluate": gemm.evaluate,
    "top": gemm.top,
    "grouped": gemm.grouped,
    "attention": operations.attention,
    "collective": operations.collective,
    "gemms": model.gemms,
    "model": model.model,
    "train": train.train,
    "moe": operations.moe,
    "prewarm": model.prewarm,
    "serve": serve.serve,
    "kernels": kernels.kernels,
    "asm": kernels.asm,
    "profile": kernels.profile,
    "crossover": kernels.crossover,
    "sweep": space.sweep,
    "pareto": space.pareto,
    "report": space.report,
    "schema": schema.schema,
}
for _name, _function in _COMMANDS.items():
    command(app, _name)(_function)
app.add_typer(measure.app, name="measure")
app.add_typer(validate.validate, name="validate")
app.add_typer(validate.calibrate, name="calibrate")
for _group in (arch, configs, checkpoint):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from gemm_eval import __version__

        typer.echo(f"gemm-eval {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, option("Print the version and exit.", "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options of `gemm-eval` itself."""
