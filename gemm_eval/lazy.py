"""Packages whose names are loaded when they are first used: importing one costs nothing.

Such a package imports its names under ``if TYPE_CHECKING:``, for people and type checkers. Nothing runs that block:
`lazy_names` reads in it which module has which name.
"""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_IMPORT = re.compile(r"^    from (\S+) import (\([^)]*\)|.+)$", re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562), given its dotted name."""
    with open(str(sys.modules[package].__file__), encoding="utf-8") as file:  # noqa: PTH123  pathlib takes 3 ms to import
        source = file.read()
    module_of = {name: module for module, names in _IMPORT.findall(source) for name in re.findall(r"\w+", names)}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted(module_of)
