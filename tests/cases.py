"""Many cases of one law in one test: a loop, in which a failure names its case; and how many examples a law gets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import settings

from gemm_eval.words import shown

THOROUGH = 150
"""Examples of a law in a thorough run that says no number of its own."""


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Name a case in whatever fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(shown, what))}")
        raise


def examples(thorough: int) -> int:
    """Return how many examples a law gets that has `thorough` in a thorough run: in proportion to the profile."""
    return max(1, thorough * settings.default.max_examples // THOROUGH)


def without_counts(records: Any) -> list[Any]:
    """Return records of a search without how many candidates it costed and passed over."""
    records = records.copy()
    records[["num_candidates", "num_bounded"]] = 0
    return list(records.tolist())
