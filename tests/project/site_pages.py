"""The modules that write the site of docs/, which is no package: `pages` and `reference`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

__all__ = ["pages", "reference"]

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "generate"))
try:
    pages, reference = import_module("pages"), import_module("reference")
finally:
    sys.path.pop(0)
