"""The modules that write the site of docs/, which is no package; `names` only where griffe is."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

_FOLDER = str(Path(__file__).resolve().parents[2] / "docs" / "generate")


def names_module() -> ModuleType:
    """`names`, which needs griffe."""
    return _imported("names")


def _imported(name: str) -> ModuleType:
    sys.path.insert(0, _FOLDER)
    try:
        return import_module(name)
    finally:
        sys.path.pop(0)


pages, reference = _imported("pages"), _imported("reference")
