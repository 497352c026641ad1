"""From a score card to what the cost model of Triton kernels wants, and to occupancy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gemm_eval.arch import THREADS_PER_WARP, Occupancy, limits_of_spec, occupancy_of_cta
from gemm_eval.autotune.asm.card import Access, LoopCard, ScoreCard
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, MmaCount

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec

__all__ = ["LoopCycles", "cycles_of_loop", "kernel_code", "loop_k", "occupancy_of_card"]

_WGMMA_M = 64
_WARPS_PER_WGMMA = 4
_WAVEFRONT_BYTES = 128
_SHARED = {"ldmatrix", "load_shared", "store_shared"}
_DTYPES = {4: (DType.INT4,), 8: (DType.FP8, DType.INT8), 16: (DType.FP16,), 32: (DType.TF32,)}
"""Of operands, by bits; those of one width have one rate where a GPU has both."""


class LoopCycles(NamedTuple):
    """What one iteration of one warp takes of an SM, in its cycles: the larger one bounds the kernel.

    Attributes:
        tensor: of all tensor cores, at their full rate.
        issue: of all schedulers.
    """

    tensor: float
    issue: float


def loop_k(loop: LoopCard, *, block_m: int, block_n: int, num_warps: int) -> int:
    """Return the elements of K that a CTA finishes in one iteration, from its tensor-core instructions.

    Args:
        loop: the main loop.
        block_m, block_n: tile of C of a CTA, in elements; the instructions may have its rows as their columns.
        num_warps: of a CTA, those that multiply. More than the tile has instructions for do the same work twice.

    Raises:
        InvalidInputError: the loop has no tensor-core instructions, or they make no whole number of k.
    """
    if not loop.mma:
        raise InvalidInputError("the main loop has no tensor-core instructions of a known shape")
    flop = sum(2 * one.m * one.n * one.k * one.num * _issuers(one, block_m, block_n, num_warps) for one in loop.mma)
    k, rest = divmod(flop, 2 * block_m * block_n)
    if rest or not k or k % min(one.k for one in loop.mma):
        raise InvalidInputError(
            f"one iteration of the main loop does {flop:,} FLOP, which is no whole k of a tile of {block_m}x{block_n} "
            f"with {num_warps} warps"
        )
    return k


def _issuers(mma: MmaCount, block_m: int, block_n: int, num_warps: int) -> int:
    """Warps or warpgroups whose instructions are of different parts of the tile."""
    groups = max(1, num_warps // _WARPS_PER_WGMMA) if mma.m == _WGMMA_M else num_warps
    parts = max((block_m // mma.m) * (block_n // mma.n), (block_n // mma.m) * (block_m // mma.n))
    return min(groups, max(1, parts))


def kernel_code(
    card: ScoreCard,
    *,
    block_m: int,
    block_n: int,
    num_warps: int,
    block_k: int | None = None,
    smem_bytes: int | None = None,
) -> KernelCode:
    """Return what the cost model of Triton kernels wants to know.

    Args:
        card: with registers, which that of a cubin always has.
        block_m, block_n: tile of C of a CTA, in elements.
        num_warps: of a CTA.
        block_k: elements of K that the source has in one iteration, where it is known: an iteration of the machine code
            is then a whole number of those, and what it computes beyond them it computes twice.
        smem_bytes: shared memory of a CTA, static and dynamic, such as Triton's ``metadata.shared``. Default: the
            static part.

    Raises:
        InvalidInputError: the card lacks registers, or its main loop does not fit the tile.
    """
    if card.registers is None:
        raise InvalidInputError(
            f"this {card.source} does not say how many registers {card.kernel} takes: score its cubin"
        )
    ops = card.loop.ops
    k = loop_k(card.loop, block_m=block_m, block_n=block_n, num_warps=num_warps)
    if block_k is not None:
        k = (card.loop.copy_waits or max(1, k // block_k)) * block_k
    loop = MainLoop(
        k=k,
        mma=card.loop.mma,
        issue=ops.total,
        alu=ops.integer,
        fma=ops.imad + ops.half + ops.single,
        convert=ops.convert,
        shared=ops.ldmatrix + ops.load_shared + ops.store_shared,
        copy=ops.cp_async + ops.tma + ops.load_global,
        store=ops.store_global + ops.atomic,
        barrier=ops.barrier,
        wait=ops.wait,
        branch=ops.branch,
        spill=ops.spill,
        shared_wavefronts=sum(_wavefronts(access) for access in card.loop.accesses),
        mma_wait=card.loop.mma_waits,
    )
    return KernelCode(
        num_warps=num_warps,
        registers=card.registers,
        smem_bytes=(card.static_smem_bytes or 0) if smem_bytes is None else smem_bytes,
        stack_bytes=card.stack_bytes or 0,
        outside=card.ops.total - ops.total,
        loop=loop,
        is_compiled=card.source != "ptx",
    )


def _wavefronts(access: Access) -> int:
    """Of a shared-memory access; of one whose width the code does not say, one."""
    if access.kind not in _SHARED:
        return 0
    return access.num * max(1, (access.width_bytes or 0) * THREADS_PER_WARP // _WAVEFRONT_BYTES)


def occupancy_of_card(card: ScoreCard, arch: GpuSpec, *, smem_bytes: int | None = None) -> Occupancy | None:
    """Return how many CTAs an SM holds at once, or None where the code says no registers or threads.

    Args:
        card: of the kernel.
        arch: the GPU.
        smem_bytes: shared memory of a CTA, static and dynamic. Default: the static part.
    """
    if card.num_threads is None or card.registers is None:
        return None
    if smem_bytes is None:
        smem_bytes = card.static_smem_bytes or 0
    return occupancy_of_cta(card.num_threads, card.registers, smem_bytes, 0, limits_of_spec(arch))


def cycles_of_loop(loop: LoopCard, arch: GpuSpec) -> LoopCycles | None:
    """Return what one iteration of a warp takes of an SM, or None where the GPU has no rate for its instructions."""
    cycles = 0.0
    for one in loop.mma:
        rates = [arch.tensor_flop_per_cycle.get(dtype) for dtype in _DTYPES.get(one.input_bits, ())]
        rate = next(filter(None, rates), None)
        if rate is None:
            return None
        cycles += loop._replace(mma=(one,)).warp_flop / rate
    return LoopCycles(cycles, loop.ops.total / arch.issue_slots_per_cycle)
