"""`Space`: the chips that a sweep looks at, as a base arch and what varies."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, load_arch
from gemm_eval.arch._loader import build_spec
from gemm_eval.errors import ArchValidationError, InvalidOptionError
from gemm_eval.sweep.fields import Choices, Dependent, Field, as_field

__all__ = ["ARCH", "Space", "build_arch"]

ARCH = "arch"
"""The name of the column that tells several base archs apart."""

_WORDS = {"title", "notes", "published", "sources", "provenance", "name"}  # what a spec says about itself
_RESERVED = {ARCH, "point", "excluded"}


class Space:
    """A design space: one or several base archs, and the fields of their spec that vary.

    >>> Space("demo-8core", num_cores=[8, 16, 32], sram_bytes=LogRange(2**19, 2**23, 5))      # doctest: +SKIP

    A field is given as values (a list), a `Range`, a `LogRange`, a single value, or something that follows from fields
    before it: a function (``area_mm2=lambda a: 0.5 * a.num_cores + a.sram_bytes / 2**20``) or the same as text
    (``area_mm2="= 0.5 * num_cores + sram_bytes / 2**20"``). A dotted name is an entry of a table (``"mac_pj.fp16"``).

    Args:
        base: an arch, its name or path; or several (say, made by `arch.with_`), each of which gets all fields.
        fields: fields by name, in the order of the columns; dotted names can only be given here.
        variables: names that are not fields of a spec, for dependent fields to use.
        more_fields: as `fields`.

    Raises:
        InvalidOptionError: a name that is no field of the spec, or values that make no field.
        ArchError: `base` names no valid arch.
    """

    def __init__(
        self,
        base: ArchSpec | str | os.PathLike[str] | Sequence[ArchSpec | str | os.PathLike[str]],
        fields: Mapping[str, Any] | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        **more_fields: Any,
    ) -> None:
        bases = [base] if isinstance(base, MulticoreSpec | GpuSpec | str | os.PathLike) else list(base)
        archs = [load_arch(one) if isinstance(one, str | os.PathLike) else one for one in bases]
        if not archs or not all(isinstance(arch, MulticoreSpec | GpuSpec) for arch in archs):
            raise InvalidOptionError(f"base must be an arch, a name, a path, or a list of them, got {base!r}")
        self.bases: dict[str, ArchSpec] = {arch.name: arch for arch in archs}
        if len(self.bases) < len(archs):
            raise InvalidOptionError("base archs need names of their own: arch.with_(name=...)")
        given = {name: as_field(name, value) for name, value in {**(fields or {}), **more_fields}.items()}
        self.variables = {name: as_field(name, value) for name, value in (variables or {}).items()}
        self.fields: dict[str, Field] = given
        self._check_names()
        drawn: dict[str, Field] = {ARCH: Choices(tuple(self.bases))} if len(archs) > 1 else {}
        drawn |= self.variables | given
        self.drawn = {name: field for name, field in drawn.items() if not isinstance(field, Dependent)}
        """What a point chooses, by name."""
        self.dependent = {name: field for name, field in drawn.items() if isinstance(field, Dependent)}
        self._whole = {name for name in given if self.is_whole(name)}
        self._plain = {name: _plain_fields(arch) for name, arch in self.bases.items()}

    def __repr__(self) -> str:
        return f"Space({', '.join(self.bases)}; {', '.join(f'{name}={field}' for name, field in self.fields.items())})"

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of a point: the base arch, variables, fields, each group in the order given."""
        return (ARCH, *self.variables, *self.fields)

    @property
    def grid_size(self) -> int:
        """Points of the full grid."""
        size = 1
        for field in self.drawn.values():
            size *= len(field.grid())  # type: ignore[union-attr]  # dependent ones are not drawn
        return size

    def grid_rows(self, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 of the full grid choose; the last name varies fastest."""
        values = [field.grid() for field in self.drawn.values()]  # type: ignore[union-attr]
        shape = tuple(map(len, values))
        places = np.unravel_index(np.arange(start, stop), shape) if shape else ()
        columns = [[of[place] for place in at.tolist()] for of, at in zip(values, places, strict=True)]
        return list(zip(*columns, strict=True)) if columns else [()] * (stop - start)

    def rows_of(self, unit: npt.NDArray[np.float64]) -> list[tuple[Any, ...]]:
        """Return what points choose, given numbers in [0, 1], [num_points, len(drawn)]."""
        columns = [field.take(unit[:, at]) for at, field in enumerate(self.drawn.values())]  # type: ignore[union-attr]
        return list(zip(*columns, strict=True)) if columns else [()] * len(unit)

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return all columns of a point by name, dependent ones too, given what it chooses.

        Raises:
            InvalidOptionError: an expression names something unknown.
        """
        chosen = dict(zip(self.drawn, row, strict=True))
        base = chosen.get(ARCH) or next(iter(self.bases))
        known = {**self._plain[base], **{name: value for name, value in chosen.items() if name != ARCH}}
        values = {ARCH: base}
        for name in (*self.variables, *self.fields):
            value = chosen[name] if name in chosen else self.dependent[name].value(known)
            if isinstance(value, np.generic):
                value = value.item()
            if name in self._whole and isinstance(value, float) and value.is_integer():
                value = int(value)
            values[name] = known[name] = value
        return values

    def arch(self, values: Mapping[str, Any], name: str | None = None) -> ArchSpec:
        """Return the spec of a point, given its columns.

        Raises:
            ArchValidationError: the values make no valid spec.
        """
        base = self.bases[values[ARCH]]
        return build_arch(base, {field: values[field] for field in self.fields}, name or base.name)

    def _check_names(self) -> None:
        for name in self.fields:
            top, _, _ = name.partition(".")
            for arch in self.bases.values():
                known = type(arch).model_fields
                if top not in known or top in _WORDS or top == "type":
                    near = difflib.get_close_matches(top, set(known) - _WORDS, n=1)
                    hint = f", did you mean {near[0]}?" if near else ""
                    raise InvalidOptionError(
                        f"{name} is not a field of {arch.name} ({arch.type}){hint} (helpers of yours go to variables)"
                    )
        clash = (_RESERVED | set(self.fields)) & set(self.variables)
        clash |= {
            name for name in self.variables if any(name in type(arch).model_fields for arch in self.bases.values())
        }
        if clash:
            raise InvalidOptionError(f"variables need names that nothing else has, got {', '.join(sorted(clash))}")

    def is_whole(self, name: str) -> bool:
        """Say whether a field of the spec takes whole numbers only."""
        top, _, key = name.partition(".")
        arch = next(iter(self.bases.values()))
        if not key:
            return type(arch).model_fields[top].annotation is int
        table = getattr(arch, top)
        return isinstance(table, Mapping) and any(type(value) is int for value in table.values())


def build_arch(base: ArchSpec, changes: Mapping[str, Any], name: str) -> ArchSpec:
    """Return a spec with fields changed (dotted names: entries of a table), checked anew, without its references.

    Raises:
        ArchValidationError: the values make no valid spec.
    """
    data: dict[str, Any] = {field: getattr(base, field) for field in base.model_fields_set if field not in _WORDS}
    for field, value in changes.items():
        top, _, key = field.partition(".")
        if key:
            table = data.get(top, getattr(base, top))
            if not isinstance(table, Mapping):
                raise ArchValidationError(f"{top} is no table, so it has no {key} ({base.name}: {field})")
            data[top] = {**table, key: value}
        else:
            data[top] = value
    return build_spec(type(base), {**data, "name": name}, origin=name)


def _plain_fields(arch: ArchSpec) -> dict[str, Any]:
    known: dict[str, Any] = {}
    names: Iterable[str] = type(arch).model_fields
    for name in names:
        if name not in _WORDS:
            value = getattr(arch, name)
            known[name] = value
            if isinstance(value, Mapping):
                known |= {f"{name}.{key}": item for key, item in value.items()}
    return known
