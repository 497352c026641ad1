"""Score cards from SASS: what each instruction is, and the texts that nvdisasm, cuobjdump and Triton write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemm_eval.autotune.asm import Access, OpCounts, ScoreCard, score_file, score_sass
from gemm_eval.autotune.asm.sass import split_sass
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton.code import MmaCount


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")


# The main loop of a kernel of Triton's for Hopper, shortened: two wgmma, of which one has A in registers.
CODE = """
MOV R1, c[0x0][0x28]
@!P0 LDGSTS.E.BYPASS.128 [R7], desc[UR8][R10.64]
LOOP:
DEPBAR.LE SB0, 0x2
BAR.SYNC.DEFER_BLOCKING 0x0
WARPGROUP.ARRIVE
HGMMA.64x128x16.F32.BF16 R88, gdesc[UR4], R88
IMAD.WIDE R4, R2, 0x2, R4
LOP3.LUT R9, R8, 0xf000f, RZ, 0xea, !PT
HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0
WARPGROUP.DEPBAR.LE gsb0, 0x1
@P2 LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR8][R10.64]
LDGSTS.E.64 [R7], desc[UR8][R10.64]
LDGDEPBAR
UIADD3 UR4, UR4, 0x1, URZ
LDS.U16 R3, [R2]
HFMA2.BF16_V2 R9, R9, 1, 1, R3
STL.64 [R1+0x8], R4
@P1 BRA TO_LOOP
STG.E.128 desc[UR4][R2.64], R4
EXIT
SELF:
BRA TO_SELF
NOP
"""
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


def test_lines_without_a_head_are_one_kernel() -> None:
    lines = "".join(line + "\n" for line in nvdisasm(CODE).splitlines() if "/*" in line or line.startswith(".L_"))

    assert score_sass(lines)[2:] == score_sass(nvdisasm(CODE))[2:]


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


def test_code_for_several_gpus() -> None:
    text = cuobjdump(CODE, "new") + cuobjdump(CODE, "old", "sm_80")

    assert [(card.kernel, card.target) for card, _ in split_sass(text)] == [("new", "sm_90a"), ("old", "sm_80")]


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


def test_an_instruction_of_unknown_shape_counts_without_one() -> None:
    card = score_sass(nvdisasm(loop_of("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10]")))

    assert (card.loop.ops.tensor, card.loop.mma) == (1, ())


def test_bulk_copies_leave_the_bytes_open() -> None:
    loop = score_sass(nvdisasm(loop_of("UTMALDG.2D [UR8], [UR4]", "HMMA.16816.F32 R8, R4, R6, R8"))).loop

    assert loop.accesses == (Access("tma", None, 1),)
    assert (loop.copied_bytes, loop.flop_per_copied_byte) == (None, None)
