"""Fields that follow from others: what they may name, their order, and what becomes of one that has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep.expressions import parse_expression
from gemm_eval.sweep.values import check_value
from gemm_eval.words import shown

__all__ = ["Known", "NoValueError", "check_expression"]

_MISTAKES = (NameError, AttributeError, ImportError, RecursionError)  # of who wrote the function, whatever the point


class NoValueError(GemmEvalError):
    """A dependent field has no value at this point: say, it divides by something that is 0 here."""


class _DefinitionError(InvalidOptionError, AttributeError):
    """Fields are defined so that no point has a value. An AttributeError, so that ``getattr(a, name, None)`` works."""


class Known:
    """The values of a point by name, as attributes; those that follow from others are found when they are asked for.

    Args:
        values: what is known at the start: the spec of the base arch, and what the point chooses.
        dependent: functions or expressions by name.
    """

    def __init__(self, values: Mapping[str, Any], dependent: Mapping[str, Callable[[Any], Any] | str]) -> None:
        self._values = dict(values)
        self._dependent = dependent
        self._asked: list[str] = []  # which wait for which

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of Python's own protocols
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        """Return a value.

        Raises:
            NoValueError: it has none here.
            InvalidOptionError: it can have none anywhere.
        """
        for entry in self._dependent:  # a table asked for as a whole
            if entry.startswith(f"{name}.") and entry not in self._asked and entry not in self._values:
                self._find(entry)
        if name in self._values:
            return self._values[name]
        if name in self._dependent:
            return self._find(name)
        by = f"{self._asked[-1]}: " if self._asked else ""
        raise _DefinitionError(f"{by}no field or variable of the name {shown(name)}")

    def _find(self, name: str) -> Any:
        if name in self._asked:
            raise _DefinitionError(f"fields follow from each other in a circle: {' <- '.join([*self._asked, name])}")
        self._asked.append(name)
        try:
            value = _plain(_apply(self._dependent[name], self))
        except (_DefinitionError, NoValueError):
            raise
        except _MISTAKES as error:
            raise _DefinitionError(f"{name}: {type(error).__name__}: {error}") from error
        except Exception as error:  # a user's function may raise anything where it has no value
            raise NoValueError(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            self._asked.pop()
        self.set(name, value)
        return value

    def set(self, name: str, value: Any) -> None:
        """Take a value, one of a table (a dotted name) too."""
        self._values[name] = value
        top, _, key = name.partition(".")
        if key and isinstance(self._values.get(top), Mapping):
            self._values[top] = {**self._values[top], key: value}


def check_expression(name: str, text: str, known: Iterable[str], example: Mapping[str, Any]) -> None:
    """Check what can be checked of an expression before there is a point.

    Args:
        name: of the field.
        text: the expression.
        known: names that it may use.
        example: values of some of these, of the base arch: a text or a table among them is one at every point.

    Raises:
        InvalidOptionError: it is no expression, names something that there is not or is no number, or has no value
            wherever it is asked for.
    """
    try:
        expression = parse_expression(text)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{name}: {error}") from None
    known = set(known)
    for used in sorted(expression.names):
        top, _, key = used.partition(".")
        if top not in known:
            raise InvalidOptionError(
                f"{name}: {shown(text)} names {shown(top)}, which there is not; names are fields and variables"
            )
        value = example.get(top)
        if isinstance(value, str) or (value is not None and isinstance(value, Mapping) != bool(key)):
            what = "use a Python function" if isinstance(value, str) else "an entry of a table is named mac_pj.fp16"
            raise InvalidOptionError(f"{name}: {shown(text)} names {shown(used)}, which is no number; {what}")
    if not expression.names:
        try:
            expression({})
        except (ArithmeticError, ValueError, TypeError) as error:
            raise InvalidOptionError(f"{name}: {shown(text)} has no value: {error}") from None


def _apply(of: Callable[[Any], Any] | str, known: Any) -> Any:
    return parse_expression(of)(known) if isinstance(of, str) else of(known)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    check_value(value)
    return value
