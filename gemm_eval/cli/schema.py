"""The command `schema`: the JSON schema of what `--json` of a command writes."""

from __future__ import annotations

from typing import Annotated, Any

from gemm_eval.cli import options as opt
from gemm_eval.cli.output import print_json
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import refusal


def _schemas() -> dict[str, Any]:
    """Return the schema of each command that has one."""
    from gemm_eval.estimate import ModelEstimate
    from gemm_eval.evaluate import AttentionResult, CollectiveResult, GEMMResult, answer_schema
    from gemm_eval.serving import Deployments, ServingEstimate
    from gemm_eval.training import TrainingEstimate

    answers = {
        "attention": AttentionResult, "collective": CollectiveResult, "model": ModelEstimate, "train": TrainingEstimate,
    }  # fmt: skip
    schemas = {name: answer_schema(kind | tuple[kind, ...]) for name, kind in answers.items()}  # type: ignore[valid-type]
    misfit = {"type": "object", "required": ["problem", "arch_name", "error"]}
    results = {"type": "array", "items": {"anyOf": [answer_schema(GEMMResult), misfit]}}
    for name in ("evaluate", "grouped", "top"):
        schemas[name] = {"type": "object", "properties": {"results": results}, "required": ["results"]}
    schemas["serve"] = answer_schema(ServingEstimate | Deployments)
    return schemas


def schema(
    *,
    command: Annotated[
        str, opt.argument("attention, collective, evaluate, grouped, model, serve, top or train.", "COMMAND")
    ],
) -> None:
    """Print the JSON schema of what a command writes with --json.

    Examples:

    gemm-eval schema serve
    """
    from gemm_eval.evaluate import DIALECT

    schemas = _schemas()
    if command not in schemas:
        raise InvalidOptionError(refusal("command", command, sorted(schemas)))
    print_json({"$schema": DIALECT, "title": f"gemm-eval {command} --json", **schemas[command]})
