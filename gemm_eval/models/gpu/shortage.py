"""Why a GPU runs no kernel of a library: what the kernel that is nearest to running needs, and what there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemm_eval.arch import GpuSpec, cluster_sms, least_registers_per_sm, smem_taken_bytes


class KernelNeeds(NamedTuple):
    """What a kernel takes of a GPU, with as few stages as it can have."""

    smem_bytes: int  # of a CTA
    registers: int  # of a thread that computes
    launch_registers: int  # of every thread when the CTA starts
    num_threads: int  # of a CTA
    cluster_ctas: int  # of a cluster


class Shortage(NamedTuple):
    """What is short, in words of `InfeasibleError`; `levers` names the field of the spec and the value that will do."""

    resource: str
    demand: int
    limit: int
    unit: str
    levers: tuple[str, ...]


def least_shortage(arch: GpuSpec, kernels: Iterable[KernelNeeds]) -> Shortage | None:
    """Return what the kernel lacks most that lacks least; None: one of them runs, or there is none."""
    worst = [max(_demands(arch, needs), key=_excess) for needs in kernels]
    found = min(worst, key=_excess, default=None)
    return None if found is None or _excess(found) <= 1.0 else found


def _excess(shortage: Shortage) -> float:
    return shortage.demand / max(shortage.limit, 0.5)


def _demands(arch: GpuSpec, needs: KernelNeeds) -> Iterator[Shortage]:
    def of(resource: str, field: str, demand: int, unit: str, limit: int | None = None) -> Shortage:
        limit = int(getattr(arch, field)) if limit is None else limit
        return Shortage(resource, demand, limit, unit, (f"{field} >= {demand:,}",))

    yield of("smem", "smem_per_cta_bytes", needs.smem_bytes, "bytes")
    yield of("smem", "smem_per_sm_bytes", smem_taken_bytes(arch, needs.smem_bytes), "bytes")
    yield of("registers", "max_registers_per_thread", needs.registers, "registers a thread")
    of_cta = least_registers_per_sm(needs.num_threads, needs.launch_registers)
    yield of("registers", "registers_per_sm", of_cta, "registers")
    yield of("threads", "max_threads_per_sm", needs.num_threads, "threads")
    yield of("cluster", "max_cluster_ctas", needs.cluster_ctas, "CTAs")
    room = cluster_sms(arch.num_sms, needs.cluster_ctas)
    yield of("sms", "num_sms", needs.cluster_ctas, "SMs that lie together", room)
