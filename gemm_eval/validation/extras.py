"""What to install for which part: a missing package becomes one line with the pip command."""

from __future__ import annotations

import importlib.util

from gemm_eval.errors import GemmEvalError

__all__ = ["check_extra", "has_package"]


def has_package(package: str) -> bool:
    """Whether `package` (its import name) is installed; nothing is imported."""
    return importlib.util.find_spec(package) is not None


def check_extra(what: str, extra: str, *packages: str) -> None:
    """Check that `packages` (import names) are installed; `what` says for which work.

    Raises:
        GemmEvalError: one of them is missing; the message has the pip command of `extra`.
    """
    missing = [package for package in packages if not has_package(package)]
    if missing:
        raise GemmEvalError(f"{what} needs {' and '.join(missing)}: pip install 'gemm_eval[{extra}]'")
