"""Operations whose time is that of their bytes, on any arch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import as_integer, plain_number
from gemm_eval.errors import InvalidProblemError
from gemm_eval.evaluate.result import Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_TERMS,
    memory_bound_coefficients,
    memory_bound_row,
    memory_bound_terms,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM, memory_kernel

_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryBoundResult(Result):
    """The time of a kernel that reads and writes some bytes, and computes next to nothing.

    `source` is ``calibrated`` on a GPU that the coefficients were fitted on, else ``analytic``.
    """

    arch_name: str
    read_bytes: float
    write_bytes: float
    latency_us: float
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
    arch: ArchSpec, kernels: Sequence[tuple[float, float, int, int, str]]
) -> tuple[MemoryBoundResult, ...]:
    """Return what many such kernels take, each given by checked arguments of `memory_bound`, in one batch."""
    results: dict[int, MemoryBoundResult] = {}
    places: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        places.setdefault(memory_kernel(kernel[4]).library, []).append(place)
    for library, chosen in places.items():
        for place, (source, terms) in zip(chosen, _terms(arch, library, [kernels[i] for i in chosen]), strict=True):
            latency_us, breakdown = sum(terms.values()), FrozenDict(terms)
            results[place] = MemoryBoundResult(arch.name, *kernels[place][:2], latency_us, breakdown, source)
    return tuple(results[place] for place in range(len(kernels)))


def _terms(
    arch: ArchSpec, library: str, kernels: Sequence[tuple[float, float, int, int, str]]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the source of the time of each kernel of a library, and its `MEMORY_BOUND_TERMS` in microseconds."""
    if not isinstance(arch, GpuSpec):
        rate = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        for read_bytes, write_bytes, *_ in kernels:
            values = (arch.launch_us, 0.0, (read_bytes + write_bytes) / rate)
            yield "analytic", dict(zip(MEMORY_BOUND_TERMS, values, strict=True))
        return
    coefficients, origin = memory_bound_coefficients(arch, library)
    source = "calibrated" if origin.is_calibrated else "analytic"
    for read_bytes, write_bytes, row_elements, num_rows, what in kernels:  # as columns, powers differ in their last bit
        row = memory_bound_row(what, read_bytes, write_bytes, num_rows, row_elements)
        terms = memory_bound_terms(arch, coefficients, row)
        yield source, {name: float(us) for name, us in terms.items()}
