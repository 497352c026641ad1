"""`SweepWork`: what all chunks of a sweep share, and what is worked out of it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.sweep.columns import Schema
from gemm_eval.sweep.metrics import Constraint
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.workload import Workload
from gemm_eval.workload import AttentionProblem, GemmProblem, GemmTypes, Layouts, pack_layouts

__all__ = ["SweepWork", "point_evaluator"]


@dataclass(frozen=True)
class SweepWork:
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
        """Of each workload, the operations by input type."""
        found = []
        for workload in self.workloads:
            flop: dict[DType, int] = {}
            for problem, count in workload.gemms:
                flop[problem.input_dtype] = flop.get(problem.input_dtype, 0) + count * problem.flop
            for attention, count in workload.attention:
                flop[attention.dtype] = flop.get(attention.dtype, 0) + count * attention.flop
            found.append(flop)
        return tuple(found)


def point_evaluator(arch: ArchSpec, options: Mapping[str, Any]) -> GEMMEvaluator:
    """Return the evaluator of a point's chip, with the options of its sweep.

    A multi-core chip is asked for its best mapping, not for what a library does.
    """
    if isinstance(arch, GpuSpec):
        return GEMMEvaluator(arch, disk_cache=False, **{**options, "allow_idle_cores": True})
    free = arch if arch.rules is None else arch.with_(rules=None)
    return GEMMEvaluator(free, disk_cache=False, allow_idle_cores=options["allow_idle_cores"])
