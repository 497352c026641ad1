"""CPU and BLAS of this machine: cores, caches, vector width and clock, each number with its kind and source."""

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.words import check_extra, needs_extra

SYSFS_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG]?)")


class CacheLevel(NamedTuple):
    """A level of data cache, 1 the nearest: bytes of an instance, and the physical cores that share it."""

    level: int
    size_bytes: int
    num_cores: int


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of the kernel's, such as ``0-3,8``."""
    ends = (part.partition("-") for part in filter(None, text.strip().split(",")))
    return tuple(cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1))


def cores_of(cpus: tuple[int, ...], root: Path = SYSFS_CPUS) -> tuple[int, ...]:
    """Return one logical CPU of each physical core among `cpus`: the first of its hardware threads."""
    core_cpus: dict[tuple[int, ...], int] = {}
    for cpu in sorted(cpus):
        siblings = parse_cpu_list(_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list")) or (cpu,)
        core_cpus.setdefault(siblings, cpu)
    return tuple(sorted(core_cpus.values()))


def sysfs_caches(cpu: int, root: Path = SYSFS_CPUS) -> tuple[CacheLevel, ...]:
    """Return the data caches of a logical CPU on Linux, nearest first; none where the kernel tells none."""
    caches = []
    for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
        level, kind, size, sharing = (_text(index / name) for name in ("level", "type", "size", "shared_cpu_list"))
        if (match := _SIZE.fullmatch(size)) and kind in ("Data", "Unified"):
            cores = cores_of(parse_cpu_list(sharing), root)
            caches.append(CacheLevel(int(level), int(match[1]) * _UNITS[match[2]], max(1, len(cores))))
    return tuple(sorted(caches))


def sysctl_caches(values: Mapping[str, int], num_cores: int) -> tuple[CacheLevel, ...]:
    """Return the data caches of a Mac, nearest first, of its fast cores, from the numbers of ``sysctl hw``."""
    caches = []
    for level, name in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        size_bytes = values.get(f"hw.perflevel0.{name}") or values.get(f"hw.{name}") or 0
        if size_bytes:
            default = num_cores if level == 3 else 1
            sharing = values.get(f"hw.perflevel0.cpusperl{level}", default)
            caches.append(CacheLevel(level, size_bytes, max(1, sharing)))
    return tuple(caches)


def _read_sysctl() -> dict[str, int]:
    """Return the numbers of ``sysctl hw``; none where there is no such program."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "hw"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value, its kind (of spec: the CPU or its system says it), and where it comes from, in words."""

    value: T
    kind: ProvenanceKind
    source: str


@dataclass(frozen=True)
class HostFacts:
    """A CPU, as one sees it from this process.

    Attributes:
        machine: instruction set, such as x86_64 or arm64.
        num_cores: physical cores that this process may use.
        cpus: one logical CPU of each of them, as the system numbers them; empty where it cannot pin threads.
        nominal_ghz, clock_ghz: the clock that the system tells, if any, and that of one busy core.
        caches: data caches, nearest first.
        is_virtual: it says that it is a virtual machine, whose caches others may use as well.
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


_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_SVE_BYTES = Path("/proc/sys/abi/sve_default_vector_length")
_WIDTHS = {"avx512f": 512, "avx": 256, "sse2": 128, "asimd": 128, "neon": 128}
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
    """Find out what CPU this is, in a second or two; GemmEvalError: a package of the extra `host` is missing."""
    with needs_extra("measuring this machine", "host"):
        import cpuinfo
        import psutil
    info: Mapping[str, Any] = cpuinfo.get_cpu_info()
    flags = frozenset(info.get("flags") or ())
    usable = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    cpus = cores_of(usable)
    num_cores = _num_cores(cpus, psutil.cpu_count(logical=False))
    caches, caches_source = _caches(info, cpus, num_cores.value)
    machine = platform.machine().lower()
    hertz = (info.get("hz_advertised") or (0, 0))[0]
    with suppress(AttributeError, NotImplementedError, OSError):  # psutil may not tell
        hertz = hertz or (psutil.cpu_freq().max * 1e6 if psutil.cpu_freq() else 0)
    return HostFacts(
        title=str(info.get("brand_raw") or platform.processor() or machine), machine=machine,
        system=f"{platform.system()} {platform.release()}", num_cores=num_cores, cpus=cpus[: num_cores.value],
        simd_bits=simd_width(flags, machine),
        nominal_ghz=Fact(hertz / 1e9, ProvenanceKind.SPEC, "as the system tells it") if hertz else None,
        clock_ghz=Fact(_measure_clock_ghz(), ProvenanceKind.MEASURED, "one busy core, a chain of dependent operations"),
        caches=caches, caches_source=caches_source, memory_bytes=int(psutil.virtual_memory().total),
        is_virtual="hypervisor" in flags,
    )  # fmt: skip


def count_busy_cores(seconds: float = 0.5) -> float:
    """Return how many cores others keep busy, while this process waits so long."""
    with needs_extra("measuring this machine", "host"):
        import psutil
    return sum(psutil.cpu_percent(interval=seconds, percpu=True)) / 100.0


def _num_cores(cpus: tuple[int, ...], counted: int | None) -> Fact[int]:
    if cpus:
        count, source = len(cpus), "cores that this process may run on"
    else:
        count, source = counted or os.cpu_count() or 1, "physical cores, as the system counts them"
    quota = quota_cores(_CGROUP_QUOTA)
    if quota is not None and quota < count:
        count, source = quota, "the share of CPU time that this container may use"
    return Fact(count, ProvenanceKind.SPEC, source)


def quota_cores(path: Path) -> int | None:
    """Return how many cores a container's quota (us of CPU time, us of the period) is worth; None: it has none."""
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def simd_width(flags: Iterable[str], machine: str) -> Fact[int]:
    """Return the bits of a vector register, from features as Linux names them and the instruction set."""
    known = set(flags)
    if "sve" in known and _SVE_BYTES.is_file():
        bits = 8 * int(_SVE_BYTES.read_text(encoding="ascii"))
        return Fact(bits, ProvenanceKind.SPEC, "SVE, the vector length of this system")
    if (widest := next((flag for flag in _WIDTHS if flag in known), None)) is not None:
        return Fact(_WIDTHS[widest], ProvenanceKind.SPEC, f"flag {widest} of the CPU")
    if machine in ("arm64", "aarch64"):
        return Fact(128, ProvenanceKind.SPEC, "NEON, which every 64-bit ARM core has")
    return Fact(128, ProvenanceKind.ASSUMED, f"no flag of {machine} that is known here")


def _measure_clock_ghz() -> float:
    """Return the clock of one busy core: that of the fastest of many short runs, since interruptions only slow one."""
    from gemm_eval.measure.host.host_kernels import CYCLES_PER_LINK, run_chain

    run_chain(1, 1)
    shortest = float("inf")
    for seed in range(1, _CHAIN_RUNS + 1):
        begin = time.perf_counter_ns()
        run_chain(seed, _CHAIN_LINKS)
        shortest = min(shortest, time.perf_counter_ns() - begin)
    return CYCLES_PER_LINK * _CHAIN_LINKS / shortest


def _caches(info: Mapping[str, Any], cpus: tuple[int, ...], num_cores: int) -> tuple[tuple[CacheLevel, ...], str]:
    if cpus and (levels_of_linux := sysfs_caches(cpus[0])):
        return levels_of_linux, "sysfs"
    if values := _read_sysctl():
        return sysctl_caches(values, num_cores), "sysctl"
    sizes = ((level, info.get(name)) for level, name in ((2, "l2_cache_size"), (3, "l3_cache_size")))
    levels = (CacheLevel(level, size, 1 if level == 2 else num_cores) for level, size in sizes if isinstance(size, int))
    return tuple(levels), "cpuinfo, which says nothing of who shares them"


_THREADS = Path("/proc/self/task")
_UNCONTROLLED = 0


class BlasInfo(NamedTuple):
    """The library behind ``numpy.matmul``, such as openblas or mkl.

    Attributes:
        kernels: which cores it takes its kernels for, such as SkylakeX; empty: it does not say.
        max_threads: that it would run now; 0: it does not let itself be asked, nor limited.
    """

    name: str
    version: str
    kernels: str
    numpy_version: str
    max_threads: int

    def __str__(self) -> str:
        kernels = f" ({self.kernels} kernels)" if self.kernels else ""
        return f"numpy {self.numpy_version}, {self.name} {self.version}{kernels}"


def blas_info() -> BlasInfo:
    """Return what there is to know of numpy's BLAS; GemmEvalError: threadpoolctl is not installed."""
    with needs_extra("measuring this machine", "host"):
        from threadpoolctl import threadpool_info
    import numpy as np

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)  # it may be loaded at its first use
    loaded = [info for info in threadpool_info() if info.get("user_api") == "blas"]
    # another package may bring a BLAS of its own
    own = [info for info in loaded if "numpy" in Path(info["filepath"]).parent.name] or loaded
    if own:
        info = own[0]
        version = info.get("version") or "of unknown version"
        return BlasInfo(
            info["internal_api"], version, info.get("architecture") or "", np.__version__, info["num_threads"]
        )
    built: object = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {}) if isinstance(built, dict) else {}
    return BlasInfo(blas.get("name", "unknown"), blas.get("version", ""), "", np.__version__, _UNCONTROLLED)


@contextmanager
def pinned_blas(num_threads: int, cpus: Sequence[int]) -> Iterator[None]:
    """Limit BLAS to so many threads, and all threads of this process to these CPUs; as it was, afterwards.

    Args:
        num_threads: of BLAS.
        cpus: logical CPUs, one of each core, at least as many as threads; empty: the system cannot pin.

    Raises:
        InvalidOptionError: BLAS does not run so many threads, or does not let them be limited.
    """
    with needs_extra("measuring this machine", "host"):
        from threadpoolctl import threadpool_limits

    info = blas_info()
    if info.max_threads == _UNCONTROLLED:
        if cpus and num_threads < len(cpus):
            raise InvalidOptionError(
                f"numpy's BLAS here ({info.name}) cannot be limited to {num_threads} threads: leave out --threads"
            )
        yield
        return
    with threadpool_limits(limits=num_threads, user_api="blas"):
        if (running := blas_info().max_threads) < num_threads:
            raise InvalidOptionError(
                f"numpy's BLAS runs at most {running} threads here, got --threads {num_threads}: "
                "see its environment variables, such as OPENBLAS_NUM_THREADS"
            )
        before = _masks()
        try:
            _pin(set(before), set(cpus[:num_threads]))
            yield
        finally:
            for thread, mask in before.items():
                _pin({thread}, mask)


def _masks() -> dict[int, set[int]]:
    """Return the CPUs that each thread of this process may run on; empty where threads cannot be pinned."""
    if not (hasattr(os, "sched_getaffinity") and _THREADS.is_dir()):
        return {}
    masks = {}
    for thread in map(int, os.listdir(_THREADS)):  # noqa: PTH208  names are all that is needed
        with suppress(OSError):  # it has ended
            masks[thread] = os.sched_getaffinity(thread)
    return masks


def _pin(threads: set[int], cpus: set[int]) -> None:
    for thread in threads if cpus else ():
        with suppress(OSError):
            os.sched_setaffinity(thread, cpus)
