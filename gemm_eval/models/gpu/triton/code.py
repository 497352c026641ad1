"""Code of a Triton kernel: what a config compiles to, read from SASS or estimated."""

from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.workload import GemmProblem, GemmTypes


class TritonConfig(NamedTuple):
    """A config of a Triton GEMM kernel: `triton.Config`, in this library's words."""

    block_m: int  # tile of C that a program computes
    block_n: int
    block_k: int  # elements of K in one step of its loop
    num_warps: int  # of a program
    num_stages: int  # depth of the software pipeline: steps whose loads are under way or in shared memory
    group_m: int = 1  # tiles along M that are finished before the next along N: 1 is a plain raster along N
    split_k: int = 1  # programs that share a tile of C
    maxnreg: int | None = None  # registers that a thread may have; None: as many as the compiler takes
    num_ctas: int = 1  # of the cluster that runs a program

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k} (m x n x k), {self.num_warps} warps, "
        text += f"{self.num_stages} stages"
        if self.split_k > 1:
            text += f", split-K {self.split_k}"
        if self.group_m > 1:
            text += f", group of {self.group_m}"
        if self.maxnreg is not None:
            text += f", {self.maxnreg} registers"
        if self.num_ctas > 1:
            text += f", {self.num_ctas} CTAs"
        return text


class MmaCount(NamedTuple):
    """Tensor-core instructions of one shape in one iteration of the main loop."""

    m: int  # 64 for wgmma, which four warps issue together
    n: int
    k: int
    input_bits: int  # of an element of A and B
    has_a_in_registers: bool  # where wgmma reads its first operand; always so for mma.sync
    num: int  # how often a warp issues it


class MainLoop(NamedTuple):
    """One iteration of the main loop, in instructions of one warp."""

    k: int  # elements of K that the CTA finishes
    mma: tuple[MmaCount, ...]
    issue: int  # all instructions: issue slots
    alu: int  # integer, logic, comparisons, selections, moves
    fma: int  # multiply-adds of integers, fp16, bf16 and fp32, and the arithmetic beside them
    convert: int  # changes of type
    shared: int  # shared-memory loads (ldmatrix too) and stores
    copy: int  # loads from global memory, to registers or (cp.async, TMA) to shared memory
    store: int  # stores to global memory, and atomics
    barrier: int  # of the CTA, and mbarriers
    wait: int  # for copies and for the tensor cores; fences
    branch: int
    spill: int  # loads and stores of local memory
    shared_wavefronts: int  # of `shared`, 128 bytes each, if no banks conflict: cycles of an SM's shared memory
    mma_wait: int  # of `wait`, those until all wgmma before are done: what follows one does not overlap them


class KernelCode(NamedTuple):
    """The resources of an SM that a compiled kernel takes, and its main loop."""

    num_warps: int  # of a CTA
    registers: int  # of a thread
    smem_bytes: int  # of a CTA, static and dynamic
    stack_bytes: int  # local memory of a thread: spills and arrays
    outside: int  # instructions of a warp outside the main loop, each counted once
    loop: MainLoop
    is_compiled: bool  # counted in machine code; else estimated from the config


_BITS_PER_BYTE = 8
_COPY_BYTES = 16
_WAVEFRONT_BYTES = 128
_WAVEFRONTS_PER_LDMATRIX = 4
_WARPGROUP = 4
_WGMMA_M = 64
_MMA_SYNC_M, _MMA_SYNC_N, _MMA_SYNC_K_BYTES = 16, 8, 32
_WEIGHT_COPIES = 4  # of scales, and of weights in pieces of less than 16 bytes
_WEIGHT_WAITS = 2  # for wgmma that reads weights from registers, before the next ones overwrite them
_ISSUE_BASE_WGMMA = 40  # waits, barriers, pointers, descriptors of a loop
_ISSUE_BASE_MMA_SYNC = 20
_ISSUE_PER_COPY = 7.0  # address, predicate and the copy itself
_ISSUE_PER_WEIGHT = 2.5  # unpacking and scaling a 4-bit weight, all of it
_ALU_SHARE = 0.3
_REGISTERS_LEAST = 8
_REGISTERS_SPARE = 22  # that ptxas takes if it may, and does without before it spills
_REGISTERS_PER_COPY = 2
_REDUCTION_REGISTERS = 40  # at the end, beside the sums and what is added to them
_SPILLS_PER_REGISTER = 4  # a register too many is stored and loaded again, more than once a step
_OUTSIDE = 600


def check_types(types: GemmTypes) -> None:
    """Check that kernels of these types are in the model.

    Raises:
        UnsupportedError: they are not: scales of A, scales of several columns, and fp4, which it would take for int4.
    """
    scale = types.b.scale
    if (
        types.is_block_scaled
        or DType.FP4 in (types.a.dtype, types.b.dtype)
        or (scale is not None and scale.group_n > 1)
    ):
        raise UnsupportedError(
            f"block-scaled types and fp4 are not in the Triton model, got {types.a} inputs and {types.b} weights"
        )


def estimate_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> KernelCode:
    """Return what the machine code of a config is expected to be.

    Weight-only kernels are taken to have the columns of C as rows of the tensor-core instruction, with unpacked weights
    in registers, where the tile has 64 columns or more, and on Hopper always; there a tile of fewer columns is left to
    mma.sync, in which warps without rows of their own repeat the work of others.

    Raises:
        UnsupportedError: kernels of these types are not in the model.
    """
    check_types(problem.types)
    assert problem.weight_dtype is not None
    m, n, k, warps = config.block_m, config.block_n, config.block_k, config.num_warps
    threads = warps * arch.threads_per_warp
    is_quantized = problem.is_weight_quantized
    a_bytes = m * k * problem.input_dtype.bits / _BITS_PER_BYTE
    b_bytes = n * k * problem.weight_dtype.bits / _BITS_PER_BYTE
    copies = max(2, round((a_bytes + b_bytes) / (_COPY_BYTES * threads))) + (_WEIGHT_COPIES if is_quantized else 0)
    weights = n * k // threads if is_quantized else 0
    is_hopper = arch.warps_per_mma == _WARPGROUP
    rows, columns = (n, m) if is_quantized and (is_hopper or n >= _WGMMA_M) else (m, n)
    groups = warps // _WARPGROUP
    is_wgmma = is_hopper and rows >= _WGMMA_M and warps % _WARPGROUP == 0
    operands = converted = 0  # registers of mma.sync's fragments; elements of them that a thread converts
    if is_wgmma:
        mma = _wgmma(arch, problem.input_dtype, rows, columns, k, warps, has_a_in_registers=is_quantized)
        wavefronts = loads = weights // 4
        issue = _ISSUE_BASE_WGMMA
    else:
        # weights are unpacked once: each warp has rows of its own, and all columns, unless there are many of them
        has_all_columns = is_quantized and not (is_hopper and columns >= _WGMMA_M)
        warps_m, warps_n = (warps, 1) if has_all_columns else _warps_of(rows, columns, warps)
        warps_at_work = min(warps, max(1, rows // _MMA_SYNC_M)) if has_all_columns and is_hopper else warps
        mma = _mma_sync(arch, problem.input_dtype, m, n, k, warps_at_work)
        warp_rows, warp_columns = max(rows // warps_m, _MMA_SYNC_M), max(columns // warps_n, _MMA_SYNC_N)
        operands = (warp_rows + warp_columns) // 4  # one instruction's K of both: 32 bytes, over 32 lanes
        if is_quantized and is_hopper:  # every warp unpacks all weights of its rows
            weights = warp_rows * k // arch.threads_per_warp
        read = warp_columns if is_quantized else warp_rows + warp_columns
        matrices = round(read * k * problem.input_dtype.bits / _BITS_PER_BYTE / _WAVEFRONT_BYTES)
        wavefronts = matrices + weights // 8
        loads = matrices // _WAVEFRONTS_PER_LDMATRIX + weights // 8
        if mma[0].input_bits > problem.input_dtype.bits:
            converted = read * k // arch.threads_per_warp
        issue = _ISSUE_BASE_MMA_SYNC
    tensor = sum(one.num for one in mma)
    issue += round(_ISSUE_PER_COPY * copies + _ISSUE_PER_WEIGHT * weights) + tensor + loads + converted // 2
    accumulators = m * n // threads
    limit = min(arch.max_registers_per_thread, config.maxnreg or arch.max_registers_per_thread)
    least = _REGISTERS_LEAST + accumulators + operands + _REGISTERS_PER_COPY * copies
    registers = least + _REGISTERS_SPARE + weights // 2
    if config.split_k > 1:
        registers = max(registers, _REDUCTION_REGISTERS + 2 * accumulators)
    spill = _SPILLS_PER_REGISTER * max(0, least - limit)
    mma_wait = tensor if spill else _WEIGHT_WAITS * is_quantized  # ptxas serializes wgmma whose registers move
    has_shared_scales = is_quantized and is_wgmma and rows > _WGMMA_M * groups
    loop = MainLoop(
        k=k, mma=mma, issue=issue + spill, alu=round(_ALU_SHARE * issue), fma=round((1 - _ALU_SHARE) * weights),
        convert=converted // 2, shared=loads, copy=copies, store=0, barrier=3 if has_shared_scales else 2, wait=5,
        branch=1, spill=spill, shared_wavefronts=wavefronts, mma_wait=mma_wait if is_wgmma else 0,
    )  # fmt: skip
    # wgmma reads a step's shared memory until the next one's loads have begun; what goes to registers is free before
    free = max(1, config.num_stages - 1)
    held = config.num_stages if is_wgmma else free
    smem_bytes = round(held * a_bytes + (free if is_quantized else held) * b_bytes)
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
    mma_k = _MMA_SYNC_K_BYTES * _BITS_PER_BYTE // bits
    tiles = max(1, -(-m // _MMA_SYNC_M) * (n // _MMA_SYNC_N) // warps)
    return (MmaCount(_MMA_SYNC_M, _MMA_SYNC_N, mma_k, bits, True, tiles * max(1, k // mma_k)),)


def _warps_of(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Return how Triton deals rows and columns of mma.sync to warps: a warp has as many instructions along both.

    As `warpsPerTileV2` of Triton's AccelerateMatmul does.
    """
    warps_m = warps_n = 1
    left_m, left_n = max(1, rows // _MMA_SYNC_M), max(1, columns // _MMA_SYNC_N)
    while warps_m * warps_n < warps:
        if left_m >= left_n:
            warps_m, left_m = 2 * warps_m, max(1, left_m // 2)
        else:
            warps_n, left_n = 2 * warps_n, left_n // 2
    return warps_m, warps_n
