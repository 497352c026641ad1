"""Packages whose names are loaded when they are first used: importing one costs nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^ +from (\S+) import (\([^)]*\)|[^(\n]*)", re.MULTILINE)


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: its dotted name.
        modules: the public names by the module that has them, which is relative (".gemm") or absolute.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name], package), name)
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted(module_of)


def lazy_package(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, which its imports under TYPE_CHECKING list.

    Args:
        package: its dotted name.
        file: its `__init__.py`.
    """
    imports = _IMPORT.findall(Path(file).read_text(encoding="utf-8"))
    load, names = lazy_names(package, {module: re.findall(r"\w+", text) for module, text in imports})
    return load, names, names()
