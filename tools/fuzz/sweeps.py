"""What the kinds on sweeps share."""

from __future__ import annotations

from gemm_eval.errors import GemmEvalError


def label_of(error: GemmEvalError, max_chars: int) -> str:
    """Return the label of an error, whose message is no longer than so many characters."""
    assert len(str(error)) <= max_chars, f"a message of {len(str(error)):,} characters: {str(error)[:200]}"
    return type(error).__name__
