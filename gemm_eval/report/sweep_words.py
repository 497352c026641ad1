"""What a sweep asked for, in words, as its description has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["say_field", "say_sampling", "say_value"]

_MOST_VALUES = 10
_MAX_WHOLE = 1e15  # above, a float does not tell which whole number it was


def say_field(field: Mapping[str, Any], say: Callable[[Any], str] | None = None) -> str:
    """Return what a field takes, ``"100 to 1,600, 4 values"``, given what `SweepResult.description` has of it.

    Args:
        field: its description.
        say: how a value is written; default: `say_value`.
    """
    say = say or say_value
    kind = field["kind"]
    if kind == "Dependent":
        return f"= {field['of']}" if "of" in field else "a function of the others"
    if kind == "Choices":
        return _say_choices(field["values"], say)
    words = [f"{say(field['low'])} to {say(field['high'])}"]
    words += ["logarithmic"] if kind == "LogRange" else []
    words += [f"multiples of {say(field['step'])}"] if field["step"] is not None else []
    words += [f"{field['num']} values"] if field["num"] is not None else []
    return ", ".join(words)


def say_sampling(sampling: Mapping[str, Any]) -> str:
    """Return how points were chosen, given what `SweepResult.description` has of it."""
    kind = sampling["kind"]
    if kind == "Grid":
        return "all combinations"
    if kind not in ("Random", "LatinHypercube", "Adaptive"):
        return str(sampling.get("said", kind))
    num, seed = f"{sampling['num_points']:,}", sampling["seed"]
    if kind == "Adaptive":
        by = f"{sampling['sampler']} in batches of {sampling['batch_size']}"
        return f"{num} points, chosen by {by}, seed {seed}"
    return (
        f"{num} points at random, seed {seed}" if kind == "Random" else f"{num} points, a Latin hypercube, seed {seed}"
    )


def say_value(value: Any) -> str:
    """Return a value of a field as text: ``262,144``, ``0.85``, ``True``, ``fp16``, ``fp16 2, int8 4`` for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {say_value(one)}" for key, one in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < _MAX_WHOLE:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _say_choices(values: Sequence[Any], say: Callable[[Any], str]) -> str:
    texts = [f"({say(value)})" if isinstance(value, dict) else say(value) for value in values]
    if len(texts) > _MOST_VALUES:
        half = _MOST_VALUES // 2
        texts = [*texts[:half], "...", *texts[-half:]]
        return f"{', '.join(texts)} ({len(values):,} values)"
    return ", ".join(texts)
