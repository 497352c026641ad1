"""Everything that is measured on this machine, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.measure.host.bandwidth import BandwidthPoint, measure_bandwidth, working_sets
from gemm_eval.measure.host.blas import BlasInfo, blas_info, pinned_blas
from gemm_eval.measure.host.detect import check_host_packages, count_busy_cores, detect_host
from gemm_eval.measure.host.facts import Fact, HostFacts
from gemm_eval.measure.host.shapes import pick_host_shapes
from gemm_eval.measure.host.timing import HostTiming, numpy_dtype, probe_speed, time_host_shapes, time_launch

__all__ = ["HostMeasurement", "measure_host"]

_MIN_BUDGET_S = 5.0
_BANDWIDTH_SHARE = 0.15
_DEFAULT_WEIGHT_BYTES = 64 << 20
_BUSY_CORES = 0.2


@dataclass(frozen=True)
class HostMeasurement:
    """What `measure_host` found: all that a spec of this machine can be written and calibrated from.

    Attributes:
        facts: of the CPU; its number of cores is that of the threads.
        blas: that was timed.
        dtype: of the operands, fp32 or fp64.
        bandwidth: streams of one thread and of all.
        launch: of the least GEMM.
        timings: of the GEMMs.
        num_left_out: GEMMs that never ran undisturbed.
    """

    facts: HostFacts
    blas: BlasInfo
    dtype: str
    bandwidth: tuple[BandwidthPoint, ...]
    launch: HostTiming
    timings: tuple[HostTiming, ...]
    num_left_out: int = 0

    @property
    def largest_weight_bytes(self) -> int:
        """Bytes of the largest B that was timed."""
        word_bytes = numpy_dtype(self.dtype).itemsize
        sizes = [word_bytes * timing.shape.K * timing.shape.N for timing in self.timings]
        return max(sizes, default=_DEFAULT_WEIGHT_BYTES)


def measure_host(
    dtype: str = "fp32", *, num_threads: int | None = None, budget_s: float = 90.0,
    say: Callable[[str], None] = lambda _: None,
) -> HostMeasurement:  # fmt: skip
    """Measure this machine: its CPU, the bandwidth of its memories, and numpy's matrix product.

    Args:
        dtype: fp32 or fp64.
        num_threads: of BLAS and of the streams, each on a core of its own. None: one for each physical core.
        budget_s: seconds for all of it, about.
        say: told what is measured now.

    Raises:
        InvalidOptionError: a type that BLAS lacks, more threads than cores, or a budget too small.
        GemmEvalError: a package of the extra `host` is missing, a product is wrong, or others left no time at all.
    """
    begin = time.monotonic()
    numpy_dtype(dtype)
    if not budget_s >= _MIN_BUDGET_S:
        raise InvalidOptionError(f"--budget-s must be at least {_MIN_BUDGET_S:g}, got {budget_s:g}")
    check_host_packages()
    facts = detect_host()
    num_cores = facts.num_cores.value
    wanted = num_cores if num_threads is None else num_threads
    if not 1 <= wanted <= num_cores:
        raise InvalidOptionError(f"--threads must be 1 to {num_cores}, the cores that it may use here, got {wanted}")
    if wanted < num_cores:
        used = Fact(wanted, ProvenanceKind.ASSUMED, f"threads that were asked for; there are {num_cores} cores")
        facts = replace(facts, num_cores=used, cpus=facts.cpus[:wanted])
    if (busy := count_busy_cores()) > _BUSY_CORES:
        say(f"warning: other processes keep {busy:.1f} cores busy: what is measured now is not what the CPU can do")
    say(f"bandwidth of {facts.title}, {wanted} threads")
    points: list[BandwidthPoint] = []
    for threads in sorted({1, wanted}):
        stop_at = time.monotonic() + _BANDWIDTH_SHARE * budget_s
        points += measure_bandwidth(working_sets(facts, threads), threads, facts.cpus, stop_at=stop_at)
    with pinned_blas(wanted, facts.cpus):
        blas = blas_info()
        launch = time_launch(dtype)
        speed = probe_speed(dtype)
        left_s = budget_s - (time.monotonic() - begin)
        shapes = pick_host_shapes(speed, left_s)
        timings = time_host_shapes(shapes, dtype, budget_s=left_s, say=say)
    if not timings:
        raise GemmEvalError(
            "no GEMM ran undisturbed: other processes keep the cores busy; try again when they are done"
        )
    return HostMeasurement(facts, blas, dtype, tuple(points), launch, tuple(timings), len(shapes) - len(timings))
