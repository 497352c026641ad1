"""`sensitivity`: which field of a space matters to which objective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.fields import Choices
from gemm_eval.sweep.metrics import is_maximized
from gemm_eval.sweep.run import sweep
from gemm_eval.sweep.sensitivity_analysis import SensitivityResult, analyze_sensitivity
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.workload import as_workloads
from gemm_eval.words import shown

__all__ = ["sensitivity"]

_NUM_HALVINGS = 60  # to the last bit of a float


@dataclass(frozen=True)
class _Places:
    """Points of the unit cube of a space, as a method of sensitivity analysis wants them."""

    unit: npt.NDArray[np.float64] = field(repr=False)  # [num_points, num_fields]
    digest: str = field(init=False)  # of these, so that a folder knows its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.unit.tobytes()).hexdigest())

    def num_points_of(self, space: Space) -> int:  # noqa: ARG002
        return len(self.unit)

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        return space.rows_of(self.unit[start:stop])


def sensitivity(
    space: Space,
    workloads: Any,
    objectives: str | Sequence[str] = ("latency_us",),
    *,
    method: str = "morris",
    num_samples: int | None = None,
    seed: int = 0,
    base: Mapping[str, Any] | None = None,
    on_infeasible: str = "raise",
    **options: Any,
) -> SensitivityResult:
    """Measure which fields and variables of a space matter, each over the whole of its range or values.

    Args:
        space: the chips; dependent fields follow, they are no inputs.
        workloads, objectives: as for `sweep`.
        method: ``"oat"`` (one at a time around `base`), ``"morris"`` (elementary effects) or ``"sobol"`` (variance).
        num_samples, seed: see `analyze_sensitivity`.
        base: oat only: values of fields, by name, that stay while others move; default: the middle.
        on_infeasible: ``"raise"``, ``"worst"`` (count as the worst point) or, oat only, ``"omit"``.
        options: as for `sweep`: constraints, dtype, executor, allow_idle_cores, ...

    Raises:
        InvalidOptionError: an option out of its range.
        GemmEvalError: points are infeasible and `on_infeasible` does not say what to do.
    """
    aims = (objectives,) if isinstance(objectives, str) else tuple(objectives)
    names = tuple(space.drawn)

    def evaluate(unit: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        result = sweep(space, loads, aims, sampling=_Places(unit), **options)
        found = np.stack([result[name].astype(np.float64) for name in aims], axis=1)
        found[~result.is_feasible] = np.nan
        return found

    loads = as_workloads(workloads, next(iter(space.bases.values())), options.get("dtype"))
    return analyze_sensitivity(
        evaluate, names, output_names=aims, method=method, num_samples=num_samples, seed=seed,
        base=None if base is None else [_unit_of(space, name, base) for name in names],
        on_infeasible=on_infeasible, maximize=[is_maximized(name, loads) for name in aims],
    )  # fmt: skip


def _unit_of(space: Space, name: str, base: Mapping[str, Any]) -> float:
    """Where a value lies in the unit interval of its field: or the nearest that the field takes."""
    unknown = set(base) - set(space.drawn)
    if unknown:
        raise InvalidOptionError(f"base names {', '.join(sorted(unknown))}, which the space does not vary")
    if name not in base:
        return 0.5
    of, value = space.drawn[name], base[name]
    if isinstance(of, Choices):
        if value not in of.values:
            raise InvalidOptionError(
                f"base: {name} must be one of {', '.join(map(str, of.values))}, got {shown(value)}"
            )
        return (of.values.index(value) + 0.5) / len(of.values)
    low, high = of.take(np.array([0.0, 1.0]))
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise InvalidOptionError(f"base: {name} must be in {low:g}..{high:g}, got {shown(value)}")
    return _find_unit(lambda unit: float(of.take(np.array([unit]))[0]), float(value))


def _find_unit(take: Callable[[float], float], value: float) -> float:
    """Where a function that never falls is nearest to a value, given that it starts below and ends above."""
    low, high = 0.0, 1.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if take(middle) >= value else (middle, high)
    return min((low, high), key=lambda unit: abs(take(unit) - value))
