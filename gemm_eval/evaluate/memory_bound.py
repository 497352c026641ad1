"""Operations whose time is that of their bytes, on any arch."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import as_integer, plain_number
from gemm_eval.errors import InvalidProblemError
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu import MEMORY_BOUND_GPU, MEMORY_BOUND_TERMS, memory_bound_terms
from gemm_eval.units import bytes_per_us
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM

__all__ = ["MemoryBoundResult", "memory_bound"]

_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryBoundResult:
    """The time of a kernel that reads and writes some bytes, and computes next to nothing.

    Attributes:
        arch_name: name of the arch.
        read_bytes, write_bytes: of the kernel.
        latency_us: its time, in microseconds.
        breakdown: microseconds by term; they add up to `latency_us`.
        source: ``calibrated`` on the GPU that the numbers of the model were fitted on, else ``analytic``.
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


def memory_bound(arch: ArchSpec, read_bytes: float, write_bytes: float, row_elements: int = 0) -> MemoryBoundResult:
    """Return what such a kernel takes.

    Raises:
        InvalidProblemError: a number of bytes that is none.
        InvalidOptionError: `row_elements` is no number of elements.
    """
    for name, value in (("read_bytes", read_bytes), ("write_bytes", write_bytes)):
        number = plain_number(value)
        if number is None or not 0 <= number <= _MAX_BYTES:
            raise InvalidProblemError(f"{name} must be in 0..2**60, got {shown(value)}")
    as_integer("row_elements", row_elements, 0, MAX_DIM)
    if isinstance(arch, GpuSpec):
        terms = memory_bound_terms(arch, read_bytes, write_bytes, row_elements)
    else:
        rate = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        terms = dict(zip(MEMORY_BOUND_TERMS, (arch.launch_us, 0.0, (read_bytes + write_bytes) / rate), strict=True))
    source = "calibrated" if arch.name == MEMORY_BOUND_GPU else "analytic"
    return MemoryBoundResult(arch.name, read_bytes, write_bytes, sum(terms.values()), FrozenDict(terms), source)
