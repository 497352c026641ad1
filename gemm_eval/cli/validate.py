"""The groups `validate` and `calibrate`: one command for each subject of the registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.subjects import SUBJECTS, Command, Option
from gemm_eval.progress import progress_status

if TYPE_CHECKING:
    from gemm_eval.validation.subjects import Fitted

validate = opt.group(
    "Compare predicted with measured latencies of GEMMs, operations, whole models and servers.\n\n"
    "A model is judged on rows that were held out of its fit, by (N, K) pair."
)
calibrate = opt.group(
    "Fit the few coefficients of a kernel family, or of Triton kernels, on timings, and write them.\n\n"
    "The file also has the hashes of the data, the date, the errors on held-out (N, K) pairs, and the versions."
)
_JSON = Option("json", "Print one JSON document on stdout instead of tables.", bool, default=False, flag="--json")


def _add(group: typer.Typer, name: str, command: Command, body: Callable[..., None], *more: Option) -> None:
    """Make a command whose options are those of a subject."""
    options = (*command.options, *more)
    params = [inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty
              if item.default is ... else item.default, annotation=Annotated[item.type, _typer_option(item)])
              for item in options]  # fmt: skip

    def run(**given: Any) -> None:
        body(command, **given)

    run.__doc__, run.__annotations__ = command.help, {param.name: param.annotation for param in params}
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    opt.command(group, name, needs_words=any(item.default is ... for item in options))(run)


def _typer_option(item: Option) -> Any:
    complete = getattr(opt, f"complete_{item.complete}") if item.complete else None
    if item.is_argument:
        return opt.argument(item.help, item.metavar or item.name, complete=complete)
    return opt.option(
        item.help, *([item.flag] if item.flag else []), complete=complete, metavar=item.metavar, min=item.least,
        show_default=item.default not in (None, ...),
    )  # fmt: skip


def _validate(command: Command, *, json: bool, **given: Any) -> None:
    from gemm_eval.cli.output import make_console, print_json

    with progress_status("validate"):
        result = command.run(given)
        from gemm_eval.validation.subjects import Report, exam_report

        report = result if isinstance(result, Report) else exam_report(result, **given)
        answer = report.document() if json else list(report.parts())
    if json:
        print_json(answer)
        return
    console = make_console()
    for part in answer:
        console.print(part)


def _calibrate(command: Command, **given: Any) -> None:
    from gemm_eval.cli.output import make_console

    console = make_console()
    results: Iterable[Fitted] = command.run(given)
    iterator = iter(results)
    while True:
        with progress_status("calibrate"):
            item = next(iterator, None)
        if item is None:
            break
        path = given.get("out") or item.path
        if path is not None and item.path is not None:
            path = given["out_folder"] / item.path.name if given.get("out_folder") else path
            path.parent.mkdir(parents=True, exist_ok=True)
            item.write(path)
        for part in item.parts:
            console.print(part, soft_wrap=isinstance(part, str))
        if item.path is not None:
            console.print(f"written to {path}", soft_wrap=True)


for _subject in SUBJECTS:
    if _subject.validate is not None:
        _add(validate, _subject.name, _subject.validate, _validate, _JSON)
    if _subject.calibrate is not None:
        _add(calibrate, _subject.name, _subject.calibrate, _calibrate)
