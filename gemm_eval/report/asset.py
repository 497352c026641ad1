"""The files that a page is made of."""

from __future__ import annotations

import functools
import importlib.resources

__all__ = ["asset"]


@functools.cache
def asset(name: str) -> str:
    """Return the text of a file of `assets`."""
    return (importlib.resources.files("gemm_eval.report") / "assets" / name).read_text(encoding="utf-8").strip()
