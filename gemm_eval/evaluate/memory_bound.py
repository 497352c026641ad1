"""Operations whose time is that of their bytes, on any arch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, check_carried
from gemm_eval.checks import as_integer, plain_number
from gemm_eval.errors import InvalidProblemError
from gemm_eval.evaluate.interval import CORRECTION, chip_interval, source_of
from gemm_eval.evaluate.result import Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_TERMS,
    MemoryBoundRows,
    memory_bound_columns,
    memory_bound_model,
    memory_bound_row,
    memory_bound_terms,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.words import shown
from gemm_eval.workload import ENGINES, MAX_DIM, memory_kernel

_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryBoundResult(Result):
    """The time of a kernel that reads and writes some bytes, and computes next to nothing.

    `source` is ``corrected`` or ``calibrated`` on a GPU that the coefficients were fitted on, with or without what its
    timings showed beyond the terms (`correction_us`); else ``analytic``. 80% of measured times are expected within
    `low_us` to `high_us`.
    """

    arch_name: str
    read_bytes: float
    write_bytes: float
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    source: str

    def __repr__(self) -> str:
        return f"<MemoryBoundResult {self.num_bytes:,.0f} bytes on {self.arch_name}: {self.latency_us:.4g} us>"

    @property
    def num_bytes(self) -> float:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def gb_per_s(self) -> float:
        """Achieved rate, in 1e9 bytes/s."""
        return self.num_bytes / self.latency_us / 1e3


def memory_bound(
    arch: ArchSpec, read_bytes: float, write_bytes: float, row_elements: int = 0, num_rows: int = 0, what: str = ""
) -> MemoryBoundResult:
    """Return the time of such a kernel; arguments and errors as of `GEMMEvaluator.evaluate_memory_bound`."""
    for name, value in (("read_bytes", read_bytes), ("write_bytes", write_bytes)):
        number = plain_number(value)
        if number is None or not 0 <= number <= _MAX_BYTES:
            raise InvalidProblemError(f"{name} must be in 0..2**60, got {shown(value)}")
    as_integer("row_elements", row_elements, 0, MAX_DIM)
    as_integer("num_rows", num_rows, 0, MAX_DIM)
    return memory_bounds(arch, [(read_bytes, write_bytes, row_elements, num_rows, what)])[0]


def memory_bounds(
    arch: ArchSpec, kernels: Sequence[tuple[float, float, int, int, str]], *, is_under_load: bool = False
) -> tuple[MemoryBoundResult, ...]:
    """Return what many such kernels take, each given by checked arguments of `memory_bound`, in one batch.

    `is_under_load`: kernels run in between that keep a GPU busy, so that its SMs have their boost clock, not their
    highest one. Engines' kernels were timed so.
    """
    results: dict[int, MemoryBoundResult] = {}
    places: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        places.setdefault(memory_kernel(kernel[4]).library, []).append(place)
    for library, chosen in places.items():
        some = [kernels[i] for i in chosen]
        if isinstance(arch, GpuSpec):
            is_slower = is_under_load and library != ENGINES
            priced = _on_gpu(arch, library, some, arch.max_clock_ghz / arch.boost_clock_ghz if is_slower else 1.0)
        else:
            priced = _on_chip(arch, some)
        results |= zip(chosen, priced, strict=True)
    return tuple(results[place] for place in range(len(kernels)))


_Kernel = tuple[float, float, int, int, str]


def _on_chip(arch: Any, kernels: Sequence[_Kernel]) -> Iterator[MemoryBoundResult]:
    rate = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
    for read_bytes, write_bytes, *_more in kernels:
        values = (arch.launch_us, 0.0, (read_bytes + write_bytes) / rate)
        terms = FrozenDict(zip(MEMORY_BOUND_TERMS, values, strict=True))
        ends = chip_interval(arch, sum(values))
        yield MemoryBoundResult(arch.name, read_bytes, write_bytes, sum(values), *ends, terms, "analytic")


def _on_gpu(arch: Any, library: str, kernels: Sequence[_Kernel], slower: float) -> Iterator[MemoryBoundResult]:
    """Yield the results of kernels whose ways to memory and waves take `slower` times as long as those timed."""
    check_carried(arch, "memory-bound kernels")
    coefficients, origin, learned = memory_bound_model(arch, library)
    coefficients = coefficients | {name: coefficients[name] * slower for name in ("trip_us", "wave_us")}
    rows = [memory_bound_row(kernel[4], *kernel[:2], kernel[3], kernel[2]) for kernel in kernels]
    columns = MemoryBoundRows(*np.array(rows, np.float64).T.copy())
    terms = memory_bound_terms(arch, coefficients, columns)
    physics_us = sum(terms.values(), np.zeros(len(rows)))
    answers = learned.answers(memory_bound_columns(columns, physics_us), physics_us)
    beyond_bytes = np.maximum(columns.read_bytes + columns.write_bytes - arch.l2_bytes, 0.0)
    least_us = beyond_bytes / bytes_per_us(arch.dram_gb_per_s)  # by the data sheet
    latency_us = physics_us * np.maximum(answers.factor, np.minimum(1.0, least_us / physics_us))
    times = (latency_us, *answers.ends_us(latency_us), physics_us, *terms.values())
    for (read_bytes, write_bytes, *_), us, low, high, of_terms, *each in zip(
        kernels, *(column.tolist() for column in times), strict=True
    ):
        breakdown = FrozenDict(zip(MEMORY_BOUND_TERMS, each, strict=True))
        if us != of_terms:
            breakdown = FrozenDict({**breakdown, CORRECTION: us - of_terms})
        source = source_of(origin, us, of_terms)
        yield MemoryBoundResult(arch.name, read_bytes, write_bytes, us, low, high, breakdown, source)
