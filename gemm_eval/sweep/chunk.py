"""One chunk of a sweep: some points, evaluated in the calling thread, as a table.

Archs are data to the search, so a chunk of any chips compiles nothing and is a few calls of a kernel for every number
of cores in it; GPUs go one by one through their evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.multicore import PARAMS_DTYPE, pack_params
from gemm_eval.search import check_idle_cores, find_best_of_archs
from gemm_eval.sweep.metrics import Constraint, add_up, metric_columns, metric_names
from gemm_eval.sweep.work import SweepWork
from gemm_eval.units import us_at_peak

__all__ = ["StoppedError", "evaluate_rows"]

_TOTALS = ("latency_us", "energy_pj", "dram_bytes")
_GEMMS_AT_ONCE = 256  # of a call of the kernel, which nothing can stop

Floats = npt.NDArray[np.float64]


class StoppedError(Exception):
    """A chunk that nobody waits for any more."""


class _Chunk:
    """Points on their way: their chips, costs of every GEMM (nan: no answer), and why a point is excluded."""

    def __init__(self, work: SweepWork, num_points: int) -> None:
        self.work = work
        self.archs: list[ArchSpec | None] = [None] * num_points
        self.excluded = [""] * num_points
        self.area_mm2 = np.full(num_points, np.nan)
        self.ideal_us = [np.full(num_points, np.nan) for _ in work.workloads]
        self.costs = {name: np.full((num_points, len(work.problems)), np.nan) for name in _TOTALS}

    def build(self, at: int, values: Mapping[str, Any], early: Sequence[Constraint]) -> None:
        """Make the chip of a point, and check what needs no search."""
        try:
            arch = self.work.space.arch(values)
            if isinstance(arch, MulticoreSpec):
                check_idle_cores(arch, allow_idle_cores=bool(self.work.options["allow_idle_cores"]))
        except (ArchValidationError, InvalidOptionError) as error:
            self.excluded[at] = f"invalid: {error}"
            return
        known = getattr(arch, "area_mm2", None)
        self.area_mm2[at] = np.nan if known is None else known
        self.excluded[at] = _broken(early, {**values, "area_mm2": known})
        if self.excluded[at]:
            return
        try:
            for of, flop in zip(self.ideal_us, self.work.flop, strict=True):
                of[at] = _ideal_us(arch, flop)
            self.archs[at] = arch
        except UnsupportedError as error:
            self.excluded[at] = f"unsupported: {error}"

    def blocks(self) -> Iterator[list[int]]:
        """Yield points whose chips go together: one GPU, or some chips with the same number of cores."""
        groups: dict[Any, list[int]] = {}
        for at, arch in enumerate(self.archs):
            if isinstance(arch, GpuSpec):
                yield [at]
            elif arch is not None:
                groups.setdefault((arch.num_cores, arch.timing), []).append(at)
        num = max(1, _GEMMS_AT_ONCE // len(self.work.problems))
        for places in groups.values():
            yield from (places[start : start + num] for start in range(0, len(places), num))

    def totals(self) -> list[dict[str, Floats]]:
        """Return the sums [num_points] of each workload."""
        place = {problem: at for at, problem in enumerate(self.work.problems)}
        return [
            {
                name: add_up(count * values[:, place[problem]] for problem, count in workload.gemms)
                for name, values in self.costs.items()
            }
            for workload in self.work.workloads
        ]


def evaluate_rows(
    work: SweepWork, rows: Sequence[tuple[Any, ...]], first: int, is_stopped: Callable[[], bool] = lambda: False
) -> Any:
    """Evaluate points, given what they choose; returns a pyarrow Table with a row for each.

    Args:
        work: what all chunks share.
        rows: what each point chooses, as `Space.drawn` orders it.
        first: number of the first point.
        is_stopped: asked now and then.

    Raises:
        InvalidOptionError: a dependent field names something unknown, or an option is not for the chips.
        StoppedError: `is_stopped` says so.
    """
    num = len(rows)
    chunk = _Chunk(work, num)
    early = [one for one in work.constraints if one.column in work.space.names or one.column == "area_mm2"]
    points = []
    for at, row in enumerate(rows):
        values, why = work.space.values(row)
        points.append(values)
        if why:
            chunk.excluded[at] = f"invalid: {why}"
        else:
            chunk.build(at, values, early)
    for places in chunk.blocks():
        if is_stopped():
            raise StoppedError
        if isinstance(chunk.archs[places[0]], GpuSpec):
            _evaluate_gpu(chunk, places[0])
        else:
            _evaluate_multicore(chunk, places)
    metrics = metric_columns(work.workloads, chunk.totals(), ideal_us=chunk.ideal_us, area_mm2=chunk.area_mm2)
    late = [one for one in work.constraints if one not in early]
    for at in range(num):
        if late and not chunk.excluded[at]:
            chunk.excluded[at] = _broken(late, {one.column: metrics[one.column][at] for one in late})
    columns: dict[str, Any] = {"point": np.arange(first, first + num)}
    columns |= {name: [values[name] for values in points] for name in work.space.names}
    columns.setdefault("area_mm2", chunk.area_mm2)
    columns |= {name: metrics[name] for name in metric_names(work.workloads)}
    return work.schema.table(columns | {"excluded": chunk.excluded})


def _evaluate_multicore(chunk: _Chunk, places: Sequence[int]) -> None:
    """Find the costs of points whose chips have the same number of cores and timing."""
    work = chunk.work
    params = np.empty((len(places), len(work.types)), PARAMS_DTYPE)
    good: list[int] = []
    for at in places:
        try:
            for place, types in enumerate(work.types):
                # a record at a time: to concatenate records costs numpy twice what packing them does
                params[len(good), place] = pack_params(_multicore(chunk, at), types)[0]
        except UnsupportedError as error:
            chunk.excluded[at] = f"unsupported: {error}"
            continue
        good.append(at)
    if not good:
        return
    type_of = (np.arange(len(good))[:, None] * len(work.types) + work.type_of).ravel()
    records = find_best_of_archs(
        _multicore(chunk, good[0]).num_cores,
        params[: len(good)].ravel(),
        type_of,
        np.tile(work.sizes, (len(good), 1)),
        allow_idle_cores=bool(work.options["allow_idle_cores"]),
        layouts=work.layouts.take(np.tile(np.arange(len(work.problems)), len(good))),
    ).reshape(len(good), len(work.problems))
    feasible = records["active_cores"] > 0
    for name, values in chunk.costs.items():
        values[good] = np.where(feasible, records[name], np.nan)
    for row in np.flatnonzero(~feasible.all(axis=1)).tolist():
        problem = work.problems[int(np.argmin(feasible[row]))]
        usable_bytes = _multicore(chunk, good[row]).sram_usable_bytes
        chunk.excluded[good[row]] = f"infeasible: {problem} does not fit in {usable_bytes:,} bytes of SRAM a core"


def _multicore(chunk: _Chunk, at: int) -> MulticoreSpec:
    arch = chunk.archs[at]
    assert isinstance(arch, MulticoreSpec)
    return arch


def _evaluate_gpu(chunk: _Chunk, at: int) -> None:
    """Find the costs of a point."""
    arch, problems = chunk.archs[at], chunk.work.problems
    assert isinstance(arch, GpuSpec)
    options = {name: value for name, value in chunk.work.options.items() if name != "allow_idle_cores"}
    try:
        evaluator = GEMMEvaluator(arch, disk_cache=False, **options)
        table = evaluator.evaluate_many(problems, errors="mark", progress=False)
    except UnsupportedError as error:
        chunk.excluded[at] = f"unsupported: {error}"
        return
    for name, values in chunk.costs.items():
        values[at] = table[name]
    if not table.is_feasible.all():
        chunk.excluded[at] = f"infeasible: {table.problem(int(np.argmin(table.is_feasible)))}"


def _ideal_us(arch: ArchSpec, flop: Mapping[DType, int]) -> float:
    """Time that all operations would take at the peaks of their types."""
    try:
        return sum(us_at_peak(of, arch.highest_tflop_per_s(dtype)) for dtype, of in flop.items())
    except KeyError as error:
        raise UnsupportedError(f"{arch.name}: its matrix units do not take {error.args[0]}") from None


def _broken(constraints: Sequence[Constraint], values: Mapping[str, Any]) -> str:
    return "; ".join(why for one in constraints if (why := one.violated(values[one.column])))
