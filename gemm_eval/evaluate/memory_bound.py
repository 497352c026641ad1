"""Operations whose time is that of their bytes, on any arch."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import as_integer, plain_number
from gemm_eval.errors import InvalidProblemError
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
class MemoryBoundResult:
    """The time of a kernel that reads and writes some bytes, and computes next to nothing.

    Attributes:
        arch_name: name of the arch.
        read_bytes, write_bytes: of the kernel.
        latency_us: its time, in microseconds.
        breakdown: microseconds by term; they add up to `latency_us`.
        source: ``calibrated`` on a GPU that the coefficients were fitted on, else ``analytic``.
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
    """Return what such a kernel takes; arguments as of `GEMMEvaluator.evaluate_memory_bound`.

    Raises:
        InvalidProblemError: a number of bytes that is none.
        InvalidOptionError: `row_elements` or `num_rows` is no number of elements or rows.
    """
    for name, value in (("read_bytes", read_bytes), ("write_bytes", write_bytes)):
        number = plain_number(value)
        if number is None or not 0 <= number <= _MAX_BYTES:
            raise InvalidProblemError(f"{name} must be in 0..2**60, got {shown(value)}")
    as_integer("row_elements", row_elements, 0, MAX_DIM)
    as_integer("num_rows", num_rows, 0, MAX_DIM)
    source = "analytic"
    if isinstance(arch, GpuSpec):
        coefficients, origin = memory_bound_coefficients(arch, memory_kernel(what).library)
        row = memory_bound_row(what, read_bytes, write_bytes, num_rows, row_elements)
        found = memory_bound_terms(arch, coefficients, row)
        terms = {name: float(value) for name, value in found.items()}
        source = "calibrated" if origin.is_calibrated else source
    else:
        rate = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        terms = dict(zip(MEMORY_BOUND_TERMS, (arch.launch_us, 0.0, (read_bytes + write_bytes) / rate), strict=True))
    return MemoryBoundResult(arch.name, read_bytes, write_bytes, sum(terms.values()), FrozenDict(terms), source)
