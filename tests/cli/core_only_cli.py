"""Runs commands as if only what the core needs were installed: for test_extras.py, in a process of its own.

Reads a JSON list of [commands, packages that are not to be found] and prints one of [runs, names of all commands]; a
run is [command, words, exit code, stdout, stderr].
"""

import contextlib
import importlib.machinery
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

COMMANDS, HIDDEN = json.load(sys.stdin)


class CoreOnly(importlib.machinery.PathFinder):
    """Finds modules as Python does, but for those of hidden packages."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


def leaves(command: Any, *above: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The words of every command, and whether it knows --json."""
    parts = getattr(command, "commands", None)
    for name, part in (parts or {}).items():
        yield from leaves(part, *above, name)
    if parts is None:
        yield above, any("--json" in parameter.opts for parameter in command.params)


def main() -> None:
    sys.meta_path[:] = [CoreOnly if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
    import typer

    from gemm_eval.cli.app import app

    known = dict(leaves(typer.main.get_command(app)))
    ran = []
    for words in COMMANDS:
        command = tuple(words[:2]) if tuple(words[:2]) in known else tuple(words[:1])
        for more in ([], ["--json"]) if known.get(command) else ([],):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    app(words + more)
                except SystemExit as stop:  # it always exits
                    ran.append([command, words + more, stop.code, out.getvalue(), err.getvalue()])
    json.dump([ran, list(known)], sys.stdout)


if __name__ == "__main__":
    main()
