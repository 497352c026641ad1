"""The predicted subjects, a module each: its exam, its fits, and what `validate` and `calibrate` print and write.

The commands themselves are made from the registry in `gemm_eval.cli.subjects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Report(NamedTuple):
    """What `validate` prints.

    Attributes:
        document: returns plain values for JSON.
        parts: returns lines and tables for people.
    """

    document: Callable[[], Mapping[str, Any]]
    parts: Callable[[], Iterable[Any]]


class Fitted(NamedTuple):
    """What `calibrate` writes and prints.

    Attributes:
        path: where the file goes if the user does not say; None: there is none.
        write: writes it to a path.
        parts: lines and tables for people.
    """

    path: Path | None
    write: Callable[[Path], object]
    parts: tuple[Any, ...]
