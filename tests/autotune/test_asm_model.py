"""From a score card to the cost model: k of an iteration, the code of a kernel, occupancy, cycles."""

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune import asm
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton.code import MainLoop, MmaCount

H200 = load_arch("h200-sxm", GpuSpec)
OPS = asm.OpCounts(*range(1, 23))


def loop_of(*mma: MmaCount, ops: asm.OpCounts = OPS) -> asm.LoopCard:
    return asm.LoopCard(True, ops, mma, (), 0, 0)


def wgmma(n: int, count: int, *, k: int = 16, bits: int = 16) -> MmaCount:
    return MmaCount(64, n, k, bits, False, count)


def mma_sync(count: int, *, k: int = 16, bits: int = 16) -> MmaCount:
    return MmaCount(16, 8, k, bits, True, count)


CARD = asm.ScoreCard(
    "gemm", "sm_90a", "cubin", 256, 168, None, 24, 512, OPS._replace(tensor=100), loop_of(wgmma(256, 4))
)  # fmt: skip


@pytest.mark.parametrize(
    ("mma", "block_m", "block_n", "num_warps", "k"),
    [
        (wgmma(256, 4), 128, 256, 8, 64),
        (wgmma(128, 8), 128, 128, 4, 64),  # one warpgroup has both halves of M
        (wgmma(128, 16), 128, 128, 4, 128),  # unrolled by 2
        (wgmma(128, 32), 128, 128, 4, 256),  # and by 4
        (wgmma(16, 8), 16, 64, 4, 128),  # rows of the instruction along N
        (wgmma(16, 8), 16, 128, 8, 128),
        (wgmma(64, 2, k=32, bits=8), 64, 64, 4, 64),
        (wgmma(8, 4), 64, 16, 8, 64),  # two warpgroups side by side
        (wgmma(64, 4), 64, 64, 8, 64),  # two warpgroups, room for one: both do the same
        (mma_sync(16), 16, 64, 4, 128),
        (mma_sync(128), 128, 128, 4, 64),
        (mma_sync(8), 16, 16, 4, 128),  # four warps, room for two
        (mma_sync(8), 16, 16, 8, 128),
        (mma_sync(8), 8, 16, 1, 128),  # rows of the instruction along N
    ],
)
def test_k_of_an_iteration(mma: MmaCount, block_m: int, block_n: int, num_warps: int, k: int) -> None:
    assert asm.loop_k(loop_of(mma), block_m=block_m, block_n=block_n, num_warps=num_warps) == k


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (loop_of(), "no tensor-core instructions of a known shape"),
        (loop_of(wgmma(96, 1)), r"does 196,608 FLOP, which is no whole k of a tile of 128x128 with 4 warps"),
        (loop_of(mma_sync(1)), "no whole k"),  # less than 1
    ],
)
def test_a_loop_that_is_not_of_this_tile(loop: asm.LoopCard, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        asm.loop_k(loop, block_m=128, block_n=128, num_warps=4)


def test_kernel_code() -> None:
    code = asm.kernel_code(CARD, block_m=128, block_n=256, num_warps=8, smem_bytes=147456)

    assert (code.num_warps, code.registers, code.smem_bytes, code.stack_bytes) == (8, 168, 147456, 24)
    assert code.is_compiled
    assert code.outside == 99
    assert code.loop == MainLoop(
        k=64, mma=CARD.loop.mma, issue=253, alu=15, fma=16 + 17 + 18, convert=19, shared=2 + 3 + 4, copy=5 + 6 + 7,
        store=8 + 9, barrier=12, wait=13, branch=14, spill=10 + 11, shared_wavefronts=0, mma_wait=0,
    )  # fmt: skip


def test_registers_must_be_known() -> None:
    with pytest.raises(InvalidInputError, match="ptx does not say how many registers gemm takes: score its cubin"):
        asm.kernel_code(CARD._replace(registers=None, source="ptx"), block_m=128, block_n=256, num_warps=8)


def test_occupancy() -> None:
    found = asm.occupancy_of_card(CARD, H200, smem_bytes=0)
    assert found is not None
    assert (found.ctas_per_sm, found.limited_by) == (1, "registers")
    found = asm.occupancy_of_card(CARD._replace(registers=64), H200)
    assert found is not None
    assert (found.ctas_per_sm, found.smem_bytes) == (4, 512)
    found = asm.occupancy_of_card(CARD._replace(registers=64), H200, smem_bytes=100_000)
    assert found is not None
    assert (found.ctas_per_sm, found.limited_by) == (2, "shared memory")


@pytest.mark.parametrize("field", ["registers", "num_threads"])
def test_occupancy_without_what_it_takes(field: str) -> None:
    assert asm.occupancy_of_card(CARD._replace(**{field: None}), H200) is None


def test_cycles() -> None:
    ops = asm.OpCounts(tensor=4, integer=36)
    rate = H200.tensor_flop_per_cycle["fp16"]

    assert asm.cycles_of_loop(loop_of(wgmma(256, 4), ops=ops), H200) == asm.LoopCycles(
        2 * 64 * 256 * 16 * 4 / 4 / rate, 10.0
    )
    assert asm.cycles_of_loop(loop_of(mma_sync(4), ops=ops), H200) == asm.LoopCycles(2 * 16 * 8 * 16 * 4 / rate, 10.0)
    eight = asm.cycles_of_loop(loop_of(wgmma(256, 4, k=32, bits=8), ops=ops), H200)
    assert eight is not None
    assert eight.tensor == pytest.approx(2 * 64 * 256 * 16 * 4 / 4 / rate)  # twice the k at twice the rate
    assert asm.cycles_of_loop(loop_of(MmaCount(8, 8, 4, 64, True, 1)), H200) is None
