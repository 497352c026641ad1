"""JSON schemas of answers, from the types of their fields and properties."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from gemm_eval.evaluate.result import Result
from gemm_eval.workload import GemmProblem

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of JSON Schema that schemas are written in."""

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def answer_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of values of a type, as `to_dict` and `--json` write them.

    >>> answer_schema(tuple[float, ...] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'number'}}, {'type': 'null'}]}

    A result has its fields and the properties that `to_dict` adds. What describes itself otherwise (mappings, specs,
    engines) is an object; a type that is not known allows any value.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [answer_schema(item) for item in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        if args[-1] is Ellipsis:
            return {"type": "array", "items": answer_schema(args[0])}
        return {"type": "array", "prefixItems": list(map(answer_schema, args)), "minItems": len(args)}
    if isinstance(origin, type) and issubclass(origin, dict):
        return {"type": "object", "additionalProperties": answer_schema(args[1])}
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, str):
        return {"type": "string"}
    names = _names(kind)
    if names:
        properties = {name: answer_schema(_hint(kind, name)) for name in names}
        return {"type": "object", "title": kind.__name__, "properties": properties, "required": list(names)}
    return {"type": "object", "title": kind.__name__} if hasattr(kind, "to_dict") or kind is GemmProblem else {}


def _names(kind: type) -> tuple[str, ...]:
    """Return what the dict of a value has: fields, or those that `to_dict` names."""
    if issubclass(kind, Result):
        shown = (item.name for item in fields(kind) if item.init and not item.name.startswith("_"))  # type: ignore[arg-type]
        return (*shown, *kind._derived)
    if hasattr(kind, "plain_names"):
        return tuple(kind.plain_names)
    if hasattr(kind, "to_dict") or kind is GemmProblem:
        return ()
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else getattr(kind, "_fields", ())


def _hint(kind: type, name: str) -> Any:
    """Return the type of a field or a property; None of a known name: any value."""
    for base in kind.__mro__:
        value = vars(base).get(name)
        text = value.fget.__annotations__["return"] if isinstance(value, property) else None
        text = text or inspect.get_annotations(base).get(name)
        if isinstance(text, str):
            with contextlib.suppress(NameError):  # a type that its module imports for checks alone
                return eval(text, vars(sys.modules[base.__module__]))
            return Any
    return Any if text is None else text
