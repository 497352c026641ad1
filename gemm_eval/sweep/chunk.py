"""A chunk of a sweep: some points, evaluated in the calling thread, as a table.

Archs are data to the search, so a chunk of any chips compiles nothing and is a few calls of a kernel for every number
of cores in it; GPUs go one by one through their evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.multicore import PARAMS_DTYPE, pack_params
from gemm_eval.search import check_idle_cores, find_best_of_archs
from gemm_eval.sweep.metrics import Constraint, Schema, add_up, metric_columns, metric_names
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.workload import Workload, attention_dram_bytes, attention_energy_pj
from gemm_eval.units import us_at_peak
from gemm_eval.workload import AttentionProblem, GemmProblem, GemmTypes, Layouts, pack_layouts


@dataclass(frozen=True)
class SweepWork:
    """The space, workloads and options that all chunks of a sweep share.

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
    def attention(self) -> tuple[AttentionProblem, ...]:
        """All different problems of attention."""
        return tuple(dict.fromkeys(problem for workload in self.workloads for problem, _ in workload.attention))

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[num_problems, 4]: their G, M, K, N."""
        return np.array([one.sizes for one in self.problems], np.int64)

    @cached_property
    def layouts(self) -> Layouts:
        """[num_problems]: their row groups."""
        return pack_layouts([problem.row_groups for problem in self.problems])

    @cached_property
    def types(self) -> tuple[GemmTypes, ...]:
        """Their data types, each once."""
        return tuple(dict.fromkeys(problem.types for problem in self.problems))

    @cached_property
    def type_of(self) -> npt.NDArray[np.int64]:
        """[num_problems], index into `types`."""
        return np.array([self.types.index(problem.types) for problem in self.problems], np.int64)

    @cached_property
    def flop(self) -> tuple[dict[DType, int], ...]:
        """The operations of each workload, by input type."""
        flop_of_workloads = []
        for workload in self.workloads:
            flop: dict[DType, int] = {}
            for problem, count in workload.gemms:
                flop[problem.input_dtype] = flop.get(problem.input_dtype, 0) + count * problem.flop
            for attention, count in workload.attention:
                flop[attention.dtype] = flop.get(attention.dtype, 0) + count * attention.flop
            flop_of_workloads.append(flop)
        return tuple(flop_of_workloads)


def point_evaluator(arch: ArchSpec, options: Mapping[str, Any]) -> GEMMEvaluator:
    """Return the evaluator of a point's chip, with the options of its sweep.

    A multi-core chip is asked for its best mapping, not for what a library does.
    """
    if isinstance(arch, GpuSpec):
        return GEMMEvaluator(arch, disk_cache=False, **{**options, "allow_idle_cores": True})
    free = arch if arch.rules is None else arch.with_(rules=None)
    return GEMMEvaluator(free, disk_cache=False, allow_idle_cores=options["allow_idle_cores"])


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
        self.attention_costs = {name: np.full((num_points, len(work.attention)), np.nan) for name in _TOTALS}

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
        column = {problem: at for at, problem in enumerate(self.work.problems)}
        of_attention = {problem: at for at, problem in enumerate(self.work.attention)}
        return [
            {
                name: add_up(
                    [
                        *(count * self.costs[name][:, column[problem]] for problem, count in workload.gemms),
                        *(
                            count * self.attention_costs[name][:, of_attention[problem]]
                            for problem, count in workload.attention
                        ),
                    ]
                )
                for name in _TOTALS
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
        _evaluate_attention(chunk, places, is_stopped)
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
    try:
        evaluator = point_evaluator(arch, chunk.work.options)
        table = evaluator.evaluate_many(problems, errors="mark", progress=False)
    except UnsupportedError as error:
        chunk.excluded[at] = f"unsupported: {error}"
        return
    for name, values in chunk.costs.items():
        values[at] = table[name]
    if not table.is_feasible.all():
        chunk.excluded[at] = f"infeasible: {table.problem(int(np.argmin(table.is_feasible)))}"


def _evaluate_attention(chunk: _Chunk, places: Sequence[int], is_stopped: Callable[[], bool]) -> None:
    """Find the costs of attention at points whose GEMMs have some."""
    problems, options = chunk.work.attention, chunk.work.options
    for at in places if problems else ():
        arch = chunk.archs[at]
        assert arch is not None
        if chunk.excluded[at]:
            continue
        if is_stopped():
            raise StoppedError
        evaluator = point_evaluator(arch, options)
        try:
            results = evaluator.evaluate_attention_problems(problems)
        except (UnsupportedError, InfeasibleError) as error:
            kind = "unsupported" if isinstance(error, UnsupportedError) else "infeasible"
            chunk.excluded[at] = f"{kind}: {error}"
            continue
        for place, result in enumerate(results):
            chunk.attention_costs["latency_us"][at, place] = result.latency_us
            chunk.attention_costs["dram_bytes"][at, place] = attention_dram_bytes(result)
            chunk.attention_costs["energy_pj"][at, place] = attention_energy_pj(arch, result)


def _ideal_us(arch: ArchSpec, flop: Mapping[DType, int]) -> float:
    """Time that all operations would take at the peaks of their types."""
    try:
        return sum(us_at_peak(of, arch.highest_tflop_per_s(dtype)) for dtype, of in flop.items())
    except KeyError as error:
        raise UnsupportedError(f"{arch.name}: its matrix units do not take {error.args[0]}") from None


def _broken(constraints: Sequence[Constraint], values: Mapping[str, Any]) -> str:
    return "; ".join(why for one in constraints if (why := one.violated(values[one.column])))
