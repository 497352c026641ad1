"""A chunk of a sweep: some points, evaluated in the calling thread, as a table.

Archs are data to the search, so a chunk of any chips compiles nothing and is a few calls of a kernel for every number
of cores in it; GPUs go one by one through their evaluator.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from gemm_eval.search import check_idle_cores, find_best_many
from gemm_eval.sweep.metrics import (
    SUMS,
    Column,
    Constraint,
    Schema,
    Workload,
    add_up,
    attention_dram_bytes,
    attention_energy_pj,
    metric_columns,
    metric_names,
)
from gemm_eval.sweep.space import Space
from gemm_eval.units import us_at_peak
from gemm_eval.workload import AttentionProblem, GemmProblem, GemmTypes, Layouts, pack_layouts


@dataclass(frozen=True)
class SweepWork:
    """The sweep that all its chunks share; `options` are allow_idle_cores, library, l2 and clock of `GEMMEvaluator`."""

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
    def columns(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Columns of the GEMMs and attention of each workload, in `problems` and then `attention`, with counts."""
        place_of = {problem: at for at, problem in enumerate((*self.problems, *self.attention))}
        return tuple(
            tuple((place_of[problem], count) for problem, count in workload.problems) for workload in self.workloads
        )

    @cached_property
    def types(self) -> tuple[GemmTypes, ...]:
        """Data types of the GEMMs, each once."""
        return tuple(dict.fromkeys(problem.types for problem in self.problems))

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Layouts]:
        """Sizes of the GEMMs [num_problems, 4], indices into `types` [num_problems], and row groups."""
        sizes = np.array([problem.sizes for problem in self.problems], np.int64)
        type_of = np.array([self.types.index(problem.types) for problem in self.problems], np.int64)
        return sizes, type_of, pack_layouts([problem.row_groups for problem in self.problems])

    @cached_property
    def flop(self) -> tuple[Mapping[DType, int], ...]:
        """The operations of each workload, by input type."""
        flop_of_workloads: list[Counter[DType]] = []
        for workload in self.workloads:
            flop_of_workloads.append(Counter())
            for problem, count in workload.problems:
                dtype = problem.input_dtype if isinstance(problem, GemmProblem) else problem.dtype
                flop_of_workloads[-1][dtype] += count * problem.flop
        return tuple(flop_of_workloads)


def point_evaluator(arch: ArchSpec, options: Mapping[str, Any]) -> GEMMEvaluator:
    """Return the evaluator of a point's chip: of a multi-core chip's best mapping, not of what a library does."""
    if isinstance(arch, GpuSpec):
        return GEMMEvaluator(arch, disk_cache=False, **{**options, "allow_idle_cores": True})
    free = arch if arch.rules is None else arch.with_(rules=None)
    return GEMMEvaluator(free, disk_cache=False, allow_idle_cores=options["allow_idle_cores"])


_GEMMS_AT_ONCE = 256  # of a call of the kernel, which nothing can stop


class StoppedError(Exception):
    """A chunk that is not waited for any more."""


class _Chunk:
    """Points on their way: their chips, costs of every GEMM and attention (nan: no answer), why a point is excluded."""

    def __init__(self, work: SweepWork, num_points: int) -> None:
        self.work = work
        self.archs: list[ArchSpec | None] = [None] * num_points
        self.excluded = [""] * num_points
        self.area_mm2 = np.full(num_points, np.nan)
        self.ideal_us = [np.full(num_points, np.nan) for _ in work.workloads]
        width = len(work.problems) + len(work.attention)
        self.costs = {name: np.full((num_points, width), np.nan) for name in SUMS}

    def build(self, at: int, values: Mapping[str, Any], early: Sequence[Constraint]) -> None:
        """Make the chip of a point, and check what needs no search."""
        try:
            arch = self.work.space.arch(values)
            if isinstance(arch, MulticoreSpec):
                check_idle_cores(arch, allow_idle_cores=bool(self.work.options["allow_idle_cores"]))
        except (ArchValidationError, InvalidOptionError) as error:
            self.excluded[at] = f"invalid: {error}"
            return
        area_mm2 = getattr(arch, "area_mm2", None)
        self.area_mm2[at] = np.nan if area_mm2 is None else area_mm2
        self.excluded[at] = _broken(early, {**values, "area_mm2": area_mm2})
        if self.excluded[at]:
            return
        with self.excluding(at):
            for of, flop in zip(self.ideal_us, self.work.flop, strict=True):
                of[at] = _ideal_us(arch, flop)
            self.archs[at] = arch

    @contextmanager
    def excluding(self, at: int) -> Iterator[None]:
        """Exclude a point for an error that says why it cannot run something."""
        try:
            yield
        except (UnsupportedError, InfeasibleError) as error:
            kind = "unsupported" if isinstance(error, UnsupportedError) else "infeasible"
            self.excluded[at] = f"{kind}: {error}"

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

    def totals(self) -> list[dict[str, Column]]:
        """Return the sums [num_points] of each workload."""
        return [
            {name: add_up(count * costs[:, at] for at, count in columns) for name, costs in self.costs.items()}
            for columns in self.work.columns
        ]


def evaluate_rows(
    work: SweepWork, rows: Sequence[tuple[Any, ...]], first: int, is_stopped: Callable[[], bool] = lambda: False
) -> Any:
    """Return a pyarrow Table with a row for each point; `rows` are their choices, `first` the number of the first."""
    num = len(rows)
    chunk = _Chunk(work, num)
    early = [limit for limit in work.constraints if limit.column in work.space.names or limit.column == "area_mm2"]
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
        for at in places if work.attention else ():
            if is_stopped():
                raise StoppedError
            if (arch := chunk.archs[at]) is None or chunk.excluded[at]:
                continue
            with chunk.excluding(at):
                results = point_evaluator(arch, work.options).evaluate_attention_problems(work.attention)
                chunk.costs["latency_us"][at, len(work.problems) :] = [result.latency_us for result in results]
                chunk.costs["dram_bytes"][at, len(work.problems) :] = list(map(attention_dram_bytes, results))
                chunk.costs["energy_pj"][at, len(work.problems) :] = [attention_energy_pj(arch, of) for of in results]
    metrics = metric_columns(work.workloads, chunk.totals(), ideal_us=chunk.ideal_us, area_mm2=chunk.area_mm2)
    late = [limit for limit in work.constraints if limit not in early]
    for at in range(num):
        if late and not chunk.excluded[at]:
            chunk.excluded[at] = _broken(late, {limit.column: metrics[limit.column][at] for limit in late})
    columns: dict[str, Any] = {"point": np.arange(first, first + num)}
    columns |= {name: [values[name] for values in points] for name in work.space.names}
    columns.setdefault("area_mm2", chunk.area_mm2)
    columns |= {name: metrics[name] for name in metric_names(work.workloads)}
    return work.schema.table(columns | {"excluded": chunk.excluded})


def _evaluate_multicore(chunk: _Chunk, places: Sequence[int]) -> None:
    """Find the costs of points whose chips have the same number of cores and timing."""
    work = chunk.work
    params = np.empty((len(places), len(work.types)), PARAMS_DTYPE)
    good: dict[int, MulticoreSpec] = {}
    for at in places:
        arch = chunk.archs[at]
        assert isinstance(arch, MulticoreSpec)
        with chunk.excluding(at):
            for place, types in enumerate(work.types):
                # a record at a time: to concatenate records costs numpy twice what packing them does
                params[len(good), place] = pack_params(arch, types)[0]
            good[at] = arch
    if not good:
        return
    num = len(good)
    sizes, type_of, layouts = work.arrays
    records = find_best_many(
        next(iter(good.values())).num_cores,
        params[:num].ravel(),
        (np.arange(num)[:, None] * len(work.types) + type_of).ravel(),
        np.tile(sizes, (num, 1)),
        allow_idle_cores=bool(work.options["allow_idle_cores"]),
        layouts=layouts.take(np.tile(np.arange(len(work.problems)), num)),
        run=lambda search, num_problems: search(0, num_problems),
    ).reshape(num, len(work.problems))
    feasible = records["active_cores"] > 0
    for name, values in chunk.costs.items():
        values[list(good), : len(work.problems)] = np.where(feasible, records[name], np.nan)
    for (at, arch), is_feasible in zip(good.items(), feasible, strict=True):
        if not is_feasible.all():
            problem = work.problems[int(np.argmin(is_feasible))]
            limit = f"{arch.sram_usable_bytes:,} bytes of SRAM a core"
            chunk.excluded[at] = f"infeasible: {problem} does not fit in {limit}"


def _evaluate_gpu(chunk: _Chunk, at: int) -> None:
    """Find the costs of the GEMMs of a point."""
    arch, problems = chunk.archs[at], chunk.work.problems
    assert isinstance(arch, GpuSpec)
    with chunk.excluding(at):
        table = point_evaluator(arch, chunk.work.options).evaluate_many(problems, errors="mark", progress=False)
        for name, values in chunk.costs.items():
            values[at, : len(problems)] = table[name]
        if not table.is_feasible.all():
            chunk.excluded[at] = f"infeasible: {table.problem(int(np.argmin(table.is_feasible)))}"


def _ideal_us(arch: ArchSpec, flop: Mapping[DType, int]) -> float:
    """Time that all operations would take at the peaks of their types."""
    try:
        return sum(us_at_peak(of, arch.highest_tflop_per_s(dtype)) for dtype, of in flop.items())
    except KeyError as error:
        raise UnsupportedError(f"{arch.name}: its matrix units do not take {error.args[0]}") from None


def _broken(constraints: Sequence[Constraint], values: Mapping[str, Any]) -> str:
    return "; ".join(why for limit in constraints if (why := limit.violated(values[limit.column])))
