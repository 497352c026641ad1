"""JSON schemas of answers, from the types of their fields and properties."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from gemm_eval.evaluate.result import Result
from gemm_eval.workload import GemmProblem

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of JSON Schema that schemas are written in."""

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def answer_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of values of a type, as `to_dict` and `--json` write them.

    >>> answer_schema(tuple[float, ...] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'number'}}, {'type': 'null'}]}

    A result has its fields and the properties that `to_dict` adds. Mappings, specs and engines are objects; a type that
    is not known allows any value.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [answer_schema(item) for item in args]}
    if origin is tuple:
        of_items = answer_schema(args[0]) if args[-1] is Ellipsis else {"anyOf": list(map(answer_schema, args))}
        return {"type": "array", "items": of_items}
    if isinstance(origin, type) and issubclass(origin, dict):
        return {"type": "object", "additionalProperties": answer_schema(args[1])}
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, str):
        return {"type": "string"}
    names = _names(kind)
    if not names:
        return {"type": "object", "title": kind.__name__} if hasattr(kind, "to_dict") or is_dataclass(kind) else {}
    properties = {name: answer_schema(_hint(kind, name)) for name in names}
    required = [name for name in names if name not in getattr(kind, "optional_names", ())]
    return {"type": "object", "title": kind.__name__, "properties": properties, "required": required}


def _names(kind: type) -> tuple[str, ...]:
    """Return what the dict of a value has: fields and properties of a result, else `plain_names`, else all fields."""
    if issubclass(kind, Result):
        shown = (item.name for item in fields(kind) if item.init and not item.name.startswith("_"))  # type: ignore[arg-type]
        return (*shown, *kind._derived)
    if hasattr(kind, "to_dict") or kind is GemmProblem:
        return tuple(getattr(kind, "plain_names", ()))
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else getattr(kind, "_fields", ())


def _hint(kind: type, name: str) -> Any:
    """Return the type of a field or a property; any value where its module does not import the type."""
    for base in kind.__mro__:
        value: Any = vars(base).get(name)
        is_property = isinstance(value, property)
        text: Any = inspect.get_annotations(value.fget if is_property else base).get("return" if is_property else name)
        if text is not None:
            with contextlib.suppress(NameError):
                return eval(text, vars(sys.modules[base.__module__])) if isinstance(text, str) else text
    return Any
