"""Safe JSON reading, and typed access to its keys with messages that name key and file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gemm_eval.errors import ModelConfigError
from gemm_eval.storage import read_bounded
from gemm_eval.words import one_line, shown

_MAX_FILE_BYTES = 1 << 22
_MAX_DEPTH = 32
_MAX_SIZE = 1 << 24


_REQUIRED: Any = object()  # the default of a key that has none


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON file whose top level is an object."""
    raw = read_bounded(path, _MAX_FILE_BYTES, "config", unreadable=ModelConfigError, too_large=ModelConfigError)
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ModelConfigError(f"{path}: nested deeper than {_MAX_DEPTH} levels") from None
    except ValueError as error:  # JSON and Unicode errors, integers too long to convert, the refusals below
        raise ModelConfigError(f"{path}: not a readable JSON config: {one_line(str(error))}") from error
    if not isinstance(data, dict):
        raise ModelConfigError(f"{path}: the top level must be an object of keys, got {type(data).__name__}")
    _check_depth(data, path)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise ValueError(f"{shown(name)} is given twice")
        data[name] = value
    return data


def _finite(text: str) -> float:
    value = float(text)  # "Infinity" and "NaN" too, which are words of Python's JSON
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is no number, or too large a one")
    return value


def _check_depth(data: Any, path: Path) -> None:
    level = [data]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ModelConfigError(f"{path}: nested deeper than {_MAX_DEPTH} levels")


class Keys:
    """Typed access to the keys of one config. A key that is null counts as missing, as it does for its writers.

    Every method raises `ModelConfigError`, naming key and file, for a value of the wrong type or range, and for a
    missing key that has no default.
    """

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self._data = data
        self._seen: set[str] = set()
        self.origin = origin

    def size(self, key: str, default: int = _REQUIRED, *, at_least: int = 1, at_most: int = _MAX_SIZE) -> int:
        """Return an integer in a range."""
        value = self._value(key, default)
        if type(value) is not int or not at_least <= value <= at_most:
            self.refuse(key, f"must be an integer in {at_least}..{at_most}")
        return int(value)

    def count(self, key: str, default: int = _REQUIRED) -> int:
        """Return an integer of at least 0."""
        return self.size(key, default, at_least=0)

    def optional_size(self, key: str) -> int | None:
        """Return an integer of at least 1, or None if the key is missing."""
        return None if self._get(key) is None else self.size(key)

    def item(self, key: str) -> Any:
        """Return a value of any type; None: there is none."""
        return self._get(key)

    def names(self) -> tuple[str, ...]:
        """Return all keys that are there."""
        return tuple(self._data)

    def fraction(self, key: str, default: float) -> float:
        """Return a number above 0, of at most 1."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not 0 < value <= 1:
            self.refuse(key, "must be a number above 0, of at most 1")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.refuse(key, "must be a string")
        return value

    def items(self, key: str, item_type: type) -> list[Any] | None:
        """Return a list whose items are all of `item_type`, or None if the key is missing."""
        value = self._get(key)
        if value is not None and not (isinstance(value, list) and all(type(item) is item_type for item in value)):
            self.refuse(key, f"must be a list of {item_type.__name__}")
        return value

    def part(self, key: str) -> Keys:
        """Return the keys of an object inside."""
        value = self._value(key, _REQUIRED)
        if not isinstance(value, dict):
            self.refuse(key, "must be an object of keys")
        return Keys(value, f"{self.origin}: {key}")

    def over(self, outer: Keys, names: Iterable[str], defaults: Mapping[str, Any]) -> Keys:
        """Return these keys with those of `names` that only `outer` has, and with `defaults` where neither has one."""
        for name in names:
            outer._seen.add(name)
        inherited = {name: outer._data[name] for name in names if outer._data.get(name) is not None}
        own = {name: value for name, value in self._data.items() if value is not None or name not in defaults}
        return Keys({**defaults, **inherited, **own}, self.origin)

    def ignore(self, *names: str) -> None:
        """Take `names` for read: the architecture does not read them, or they follow from others."""
        self._seen.update(names)

    def refuse_rest(self, known: Iterable[str]) -> None:
        """Refuse the first key that was not read and is not `known`, unless it switches nothing on."""
        for name, value in self._data.items():
            if name not in self._seen and name not in known and value:
                rule = "is not a key that is known here: it may change sizes or operations; take it out if it does not"
                self.refuse(name, rule)

    def require(self, *names: str) -> None:
        """Check that all `names` are there, null or not: for keys whose default differs from null."""
        for name in names:
            self._seen.add(name)
            if name not in self._data:
                self._value(name, _REQUIRED)

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raise the error that the value of `key` breaks `rule`."""
        raise ModelConfigError(f"{key} {rule}, got {shown(self._data.get(key))} ({self.origin}: {key})")

    def __contains__(self, key: str) -> bool:
        return self._get(key) is not None

    def _get(self, key: str) -> Any:
        self._seen.add(key)
        return self._data.get(key)

    def _value(self, key: str, default: Any) -> Any:
        value = self._get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelConfigError(f"{key} must be given ({self.origin}: {key})")
        return default
