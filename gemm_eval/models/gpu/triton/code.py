"""What the Triton model knows of a kernel's code: what it takes of an SM, and what its main loop issues."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KernelCode", "MainLoop", "MmaCount"]


class MmaCount(NamedTuple):
    """Tensor-core instructions of one shape in one iteration of the main loop.

    Attributes:
        m, n, k: shape of the instruction; m is 64 for wgmma, which four warps issue together.
        input_bits: of an element of A and B.
        has_a_in_registers: wgmma reads its first operand from registers; always so for mma.sync.
        num: how often a warp issues it.
    """

    m: int
    n: int
    k: int
    input_bits: int
    has_a_in_registers: bool
    num: int


class MainLoop(NamedTuple):
    """One iteration of the main loop, in instructions of one warp.

    Attributes:
        k: elements of K that the CTA finishes.
        mma: tensor-core instructions by shape.
        issue: all instructions: issue slots of a warp.
        alu: integer, logic, comparisons, selections, moves.
        fma: multiply-adds of integers, fp16, bf16 and fp32, and the arithmetic beside them.
        convert: changes of type.
        shared: shared-memory loads (ldmatrix too) and stores.
        copy: loads from global memory, to registers or (cp.async, TMA) to shared memory.
        store: stores to global memory, and atomics.
        barrier: barriers of the CTA and mbarriers.
        wait: waits for copies and for the tensor cores, fences.
        branch: branches.
        spill: loads and stores of local memory.
        shared_wavefronts: of `shared`, 128 bytes each, if no banks conflict: cycles of an SM's shared memory.
        mma_wait: of `wait`, those until all wgmma before are done: what follows one does not overlap them.
    """

    k: int
    mma: tuple[MmaCount, ...]
    issue: int
    alu: int
    fma: int
    convert: int
    shared: int
    copy: int
    store: int
    barrier: int
    wait: int
    branch: int
    spill: int
    shared_wavefronts: int
    mma_wait: int


class KernelCode(NamedTuple):
    """What a compiled kernel takes of an SM, and its main loop.

    Attributes:
        num_warps: of a CTA.
        registers: of a thread.
        smem_bytes: of a CTA, static and dynamic.
        stack_bytes: local memory of a thread: spills and arrays.
        outside: instructions of a warp outside the main loop, each counted once.
        loop: the main loop.
        is_compiled: counted in machine code; else estimated from the config.
    """

    num_warps: int
    registers: int
    smem_bytes: int
    stack_bytes: int
    outside: int
    loop: MainLoop
    is_compiled: bool
