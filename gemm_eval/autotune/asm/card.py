"""The score card of a compiled kernel: what it takes of an SM, what it issues, and what its main loop issues."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.arch import THREADS_PER_WARP
from gemm_eval.models.gpu.triton import MmaCount

__all__ = ["Access", "LoopCard", "OpCounts", "ScoreCard"]

_WARPS_PER_WGMMA = 4
_WGMMA_M = 64


class OpCounts(NamedTuple):
    """Instructions of one warp by class; each takes one issue slot.

    Attributes:
        tensor: tensor-core instructions: wgmma (HGMMA, QGMMA, IGMMA), mma.sync (HMMA, QMMA, IMMA).
        ldmatrix: LDSM.
        load_shared, store_shared: LDS; STS and STSM.
        cp_async: LDGSTS: from global to shared memory, past the registers.
        tma: bulk and tensor copies to shared memory.
        load_global, store_global: LDG; STG, and bulk stores.
        atomic: atomics and reductions, whatever the memory.
        load_local, store_local: LDL and STL: spilled registers, and arrays of a thread.
        barrier: of the CTA or cluster, and mbarriers.
        wait: for copies and tensor cores, with the commits that go with them; fences.
        branch: branches, and the bookkeeping of diverged lanes.
        integer: logic, additions, shifts, permutations, comparisons, selections, moves: on the ALU.
        imad: integer multiply-adds, and what the compiler moves and adds with them: on the FMA units.
        half, single: arithmetic of pairs of fp16 or bf16; of fp32.
        convert: changes of type.
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
        """All of them: issue slots of a warp."""
        return sum(self)

    @property
    def spill(self) -> int:
        """Loads and stores of local memory."""
        return self.load_local + self.store_local


class Access(NamedTuple):
    """Loads or stores of one width.

    Attributes:
        kind: field of `OpCounts` that counts them.
        width_bytes: of one lane; of a bulk copy None, because a register or a descriptor says it.
        num: instructions of a warp.
    """

    kind: str
    width_bytes: int | None
    num: int


class LoopCard(NamedTuple):
    """One iteration of the main loop, in instructions of one warp.

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
        """Whether each of several wgmma is waited for: the tensor cores idle in between.

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
        return sum(2.0 * one.m * one.n * one.k * one.num / _warps_of(one) for one in self.mma)

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
    """What the code of one kernel says. None: it does not say.

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
    ops: OpCounts
    loop: LoopCard

    @property
    def num_warps(self) -> int | None:
        """Warps of a CTA."""
        return None if self.num_threads is None else -(-self.num_threads // THREADS_PER_WARP)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with the ratios that follow from it."""
        loop = self.loop
        return self._asdict() | {
            "num_warps": self.num_warps,
            "ops": self.ops._asdict() | {"total": self.ops.total},
            "loop": {
                "is_loop": loop.is_loop,
                "ops": loop.ops._asdict() | {"total": loop.ops.total},
                "mma": [one._asdict() for one in loop.mma],
                "accesses": [access._asdict() for access in loop.accesses],
                "mma_waits": loop.mma_waits,
                "copy_waits": loop.copy_waits,
                "is_serialized": loop.is_serialized,
                "issue_per_mma": loop.issue_per_mma,
                "warp_flop": loop.warp_flop,
                "copied_bytes": loop.copied_bytes,
                "flop_per_copied_byte": loop.flop_per_copied_byte,
            },
        }


def _warps_of(mma: MmaCount) -> int:
    """Warps that issue one instruction together."""
    return _WARPS_PER_WGMMA if mma.m == _WGMMA_M else 1
