"""Sets of layers as short text: ``"3-60"`` (all of them), ``"1-47:2"`` (every other one), ``"0, 5-7"``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

__all__ = ["LayerSet", "layers_text", "parse_layers"]

_MAX_LAYERS = 1 << 16
_RUN = re.compile(r"(\d{1,5})(?:-(\d{1,5})(?::(\d{1,5}))?)?")
_MIN_RUN = 3  # layers that are worth a run with a step


@lru_cache(maxsize=4096)
def parse_layers(text: str) -> tuple[int, ...]:
    """Return the layers that a text means, counted from 0, in order.

    Raises:
        ValueError: it is no such text, or names a layer twice.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part.strip())
        if match is None:
            raise ValueError('layers are written as "0, 5-7, 9-47:2", counted from 0')
        first, last, step = (None if group is None else int(group) for group in match.groups())
        assert first is not None
        last = first if last is None else last
        if last < first or step == 0 or last >= _MAX_LAYERS:
            raise ValueError(f"a run of layers goes up, to at most {_MAX_LAYERS - 1}: {part.strip()} does not")
        found += range(first, last + 1, step or 1)
    if len(set(found)) < len(found):
        raise ValueError("layers are named twice")
    return tuple(sorted(found))


def layers_text(layers: Iterable[int]) -> str:
    """Return the shortest text in runs for some layers; `parse_layers` reads it."""
    rest, runs = sorted(layers), []
    while rest:
        length, step = 1, 1
        if len(rest) > 1:
            step = rest[1] - rest[0]
            while length < len(rest) and rest[length] == rest[0] + length * step:
                length += 1
        if length < _MIN_RUN and step > 1:
            length = 1
        suffix = f":{step}" if step > 1 and length > 1 else ""
        runs.append(f"{rest[0]}-{rest[length - 1]}{suffix}" if length > 1 else f"{rest[0]}")
        rest = rest[length:]
    return ", ".join(runs)


def _canonical(text: str) -> str:
    return layers_text(parse_layers(text))


LayerSet = Annotated[str, Field(max_length=4000), AfterValidator(_canonical)]
"""Some layers of a model, as text that `parse_layers` reads."""
