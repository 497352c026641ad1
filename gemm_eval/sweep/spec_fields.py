"""Specs as a design space sees them: which fields can vary, what they take, and the spec with some of them changed."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import ValidationError

from gemm_eval.arch import ArchSpec, build_spec
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, InvalidOptionError
from gemm_eval.words import did_you_mean, one_line, shown

__all__ = ["as_spec_value", "build_arch", "check_field", "field_kind", "plain_fields"]

_WORDS = {"title", "notes", "published", "sources", "provenance", "name", "type"}  # what a spec says about itself


def check_field(arch: ArchSpec, name: str) -> None:
    """Check that a spec has such a field, or such an entry of a table.

    Raises:
        InvalidOptionError: it has not, or the field is no matter of design.
    """
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
    """Return a spec with fields changed (dotted names: entries of a table), checked anew, without its references.

    It keeps its name, by which a GPU finds its calibration.

    Raises:
        ArchValidationError: the values make no valid spec.
    """
    known = vars(base)  # a fifth of the time of asking the model for every field
    data: dict[str, Any] = {field: known[field] for field in base.model_fields_set - _WORDS}
    for field, value in changes.items():
        top, _, key = field.partition(".")
        if key:
            table = data.get(top, getattr(base, top, None))
            if not isinstance(table, Mapping):
                raise ArchValidationError(f"{top} is no table, so it has no {key} ({base.name}: {field})")
            data[top] = {**table, key: value}
        else:
            data[top] = value
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
        kinds = {_kind(one, key) for one in get_args(annotation) if one is not type(None)}
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
