"""Many cases of one law in one test: a loop, in which a failure names its case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gemm_eval.words import shown

__all__ = ["case"]


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Name a case in whatever fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(shown, what))}")
        raise
