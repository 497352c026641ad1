"""Scoring cubins: what they say beside instructions, one call of nvdisasm for many, and cards in the cache folder."""

from pathlib import Path

import pytest

from gemm_eval.autotune import asm
from gemm_eval.autotune.asm.sass import read_cubin
from gemm_eval.errors import GemmEvalError, InvalidInputError
from tests.autotune.fake_cubin import ABI_CUDA_12, ABI_CUDA_13, FLAGS_SM_80, FLAGS_SM_90A, FakeKernel, make_cubin

# ---- what a cubin says -----------------------------------------------------------------------------------------------


ONE = FakeKernel("one", bytes(range(128)), registers=168, stack_bytes=56, reqntid=(128, 2, 1))


@pytest.mark.parametrize(
    ("kernel", "field", "value"),
    [
        (FakeKernel("k"), "num_threads", None),
        (FakeKernel("k", max_threads=(384, 1, 1)), "num_threads", 384),
        (FakeKernel("k", max_threads=(512, 1, 1), reqntid=(64, 1, 1)), "num_threads", 64),
        (FakeKernel("k", max_registers=168), "max_registers", 168),
        (FakeKernel("k", smem_bytes=1024), "static_smem_bytes", 0),  # what the system takes of each CTA
        (FakeKernel("k", smem_bytes=1536), "static_smem_bytes", 512),
    ],
)
def test_attributes(kernel: FakeKernel, field: str, value: int | None) -> None:
    ((found, _),) = read_cubin(make_cubin(kernel))

    assert getattr(found, field) == value


@pytest.mark.parametrize(
    ("abi", "flags", "options", "target"),
    [
        (ABI_CUDA_12, FLAGS_SM_90A, None, "sm_90a"), (ABI_CUDA_12, FLAGS_SM_80, None, "sm_80"),
        (ABI_CUDA_13, FLAGS_SM_90A, "-v  -arch sm_90a", "sm_90a"), (ABI_CUDA_13, FLAGS_SM_90A, None, "sm_90"),
        (ABI_CUDA_13, FLAGS_SM_80, "-arch=sm_80", "sm_80"),
    ],
)  # fmt: skip
def test_targets_of_cubins(abi: int, flags: dict[int, int], options: str | None, target: str) -> None:
    ((found, _),) = read_cubin(make_cubin(ONE, flags=flags[abi], abi=abi, options=options))

    assert found.target == target


def test_all_kernels_but_not_what_they_call() -> None:
    found = read_cubin(make_cubin(FakeKernel("helper", is_entry=False), ONE, FakeKernel("two", registers=8)))

    assert [(card.kernel, card.registers) for card, _ in found] == [("one", 168), ("two", 8)]


def test_what_is_no_cubin() -> None:
    elsewhere = bytearray(make_cubin(ONE))
    elsewhere[18] = 62  # x86-64
    for content in (b"", b"\x7fELF\x01" + bytes(60), bytes(elsewhere)):
        with pytest.raises(InvalidInputError, match="no 64-bit ELF file for CUDA"):
            read_cubin(content)
    with pytest.raises(InvalidInputError, match="no kernels"):
        read_cubin(make_cubin(FakeKernel("helper", is_entry=False)))


def test_a_damaged_cubin_is_said_to_be_damaged() -> None:
    whole = make_cubin(ONE)
    for length in range(20, len(whole) - 1, 7):
        with pytest.raises(InvalidInputError, match="damaged"):
            read_cubin(whole[:length])
    assert read_cubin(whole[:-1]) == read_cubin(whole)  # CuPy drops a last byte of 0


# ---- scoring ---------------------------------------------------------------------------------------------------------


LOOP = ("MOV R1, R2", "HMMA.16816.F32 R8, R4, R6, R8", "@P0 BRA 0x10", "EXIT")


class Disassembler:
    """Stands for nvdisasm: a byte of code, repeated, stands for an instruction."""

    def __init__(self) -> None:
        self.lines = {b"%c" % i: line for i, line in enumerate((*LOOP, "BRA 0x0", "BRA 0x1000"))}
        self.calls: list[tuple[str, int]] = []

    def __call__(self, code: bytes, target: str) -> str:
        self.calls.append((target, len(code)))
        text, start = "", 0
        for at in range(0, len(code), 16):
            line = self.lines[code[at : at + 1]]
            start = at if line == LOOP[0] else start
            line = line.replace("BRA 0x10", f"BRA 0x{start + 16:x}") if "0x1000" not in line else line
            text += f"        /*{at:04x}*/                   {line} ;\n"
        return text


def code_of(*numbers: int) -> bytes:
    return b"".join(bytes([number]) * 16 for number in numbers)


WORK = code_of(0, 1, 2, 3)
FULL = FakeKernel("gemm", WORK, registers=128, stack_bytes=8, reqntid=(128, 1, 1))


@pytest.fixture
def nvdisasm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disassembler:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path / "cache"))
    stand_in = Disassembler()
    monkeypatch.setattr(asm.score, "disassemble_code", stand_in)
    return stand_in


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.json"))


def test_a_cubin(nvdisasm: Disassembler) -> None:
    card = asm.score_cubin(make_cubin(FULL))

    assert card[:8] == ("gemm", "sm_90a", "cubin", 128, 128, None, 8, 0)
    assert card.ops == asm.OpCounts(integer=1, tensor=1, branch=2)
    assert card.loop.ops == asm.OpCounts(tensor=1, branch=1)
    assert nvdisasm.calls == [("sm_90a", 64)]


def test_many_cubins_take_one_call_for_each_target(nvdisasm: Disassembler) -> None:
    two_mma = FakeKernel("two", code_of(0, 1, 1, 2, 3))
    cubins = [
        make_cubin(FULL),
        make_cubin(two_mma),
        make_cubin(FULL, flags=FLAGS_SM_80[ABI_CUDA_12]),
        make_cubin(FULL._replace(registers=64)),  # the same code as the first
    ]
    cards = asm.score_cubins(cubins)

    assert sorted(nvdisasm.calls) == [("sm_80", 64), ("sm_90a", 64 + 80)]
    assert [card.loop.ops.tensor for card in cards] == [1, 2, 1, 1]
    assert [card.registers for card in cards] == [128, 32, 128, 64]
    assert [card.target for card in cards] == ["sm_90a", "sm_90a", "sm_80", "sm_90a"]
    assert asm.score_cubins([]) == ()


def test_a_branch_out_of_a_kernel_goes_nowhere(nvdisasm: Disassembler) -> None:
    jumping = FakeKernel("k", code_of(0, 4))
    cards = asm.score_cubins([make_cubin(FULL), make_cubin(jumping)])  # to 0: the other's first instruction

    assert cards[1].ops == asm.OpCounts(integer=1, branch=1)
    with pytest.raises(GemmEvalError, match="goes to 0x1000, which is not there"):
        asm.score_cubin(make_cubin(FakeKernel("k", code_of(0, 5))))


def test_kernels_by_name(nvdisasm: Disassembler) -> None:
    cubin = make_cubin(FULL, FakeKernel("other", WORK, registers=40))

    assert asm.score_cubin(cubin, kernel="other").registers == 40
    with pytest.raises(InvalidInputError, match="2 kernels, say which: gemm, other"):
        asm.score_cubin(cubin)
    with pytest.raises(InvalidInputError, match="2 kernels"):
        asm.score_cubins([cubin])
    with pytest.raises(InvalidInputError, match="no kernel 'gem', only gemm, other"):
        asm.score_cubin(cubin, kernel="gem")
    assert len(nvdisasm.calls) == 1


def test_what_was_scored_is_read_from_the_folder(nvdisasm: Disassembler, tmp_path: Path) -> None:
    cubin = make_cubin(FULL, FakeKernel("other", WORK))
    first = asm.score_cubin(cubin, kernel="gemm")
    assert len(files(tmp_path)) == 1
    again = asm.score_cubin(cubin, kernel="gemm")

    assert again == first
    assert again.loop.mma[0].num == 1  # all the way down no plain tuples
    assert again.loop.ops.total == 2
    assert asm.score_cubin(cubin, kernel="other").kernel == "other"
    assert len(nvdisasm.calls) == 1


def test_files_are_what_they_hold(nvdisasm: Disassembler, tmp_path: Path) -> None:
    file = tmp_path / "kernel"
    for content, source in (
        (make_cubin(FULL), "cubin"),
        (b"// a comment\n.version 8.0\n.target sm_80\n.visible .entry k() { ret; }\n", "ptx"),
        (b"        /*0000*/                   EXIT ;\n", "sass"),
    ):
        file.write_bytes(content)
        assert asm.score_file(file).source == source
        assert asm.score_file(str(file)) == asm.score_file(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes.fromhex("50ed55ba") + bytes(12), "a fatbin: take the cubins out of it"),
        (b"\xff\xfe\x00", "neither PTX nor a cubin nor SASS"),
        (b"\x7fELF" + bytes(100), "no 64-bit ELF file for CUDA"),
        (b"hello", "neither PTX nor a cubin, and as SASS"),
    ],
)
def test_files_that_hold_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(content)

    with pytest.raises(InvalidInputError, match=f"kernel.cubin: .*{message}"):
        asm.score_file(file)
