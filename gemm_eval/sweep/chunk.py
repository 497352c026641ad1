"""One chunk of a sweep: some points, evaluated in the calling thread, as a table.

Archs are data to the search, so a chunk of any chips compiles nothing and is one call of a kernel for every number of
cores in it; GPUs go one by one through their evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.errors import ArchValidationError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.evaluate._batch import types_alone
from gemm_eval.models.multicore.params import pack_params
from gemm_eval.search.multicore import check_idle_cores, find_best_of_archs
from gemm_eval.sweep.metrics import Constraint, add_up, metric_columns, metric_names
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.workload import Workload
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    from gemm_eval.sweep.columns import Schema

__all__ = ["Task", "evaluate_rows"]

_FLOP_PER_US_PER_TFLOP_PER_S = 1e6
_TOTALS = ("latency_us", "energy_pj", "dram_bytes")


@dataclass(frozen=True)
class Task:
    """What all chunks of a sweep share.

    Attributes:
        space: the chips.
        workloads: what runs on each.
        constraints: what a point must hold.
        options: of `GEMMEvaluator`: allow_idle_cores, library, l2, clock.
        schema: the columns of the table.
    """

    space: Space
    workloads: tuple[Workload, ...]
    constraints: tuple[Constraint, ...]
    options: Mapping[str, Any]
    schema: Schema

    @cached_property
    def problems(self) -> tuple[GemmProblem, ...]:
        """All different GEMMs."""
        return tuple(dict.fromkeys(problem for workload in self.workloads for problem, _ in workload.gemms))

    @cached_property
    def kinds(self) -> tuple[GemmProblem, ...]:
        """Their data types, each once."""
        return tuple(dict.fromkeys(map(types_alone, self.problems)))

    @cached_property
    def kind_of(self) -> npt.NDArray[np.int64]:
        """[num_problems], index into `kinds`."""
        return np.array([self.kinds.index(types_alone(problem)) for problem in self.problems], np.int64)


class _Costs:
    """Latency, energy and DRAM bytes of every GEMM on every point of a chunk; nan where there is no answer."""

    def __init__(self, num_points: int, problems: Sequence[GemmProblem]) -> None:
        self.place = {problem: at for at, problem in enumerate(problems)}
        self.of = {name: np.full((num_points, len(problems)), np.nan) for name in _TOTALS}

    def totals(self, workload: Workload) -> dict[str, npt.NDArray[np.float64]]:
        """Return the sums [num_points] of a workload."""
        return {
            name: add_up(count * values[:, self.place[problem]] for problem, count in workload.gemms)
            for name, values in self.of.items()
        }


def evaluate_rows(task: Task, rows: Sequence[tuple[Any, ...]], first: int) -> Any:
    """Evaluate points, given what they choose; returns a pyarrow Table with a row for each.

    Args:
        task: what all chunks share.
        rows: what each point chooses, as `Space.drawn` orders it.
        first: number of the first point.

    Raises:
        InvalidOptionError: a dependent field names something unknown, or an option is not for the chips.
    """
    num = len(rows)
    points = [task.space.values(row) for row in rows]
    excluded = [""] * num
    archs: list[ArchSpec | None] = [None] * num
    area_mm2 = np.full(num, np.nan)
    early = [one for one in task.constraints if one.column in task.space.names or one.column == "area_mm2"]
    for at, values in enumerate(points):
        try:
            arch = task.space.arch(values, f"point-{first + at}")
            if isinstance(arch, MulticoreSpec):
                check_idle_cores(arch, allow_idle_cores=bool(task.options["allow_idle_cores"]))
        except (ArchValidationError, InvalidOptionError) as error:
            excluded[at] = f"invalid: {error}".removesuffix(f" (point-{first + at})")
            continue
        known = getattr(arch, "area_mm2", None)
        area_mm2[at] = np.nan if known is None else known
        excluded[at] = _broken(early, {**values, "area_mm2": known})
        if not excluded[at]:
            archs[at] = arch
    costs = _Costs(num, task.problems)
    ideal_us = [np.full(num, np.nan) for _ in task.workloads]
    groups: dict[tuple[int, str], list[int]] = {}
    for at, found in enumerate(archs):
        if found is None:
            continue
        try:
            for of, workload in zip(ideal_us, task.workloads, strict=True):
                of[at] = _ideal_us(found, workload)
        except UnsupportedError as error:
            excluded[at] = f"unsupported: {error}"
            continue
        if isinstance(found, GpuSpec):
            excluded[at] = _evaluate_gpu(task, found, costs, at)
        else:
            groups.setdefault((found.num_cores, found.timing), []).append(at)
    for (num_cores, _), places in groups.items():
        for at, why in zip(places, _evaluate_multicore(task, num_cores, archs, places, costs), strict=True):
            excluded[at] = why
    totals = [costs.totals(workload) for workload in task.workloads]
    metrics = metric_columns(task.workloads, totals, ideal_us=ideal_us, area_mm2=area_mm2)
    late = [one for one in task.constraints if one not in early]
    for at in range(num):
        if late and not excluded[at]:
            excluded[at] = _broken(late, {one.column: metrics[one.column][at] for one in late})
    columns: dict[str, Any] = {"point": np.arange(first, first + num)}
    columns |= {name: [values[name] for values in points] for name in task.space.names}
    columns.setdefault("area_mm2", area_mm2)
    columns |= {name: metrics[name] for name in metric_names(task.workloads)}
    return task.schema.table(columns | {"excluded": excluded})


def _evaluate_multicore(
    task: Task, num_cores: int, archs: Sequence[ArchSpec | None], places: Sequence[int], costs: _Costs
) -> list[str]:
    """Fill in the costs of points whose chips have the same number of cores; returns why each is excluded, or ''."""
    why = [""] * len(places)
    params, good = [], []
    for row, at in enumerate(places):
        arch = archs[at]
        assert isinstance(arch, MulticoreSpec)
        try:
            params += [pack_params(arch, types) for types in task.kinds]
        except UnsupportedError as error:
            why[row] = f"unsupported: {error}"
            del params[len(good) * len(task.kinds) :]
            continue
        good.append(row)
    if not good:
        return why
    type_of = (np.arange(len(good))[:, None] * len(task.kinds) + task.kind_of).ravel()
    sizes = np.tile(np.array([one.sizes for one in task.problems], np.int64), (len(good), 1))
    records = find_best_of_archs(
        num_cores, np.concatenate(params), type_of, sizes, allow_idle_cores=bool(task.options["allow_idle_cores"])
    ).reshape(len(good), len(task.problems))
    feasible = records["active_cores"] > 0
    at_good = np.array(places)[good]
    for name, values in costs.of.items():
        values[at_good] = np.where(feasible, records[name], np.nan)
    for row, at, fits in zip(good, at_good.tolist(), feasible, strict=True):
        if not fits.all():
            arch = archs[at]
            assert isinstance(arch, MulticoreSpec)
            problem = task.problems[int(np.argmin(fits))]
            why[row] = f"infeasible: {problem} does not fit in {arch.sram_usable_bytes:,} bytes of SRAM a core"
    return why


def _evaluate_gpu(task: Task, arch: GpuSpec, costs: _Costs, at: int) -> str:
    """Fill in the costs of a point; returns why it is excluded, or ''."""
    options = {name: value for name, value in task.options.items() if name != "allow_idle_cores"}
    try:
        table = GEMMEvaluator(arch, disk_cache=False, **options).evaluate_many(
            task.problems, errors="mark", progress=False
        )
    except UnsupportedError as error:
        return f"unsupported: {error}"
    for name, values in costs.of.items():
        values[at] = table[name]
    if not table.is_feasible.all():
        return f"infeasible: {table.problem(int(np.argmin(table.is_feasible)))}"
    return ""


def _ideal_us(arch: ArchSpec, workload: Workload) -> float:
    flop: dict[Any, int] = {}
    for problem, count in workload.gemms:
        flop[problem.input_dtype] = flop.get(problem.input_dtype, 0) + count * problem.flop
    try:
        return sum(of / (arch.peak_tflop_per_s(dtype) * _FLOP_PER_US_PER_TFLOP_PER_S) for dtype, of in flop.items())
    except KeyError as error:
        raise UnsupportedError(f"its matrix units do not take {error.args[0]}") from None


def _broken(constraints: Sequence[Constraint], values: Mapping[str, Any]) -> str:
    return "; ".join(why for one in constraints if (why := one.violated(values[one.column])))
