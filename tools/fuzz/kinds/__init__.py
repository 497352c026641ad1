"""Kinds of fuzzed input, one module each; `tools.fuzz.harness` finds them by listing this folder.

A kind has a function ``run_one(rng: random.Random, folder: Path) -> str``. It makes one input from `rng` alone, inside
`folder`, which is empty; gives it to the library; and returns a short label of the outcome: "ok", or the name of the
project's error that was raised. It catches nothing else: any other exception is a violation. A module whose kind needs
a library that is not there raises `ModuleNotFoundError` when it is imported or prepared, and is skipped.

It may have a function ``prepare() -> None``: what many cases share and none should be charged for, such as imports and
compiled kernels. It runs once in each process, in the user's own environment; cases get folders of their own.
"""

from gemm_eval.errors import GemmEvalError


def label_of(error: GemmEvalError, max_chars: int = 2000) -> str:
    """Return the name of an error's class; its message must be no longer than so many characters."""
    length = len(str(error))
    assert length <= max_chars, f"a message of {length:,} characters: {str(error)[:200]}"
    return type(error).__name__
