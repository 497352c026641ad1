"""Every `gemm-eval ...` that the documentation shows is a command that exists, with options that exist."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gemm_eval.cli.app import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("gemm_eval", "arch", "benchmarks", "docs", "examples", "notebooks", "tests")


def texts() -> Iterator[tuple[Path, str]]:
    files = [
        path
        for folder in FOLDERS
        for kind in ("md", "py", "ipynb", "yaml")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    ]
    for path in sorted([*ROOT.glob("*.md"), *files]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        if "gemm-eval " in text and path != Path(__file__) and path.name != "CHANGELOG.md":  # which says what was
            yield path, text


def commands_in(text: str) -> Iterator[str]:
    """Whole lines of code blocks, and what stands in backquotes, over the end of a line too."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield from re.findall(r"^gemm-eval (.+?)(?:  #.*)?$", block, flags=re.MULTILINE)
    for span in re.findall(r"(?<!`)`gemm-eval ([^`{]+)`(?!`)", text):
        yield re.sub(r'\s*\n[\s#]*|"\s*"', " ", span).partition("|")[0].strip()


def parse(command: Any, words: list[str]) -> None:
    while hasattr(command, "commands") and words:
        if command.name == "measure" and words[0].startswith("-"):
            words = ["gpu", *words]  # as the command itself has it
        if words[0] not in command.commands:
            break
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or not words or words[0].startswith("-"), f"no such command: {words}"
    with command.make_context("x", [], resilient_parsing=True) as ctx:
        ctx.resilient_parsing = False  # it swallows what the parser does not know
        command.make_parser(ctx).parse_args(list(words))


def test_documented_commands_parse() -> None:
    application = typer.main.get_command(app)
    wrong, num = [], 0
    for path, text in texts():
        for line in commands_in(text):
            num += 1
            command, words = application, shlex.split(line.replace("...", ""))
            try:
                parse(command, words)
            except Exception as error:  # of click or of its copy in typer
                wrong.append(f"{path.relative_to(ROOT)}: gemm-eval {line}: {error}")
    assert num > 60
    assert wrong == []
