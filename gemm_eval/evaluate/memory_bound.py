"""Operations whose time is that of their bytes, on any arch, and kernels of linear and sparse attention on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, check_carried
from gemm_eval.checks import as_integer, check_word, plain_number
from gemm_eval.errors import InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.interval import CORRECTION, chip_interval, interval_line, source_of
from gemm_eval.evaluate.result import Result, term_lines
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_TERMS,
    MemoryBoundRows,
    memory_bound_columns,
    memory_bound_model,
    memory_bound_row,
    memory_bound_terms,
)
from gemm_eval.models.gpu.mixers import MIXER_LIBRARIES, MIXER_TERMS, mixer_model, mixer_rows, mixer_terms
from gemm_eval.units import bytes_per_us, time_text
from gemm_eval.words import shown
from gemm_eval.workload import ENGINES, MAX_DIM, MIXER_KERNELS, MixerProblem, memory_kernel

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


_SHOWN_FROM_US = 0.005


@dataclass(frozen=True, slots=True)
class MixerResult(Result):
    """The time of a kernel of linear or sparse attention, term by term.

    Attributes:
        low_us, high_us: 80% of measured times lie between, by the held-out errors of the kernel's fit.
        breakdown: microseconds by term; they add up to `latency_us`.
        bound: what limits: ``lines`` (chunks one after the other, or too few CTAs), ``bytes`` or ``launch``.
        library: whose kernel it is.
        source: ``calibrated`` where coefficients were fitted on this very GPU, else ``analytic``.
        origin: where they come from, in words.
    """

    problem: MixerProblem
    arch_name: str
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    bound: str
    library: str
    source: str
    origin: str

    def explain(self) -> str:
        """Return a short text: how long, what bounds it, and where the time goes."""
        lines = [
            f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)}, bound by {self.bound}.",
            f"Kernel: {MIXER_KERNELS[self.problem.kernel].meaning}, of {self.library}; coefficients {self.origin}.",
            interval_line(self.low_us, self.high_us),
            *term_lines(self.breakdown, MIXER_TERMS, _SHOWN_FROM_US),
        ]
        return "\n".join(lines)


def mixer_results(arch: ArchSpec, problems: Sequence[MixerProblem], library: str | None) -> list[MixerResult]:
    """Return the times of kernels by a library's coefficients, or by those of the next library that has the kernel.

    Raises:
        InvalidOptionError: no such library.
        UnsupportedError: the arch is no GPU, or one of another maker whose spec names none to carry over from.
    """
    if library is not None:
        check_word("library", library, MIXER_LIBRARIES)
    check_carried(arch, "linear and sparse attention")
    if not isinstance(arch, GpuSpec):
        raise UnsupportedError(f"linear and sparse attention were timed on NVIDIA GPUs alone, and {arch.name} is none")
    by_kernel: dict[str, list[int]] = {}
    for index, problem in enumerate(problems):
        by_kernel.setdefault(problem.kernel, []).append(index)
    results: dict[int, MixerResult] = {}
    for kernel, chosen in by_kernel.items():
        results |= zip(chosen, _of_kernel(arch, kernel, [problems[i] for i in chosen], library), strict=True)
    return [results[index] for index in range(len(problems))]


def _of_kernel(
    arch: GpuSpec, kernel: str, problems: Sequence[MixerProblem], library: str | None
) -> Iterator[MixerResult]:
    model = mixer_model(arch, kernel, library)
    terms = mixer_terms(arch, model.coefficients, mixer_rows(arch, problems))
    source = source_of(model.origin, 0.0, 0.0)
    for problem, values in zip(problems, np.array(list(terms.values())).T.tolist(), strict=True):
        breakdown = FrozenDict(zip(MIXER_TERMS, values, strict=True))
        latency_us = sum(values)
        largest = max(MIXER_TERMS, key=lambda name: breakdown[name])
        bound = {"fixed_us": "launch", "lines_us": "lines", "bytes_us": "bytes"}[largest]
        low_us, high_us = (latency_us * end for end in model.ends)
        yield MixerResult(
            problem, arch.name, latency_us, low_us, high_us, breakdown, bound, model.library, source, model.origin.text
        )
