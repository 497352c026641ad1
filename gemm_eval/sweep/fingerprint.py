"""A digest of a function that is the same in every process: what it compiles to, and the values that it refers to."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["fingerprint"]


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the digest. Functions that differ in code, defaults, closures or globals that they name have another.

    An object that can only be told by its address counts by its type alone.
    """
    digest = hashlib.sha256()
    for part in _parts(function, {}):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """Yield what makes up a value, without addresses and without the order of sets, which differ between processes."""
    yield type(value).__qualname__.encode()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
        return
    if id(value) in seen:  # functions that call each other
        return
    seen[id(value)] = value  # kept, or its id would go to another
    if isinstance(value, types.CodeType):
        yield value.co_code
        yield repr((value.co_names, value.co_varnames, value.co_freevars)).encode()
        for constant in value.co_consts:
            yield from _parts(constant, seen)
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__, seen)
        yield from _parts([value.__defaults__, value.__kwdefaults__], seen)
        for cell in value.__closure__ or ():
            yield from _parts(_content(cell), seen)
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield from _parts(value.__globals__[name], seen)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, value.args, value.keywords], seen)
    elif isinstance(value, types.MethodType):
        yield from _parts([value.__func__, value.__self__], seen)
    elif isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(b"\0".join(_parts(item, seen)) for item in value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts([key, item], seen)
    else:
        yield from _parts(_state_of(value), seen)
        yield from _parts(vars(type(value)).get("__call__"), seen)


def _names(code: types.CodeType) -> list[str]:
    """Names that code may look up among globals, its inner functions included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _state_of(value: Any) -> Any:
    """How copies of a value are made: its class and what it holds; None where it cannot be copied."""
    try:
        return value.__reduce_ex__(4)
    except Exception:  # an object may raise anything here
        return None
