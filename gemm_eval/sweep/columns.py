"""The types of a sweep's columns: the same in every chunk, whatever values it happens to have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra
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
    with needs_extra("a sweep", "sweep"):
        import pyarrow as pa
        import pyarrow.parquet
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
            if not isinstance(values, np.ndarray):
                values = [_PLAIN[kind](value) for value in values]
            arrays.append(pa.array(values, schema.field(name).type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def plain(self, name: str, value: Any) -> Any:
        """Return a value of a column as a field of a spec has it."""
        return json.loads(value) if self.kinds[name] == "json" and isinstance(value, str) else value


def make_schema(space: Space, workloads: Sequence[Workload], first_rows: Sequence[tuple[Any, ...]]) -> Schema:
    """Return the columns of a sweep; what a dependent variable is, some points have to show.

    Args:
        space: the chips.
        workloads: what runs.
        first_rows: what some points choose.

    Raises:
        InvalidOptionError: a dependent field names something unknown, or two columns have the same name.
    """
    points = [space.values(row)[0] for row in first_rows]
    kinds = {"point": "whole"}
    for name in space.names:
        field = space.variables.get(name)
        if field is None:
            kinds[name] = space.kinds.get(name, "text")  # the base arch
        elif isinstance(field, Choices):
            kinds[name] = _kind_of(field.values)
        elif isinstance(field, Dependent):
            kind = _kind_of([point[name] for point in points])
            kinds[name] = "number" if kind == "whole" else kind  # another point's may have a fraction
        else:
            kinds[name] = "whole" if field.is_whole else "number"
    kinds.setdefault("area_mm2", "number")
    metrics = metric_names(workloads)
    clash = sorted(set(kinds) & {*metrics, "excluded"}) or sorted({name for name in metrics if metrics.count(name) > 1})
    if clash:
        raise InvalidOptionError(
            f"columns need names of their own; variables or workloads make a second {', '.join(clash)}"
        )
    return Schema(kinds | dict.fromkeys(metrics, "number") | {"excluded": "text"})


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=lambda of: of.item())


# a value that a field cannot have, 8.5 cores, is none in the table; why the point is excluded tells it
_PLAIN: dict[str, Any] = {
    "whole": _whole, "number": _number, "json": _json,
    "truth": lambda value: value if isinstance(value, bool) else None,
    "text": lambda value: str(value) if isinstance(value, str) else None,
}  # fmt: skip


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
