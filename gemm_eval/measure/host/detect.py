"""Finding out what CPU this is."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import check_extra, needs_extra
from gemm_eval.measure.host.caches import CacheLevel, cores_of, read_sysctl, sysctl_caches, sysfs_caches
from gemm_eval.measure.host.facts import Fact, HostFacts

__all__ = [
    "check_host_packages",
    "count_busy_cores",
    "detect_host",
    "measure_clock_ghz",
    "quota_cores",
    "simd_width",
]

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_SVE_BYTES = Path("/proc/sys/abi/sve_default_vector_length")
_WIDTHS = (("avx512f", 512), ("avx", 256), ("sse2", 128), ("asimd", 128), ("neon", 128))
"""Bits of a vector register by the flag that says so, widest first."""
_CHAIN_LINKS = 200_000  # about half a millisecond: short enough that some run is not interrupted
_CHAIN_RUNS = 60


def check_host_packages() -> None:
    """Raise a GemmEvalError if a package of the extra is missing, or the JIT is off: better before than in the work."""
    check_extra("measuring this machine", "host", "psutil", "cpuinfo", "threadpoolctl", "pandas", "scipy")
    from gemm_eval.measure.host.host_kernels import run_chain

    if not hasattr(run_chain, "py_func"):  # loops of Python tell nothing of the machine
        raise GemmEvalError("measuring this machine needs compiled kernels: unset NUMBA_DISABLE_JIT")


def detect_host() -> HostFacts:
    """Find out what CPU this is; takes a second or two, in which one core is busy.

    Raises:
        GemmEvalError: a package of the extra `host` is missing.
    """
    with needs_extra("measuring this machine", "host"):
        import cpuinfo
        import psutil
    said: Mapping[str, Any] = cpuinfo.get_cpu_info()
    flags = frozenset(said.get("flags") or ())
    usable = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    cpus = cores_of(usable)
    num_cores = _num_cores(cpus, psutil.cpu_count(logical=False))
    caches, caches_source = _caches(said, cpus, num_cores.value)
    machine = platform.machine().lower()
    hertz = (said.get("hz_advertised") or (0, 0))[0] or (psutil.cpu_freq().max * 1e6 if _has_clock(psutil) else 0)
    return HostFacts(
        title=str(said.get("brand_raw") or platform.processor() or machine),
        machine=machine,
        system=f"{platform.system()} {platform.release()}",
        num_cores=num_cores,
        cpus=cpus[: num_cores.value],
        simd_bits=simd_width(flags, machine),
        nominal_ghz=Fact(hertz / 1e9, ProvenanceKind.SPEC, "as the system tells it") if hertz else None,
        clock_ghz=Fact(measure_clock_ghz(), ProvenanceKind.MEASURED, "one busy core, a chain of dependent operations"),
        caches=caches,
        caches_source=caches_source,
        memory_bytes=int(psutil.virtual_memory().total),
        is_virtual="hypervisor" in flags,
    )


def count_busy_cores(seconds: float = 0.5) -> float:
    """Return how many cores others keep busy, while this process waits so long.

    Raises:
        GemmEvalError: psutil is not installed.
    """
    with needs_extra("measuring this machine", "host"):
        import psutil
    shares: list[float] = psutil.cpu_percent(interval=seconds, percpu=True)
    return sum(shares) / 100.0


def _has_clock(psutil: Any) -> bool:
    """Whether the system tells a clock: on some, psutil has no such function, or it knows nothing."""
    try:
        return bool(psutil.cpu_freq())
    except (AttributeError, NotImplementedError, OSError):
        return False


def _num_cores(cpus: tuple[int, ...], counted: int | None) -> Fact[int]:
    if cpus:
        found, source = len(cpus), "cores that this process may run on"
    else:
        found, source = counted or os.cpu_count() or 1, "physical cores, as the system counts them"
    quota = quota_cores(_CGROUP_QUOTA)
    if quota is not None and quota < found:
        found, source = quota, "the share of CPU time that this container may use"
    return Fact(found, ProvenanceKind.SPEC, source)


def quota_cores(path: Path) -> int | None:
    """Return how many cores a container's quota is worth, at least one; None: it has none.

    Args:
        path: a file of the kernel's, of two numbers: us of CPU time in each period, or ``max``, and us of the period.
    """
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def simd_width(flags: Iterable[str], machine: str) -> Fact[int]:
    """Return the bits of a vector register.

    Args:
        flags: features, as Linux names them.
        machine: instruction set, in lower case.
    """
    known = set(flags)
    if "sve" in known and _SVE_BYTES.is_file():
        bits = 8 * int(_SVE_BYTES.read_text(encoding="ascii"))
        return Fact(bits, ProvenanceKind.SPEC, "SVE, the vector length of this system")
    for flag, bits in _WIDTHS:
        if flag in known:
            return Fact(bits, ProvenanceKind.SPEC, f"flag {flag} of the CPU")
    if machine in ("arm64", "aarch64"):
        return Fact(128, ProvenanceKind.SPEC, "NEON, which every 64-bit ARM core has")
    return Fact(128, ProvenanceKind.ASSUMED, f"no flag of {machine} that is known here")


def measure_clock_ghz() -> float:
    """Return the clock of one busy core: that of the fastest of many short runs, since interruptions only slow one."""
    from gemm_eval.measure.host.host_kernels import CYCLES_PER_LINK, run_chain

    run_chain(1, 1)
    shortest = float("inf")
    for seed in range(1, _CHAIN_RUNS + 1):
        begin = time.perf_counter_ns()
        run_chain(seed, _CHAIN_LINKS)
        shortest = min(shortest, time.perf_counter_ns() - begin)
    return CYCLES_PER_LINK * _CHAIN_LINKS / shortest


def _caches(said: Mapping[str, Any], cpus: tuple[int, ...], num_cores: int) -> tuple[tuple[CacheLevel, ...], str]:
    if cpus and (found := sysfs_caches(cpus[0])):
        return found, "sysfs"
    if values := read_sysctl():
        return sysctl_caches(values, num_cores), "sysctl"
    sizes = ((level, said.get(name)) for level, name in ((2, "l2_cache_size"), (3, "l3_cache_size")))
    levels = (CacheLevel(level, size, 1 if level == 2 else num_cores) for level, size in sizes if isinstance(size, int))
    return tuple(levels), "cpuinfo, which says nothing of who shares them"
