"""Running a command of this folder: an error of the library becomes a line on stderr and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from gemm_eval.errors import GemmEvalError
from gemm_eval.words import visible


def run(app: typer.Typer, words: Sequence[str] | None = None) -> None:
    """Run a command with the words of the command line, or with `words`, and exit."""
    try:
        app(args=words)
    except GemmEvalError as error:
        sys.stderr.write(f"error: {visible(' '.join(str(error).split()))}\n")
        sys.exit(2)
