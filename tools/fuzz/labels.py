"""What the kinds call outcomes."""

from __future__ import annotations

from gemm_eval.errors import GemmEvalError

MAX_MESSAGE_CHARS = 2000


def label_of(error: GemmEvalError) -> str:
    """Return the name of an error's class, if its message is of a bounded length."""
    length = len(str(error))
    assert length <= MAX_MESSAGE_CHARS, f"a message of {length:,} characters"
    return type(error).__name__
