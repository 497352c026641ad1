"""The page of the command line, written from the commands themselves: every command, argument, option and example."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from gemm_eval.cli.app import app
from gemm_eval.cli.options import EXIT_CODES

__all__ = ["command_line_page"]

_INTRO = f"""\
# Command line

Every command of `gemm-eval` with its arguments, options and examples, written from the code. In a terminal, `--help` behind a
command shows the same. Options that several commands share are explained at each of them. {EXIT_CODES}
"""
_SKIPPED = {"help", "install_completion", "show_completion"}
_EXAMPLES = "Examples:"


def command_line_page() -> str:
    """Return the Markdown of the page."""
    return "\n".join([_INTRO, *_command("gemm-eval", get_command(app), level=1)])


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    members = getattr(command, "commands", {})
    if level > 1:
        yield f"{'#' * level} {name}\n"
        yield from _text(command.help or "")
    rows = [row for param in command.params if param.name not in _SKIPPED for row in _rows(param)]
    if rows:
        yield "| argument or option | takes | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for member_name, member in members.items():
        yield from _command(f"{name} {member_name}", member, min(level + 1, 3))


def _text(text: str) -> Iterator[str]:
    """Yield a help text: its paragraphs, and its examples as one block of code."""
    words, _, examples = text.partition(_EXAMPLES)
    for paragraph in filter(None, words.split("\n\n")):
        yield " ".join(paragraph.split()).replace("|", "\\|") + "\n"
    lines = [" ".join(line.split()) for line in examples.split("\n\n") if line.strip()]
    if lines:
        yield "```sh\n" + "\n".join(lines) + "\n```\n"


def _word(annotation: Any) -> str:
    """Return what a type takes: the words of an enumeration, else number, text or the like."""
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(str(member.value) for member in annotation)
    return {int: "whole number", float: "number", str: "text", Path: "file"}.get(annotation, "text")


def _rows(param: Any) -> Iterator[str]:
    is_option = param.param_type_name == "option"
    if not is_option:
        names = f"`{(param.metavar or param.name).upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    is_flag = getattr(param, "is_flag", False)
    takes = param.metavar or _word(param.type_descriptor.annotation) if is_option and not is_flag else ""
    value = param.default.value if isinstance(param.default, enum.Enum) else param.default
    default = f"`{value}`" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    cells = (names, takes, "required" if param.required else default, " ".join((param.help or "").split()))
    yield "| " + " | ".join(cell.replace("\\[", "[").replace("|", "\\|") for cell in cells) + " |"
