"""Fields that follow from others: what they may name, their order, and what becomes of one that has no value."""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from gemm_eval.errors import GemmEvalError, InvalidOptionError

__all__ = ["Known", "NoValueError", "check_expression"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "round": round, "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt,
    "log2": math.log2, "log": math.log, "exp": math.exp, "int": int, "float": float,
}  # fmt: skip
_MISTAKES = (NameError, AttributeError, ImportError)  # of who wrote the function, whatever the point


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
        raise _DefinitionError(f"{by}no field or variable of the name {name!r}")

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
        except Exception as error:
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
        example: some values, of the base arch, to try it with.

    Raises:
        InvalidOptionError: it is no expression, or names something that there is not.
    """
    import simpleeval

    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise InvalidOptionError(f"{name}: {text!r} is no expression: {error}") from None
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    allowed = set(known) | {"True", "False", "None"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in (_FUNCTIONS if id(node) in calls else allowed):
            what = f"functions are {', '.join(_FUNCTIONS)}" if id(node) in calls else "names are fields and variables"
            raise InvalidOptionError(f"{name}: {text!r} names {node.id!r}, which there is not; {what}")
    try:
        _apply(text, example)
    except simpleeval.InvalidExpression as error:
        if not isinstance(error, simpleeval.NameNotDefined):  # of what varies; points have it
            raise InvalidOptionError(f"{name}: {text!r}: {error}") from None
    except Exception:
        return  # of the base's values; those of points may do


def _apply(of: Callable[[Any], Any] | str, known: Any) -> Any:
    if not isinstance(of, str):
        return of(known)
    evaluator = _evaluator()
    before, evaluator.names = evaluator.names, known  # an expression may ask for another one
    try:
        return evaluator.eval(of, previously_parsed=_parsed(of))
    finally:
        evaluator.names = before


_of_thread = threading.local()


def _evaluator() -> Any:
    if not hasattr(_of_thread, "evaluator"):
        from simpleeval import SimpleEval

        _of_thread.evaluator = SimpleEval(functions=_FUNCTIONS)
    return _of_thread.evaluator


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    from simpleeval import SimpleEval

    return SimpleEval.parse(text)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, bool | int | float | str | Mapping):
        raise TypeError(f"the value must be None, a truth, a number, a text or a table, got {value!r}")
    return value
