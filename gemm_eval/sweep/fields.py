"""Fields of a design space: some values, a range, or what follows from the others; and specs with fields changed."""

import dataclasses
import enum
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from gemm_eval.arch import ArchSpec, build_spec, with_entry
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.units import UnitError, in_unit_of
from gemm_eval.words import as_integer, did_you_mean, one_line, shown

_MAX_CHARS = 1000
_MAX_DEPTH = 4  # tables of specs have one level
_LARGEST_NUMBER = int(sys.float_info.max)


def check_value(value: Any, depth: int = 0) -> None:
    """Check that a value is None, a truth, a finite number, a printable text, or a table of these: safe in JSON."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        if not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:  # nan too
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


_SMALLEST, _LARGEST = 1e-100, 1e100  # of the ends and steps of ranges: their ratios and differences are finite
_MAX_GRID = 1_000_000  # values of one range
_ULPS = 1e-9  # 0.3 is a multiple of 0.1, though not to the last bit


@dataclass(frozen=True)
class Choices:
    """Some values, in the order given: None, truths, numbers, texts, or tables of these."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        values = tuple(value.item() if isinstance(value, np.generic) else value for value in self.values)
        object.__setattr__(self, "values", values)
        if not values:
            raise InvalidOptionError("a field needs at least one value, got none")
        for value in values:
            check_value(value)

    def __repr__(self) -> str:
        return f"Choices({shown(self.values)})"

    def grid(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def take(self, unit: npt.NDArray[np.float64]) -> list[Any]:
        """Return the value for each number in [0, 1]; all values are equally likely."""
        last = len(self.values) - 1
        return [self.values[min(int(unit_value * (last + 1)), last)] for unit_value in unit.tolist()]


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included, evenly spread.

    Attributes:
        low, high: the ends. Values are whole where the field of the spec is; those of a variable are if both ends are.
        num: how many of them a grid takes; sampling takes any.
        step: values are multiples of it.
    """

    low: float
    high: float
    num: int | None = None
    step: float | None = None
    _least: ClassVar[float] = -math.inf  # of `low`

    def __post_init__(self) -> None:
        for name in ("low", "high", "num", "step"):
            value = getattr(self, name)
            object.__setattr__(self, name, value.item() if isinstance(value, np.number) else value)
            if name in ("low", "high") and not _is_number(value):
                raise InvalidOptionError(
                    f"{name} of a range must be a finite number, {_LARGEST:g} at most, got {shown(value)}"
                )
        if not self._least <= self.low < self.high:
            least = f"{_SMALLEST:g} <= " if self._least > 0 else ""
            raise InvalidOptionError(f"a range needs {least}low < high, got {shown(self.low)} and {self.high!r}")
        if self.num is not None:
            as_integer("num of a range", self.num, 2, _MAX_GRID)
        if self.step is not None:
            if not _is_number(self.step) or not self.step >= _SMALLEST:
                raise InvalidOptionError(f"step of a range must be a number >= {_SMALLEST:g}, got {shown(self.step)}")
            if self._first > self._last:
                raise InvalidOptionError(f"a range must hold a multiple of its step, got {self}")

    def _between(self, low: float, high: float, unit: float) -> float:
        """Return the number that lies that far, 0 to 1, between two."""
        return high if unit == 1 else low + (high - low) * unit

    @property
    def is_whole(self) -> bool:
        """True if all values are whole numbers."""
        is_stepped = self.step is None or self.step == int(self.step)
        return isinstance(self.low, int) and isinstance(self.high, int) and is_stepped

    def grid(self) -> tuple[Any, ...]:
        """Return the values of a grid: `num`, fewer where several round to the same, or all multiples of `step`."""
        if self.num is None and self.step is None:
            raise InvalidOptionError(f"a full grid needs num, how many values of a range to take: {self}")
        if self.num is None:
            if self._last - self._first >= _MAX_GRID:
                raise InvalidOptionError(f"a grid takes {_MAX_GRID:,} values of a range at most: sample {self}")
            return tuple(map(self._multiple, range(self._first, self._last + 1)))
        values = [self._between(self.low, self.high, at / (self.num - 1)) for at in range(self.num)]
        if self._is_stepped:
            values = [self._multiple(round(value / self._step)) for value in values]
        return tuple(dict.fromkeys(min(max(value, self.low), self.high) for value in values))

    def take(self, unit: npt.NDArray[np.float64]) -> list[Any]:
        """Return the value for each number in [0, 1]."""
        # number by number: a vector of logarithms may round otherwise than one of another length
        if not self._is_stepped:
            values = (self._between(self.low, self.high, unit_value) for unit_value in unit.tolist())
            return [min(max(value, self.low), self.high) for value in values]
        ends = self._first - 0.5, self._last + 0.5  # the first and the last multiple get their full share
        return [self._multiple(round(self._between(*ends, unit_value))) for unit_value in unit.tolist()]

    @property
    def _is_stepped(self) -> bool:
        return self.step is not None or self.is_whole

    @property
    def _step(self) -> float:
        return 1 if self.step is None else int(self.step) if self.is_whole else self.step

    @property
    def _first(self) -> int:
        return -(-int(self.low) // int(self._step)) if self.is_whole else math.ceil(self.low / self._step - _ULPS)

    @property
    def _last(self) -> int:
        return int(self.high) // int(self._step) if self.is_whole else math.floor(self.high / self._step + _ULPS)

    def _multiple(self, place: int) -> Any:
        """Return the multiple of the step, or the nearest one between the ends."""
        place = min(max(place, self._first), self._last)
        return place * self._step if self.is_whole else min(max(place * float(self._step), self.low), self.high)


@dataclass(frozen=True)
class LogRange(Range):
    """The numbers from `low` to `high`, both above 0, evenly spread in their logarithm: ``LogRange(2**19, 2**23, 5)``.

    Attributes are those of `Range`.
    """

    _least = _SMALLEST

    def _between(self, low: float, high: float, unit: float) -> float:
        return high if unit == 1 else low * (high / low) ** unit


@dataclass(frozen=True)
class Dependent:
    """A value that follows from others.

    Attributes:
        of: a function of one argument that has the fields and variables as attributes (``lambda a: 2 * a.num_cores``),
            or an expression in their names (``"2 * num_cores"``), which other processes can be sent too.
    """

    of: Callable[[Any], Any] | str


Drawn = Choices | Range
Field = Drawn | Dependent


def as_field(name: str, value: Any) -> Field:
    """Read what a user writes for a field: a value, some values, a range, a function, or an expression after ``=``.

    Numbers may have units, ``"1.5 MiB"``, where the name of the field ends with one.
    """
    if isinstance(value, Choices | Range | Dependent):
        return value
    if callable(value):
        return Dependent(value)
    if isinstance(value, str) and value.startswith("="):
        return Dependent(value[1:].strip())
    if isinstance(value, set | frozenset):
        raise InvalidOptionError(
            f"{name}: a set has no order, and points are numbered; give a list, got {shown(value)}"
        )
    try:
        is_one = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
        return Choices(tuple(in_unit_of(name, item) for item in ([value] if is_one else value)))
    except UnitError as error:
        raise InvalidOptionError(str(error)) from None
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{name}: {error}") from None


def fit_range(name: str, field: Field, kind: str) -> Field:
    """Return a range as a field of the spec takes it, of whole numbers or of any; other fields as they are."""
    if not isinstance(field, Range):
        return field
    if kind == "number":
        return dataclasses.replace(field, low=float(field.low), high=float(field.high))
    if kind != "whole":
        raise InvalidOptionError(f"{name} takes no numbers, so it has no range: give its values, got {field}")
    for value in (field.low, field.high, field.step):
        if value is not None and value != int(value):
            raise InvalidOptionError(f"{name} takes whole numbers only, got {field}")
    return dataclasses.replace(field, low=int(field.low), high=int(field.high))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -_LARGEST <= value <= _LARGEST


_WORDS = {"title", "notes", "published", "sources", "provenance", "name", "type"}  # what a spec says about itself


def check_field(arch: ArchSpec, name: str) -> None:
    """Check that a spec has such a field, or such an entry of a table."""
    top, _, key = name.partition(".")
    known = set(type(arch).model_fields) - _WORDS
    if top not in known:
        raise InvalidOptionError(
            f"{one_line(name)} is not a field of {arch.name} ({arch.type}){did_you_mean(top, sorted(known))} "
            "(helpers of yours go to variables)"
        )
    if key:
        if field_kind(type(arch), top) != "json":
            raise InvalidOptionError(f"{name}: {top} is no table, so it has no entry {shown(key)}")
        if key not in set(DType):
            raise InvalidOptionError(f"{name}: {shown(key)} is no data type; there are {', '.join(DType)}")


@lru_cache(maxsize=1024)
def field_kind(spec: type[ArchSpec], name: str) -> str:
    """Return what a field takes: whole, number, truth, text, or json for a table."""
    top, _, key = name.partition(".")
    return _kind(spec.model_fields[top].annotation, key)


def as_spec_value(kind: str, value: Any) -> Any:
    """Return a value as strict specs take it: 8 for 8.0 where a field is whole."""
    if isinstance(value, np.generic):
        value = value.item()
    return int(value) if kind == "whole" and isinstance(value, float) and value.is_integer() else value


def build_arch(base: ArchSpec, changes: Mapping[str, Any]) -> ArchSpec:
    """Return a spec with fields (dotted: entries of tables) changed and checked; references go, its name stays."""
    known = vars(base)  # a fifth of the time of asking the model for every field
    data: dict[str, Any] = {field: known[field] for field in base.model_fields_set - _WORDS}
    for field, value in changes.items():
        top, *rest = field.split(".")
        data[top] = with_entry(data.get(top, getattr(base, top, None)), rest, value, f"{base.name}: {field}")
    data["name"] = base.name
    try:
        return type(base).model_validate(data)
    except ValidationError:  # once more, slowly: numpy's numbers turned into Python's, errors into readable ones
        return build_spec(type(base), data, origin=base.name)


def plain_fields(arch: ArchSpec) -> dict[str, Any]:
    """Return the fields of a spec that dependent fields may use."""
    return {name: getattr(arch, name) for name in type(arch).model_fields if name not in _WORDS}


def _kind(annotation: Any, key: str) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0], key)
    if origin in (Union, types.UnionType):
        kinds = {_kind(inner, key) for inner in get_args(annotation) if inner is not type(None)}
        return kinds.pop() if len(kinds) == 1 else "json"
    if origin is Literal:
        return "text"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _kind(get_args(annotation)[1], "") if key else "json"
    if isinstance(annotation, type):
        for kind, of in (("truth", bool), ("whole", int), ("number", float), ("text", str), ("text", enum.Enum)):
            if issubclass(annotation, of):
                return kind
    return "json"
