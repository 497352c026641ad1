"""What is known of this machine's CPU: each number with its kind and where it comes from, as a spec has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.caches import CacheLevel

__all__ = ["Fact", "HostFacts"]

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value and how it is known.

    Attributes:
        value: in the unit that the field's name says.
        kind: spec (the CPU or its system says it), measured, derived or assumed.
        source: where it comes from, in words.
    """

    value: T
    kind: ProvenanceKind
    source: str


@dataclass(frozen=True)
class HostFacts:
    """A CPU, as one sees it from this process.

    Attributes:
        title: the maker's name of it.
        machine: instruction set, such as x86_64 or arm64.
        system: operating system.
        num_cores: physical cores that this process may use.
        cpus: one logical CPU of each of them, as the system numbers them; empty where it cannot pin threads.
        simd_bits: width of a vector register.
        nominal_ghz: the clock that the system tells; None: it tells none.
        clock_ghz: the clock of one busy core.
        caches: data caches, nearest first.
        caches_source: where their sizes come from.
        memory_bytes: main memory.
        is_virtual: whether it says that it is a virtual machine, whose caches others may use as well.
    """

    title: str
    machine: str
    system: str
    num_cores: Fact[int]
    cpus: tuple[int, ...]
    simd_bits: Fact[int]
    nominal_ghz: Fact[float] | None
    clock_ghz: Fact[float]
    caches: tuple[CacheLevel, ...]
    caches_source: str
    memory_bytes: int
    is_virtual: bool

    @property
    def last_private_cache(self) -> CacheLevel | None:
        """The largest cache that a core has for itself; None: none is known."""
        private = [cache for cache in self.caches if cache.num_cores == 1]
        return private[-1] if private else None

    @property
    def last_cache_bytes(self) -> int:
        """The bytes of the last level, of all its instances together; 0: none is known."""
        if not self.caches:
            return 0
        last = self.caches[-1]
        return last.size_bytes * max(1, self.num_cores.value // last.num_cores)
