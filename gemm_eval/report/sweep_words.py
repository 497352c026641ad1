"""What a sweep asked for, in words: its description keeps fields and sampling as Python would write them."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["say_field", "say_sampling", "say_value"]

_MOST_VALUES = 10
_MAX_WHOLE = 1e15  # above, a float does not tell which whole number it was


def say_field(written: str) -> str:
    """Return what a field takes, ``"100 to 1,600, 4 values"``; text of another kind as it is.

    Args:
        written: of `SweepResult.description`, such as ``"Range(low=100.0, high=1600.0, num=4, step=None)"``.
    """
    if written.startswith("Dependent("):
        of = _read_call(written)[1].get("of")
        return f"= {of}" if isinstance(of, str) else "a function of the others"
    kind, given = _read_call(written)
    if kind == "Choices" and isinstance(given.get("values"), tuple):
        return _say_choices(given["values"])
    if kind not in ("Range", "LogRange") or not {"low", "high"} <= set(given):
        return written
    words = [f"{say_value(given['low'])} to {say_value(given['high'])}"]
    words += ["logarithmic"] if kind == "LogRange" else []
    words += [f"multiples of {say_value(given['step'])}"] if given.get("step") is not None else []
    words += [f"{given['num']} values"] if given.get("num") is not None else []
    return ", ".join(words)


def say_sampling(written: str) -> str:
    """Return how points were chosen, given what a description says: ``"Random(num_points=9, seed=0)"``."""
    kind, given = _read_call(written)
    num, seed = (f"{given.get(name, 0):,}" for name in ("num_points", "seed"))
    if kind == "Grid":
        return "all combinations"
    if kind == "Random":
        return f"{num} points at random, seed {seed}"
    if kind == "LatinHypercube":
        return f"{num} points, a Latin hypercube, seed {seed}"
    if kind == "Adaptive":
        return f"{num} points, chosen by {given.get('sampler')} in batches of {given.get('batch_size')}, seed {seed}"
    return written


def say_value(value: Any) -> str:
    """Return a value of a field as text: ``262,144``, ``0.85``, ``True``, ``fp16``, ``fp16 2, int8 4`` for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {say_value(one)}" for key, one in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < _MAX_WHOLE:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _say_choices(values: tuple[Any, ...]) -> str:
    texts = [f"({say_value(value)})" if isinstance(value, dict) else say_value(value) for value in values]
    if len(texts) > _MOST_VALUES:
        half = _MOST_VALUES // 2
        texts = [*texts[:half], "...", *texts[-half:]]
        return f"{', '.join(texts)} ({len(values):,} values)"
    return ", ".join(texts)


def _read_call(written: str) -> tuple[str, dict[str, Any]]:
    """The name and the keyword arguments of a constructor call; no name if it is something else."""
    try:
        node = ast.parse(written, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return node.func.id, {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    except (SyntaxError, ValueError):
        pass
    return "", {}
