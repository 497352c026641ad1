"""The application: its commands, the one place where errors become an exit code, and JSON schemas of its answers."""

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gemm_eval.cli import arch, gemm, kernels, model, operations, serve, subjects
from gemm_eval.cli.options import EXIT_CODES, argument, command, option
from gemm_eval.cli.output import print_json
from gemm_eval.cli.values import Group, usage_message, with_flags
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidOptionError, StorageError, UnsupportedError
from gemm_eval.words import refusal, visible

_EACH = "*"  # key of a table whose names are not fixed

Shape = Any
"""A document: a type as `answer_schema` takes it, a list of the shapes of items, or a table of shapes by name. A name
that ends with ? may be absent. A tuple holds the shapes that a document may have."""


def _shapes() -> dict[str, Shape]:
    """Return the shape of the document of each command."""
    from gemm_eval.arch import CheckFinding
    from gemm_eval.autotune.asm import LoopCycles
    from gemm_eval.estimate import ModelEstimate
    from gemm_eval.evaluate import AttentionResult, CollectiveResult, GEMMResult
    from gemm_eval.measure import ComparedGemm
    from gemm_eval.moe import MoeLayerResult
    from gemm_eval.serving import Deployments, ServingEstimate
    from gemm_eval.training import TrainingEstimate
    from gemm_eval.transformer.prewarm import PrewarmReport

    misfit = {"problem": dict, "arch_name": str, "error": dict}
    results = {"results": [GEMMResult, misfit]}
    gemm = {"name": str, "total_count": int, "result": GEMMResult}
    gemms = {"model": str, "arch": str, "what_counts": str, "memory?": dict, "phases": {_EACH: [gemm]}}
    kernel = {
        "config": dict, "num_threads": int, "dynamic_smem_bytes": int, "is_legal": bool, "refusal": str | None,
        "has_run": bool, "splits": ([str], type(None)), "compiled": (dict, type(None)),
    }  # fmt: skip
    head = {"arch": str, "activation": str}
    kernels = head | {"mode": str, "group_size": int, "sizes": (dict, type(None)), "kernels": [kernel]}
    timed = {"place": int, "latency_us": float, "tflop_per_s": float, "gb_per_s": float, "registers": int}
    choice = {"by": str, "config": dict, "predicted_us": float, "place": int | None, "latency_us": float | None}
    reason = {"reason": str, "num_points": int, "first_point": int, "example": str}
    point = {"point": int, "low_us": float, "high_us": float, "library": str, "source": str}
    counts = dict.fromkeys(("num_points", "num_points_asked", "num_excluded"), int)
    front = counts | {"excluded": [reason], "front": [point]}
    records = {"path": str, "num_records": int, "num_bytes": int, "found_by": dict}
    packed = {"name": str, "K": int, "N": int, "mode": str, "group_size": int, "activation": str, "num_bytes": int}
    of_layer = {
        **dict.fromkeys(("arch_name", "dense_dtype", "l2", "clock", "source"), str), "K": int, "N": int, "curve": dict,
        "first_loss_M": int | None, "last_win_M": int | None, "measured?": [dict],
    }  # fmt: skip
    card = {
        "kernel": str, "source": str, "registers": int | None, "ops": dict[str, int], "loop": dict, "arch": str,
        "occupancy": (dict, type(None)), "loop_cycles": (LoopCycles, type(None)),
    }  # fmt: skip
    return {
        "evaluate": results, "grouped": results, "top": results,
        "attention": (AttentionResult, [AttentionResult]), "collective": (CollectiveResult, [CollectiveResult]),
        "gemms": (gemms, [gemms]), "model": (ModelEstimate, [ModelEstimate]),
        "train": (TrainingEstimate, [TrainingEstimate]), "serve": (ServingEstimate, Deployments),
        "moe": {"arch": str, "model": str | None, "layers": [MoeLayerResult]}, "prewarm": PrewarmReport,
        "kernels": (kernels, head | {"gemms": [ComparedGemm]}), "asm": card,
        "profile": {"gpu": str, "gemm": dict, "num_kernels": int, "kernels": [timed], "choices": [choice]},
        "crossover": (of_layer, {"arch": str, "pairs": [dict], "shares": [dict]}),
        "sweep": front, "pareto": (front, {"point": int, "explanation": str}),
        "arch list": {"archs": [{"name": str, "type": str, "peak_tflop_per_s": float, "dram_gb_per_s": float}]},
        "arch show": {"arch": dict, "units": dict[str, str], "derived": dict},
        "arch check": {"ok": bool, "archs": [{"arch": str, "ok": bool, "findings": [CheckFinding]}]},
        "configs build": records, "configs merge": records,
        "configs list": {"files": [{"path": str, "records": [dict]}]},
        "checkpoint convert": {"folder": str, "num_layers": int, "num_files": int, "num_bytes": int},
        "checkpoint show": {"path": str, "layers": [packed]},
    }  # fmt: skip


def _schema_of(shape: Shape) -> dict[str, Any]:
    from gemm_eval.evaluate import answer_schema

    if isinstance(shape, tuple):
        return {"anyOf": list(map(_schema_of, shape))}
    if isinstance(shape, list):
        return {"type": "array", "items": _schema_of(shape[0] if len(shape) == 1 else tuple(shape))}
    if shape is dict:
        return {"type": "object"}
    if not isinstance(shape, dict):
        return answer_schema(shape)
    if _EACH in shape:
        return {"type": "object", "additionalProperties": _schema_of(shape[_EACH])}
    properties = {name.rstrip("?"): _schema_of(item) for name, item in shape.items()}
    return {"type": "object", "properties": properties, "required": [name for name in shape if not name.endswith("?")]}


def schema(
    *, command: Annotated[list[str], argument("A command that takes --json, such as serve or arch list.", "COMMAND")]
) -> None:
    """Print the JSON schema of what a command writes with --json.

    A schema names what programs rely on; documents may have more. Those of `validate` and `measure host` have none.

    Examples:

    gemm-eval schema serve

    gemm-eval schema arch list
    """
    from gemm_eval.evaluate import DIALECT

    name, shapes = " ".join(command), _shapes()
    if name not in shapes:
        raise InvalidOptionError(refusal("command", name, sorted(shapes)))
    print_json({"$schema": DIALECT, "title": f"gemm-eval {name} --json", **_schema_of(shapes[name])})


EXIT_FAILED, EXIT_INPUT, EXIT_NO_ANSWER = 1, 2, 3
_EXIT_OF: dict[type[Exception], int] = {
    OSError: EXIT_FAILED, StorageError: EXIT_FAILED, InfeasibleError: EXIT_NO_ANSWER, UnsupportedError: EXIT_NO_ANSWER,
}  # fmt: skip


class _Application(Group):
    """Turns errors of the library and of the command line into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit; see `EXIT_CODES`. Any exception that is not ours is a bug and goes through."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        is_json = "--json" in given
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
        try:
            code = super().main(given, *rest, **extra)
        except (GemmEvalError, OSError) as error:  # a full disk is the trouble of the machine, no bug
            _print_error(type(error).__name__, str(error), is_json=is_json)
            code = next((code for kind, code in _EXIT_OF.items() if isinstance(error, kind)), EXIT_INPUT)
        except Exception as error:  # typer brings its own copy of click, or not, by its version: no class to name
            if not hasattr(error, "format_message"):
                raise
            if type(error).__name__ != "NoArgsIsHelpError":  # whose help typer has printed already
                _print_error("UsageError", usage_message(error, given), is_json=is_json)
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
for _function in (
    gemm.evaluate, gemm.top, gemm.grouped, operations.attention, operations.collective, model.gemms, model.model,
    serve.train, operations.moe, model.prewarm, serve.serve, kernels.kernels, kernels.asm, kernels.profile,
    kernels.crossover, gemm.sweep, gemm.pareto, gemm.report, schema,
):  # fmt: skip
    command(app)(_function)
_GROUPS = {
    "measure": arch.measure, "validate": subjects.validate, "calibrate": subjects.calibrate, "arch": arch.arch,
    "configs": kernels.configs, "checkpoint": kernels.checkpoint,
}  # fmt: skip
for _name, _group in _GROUPS.items():
    app.add_typer(_group, name=_name)


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
