"""Values that a field of a space can have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

__all__ = ["check_value"]

_MAX_CHARS = 1000
_MAX_DEPTH = 4  # tables of specs have one level
_LARGEST = int(sys.float_info.max)


def check_value(value: Any, depth: int = 0) -> None:
    """Check that a value is None, a truth, a finite number, a text that prints, or a table of these by name.

    Such values are the same after a way through JSON, and do nothing to a terminal.

    Raises:
        InvalidOptionError: it is something else.
    """
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        if not -_LARGEST <= value <= _LARGEST:  # nan too
            raise InvalidOptionError("a number must be finite, and in -1.8e308..1.8e308")
    elif isinstance(value, str):
        if not value.isprintable() or len(value) > _MAX_CHARS:
            raise InvalidOptionError(
                f"a text must have {_MAX_CHARS} characters at most, none of them a control character, got "
                f"{shown(value)}"
            )
    elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidOptionError(f"the keys of a table are texts, got {shown(key)}")
            check_value(key)
            check_value(item, depth + 1)
    else:
        raise InvalidOptionError(f"a value is None, a truth, a number, a text or a table, got {shown(value)}")
