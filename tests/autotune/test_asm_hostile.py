"""Files that are damaged, or made to cost: an error that says why, in time and memory in proportion to the file."""

import contextlib
import os
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gemm_eval.autotune.asm import score, score_cubin, score_file, score_ptx, score_sass
from gemm_eval.autotune.asm.card import MAX_FILE_BYTES
from gemm_eval.autotune.asm.sass import read_cubin
from gemm_eval.device import sass
from gemm_eval.device.sass import Instruction, find_main_loop
from gemm_eval.errors import GemmEvalError, InvalidInputError
from tests.autotune.fake_cubin import FakeKernel, make_cubin

NUM_BYTES = 200_000
MAX_CPU_S = 2.0  # what goes over a text again and again takes minutes
MAX_BYTES = 20 << 20
PTX = ".version 8.0\n.target sm_80\n"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")


def cpu_s_of(function: Callable[[], object]) -> float:
    start = time.process_time()
    with contextlib.suppress(GemmEvalError):
        function()
    return time.process_time() - start


def repeated(text: str) -> str:
    return text * (NUM_BYTES // len(text))


TEXTS = {
    "newlines": repeated("\n"), "newlines in PTX": PTX + repeated("\n"),
    "comments that do not end": PTX + repeated("/*/"), "entries without a body": PTX + repeated(".entry a "),
    "kernels in kernels": PTX + repeated(".entry a{"),
    "kernels in kernels that end": PTX + repeated(".entry a{") + repeated("}"),
    "variables that do not end": PTX + repeated(".shared\n"),
    "variables beside kernels": PTX + ".entry a{} .shared .b8 x[1];\n" * 4000,
    "scopes": PTX + ".entry a{" + repeated("{ret;"),
    "scopes that end": PTX + ".entry a{" + repeated("{ret;") + repeated("}") + "}",
    "a long opcode": "/*0000*/ " + repeated("A"), "a long line": "/*0000*/ A" + repeated(" "),
    "entries in one line": '\t.other k,@"' + repeated(',@"'), "kernels of one line": repeated("Function : k\n"),
    "labels": repeated(".L_x:\n"),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_are_gone_through_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kernel"
    file.write_text(text, encoding="utf-8")

    assert cpu_s_of(lambda: score_file(file)) < MAX_CPU_S


def jump(at: int, to: int) -> Instruction:
    return Instruction(16 * at, "@P0", "BRA", "", 16 * to)


def work(at: int) -> Instruction:
    return Instruction(16 * at, "", "HMMA", "", None)


SIZE = 2000
LOOPS = {
    "nested": [work(i) for i in range(SIZE)] + [jump(SIZE + i, SIZE - 1 - i) for i in range(SIZE)],
    "side by side": [one for i in range(0, SIZE, 2) for one in (work(i), jump(i + 1, i))],
    "all to the end": [jump(i, SIZE) for i in range(SIZE)] + [work(SIZE), jump(SIZE + 1, 0)],
    "back by one": [work(0)] + [jump(i, i - 1) for i in range(1, SIZE)],
    "anywhere": [jump(i, random.Random(i).randrange(SIZE)) for i in range(SIZE)],
}


@pytest.mark.parametrize("instructions", LOOPS.values(), ids=LOOPS)
def test_loops_do_not_cost_their_square(instructions: list[Instruction]) -> None:
    tracemalloc.start()
    try:
        cpu_s = cpu_s_of(lambda: find_main_loop(instructions, lambda one: one.name == "HMMA"))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert cpu_s < MAX_CPU_S
    assert most_bytes < MAX_BYTES


def cubin_of_sections(num: int, num_name_bytes: int) -> bytes:
    """Sections that all have the same long name."""
    ident = b"\x7fELF\x02\x01\x01\x33\x07" + bytes(7)
    start = 64 + num_name_bytes + 1
    header = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, start, 0x5A0D5A, 64, 56, 0, 64, num, 0)
    section = struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 64, num_name_bytes, 0, 0, 1, 0)
    return ident + header + b"a" * num_name_bytes + b"\0" + section * num


def test_a_cubin_cannot_name_the_same_bytes_again_and_again() -> None:
    cubin = cubin_of_sections(20_000, NUM_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="damaged"):
            read_cubin(cubin)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most_bytes < 10 * len(cubin)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (FakeKernel("k", registers=0), "damaged"),
        (FakeKernel("k", registers=256), "damaged"),
        (FakeKernel("k", reqntid=(0, 1, 1)), "damaged"),
        (FakeKernel("k", smem_bytes=1), "damaged"),  # less than what the system takes
        (FakeKernel("k", b""), "damaged"),
        (FakeKernel("k", bytes(24)), "damaged"),
        (FakeKernel("k\x1b[2J"), "do not print"),
        (FakeKernel("k", bytes(16 << 16 | 16)), "k has 65,537 instructions, more than 65,536"),
    ],
)
def test_what_no_kernel_is_like(kernel: FakeKernel, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_cubin(make_cubin(kernel))


def test_too_many_kernels() -> None:
    with pytest.raises(InvalidInputError, match="more than 4,096 kernels"):
        read_cubin(make_cubin(*(FakeKernel(f"k{i}", bytes(16)) for i in range(4097))))
    with pytest.raises(InvalidInputError, match="more than 4,096 kernels"):
        score_ptx(PTX + ".entry a{}" * 4097)
    with pytest.raises(InvalidInputError, match=r"4096 kernels, say which: (a, ){20}\.\.\.$"):
        score_ptx(PTX + ".entry a{}" * 4096)


def test_code_that_nvdisasm_does_not_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "disassemble_code", lambda code, target: "/*0000*/ EXIT ;\n")
    with pytest.raises(GemmEvalError, match="does not understand all of the code for sm_90a"):
        score_cubin(make_cubin(FakeKernel("k", bytes(32))))


def kernel(body: str, head: str = "") -> str:
    return f"{PTX}.entry k(){head} {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel("ret; =;"), r"line 4 is no PTX: '='"),
        (kernel("/*\n\n*/ ret;\n 12;"), r"line 7 is no PTX: '12'"),
        (kernel("{" * 64), "line 4: more than 64 braces"),
        (kernel("", " .reqntid 1, 2, 3, 4"), ".reqntid takes up to three numbers"),
        (kernel("", " .maxntid " + "9" * 5000), ".maxntid takes up to three numbers"),
        (kernel("", " .reqntid 0"), ".reqntid must not be 0"),
        (kernel(f".local .b8 x[{'9' * 5000}];"), "larger than any memory"),
        (kernel(".shared .b8 x" + "[4294967295]" * 1000 + ";"), "larger than any memory"),
        (kernel("bra " + "x" * 1000 + ";"), r"a branch goes to x{77}\.\.\., which"),
        (kernel("mma.sync.m16n8k16 a, b, c, d;"), "has no types of operands"),
        (kernel("cp.async.ca.shared.global [a], [b], 010;"), "copies 4, 8 or 16 bytes"),
        (kernel("cp.async.ca.shared.global [a], [b], " + "9" * 5000 + ";"), "copies 4, 8 or 16 bytes"),
    ],
)
def test_malformed_ptx(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as found:
        score_ptx(text)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/*0010*/ MOV R1 ;\n/*0010*/ MOV R1 ;", "0x10 follows one at 0x10"),
        ("/*0000*/ HGMMA.64x64x16.F32 R24 ;", "HGMMA.64x64x16.F32 at 0x0 has no operand A"),
        ('.other k,@"STO_CUDA_ENTRY"\n.section .text.f,"ax"\n/*0000*/ RET ;', "no kernels in it"),
        ("Function : k\x1b[2J\n/*0000*/ RET ;", "do not print"),
        ("/*0000*/ BRA `(.L_" + "x" * 1000 + ") ;", r"goes to \.L_x{74}\.\.\., which"),
    ],
)
def test_malformed_sass(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as found:
        score_sass(text)
    assert len(str(found.value)) < 300


def test_a_branch_to_the_last_instruction_that_does_nothing() -> None:
    """Padding is never come to: what a branch goes to is none."""
    card = score_sass("/*0000*/ @P0 BRA 0x20 ;\n/*0010*/ EXIT ;\n/*0020*/ BRA 0x20 ;\n/*0030*/ NOP ;")

    assert (card.ops.total, card.ops.branch) == (3, 3)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices with names")
def test_only_files_and_no_large_ones(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    for path, message in (
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "large", f"larger than {MAX_FILE_BYTES:,} bytes"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            score_file(path)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvdisasm")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exec yes", "prints more than 1,0"),
        ("exec sleep 60", "does not finish within 0 s"),
        ("yes wrong | head -c 1000000 >&2; exit 1", "fails: wrong wrong"),  # more than a pipe takes
        ("exit 3", "fails: exit code 3"),
    ],
)
def test_nvdisasm_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, message: str) -> None:
    program = tmp_path / "nvdisasm"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sass, "_nvdisasm", lambda: program)
    if "sleep" in script:
        monkeypatch.setattr(sass, "_TIMEOUT_S", 0.2)

    with pytest.raises(GemmEvalError, match=message) as found:
        sass.disassemble_code(bytes(16), "sm_90")
    assert len(str(found.value)) < 400
