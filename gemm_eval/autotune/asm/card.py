"""The score card of a compiled kernel, the limits of files that are scored, and what a cost model takes from a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.arch import THREADS_PER_WARP, Occupancy, limits_of_spec, occupancy_of_cta
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, MmaCount
from gemm_eval.words import one_line, shown

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec


MAX_FILE_BYTES = 8 << 20
"""Largest file. A GEMM of Triton's or CUTLASS's takes 20 KB to 2 MB, as a cubin or as text."""
MAX_INSTRUCTIONS = 1 << 18
"""Most instructions of all kernels of a file; nvdisasm takes some 10 s for as many."""
MAX_INSTRUCTIONS_OF_KERNEL = 1 << 16
"""A GEMM has 500 to 10,000."""
MAX_KERNELS = 1 << 12


def check_instructions(number: int, kernel: str | None = None) -> None:
    """Refuse a kernel with too many instructions, or a file where no kernel is named."""
    limit = MAX_INSTRUCTIONS if kernel is None else MAX_INSTRUCTIONS_OF_KERNEL
    if number > limit:
        what = "all kernels together have" if kernel is None else f"{one_line(kernel)} has"
        raise InvalidInputError(
            f"{what} {number:,} instructions, more than {limit:,}: score fewer kernels, such as the text that "
            "cuobjdump -sass -fun NAME writes"
        )


def check_kernels(number: int) -> None:
    """Refuse a file with too many kernels."""
    if number > MAX_KERNELS:
        raise InvalidInputError(f"more than {MAX_KERNELS:,} kernels: score a file with fewer of them")


def check_name(kernel: str) -> str:
    """Return the name of a kernel; refuse an empty one, and characters that do not print."""
    if not kernel or not kernel.isprintable():
        raise InvalidInputError(f"the name of a kernel is empty or has characters that do not print: {shown(kernel)}")
    return kernel


_WARPS_PER_WGMMA = 4
_WGMMA_M = 64


class OpCounts(NamedTuple):
    """Instructions of one warp by class; each takes one issue slot.

    Attributes:
        tensor: wgmma (HGMMA, QGMMA, IGMMA), mma.sync (HMMA, QMMA, IMMA).
        cp_async: LDGSTS: from global to shared memory, past the registers.
        tma: bulk and tensor copies to shared memory.
        store_global: STG, and bulk stores.
        atomic: atomics and reductions, whatever the memory.
        load_local, store_local: spilled registers, and arrays of a thread.
        barrier: of the CTA or cluster, and mbarriers.
        wait: for copies and tensor cores, with the commits that go with them; fences.
        branch: branches, and the bookkeeping of diverged lanes.
        integer: logic, additions, shifts, permutations, comparisons, selections, moves: on the ALU.
        imad: integer multiply-adds, and what the compiler moves and adds with them: on the FMA units.
        half, single: arithmetic of pairs of fp16 or bf16; of fp32.
        special: MUFU: reciprocals, exponentials.
        uniform: of the uniform datapath.
        other: the rest, such as NOP and S2R; in PTX also moves, most of which vanish.
    """

    tensor: int = 0
    ldmatrix: int = 0
    load_shared: int = 0
    store_shared: int = 0
    cp_async: int = 0
    tma: int = 0
    load_global: int = 0
    store_global: int = 0
    atomic: int = 0
    load_local: int = 0
    store_local: int = 0
    barrier: int = 0
    wait: int = 0
    branch: int = 0
    integer: int = 0
    imad: int = 0
    half: int = 0
    single: int = 0
    convert: int = 0
    special: int = 0
    uniform: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """Number of all instructions: issue slots of a warp."""
        return sum(self)

    @property
    def spill(self) -> int:
        """Loads and stores of local memory."""
        return self.load_local + self.store_local


class Access(NamedTuple):
    """Loads or stores of one width: field `kind` of `OpCounts`, `width_bytes` of a lane (None: a register says it)."""

    kind: str
    width_bytes: int | None
    num: int


class LoopCard(NamedTuple):
    """An iteration of the main loop, in instructions of one warp.

    Attributes:
        is_loop: False: no loop does the kernel's work, and the whole kernel stands here, each instruction once.
        ops: instructions by class.
        mma: tensor-core instructions by shape; one whose shape the code does not say is only in `ops`.
        accesses: to global, shared and local memory, by class and width.
        mma_waits: how often it waits until all wgmma before are done.
        copy_waits: how often it waits for cp.async: in a software pipeline, once a step of the source.
    """

    is_loop: bool
    ops: OpCounts
    mma: tuple[MmaCount, ...]
    accesses: tuple[Access, ...]
    mma_waits: int
    copy_waits: int

    @property
    def is_serialized(self) -> bool:
        """True where each of several wgmma is waited for: the tensor cores idle in between.

        ptxas does so, and warns of a "Potential Performance Loss", where other instructions write registers of theirs.
        """
        num_wgmma = sum(one.num for one in self.mma if one.m == _WGMMA_M)
        return 1 < num_wgmma <= self.mma_waits

    @property
    def issue_per_mma(self) -> float | None:
        """Issue slots for one tensor-core instruction, itself included."""
        return self.ops.total / self.ops.tensor if self.ops.tensor else None

    @property
    def warp_flop(self) -> float:
        """Tensor-core FLOP of one warp: of wgmma its quarter."""
        warps = {_WGMMA_M: _WARPS_PER_WGMMA}  # that issue one instruction together
        return sum(2.0 * one.m * one.n * one.k * one.num / warps.get(one.m, 1) for one in self.mma)

    @property
    def copied_bytes(self) -> int | None:
        """Bytes that a warp copies from global memory if no lane is masked; None with copies of unknown size."""
        copies = [access for access in self.accesses if access.kind in {"cp_async", "load_global", "tma"}]
        if any(copy.width_bytes is None for copy in copies):
            return None
        return THREADS_PER_WARP * sum(copy.num * (copy.width_bytes or 0) for copy in copies)

    @property
    def flop_per_copied_byte(self) -> float | None:
        """Tensor-core FLOP for a byte from global memory, where all warps copy as much as they compute."""
        return self.warp_flop / self.copied_bytes if self.copied_bytes else None


class ScoreCard(NamedTuple):
    """The facts that the code of one kernel tells. None: it does not tell.

    Attributes:
        kernel: name of its entry.
        target: what it is for, such as "sm_90a".
        source: what was read: "cubin", "sass" or "ptx".
        num_threads: of a CTA: as many as the kernel requires, or the most that it may be launched with.
        registers: of a thread. In PTX they are yet to be chosen; of SASS only what nvdisasm writes for some GPUs has
            them.
        max_registers: most registers that the compiler was allowed.
        stack_bytes: local memory of a thread: arrays, and but for PTX spilled registers.
        static_smem_bytes: shared memory of a CTA besides the dynamic part, which only a launch says.
        ops: the whole kernel.
        loop: its main loop.
    """

    kernel: str
    target: str | None
    source: str
    num_threads: int | None
    registers: int | None
    max_registers: int | None
    stack_bytes: int | None
    static_smem_bytes: int | None
    ops: OpCounts = OpCounts()
    loop: LoopCard = LoopCard(False, OpCounts(), (), (), 0, 0)

    @property
    def num_warps(self) -> int | None:
        """Warps of a CTA."""
        return None if self.num_threads is None else -(-self.num_threads // THREADS_PER_WARP)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with the ratios that follow from it."""
        loop = self.loop
        of_loop = loop._asdict() | {
            "ops": _counts_of(loop.ops), "mma": [shape._asdict() for shape in loop.mma],
            "accesses": [access._asdict() for access in loop.accesses],
        }  # fmt: skip
        ratios = ("is_serialized", "issue_per_mma", "warp_flop", "copied_bytes", "flop_per_copied_byte")
        of_loop |= {name: getattr(loop, name) for name in ratios}
        return self._asdict() | {"num_warps": self.num_warps, "ops": _counts_of(self.ops), "loop": of_loop}


def _counts_of(ops: OpCounts) -> dict[str, int]:
    return ops._asdict() | {"total": ops.total}


_WAVEFRONT_BYTES = 128
_DTYPES = {4: (DType.INT4,), 8: (DType.FP8, DType.INT8), 16: (DType.FP16,), 32: (DType.TF32,)}
"""Types of operands by bits; types of one width have one rate where a GPU has both."""


class LoopCycles(NamedTuple):
    """Cycles of an SM for one iteration of a warp, of all tensor cores and of all schedulers; the larger bounds it."""

    tensor: float
    issue: float


def loop_k(loop: LoopCard, *, block_m: int, block_n: int, num_warps: int) -> int:
    """Return the elements of K that a CTA finishes in an iteration; warps beyond the tile's instructions add none."""
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
    """Return the number of warps or warpgroups whose instructions are of different parts of the tile."""
    groups = max(1, num_warps // _WARPS_PER_WGMMA) if mma.m == _WGMMA_M else num_warps
    parts = max((block_m // mma.m) * (block_n // mma.n), (block_n // mma.m) * (block_m // mma.n))
    return min(groups, max(1, parts))


def kernel_code(
    card: ScoreCard, *, block_m: int, block_n: int, num_warps: int, block_k: int | None = None,
    smem_bytes: int | None = None,
) -> KernelCode:  # fmt: skip
    """Return what the cost model of Triton kernels wants to know.

    Args:
        card: with registers, which that of a cubin always has.
        block_m, block_n: tile of C of a CTA, in elements.
        num_warps: of a CTA.
        block_k: elements of K of an iteration of the source: an iteration of the machine code is then a whole number of
            those, and what it computes beyond them it computes twice.
        smem_bytes: shared memory of a CTA, such as Triton's ``metadata.shared``; None: the static part.

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
    wavefronts = sum(  # of an access whose width the code does not say: one
        access.num * max(1, (access.width_bytes or 0) * THREADS_PER_WARP // _WAVEFRONT_BYTES)
        for access in card.loop.accesses
        if access.kind in {"ldmatrix", "load_shared", "store_shared"}
    )
    loop = MainLoop(
        k=k, mma=card.loop.mma, issue=ops.total, alu=ops.integer, fma=ops.imad + ops.half + ops.single,
        convert=ops.convert, shared=ops.ldmatrix + ops.load_shared + ops.store_shared,
        copy=ops.cp_async + ops.tma + ops.load_global, store=ops.store_global + ops.atomic, barrier=ops.barrier,
        wait=ops.wait, branch=ops.branch, spill=ops.spill,
        shared_wavefronts=wavefronts, mma_wait=card.loop.mma_waits,
    )  # fmt: skip
    return KernelCode(
        num_warps=num_warps, registers=card.registers, stack_bytes=card.stack_bytes or 0,
        smem_bytes=(card.static_smem_bytes or 0) if smem_bytes is None else smem_bytes,
        outside=card.ops.total - ops.total, loop=loop, is_compiled=card.source != "ptx",
    )  # fmt: skip


def occupancy_of_card(card: ScoreCard, arch: GpuSpec, *, smem_bytes: int | None = None) -> Occupancy | None:
    """Return how many CTAs an SM holds (`smem_bytes` None: the static part); None: no registers or threads known."""
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
