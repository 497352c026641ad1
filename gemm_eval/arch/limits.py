"""Limits of an SM: the CTAs that it holds at once, and the SMs that clusters of CTAs can lie on."""

from __future__ import annotations

from typing import NamedTuple

from gemm_eval.arch.gpu import SM_ARCHS, THREADS_PER_WARP, GpuSpec
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.words import shown

# How an SM hands out registers and shared memory: CUDA occupancy calculator.
_REGISTER_ALLOC_PER_WARP = 256
_SMEM_UNIT_BYTES = 128
_SM_QUARTERS = 4  # each has its own registers, and a warp lives in one

# A cluster lies within one graphics processing cluster. Those of 18 SMs leave 2 without a cluster of 4: cuBLAS's
# persistent grids on an H200 have 132 CTAs in clusters of 2, and 120 in those of 4 and 8. Of our own kernels there, 102
# CTAs in clusters of 3 or 6 always ran at once, 108 and 114 now and then, and 120 took two waves.
_FREE_CLUSTER = 2
_LARGE_CLUSTER_SMS = (10, 11)
_ODD_CLUSTER_SMS = (17, 22)  # of a size that is no power of 2


class DeviceLimits(NamedTuple):
    """Limits of a GPU that decide whether a kernel can run, and how many of its CTAs at once.

    Attributes:
        compute_capability: (9, 0) for Hopper.
        num_sms: SMs of the chip.
        smem_per_cta_bytes, smem_per_sm_bytes, smem_reserved_bytes: shared memory; the last is taken from each CTA.
        registers_per_sm: of 32 bits.
        max_threads_per_sm, max_ctas_per_sm: scheduler limits.
        threads_per_warp, register_alloc_per_warp: as in `GpuSpec`.
    """

    compute_capability: tuple[int, int]
    num_sms: int
    smem_per_cta_bytes: int
    smem_per_sm_bytes: int
    smem_reserved_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    max_ctas_per_sm: int
    threads_per_warp: int = THREADS_PER_WARP
    register_alloc_per_warp: int = _REGISTER_ALLOC_PER_WARP


class Occupancy(NamedTuple):
    """CTAs of a kernel that an SM holds at once, and the resources that they take.

    Attributes:
        ctas_per_sm: 0 if not even one fits.
        limited_by: what runs out first: "registers", "shared memory", "threads" or "CTAs".
        num_threads: of a CTA.
        registers: of a thread.
        smem_bytes: of a CTA, static and dynamic.
        spill_bytes: registers stored to local memory and loaded from it, of a thread.
    """

    ctas_per_sm: int
    limited_by: str
    num_threads: int
    registers: int
    smem_bytes: int
    spill_bytes: int


def limits_of_spec(arch: GpuSpec) -> DeviceLimits:
    """Return the limits of an NVIDIA GPU that a spec describes.

    Raises:
        InvalidOptionError: `arch` is no such spec.
        UnsupportedError: it is of another maker.
    """
    if not isinstance(arch, GpuSpec):
        raise InvalidOptionError(f"arch must be a GpuSpec, got {shown(arch)}")
    if arch.sm_arch not in SM_ARCHS:
        raise UnsupportedError(f"CUDA kernels need an NVIDIA GPU, {arch.name} is {arch.sm_arch}")
    digits = arch.sm_arch.removeprefix("sm_")
    return DeviceLimits(
        compute_capability=(int(digits[:-1]), int(digits[-1])),
        num_sms=arch.num_sms,
        smem_per_cta_bytes=arch.smem_per_cta_bytes,
        smem_per_sm_bytes=arch.smem_per_sm_bytes,
        smem_reserved_bytes=arch.smem_reserved_bytes,
        registers_per_sm=arch.registers_per_sm,
        max_threads_per_sm=arch.max_threads_per_sm,
        max_ctas_per_sm=arch.max_ctas_per_sm,
    )


def ctas_by_resource(
    limits: DeviceLimits | GpuSpec, num_threads: int, registers: int, smem_bytes: int
) -> dict[str, int]:
    """Return how many CTAs the registers, shared memory, threads and CTA slots of an SM have room for.

    Args:
        limits: of the GPU.
        num_threads: of a CTA.
        registers: of a thread.
        smem_bytes: of a CTA, static and dynamic.
    """
    warps_of_quarter = limits.registers_per_sm // _SM_QUARTERS // _registers_of_warp(limits, registers)
    smem_taken = smem_taken_bytes(limits, smem_bytes)
    is_too_large = smem_bytes > limits.smem_per_cta_bytes
    return {
        "registers": warps_of_quarter * _SM_QUARTERS // -(-num_threads // limits.threads_per_warp),
        "shared memory": 0 if is_too_large else limits.smem_per_sm_bytes // max(1, smem_taken),
        "threads": limits.max_threads_per_sm // num_threads,
        "CTAs": limits.max_ctas_per_sm,
    }


def _registers_of_warp(limits: DeviceLimits | GpuSpec, registers: int) -> int:
    unit = limits.register_alloc_per_warp
    return -(-max(1, registers) * limits.threads_per_warp // unit) * unit


def least_registers_per_sm(limits: DeviceLimits | GpuSpec, num_threads: int, registers: int) -> int:
    """Return the registers that an SM must have for one CTA, whose warps lie in all quarters as evenly as can be."""
    warps_of_quarter = -(-num_threads // (limits.threads_per_warp * _SM_QUARTERS))
    return _SM_QUARTERS * warps_of_quarter * _registers_of_warp(limits, registers)


def smem_taken_bytes(limits: DeviceLimits | GpuSpec, smem_bytes: int) -> int:
    """Return what a CTA with so much shared memory takes of that of its SM."""
    return -(-(smem_bytes + limits.smem_reserved_bytes) // _SMEM_UNIT_BYTES) * _SMEM_UNIT_BYTES


def ctas_per_sm(limits: DeviceLimits | GpuSpec, num_threads: int, registers: int, smem_bytes: int) -> int:
    """Return how many CTAs an SM holds at once; arguments as for `ctas_by_resource`."""
    return min(ctas_by_resource(limits, num_threads, registers, smem_bytes).values())


def cluster_sms(num_sms: int, cluster_ctas: int) -> int:
    """Return the SMs, of `num_sms`, that CTAs in clusters of this size can lie on."""
    if cluster_ctas <= _FREE_CLUSTER:
        return num_sms
    part, whole = _ODD_CLUSTER_SMS if cluster_ctas & (cluster_ctas - 1) else _LARGE_CLUSTER_SMS
    return num_sms * part // whole


def occupancy_of_cta(
    num_threads: int, registers: int, smem_bytes: int, spill_bytes: int, limits: DeviceLimits
) -> Occupancy:
    """Return how many CTAs an SM holds at once; the arguments are the attributes of `Occupancy`."""
    rooms = ctas_by_resource(limits, num_threads, registers, smem_bytes)
    limited_by = min(rooms, key=rooms.__getitem__)
    return Occupancy(rooms[limited_by], limited_by, num_threads, registers, smem_bytes, spill_bytes)
