"""What a field of a spec may be in a design space: some values, a range, or something that follows from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError

__all__ = ["Choices", "Dependent", "Field", "LogRange", "Range", "as_field"]


@dataclass(frozen=True)
class Choices:
    """Some values, in the order given."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        values = tuple(value.item() if isinstance(value, np.generic) else value for value in self.values)
        object.__setattr__(self, "values", values)
        if not values:
            raise InvalidOptionError("a field needs at least one value, got none")

    def grid(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def take(self, unit: npt.NDArray[np.float64]) -> list[Any]:
        """Return the value for each number in [0, 1]; all values are equally likely."""
        places = np.minimum((unit * len(self.values)).astype(np.int64), len(self.values) - 1)
        return [self.values[place] for place in places.tolist()]


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included, evenly spread.

    Attributes:
        low, high: if both are whole numbers, so are the values.
        num: how many of them a grid takes; sampling takes any.
        step: values are multiples of it.
    """

    low: float
    high: float
    num: int | None = None
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range(self, least=-math.inf)

    def grid(self) -> tuple[Any, ...]:
        """The `num` values of a grid, fewer where several round to the same."""
        if self.num is None and self.step is not None:
            first, last = math.ceil(self.low / self.step), math.floor(self.high / self.step)
            return tuple(self._number(place * self.step) for place in range(first, last + 1))
        return tuple(dict.fromkeys(self.take(_grid_of(self))))

    def take(self, unit: npt.NDArray[np.float64]) -> list[Any]:
        """Return the value for each number in [0, 1]."""
        return [self._number(value) for value in (self.low + (self.high - self.low) * unit).tolist()]

    def _number(self, value: float) -> Any:
        return _rounded(value, self)


@dataclass(frozen=True)
class LogRange:
    """The numbers from `low` to `high`, both included, evenly spread in their logarithm: ``LogRange(2**19, 2**23, 5)``.

    Attributes:
        low, high: above 0; if both are whole numbers, so are the values.
        num: how many of them a grid takes; sampling takes any.
        step: values are multiples of it.
    """

    low: float
    high: float
    num: int | None = None
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range(self, least=0.0)

    def grid(self) -> tuple[Any, ...]:
        """The `num` values of a grid, fewer where several round to the same."""
        return tuple(dict.fromkeys(self.take(_grid_of(self))))

    def take(self, unit: npt.NDArray[np.float64]) -> list[Any]:
        """Return the value for each number in [0, 1]."""
        values = self.low * (self.high / self.low) ** unit
        return [_rounded(value, self) for value in values.tolist()]


@dataclass(frozen=True)
class Dependent:
    """A value that follows from others.

    Attributes:
        of: a function of one argument that has the fields and variables as attributes (``lambda a: 2 * a.num_cores``),
            or an expression in their names (``"2 * num_cores"``), which other processes can be sent too.
    """

    of: Callable[[Any], Any] | str

    def value(self, known: Mapping[str, Any]) -> Any:
        """Return the value, given those of all fields and variables that come before."""
        if not isinstance(self.of, str):
            return self.of(_Known(known))
        from simpleeval import NameNotDefined, SimpleEval

        functions = {"min": min, "max": max, "round": round, "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt,
                     "log2": math.log2, "log": math.log, "exp": math.exp, "int": int, "float": float}  # fmt: skip
        try:
            return SimpleEval(names=dict(known), functions=functions).eval(self.of)
        except NameNotDefined as error:
            raise InvalidOptionError(f"{self.of!r}: {error}; it may name fields of the spec and variables") from None


Field = Choices | Range | LogRange | Dependent


class _Known:
    """Values as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no field or variable {name!r} that comes before") from None


def as_field(name: str, value: Any) -> Field:
    """Read what a user writes for a field: a value, some values, a range, a function, or an expression after ``=``."""
    if isinstance(value, Choices | Range | LogRange | Dependent):
        return value
    if callable(value):
        return Dependent(value)
    if isinstance(value, str) and value.startswith("="):
        return Dependent(value[1:].strip())
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return Choices((value,))
    try:
        return Choices(tuple(value))
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{name}: {error}") from None


def _check_range(field: Range | LogRange, *, least: float) -> None:
    low, high = field.low, field.high
    for what, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise InvalidOptionError(f"{what} of a range must be a finite number, got {value!r}")
        object.__setattr__(field, what, value.item() if isinstance(value, np.number) else value)
    if not least < low < high:
        raise InvalidOptionError(f"a range needs {'0 < ' if least == 0 else ''}low < high, got {low!r} and {high!r}")
    if field.num is not None and (isinstance(field.num, bool) or not isinstance(field.num, int) or field.num < 2):
        raise InvalidOptionError(f"num of a range must be a whole number >= 2, got {field.num!r}")
    if field.step is not None and not field.step > 0:
        raise InvalidOptionError(f"step of a range must be > 0, got {field.step!r}")


def _grid_of(field: Range | LogRange) -> npt.NDArray[np.float64]:
    if field.num is None:
        raise InvalidOptionError(f"a full grid needs num, how many values of a range to take: {field}")
    return np.linspace(0.0, 1.0, field.num)


def _rounded(value: float, field: Range | LogRange) -> Any:
    """Keep to the step, within the range, and whole if the ends are."""
    if field.step is not None:
        first, last = math.ceil(field.low / field.step), math.floor(field.high / field.step)
        value = min(max(round(value / field.step), first), last) * field.step
    if (
        isinstance(field.low, int)
        and isinstance(field.high, int)
        and (field.step is None or field.step == int(field.step))
    ):
        return round(value)
    return min(max(value, field.low), field.high)
