"""Score cards from PTX and SASS: what each instruction is, scopes and labels, and the texts that tools write."""

import re
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.autotune.asm import Access, OpCounts, ScoreCard, ptx, sass, score_file, score_ptx, score_sass
from gemm_eval.autotune.asm.sass import split_sass
from gemm_eval.device.sass import Instruction
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton.code import MmaCount

SNIPPETS = Path(__file__).parents[1] / "data" / "snippets"

# ---- instructions ----------------------------------------------------------------------------------------------------


KINDS = {
    "tensor": (
        "QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24", "IMMA.16832.S8.S8 R4, R2.ROW, R3.COL, R4",
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10]",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f1}",
        "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1",
    ),
    "ldmatrix": ("LDSM.16.MT88.4 R4, [R2]", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1}, [%r2]"),
    "load_shared": ("LDS.128 R4, [R2]", "ld.shared::cta.b32 %r1, [%r2]"),
    "store_shared": ("STSM.16.M88.4 [R2], R4", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r1}"),
    "cp_async": ("LDGSTS.E.BYPASS.128 [R7], desc[UR8][R10.64]",),
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
    "load_local": ("LDL.LU R4, [R1]", "ld.local.b32 %r1, [%rd2]"),
    "barrier": (
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R10+URZ], R9", "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]",
        "bar.sync 0", "barrier.cluster.arrive.aligned",
    ),
    "wait": (
        "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MEMBAR.ALL.GPU", "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned", "cp.async.wait_group 2", "cp.async.bulk.wait_group.read 0",
        "bar.warp.sync -1", "fence.proxy.async.shared::cta",
    ),
    "branch": ("BSYNC B0", "ret"),
    "integer": (
        "VIADDMNMX R1, R2, R3, R4, PT", "PRMT R1, R2, 0x4140, RZ", "add.s32 %r1, %r2, %r3",
        "setp.lt.f32 %p1, %f1, %f2", "lop3.b32 %r1, %r2, %r3, %r4, 0xea", "div.s32 %r1, %r2, %r3",
    ),
    "imad": ("IMAD.MOV.U32 R1, RZ, RZ, R2", "mul.wide.s32 %rd1, %r2, 2"),
    "half": ("HMUL2.BF16_V2 R1, R2, R3", "fma.rn.bf16x2 %r1, %r2, %r3, %r4", "mul.f16 %rs1, %rs2, %rs3"),
    "single": ("FADD R1, R2, R3", "add.f32 %f1, %f2, %f3"),
    "convert": ("F2FP.BF16.F32.PACK_AB R1, R2, R3", "cvt.rn.f16x2.f32 %r1, %f1, %f2"),
    "special": ("MUFU.RCP R0, R0", "ex2.approx.f32 %f1, %f2"),
    "uniform": ("USEL UR4, UR5, UR6, UP0",),
    "other": (
        "S2R R1, SR_TID.X", "@!PT LDS RZ, [RZ]", "ld.param.b32 %r1, [p]", "mov.b32 %r1, %r2",
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1",
    ),
    "store_local": ("st.local.b32 [%rd2], %r1",),
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
    1: ("LDG.E.U8.CONSTANT R4, desc[UR4][R2.64]", "st.global.b8 [%rd1], %rs1"),
    2: ("LDS.S16 R4, [R2]",),
    8: ("STG.E.64 desc[UR4][R2.64], R4", "LDSM.16.MT88.2 R4, [R2]", "ld.shared.b64 %rd1, [%r1]"),
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


# ---- PTX -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")


# As Triton writes it, shortened. Inline assembly has scopes, in which two loops have the same name.
GEMM = (SNIPPETS / "gemm.ptx").read_text(encoding="utf-8")
PTX_LOOP = OpCounts(tensor=2, cp_async=2, barrier=1, wait=2, branch=2, integer=2, imad=1, other=1)


def test_a_card_of_ptx(tmp_path: Path) -> None:
    card = score_ptx(GEMM)

    assert card[:8] == ("gemm_kernel", "sm_90a", "ptx", 128, None, 168, 40, 32 + 4 * 32)
    assert card.num_warps == 4
    assert card.loop.is_loop
    assert card.loop.ops == PTX_LOOP
    assert card.ops == PTX_LOOP._replace(cp_async=3, barrier=2, branch=4, store_global=1, other=2)
    assert card.loop.mma == (MmaCount(64, 128, 16, 16, False, 1), MmaCount(64, 128, 16, 16, True, 1))
    assert card.loop.accesses == (Access("cp_async", 16, 1), Access("cp_async", 8, 1))
    file = tmp_path / "gemm.ptx"
    file.write_text(GEMM, encoding="utf-8")
    assert score_file(file) == card


def module(*bodies: str, head: str = ".reqntid 32") -> str:
    kernels = "".join(f".visible .entry k{i}() {head} {{ {body} }}\n" for i, body in enumerate(bodies))
    return f".version 8.0\n.target sm_80, texmode_independent\n.address_size 64\n{kernels}"


@pytest.mark.parametrize(
    ("head", "num_threads"),
    [(".reqntid 64, 2, 1", 128), (".maxntid 256", 256), (".maxntid 512 .reqntid 96", 96), ("", None)],
)
def test_threads(head: str, num_threads: int | None) -> None:
    assert score_ptx(module("ret;", head=head)).num_threads == num_threads


def test_several_kernels_and_a_function() -> None:
    text = module("{ add.f32 %f1, %f1, %f2; } ret;", "ret;")
    text += (
        ".func (.param .b32 r) helper(.param .b32 a) { .shared .align 4 .b8 own[64]; ld.shared.b32 %r1, [own]; ret; }\n"
    )

    assert score_ptx(text, kernel="k0").ops == OpCounts(single=1, branch=1)
    assert score_ptx(text, kernel="k1").ops == OpCounts(branch=1)
    assert score_ptx(text, kernel="k1").target == "sm_80"
    assert score_ptx(text, kernel="k1").static_smem_bytes == 64
    with pytest.raises(InvalidInputError, match="2 kernels, say which: k0, k1"):
        score_ptx(text)


def test_what_is_not_whole() -> None:
    with pytest.raises(InvalidInputError, match="ends inside a kernel"):
        score_ptx(GEMM[: GEMM.index("setp")])
    with pytest.raises(InvalidInputError, match=r"goes to \$L__BB0_9, which is not there"):
        score_ptx(GEMM.replace("@%p8 bra \t$L__BB0_2", "@%p8 bra \t$L__BB0_9"))
    with pytest.raises(InvalidInputError, match="no kernels"):
        score_ptx(".version 8.0\n.target sm_80\n")


# ---- SASS ------------------------------------------------------------------------------------------------------------


# The main loop of a kernel of Triton's for Hopper, shortened: two wgmma, of which one has A in registers.
CODE = (SNIPPETS / "loop.sass").read_text(encoding="utf-8")
LOOP = OpCounts(
    tensor=2, cp_async=2, load_shared=1, store_local=1, barrier=1, wait=4, branch=1, integer=1, imad=1, half=1,
    uniform=1,
)  # fmt: skip


def nvdisasm(code: str, kernel: str = "gemm_kernel", *, registers: str = "", is_entry: bool = True) -> str:
    """What nvdisasm -c writes, with the lines around that matter."""
    lines, number = [], 0
    for line in code.strip().splitlines():
        if line.endswith(":"):
            lines.append(f".L_{kernel}_{line}")
        else:
            text = re.sub(r"TO_(\w+)", rf"`(.L_{kernel}_\1)", line)
            lines.append(f"        /*{16 * number:04x}*/                   {text} ;")
            number += 1
    head = [
        f"//--------------------- .text.{kernel} --------------------------",
        f'\t.section\t.text.{kernel},"ax",@progbits', registers,
        f'        .other          {kernel},@"{"STO_CUDA_ENTRY " if is_entry else ""}STV_DEFAULT"', f"{kernel}:",
        f".text.{kernel}:",
    ]  # fmt: skip
    return "\n".join([*head, *lines]) + "\n"


def with_addresses(code: str) -> list[str]:
    """Lines of `code` without labels, targets as addresses."""
    lines = code.strip().splitlines()
    at, number = {}, 0
    for line in lines:
        if line.endswith(":"):
            at[line[:-1]] = 16 * number
        else:
            number += 1
    return [re.sub(r"TO_(\w+)", lambda to: f"0x{at[to[1]]:x}", line) for line in lines if not line.endswith(":")]


def cuobjdump(code: str, kernel: str = "gemm_kernel", target: str = "sm_90a") -> str:
    lines = "".join(
        f"        /*{16 * i:04x}*/                   {line} ;     /* 0x00000a0000017a02 */\n"
        f"                                                       /* 0x000fe40000000f00 */\n"
        for i, line in enumerate(with_addresses(code))
    )
    return f'\n\tcode for {target}\n\t\tFunction : {kernel}\n\t.headerflags\t@"EF_CUDA_SM90"\n{lines}\t\t..........\n'


def triton(code: str, kernel: str = "gemm_kernel") -> str:
    lines = code.strip().splitlines()
    names = {line[:-1]: f"LBB{i}" for i, line in enumerate(line for line in lines if line.endswith(":"))}
    text = "".join(
        f"{names[line[:-1]]}:\n" if line.endswith(":")
        else "--:-:-:Y:5\t" + re.sub(r"TO_(\w+)", lambda to: names[to[1]], line) + ";\n"
        for line in lines
    )  # fmt: skip
    return f"Function:{kernel}\n{text}\n"


def test_a_card() -> None:
    card = score_sass('\t.headerflags\t@"EF_CUDA_ACCELERATORS EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"\n' + nvdisasm(CODE))

    assert card[:8] == ("gemm_kernel", "sm_90a", "sass", None, None, None, None, None)
    assert card.loop.is_loop
    assert card.loop.ops == LOOP
    assert card.loop.ops.total == 16
    assert card.ops == LOOP._replace(cp_async=3, branch=2, integer=2, store_global=1)  # no padding at the end
    assert card.loop.mma == (MmaCount(64, 128, 16, 16, False, 1), MmaCount(64, 128, 16, 16, True, 1))
    assert card.loop.accesses == (
        Access("cp_async", 16, 1), Access("cp_async", 8, 1), Access("load_shared", 2, 1), Access("store_local", 8, 1),
    )  # fmt: skip


def test_ratios() -> None:
    loop = score_sass(nvdisasm(CODE)).loop

    assert loop.issue_per_mma == 8
    assert loop.warp_flop == 2 * (2 * 64 * 128 * 16) / 4
    assert loop.copied_bytes == 32 * (16 + 8)
    assert loop.flop_per_copied_byte == pytest.approx(131072 / 768)
    assert loop.ops.spill == 1


def test_all_texts_give_the_same_card(tmp_path: Path) -> None:
    expected = score_sass(nvdisasm(CODE))
    for write, target in ((cuobjdump, "sm_90a"), (triton, None)):
        card = score_sass(write(CODE))
        assert card == expected._replace(target=target)
    file = tmp_path / "kernel.sass"
    file.write_text(triton(CODE), encoding="utf-8")
    assert score_file(file) == expected


@pytest.mark.parametrize(
    ("head", "target"),
    [("\t.target\tsm_90a\n", "sm_90a"), ('\t.headerflags\t@"EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"\n', "sm_80"), ("", None)],
)
def test_targets(head: str, target: str | None) -> None:
    assert score_sass(head + nvdisasm(CODE)).target == target


def test_registers_where_nvdisasm_says_them() -> None:
    text = nvdisasm(CODE, registers='\t.sectioninfo\t@"SHI_REGISTERS=254"')

    assert score_sass(text).registers == 254


def test_several_kernels() -> None:
    text = nvdisasm(CODE) + nvdisasm("MOV R1, R2\nRET.REL.NODEC R4", "helper", is_entry=False)
    text += nvdisasm("FFMA R1, R2, R3, R4\nEXIT", "other")

    assert [card.kernel for card, _ in split_sass(text)] == ["gemm_kernel", "other"]
    assert score_sass(text, kernel="other").ops == OpCounts(single=1, branch=1)
    assert score_sass(text, kernel="gemm_kernel").loop.ops == LOOP
    with pytest.raises(InvalidInputError, match="2 kernels, say which: gemm_kernel, other"):
        score_sass(text)
    with pytest.raises(InvalidInputError, match="no kernel 'helper', only gemm_kernel, other"):
        score_sass(text, kernel="helper")


def test_a_text_that_triton_cut_off_is_refused() -> None:
    """It reads addresses of four digits, so that all instructions after 64 KiB are missing."""
    text = triton("MOV R1, R2\n" * 4095 + "EXIT")

    with pytest.raises(InvalidInputError, match="first 4,096 instructions of gemm_kernel only: score its cubin"):
        score_sass(text)
    assert score_sass(triton("MOV R1, R2\n" * 4094 + "EXIT")).ops.total == 4095


@pytest.mark.parametrize("text", ["", "hello\n", nvdisasm("BRA TO_NOWHERE")])
def test_what_is_no_sass(text: str) -> None:
    with pytest.raises(InvalidInputError, match="neither PTX nor a cubin, and as SASS"):
        score_sass(text)


def loop_of(*lines: str) -> str:
    return "\n".join(["MOV R1, R2", "LOOP:", *lines, "@P0 BRA TO_LOOP", "EXIT"])


def test_without_tensor_cores_the_loop_with_most_arithmetic() -> None:
    first = loop_of("LDS R2, [R3]", "FFMA R1, R2, R3, R1").removesuffix("EXIT")
    card = score_sass(nvdisasm(first + "MORE:\nFFMA R1, R2, R3, R1\nHFMA2 R1, R2, R3, R1\n@P0 BRA TO_MORE\nEXIT"))

    assert card.loop.is_loop
    assert card.loop.ops == OpCounts(single=1, half=1, branch=1)
    assert (card.loop.issue_per_mma, card.loop.warp_flop, card.loop.mma) == (None, 0.0, ())


@pytest.mark.parametrize(
    "code",
    [
        "HMMA.16816.F32 R8, R4, R6, R8\nEXIT",
        "HMMA.16816.F32 R8, R4, R6, R8\n" + loop_of("ISETP.EQ.AND P0, PT, R2, R3, PT"),
    ],
)
def test_without_a_loop_the_whole_kernel_stands_for_it(code: str) -> None:
    card = score_sass(nvdisasm(code))

    assert not card.loop.is_loop
    assert card.loop.ops == card.ops
    assert card.loop.mma == (MmaCount(16, 8, 16, 16, True, 1),)


def serialized(waits: str) -> ScoreCard:
    wgmma = "WARPGROUP.ARRIVE\nHGMMA.64x256x16.F32 R24, gdesc[UR4], R24, gsb0\n"
    return score_sass(nvdisasm(loop_of(*(wgmma + wait for wait in waits.split("+")))))


def test_wgmma_that_the_compiler_serialized() -> None:
    done, one_left = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"
    for waits, num, is_serialized in (
        (f"{done}+{done}", 2, True),
        (f"{done}+{one_left}", 1, False),
        (f"+{done}", 1, False),
        (done, 1, False),  # there is none to be kept apart from
    ):
        loop = serialized(waits).loop
        assert (loop.mma_waits, loop.is_serialized) == (num, is_serialized)


def test_bulk_copies_leave_the_bytes_open() -> None:
    loop = score_sass(nvdisasm(loop_of("UTMALDG.2D [UR8], [UR4]", "HMMA.16816.F32 R8, R4, R6, R8"))).loop

    assert loop.accesses == (Access("tma", None, 1),)
    assert (loop.copied_bytes, loop.flop_per_copied_byte) == (None, None)
