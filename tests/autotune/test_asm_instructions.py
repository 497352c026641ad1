"""What each instruction is, in machine code and in PTX: its class, its width, its shape, what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval.autotune.asm import OpCounts, ptx, sass
from gemm_eval.device.sass import Instruction
from gemm_eval.models.gpu.triton.code import MmaCount

KINDS = {
    "tensor": (
        "QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24", "IMMA.16832.S8.S8 R4, R2.ROW, R3.COL, R4",
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10]",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f1}",
        "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1",
    ),
    "ldmatrix": (
        "LDSM.16.MT88.4 R4, [R2]", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1}, [%r2]",
    ),
    "load_shared": (
        "LDS.128 R4, [R2]", "ld.shared::cta.b32 %r1, [%r2]",
    ),
    "store_shared": (
        "STSM.16.M88.4 [R2], R4", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r1}",
    ),
    "cp_async": (
        "LDGSTS.E.BYPASS.128 [R7], desc[UR8][R10.64]",
    ),
    "tma": (
        "UTMALDG.2D [UR8], [UR4]", "UBLKCP.S.G [UR6], [UR10], UR5",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], [%r2]",
    ),
    "store_global": (
        "UBLKCP.G.S [UR6], [UR10], UR5", "UTMASTG.2D [UR8], [UR4]",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1], [%r1]",
    ),
    "load_global": (
        "LDG.E.128.STRONG.GPU R4, desc[UR4][R2.64]", "ld.global.cg.v4.b32 {%r1}, [%rd1]", "ld.v2.b32 {%r1}, [%rd1]",
    ),
    "atomic": (
        "ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R2.64], R5",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], 512",
        "atom.global.gpu.acq_rel.add.u32 %r1, [%rd1], 1",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3]",
    ),
    "load_local": (
        "LDL.LU R4, [R1]", "ld.local.b32 %r1, [%rd2]",
    ),
    "barrier": (
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R10+URZ], R9", "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]",
        "bar.sync 0", "barrier.cluster.arrive.aligned",
    ),
    "wait": (
        "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MEMBAR.ALL.GPU", "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned", "cp.async.wait_group 2", "cp.async.bulk.wait_group.read 0",
        "bar.warp.sync -1", "fence.proxy.async.shared::cta",
    ),
    "branch": (
        "BSYNC B0", "ret",
    ),
    "integer": (
        "VIADDMNMX R1, R2, R3, R4, PT", "PRMT R1, R2, 0x4140, RZ", "add.s32 %r1, %r2, %r3",
        "setp.lt.f32 %p1, %f1, %f2", "lop3.b32 %r1, %r2, %r3, %r4, 0xea", "div.s32 %r1, %r2, %r3",
    ),
    "imad": (
        "IMAD.MOV.U32 R1, RZ, RZ, R2", "mul.wide.s32 %rd1, %r2, 2",
    ),
    "half": (
        "HMUL2.BF16_V2 R1, R2, R3", "fma.rn.bf16x2 %r1, %r2, %r3, %r4", "mul.f16 %rs1, %rs2, %rs3",
    ),
    "single": (
        "FADD R1, R2, R3", "add.f32 %f1, %f2, %f3",
    ),
    "convert": (
        "F2FP.BF16.F32.PACK_AB R1, R2, R3", "cvt.rn.f16x2.f32 %r1, %f1, %f2",
    ),
    "special": (
        "MUFU.RCP R0, R0", "ex2.approx.f32 %f1, %f2",
    ),
    "uniform": (
        "USEL UR4, UR5, UR6, UP0",
    ),
    "other": (
        "S2R R1, SR_TID.X", "@!PT LDS RZ, [RZ]", "ld.param.b32 %r1, [p]", "mov.b32 %r1, %r2",
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1",
    ),
    "store_local": (
        "st.local.b32 [%rd2], %r1",
    ),
}  # fmt: skip
WIDTHS = {
    16: (
        "LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR8][R10.64]", "STSM.16.M88.4 [R2], R4",
        "ld.global.cg.v4.b32 {%r1}, [%rd1]", "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1}, [%r2]",
    ),
    4: (
        "LDG.E R4, desc[UR4][R2.64]", "LDSM.16.M88 R4, [R2]",
        "ld.global.nc.L1::no_allocate.L2::128B.v2.u16 {%rs1}, [%rd1]",
        "cp.async.ca.shared.global.L2::128B [%r1], [%rd1], 4",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2]",
    ),
    1: (
        "LDG.E.U8.CONSTANT R4, desc[UR4][R2.64]", "st.global.b8 [%rd1], %rs1",
    ),
    2: (
        "LDS.S16 R4, [R2]",
    ),
    8: (
        "STG.E.64 desc[UR4][R2.64], R4", "LDSM.16.MT88.2 R4, [R2]", "ld.shared.b64 %rd1, [%r1]",
    ),
    None: (
        "UTMALDG.2D [UR8], [UR4]",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 4096, [%r2]",
    ),
}  # fmt: skip
SHAPES = [
    ("HGMMA.64x16x16.F32 R24, R48, gdesc[UR4], R24, !UPT", (64, 16, 16, 16, True)),
    ("HGMMA.64x64x8.F32.TF32 R24, gdesc[UR4], RZ, !UPT", (64, 64, 8, 32, False)),
    ("QGMMA.64x256x32.F32.E4M3.E5M2 R24, gdesc[UR4], R24, gsb0", (64, 256, 32, 8, False)),
    ("IGMMA.64x128x32.S8.S8 R24, gdesc[UR4], R24", (64, 128, 32, 8, False)),
    ("HMMA.16816.F32.BF16 R8, R4, R6, R8", (16, 8, 16, 16, True)),
    ("HMMA.1688.F32 R8, R4, R6, R8", (16, 8, 8, 16, True)),
    ("HMMA.1684.F32.TF32 R8, R4, R6, R8", (16, 8, 4, 32, True)),
    ("HMMA.1688.F32.TF32 R8, R4, R6, R8", (16, 8, 8, 32, True)),
    ("IMMA.16832.S8.S8 R4, R2.ROW, R3.COL, R4", (16, 8, 32, 8, True)),
    ("IMMA.8816.S8.S8 R4, R2.ROW, R3.COL, R4", (8, 8, 16, 8, True)),
    ("IMMA.16864.S4.S4 R4, R2.ROW, R3.COL, R4", (16, 8, 64, 4, True)),
    ("QMMA.16832.F32.E4M3.E4M3 R4, R8, R12, R4", (16, 8, 32, 8, True)),
    ("DMMA.884 R4, R8, R12, R4", (8, 8, 4, 64, True)),
    ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10]", None),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}", (16, 8, 16, 16, True)),
    ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%f1}, {%r1}, {%r2}, {%f1}", (16, 8, 32, 8, True)),
    ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%f1}, {%r1}, {%r2}, {%f1}", (16, 8, 32, 8, True)),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2}, {%f1}", (16, 8, 8, 32, True)),
    ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f1}", (16, 16, 16, 16, True)),
    ("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {%f1,%f2}, %rd1, %rd2, 1, 1, 1", (64, 256, 32, 8, False)),
    ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, {%r1, %r2}, %rd2, 1, 1, 1, 0", (64, 8, 16, 16, True)),
    ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1", None),
]


def parsed(line: str) -> tuple[Any, Instruction]:
    guard = line.split(maxsplit=1)[0] if line.startswith("@") else ""
    opcode, _, operands = line.removeprefix(guard).strip().partition(" ")
    return sass if opcode[0].isupper() else ptx, Instruction(0, guard, opcode, operands, None)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    for language, instruction in map(parsed, KINDS[kind]):
        assert language.kind_of(instruction) == kind, instruction
    assert kind in OpCounts._fields


def test_widths() -> None:
    for width, lines in WIDTHS.items():
        assert {language.width_of(instruction) for language, instruction in map(parsed, lines)} == {width}


@pytest.mark.parametrize(("line", "mma"), SHAPES)
def test_shapes(line: str, mma: tuple[int, int, int, int, bool] | None) -> None:
    language, instruction = parsed(line)
    assert language.mma_of(instruction) == (None if mma is None else MmaCount(*mma, 1))


def test_waits_for_all_wgmma() -> None:
    waits = ("wgmma.wait_group.sync.aligned 0", "wgmma.wait_group.sync.aligned 1", "cp.async.wait_group 0")
    assert [ptx.is_mma_wait(parsed(line)[1]) for line in waits] == [True, False, False]
