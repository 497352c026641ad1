"""Packages that only some parts need: what is missing becomes one line with the pip command of its extra."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from gemm_eval.errors import GemmEvalError

_ALTERNATIVES = {"gpu": "or 'gemm_eval[gpu-cuda12]' where the driver is for CUDA 12"}
"""By extra: what is installed in its place on some machines."""


@contextmanager
def needs_extra(purpose: str, extra: str) -> Iterator[None]:
    """Stand around imports of packages that `extra` installs; `what` needs them.

    >>> with needs_extra("a sweep", "sweep"):  # doctest: +SKIP
    ...     import pyarrow
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise GemmEvalError(f"{purpose} needs {package}: {install_command(extra)}") from error
    except ImportError as error:
        raise GemmEvalError(
            f"{purpose} needs a package that does not load: {install_command(extra)} ({error})"
        ) from error


def check_extra(purpose: str, extra: str, *packages: str) -> None:
    """Check that `packages` (import names) are there before `what` begins a long work; nothing is imported."""
    missing = [package for package in packages if not has_package(package)]
    if missing:
        raise GemmEvalError(f"{purpose} needs {' and '.join(missing)}: {install_command(extra)}")


def has_package(package: str) -> bool:
    """Return True if `package` (its import name) is installed; nothing is imported."""
    return importlib.util.find_spec(package) is not None


def install_command(extra: str) -> str:
    """Return the pip command of `extra`, for the end of an error's message."""
    command = f"pip install 'gemm_eval[{extra}]'"
    return f"{command}, {_ALTERNATIVES[extra]}" if extra in _ALTERNATIVES else command
