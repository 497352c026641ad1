"""The types of a sweep's columns: the same in every chunk, whatever values it happens to have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep.fields import Choices, Dependent
from gemm_eval.sweep.metrics import metric_names
from gemm_eval.sweep.workload import Workload

if TYPE_CHECKING:
    from gemm_eval.sweep.space import Space

__all__ = ["Schema", "import_pyarrow", "make_schema"]

_ARROW = {"whole": "int64", "number": "float64", "truth": "bool", "text": "string", "json": "string"}


def import_pyarrow() -> Any:
    """Return pyarrow.

    Raises:
        GemmEvalError: it is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise GemmEvalError("sweeps need pandas and pyarrow: pip install 'gemm_eval[sweep]'") from None
    return pa


class Schema:
    """Columns of a sweep by name, each with its kind: whole, number, truth, text, or json for anything else."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = dict(kinds)

    def arrow(self) -> Any:
        """Return it as pyarrow has it."""
        pa = import_pyarrow()
        return pa.schema([(name, pa.type_for_alias(_ARROW[kind])) for name, kind in self.kinds.items()])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return a pyarrow Table of these columns."""
        pa = import_pyarrow()
        schema = self.arrow()
        arrays = []
        for name, kind in self.kinds.items():
            values = columns[name]
            if kind == "json":
                values = [json.dumps(value, sort_keys=True) for value in values]
            elif not isinstance(values, np.ndarray):
                values = [None if value is None else _PLAIN[kind](value) for value in values]
            arrays.append(pa.array(values, schema.field(name).type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def plain(self, name: str, value: Any) -> Any:
        """Return a value of a column as a field of a spec has it."""
        return json.loads(value) if self.kinds[name] == "json" and isinstance(value, str) else value


_PLAIN: dict[str, Any] = {"whole": int, "number": float, "truth": bool, "text": str}


def make_schema(space: Space, workloads: Sequence[Workload], first_row: tuple[Any, ...]) -> Schema:
    """Return the columns of a sweep; what a dependent field is, one point has to show.

    Args:
        space: the chips.
        workloads: what runs.
        first_row: what a point chooses.

    Raises:
        InvalidOptionError: a dependent field names something unknown.
    """
    point = space.values(first_row)
    kinds = {"point": "whole"}
    for name in space.names:
        field = (space.variables | space.fields).get(name)
        if field is None:
            kinds[name] = "text"
        elif isinstance(field, Choices):
            kinds[name] = _kind_of(field.values)
        elif isinstance(field, Dependent):
            kind = _kind_of([point[name]])
            kinds[name] = "number" if kind == "whole" and not space.is_whole(name) else kind
        else:
            kinds[name] = "whole" if all(isinstance(value, int) for value in (field.low, field.high)) else "number"
    kinds.setdefault("area_mm2", "number")
    kinds |= dict.fromkeys(metric_names(workloads), "number")
    return Schema(kinds | {"excluded": "text"})


def _kind_of(values: Sequence[Any]) -> str:
    types = {type(value) for value in values if value is not None}
    if not types:
        return "number"
    for kind, allowed in (("truth", {bool}), ("whole", {int}), ("number", {int, float}), ("text", {str})):
        if types <= allowed:
            return kind
    if all(isinstance(value, str) for value in values if value is not None):
        return "text"
    return "json"
