"""What a config's machine code will be, before anything is compiled: enough to choose what to compile.

The counts follow from the tile (accumulators, tensor-core instructions, 16-byte copies) and a few constants read off
compiled kernels of the examples for sm_90; compiled code replaces all of it.
"""

from __future__ import annotations

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.triton.code import KernelCode, MainLoop, MmaCount
from gemm_eval.models.gpu.triton.config import TritonConfig
from gemm_eval.workload import GemmProblem

__all__ = ["estimate_code"]

_THREADS_PER_WARP = 32
_COPY_BYTES = 16
_WARPGROUP = 4
_WGMMA_M = 64
_ISSUE_BASE = 45  # waits, barriers, pointers, descriptors of a loop
_ISSUE_PER_COPY = 8.0  # address, predicate and the copy itself
_ISSUE_PER_WEIGHT = 2.5  # unpacking and scaling a 4-bit weight, all of it
_ALU_SHARE = 0.45
_REGISTERS_BASE = 40
_REGISTERS_PER_COPY = 2
_MMA_SYNC_OPERAND_REGISTERS = 24
_SPILLS_PER_REGISTER = 4  # a register too many is stored and loaded again, more than once a step
_OUTSIDE = 600
_BITS_PER_BYTE = 8


def estimate_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> KernelCode:
    """Return what the machine code of a config is expected to be.

    Weight-only kernels are taken to have the columns of C as rows of the tensor-core instruction, with unpacked weights
    in registers, where the tile has 64 columns or more.
    """
    assert problem.weight_dtype is not None
    m, n, k = config.block_m, config.block_n, config.block_k
    warps = config.num_warps
    threads = warps * _THREADS_PER_WARP
    is_quantized = problem.is_weight_quantized
    a_bytes = m * k * problem.input_dtype.bits / _BITS_PER_BYTE
    b_bytes = n * k * problem.weight_dtype.bits / _BITS_PER_BYTE
    copies = max(2, round((a_bytes + b_bytes) / (_COPY_BYTES * threads)))
    rows, columns = (n, m) if is_quantized and n >= _WGMMA_M else (m, n)
    is_wgmma = arch.warps_per_mma == _WARPGROUP and rows >= _WGMMA_M and warps % _WARPGROUP == 0
    accumulators = m * n // threads
    registers = _REGISTERS_BASE + accumulators + _REGISTERS_PER_COPY * copies
    weights = n * k // threads if is_quantized else 0
    registers += weights // 4
    if is_wgmma:
        mma = _wgmma(arch, problem.input_dtype, rows, columns, k, warps, has_a_in_registers=is_quantized)
        wavefronts = weights // _BITS_PER_BYTE
    else:
        mma = _mma_sync(arch, problem.input_dtype, m, n, k, warps)
        wavefronts = 2 * sum(one.num for one in mma)
        registers += _MMA_SYNC_OPERAND_REGISTERS
    tensor = sum(one.num for one in mma)
    issue = round(_ISSUE_BASE + _ISSUE_PER_COPY * copies + _ISSUE_PER_WEIGHT * weights + tensor + wavefronts / 2)
    limit = min(arch.max_registers_per_thread, config.maxnreg or arch.max_registers_per_thread)
    spill = _SPILLS_PER_REGISTER * max(0, registers - limit)
    loop = MainLoop(
        k=k, mma=mma, issue=issue + spill, alu=round(_ALU_SHARE * issue), fma=round((1 - _ALU_SHARE) * weights),
        convert=0, shared=wavefronts // 4, copy=copies, store=0, barrier=2, wait=5, branch=1, spill=spill,
        shared_wavefronts=wavefronts, mma_wait=1 if is_quantized and is_wgmma else 0,
    )  # fmt: skip
    held = config.num_stages if is_wgmma else max(1, config.num_stages - 1)
    smem_bytes = round(held * (a_bytes + b_bytes))
    return KernelCode(warps, min(registers, limit), smem_bytes, 0, _OUTSIDE, loop, False)


def _wgmma(
    arch: GpuSpec, dtype: DType, rows: int, columns: int, k: int, warps: int, *, has_a_in_registers: bool
) -> tuple[MmaCount, ...]:
    """Warpgroups are stacked along the rows, and where there are no more, side by side."""
    groups = warps // _WARPGROUP
    groups_n = max(1, groups * _WGMMA_M // rows)
    n = min(max(arch.mma_n_step, columns // groups_n), arch.mma_n_max)
    mma_k = arch.mma_k_bytes * _BITS_PER_BYTE // dtype.bits
    blocks = max(1, rows // (_WGMMA_M * min(groups, max(1, rows // _WGMMA_M)))) * max(1, columns // (groups_n * n))
    return (MmaCount(_WGMMA_M, n, mma_k, dtype.bits, has_a_in_registers, blocks * max(1, k // mma_k)),)


def _mma_sync(arch: GpuSpec, dtype: DType, m: int, n: int, k: int, warps: int) -> tuple[MmaCount, ...]:
    """m16n8, 32 bytes of k; on Hopper 8-bit floats are converted to fp16 first."""
    bits = 16 if dtype is DType.FP8 and arch.warps_per_mma == _WARPGROUP else dtype.bits
    mma_k = 32 * _BITS_PER_BYTE // bits
    tiles = max(1, -(-m // 16) * (n // 8) // warps)
    return (MmaCount(16, 8, mma_k, bits, True, tiles * max(1, k // mma_k)),)
