"""A measurement of a machine that nobody has: 4 cores at 2 GHz, vectors of 8 floats, one a cycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.campaign import BandwidthPoint, HostMeasurement
from gemm_eval.measure.host.cpu import BlasInfo, CacheLevel, Fact, HostFacts
from gemm_eval.measure.host.timing import HostShape
from gemm_eval.measure.host.timing import HostTiming as Timing

MIB = 1 << 20
FACTS = HostFacts(
    title="Maker(R) Chip(TM) 4000 CPU @ 2.00GHz",
    machine="x86_64",
    system="Linux 6.1",
    num_cores=Fact(4, ProvenanceKind.SPEC, "counted"),
    cpus=(0, 1, 2, 3),
    simd_bits=Fact(256, ProvenanceKind.SPEC, "flag avx of the CPU"),
    nominal_ghz=Fact(2.0, ProvenanceKind.SPEC, "told"),
    clock_ghz=Fact(2.0, ProvenanceKind.MEASURED, "a chain"),
    caches=(CacheLevel(1, 32 << 10, 1), CacheLevel(2, MIB, 1), CacheLevel(3, 8 * MIB, 4)),
    caches_source="sysfs",
    memory_bytes=16 << 30,
    is_virtual=False,
)
_PEAK_MACS_PER_US = 4 * 2000 * 8


def timing(M: int, K: int, N: int, peak_frac: float = 0.9) -> Timing:
    latency_us = M * K * N / (_PEAK_MACS_PER_US * peak_frac)
    return Timing(HostShape(M, K, N), latency_us, 0.9 * latency_us, 0.05, 20, 1, 0)


def measurement(**changes: Any) -> HostMeasurement:
    points = tuple(
        BandwidthPoint("read", threads, size * MIB, rate, 0.01)
        for threads, size, rate in ((1, 1, 60.0), (1, 64, 12.0), (4, 1, 240.0), (4, 64, 30.0))
    )
    timings = (timing(1, 4096, 4096, 0.05), timing(512, 1024, 1024), timing(64, 256, 256, 0.6))
    blas = BlasInfo("openblas", "0.3.31", "Haswell", "2.4.6", 4)
    return replace(HostMeasurement(FACTS, blas, "fp32", points, timing(1, 1, 1, 1e-5), timings), **changes)
