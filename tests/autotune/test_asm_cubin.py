"""What `gemm_eval.autotune.asm` reads from a cubin beside its instructions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gemm_eval.autotune.asm import ScoreCard
from gemm_eval.autotune.asm.sass import read_cubin
from gemm_eval.errors import InvalidInputError
from tests.autotune.fake_cubin import ABI_CUDA_12, ABI_CUDA_13, FLAGS_SM_80, FLAGS_SM_90A, FakeKernel, make_cubin

ONE = FakeKernel("one", bytes(range(128)), registers=168, stack_bytes=56, reqntid=(128, 2, 1))


def test_a_kernel() -> None:
    assert read_cubin(make_cubin(ONE)) == ((ScoreCard("one", "sm_90a", "cubin", 256, 168, None, 56, 0), ONE.code),)


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


def test_before_sm_90_all_shared_memory_is_the_kernels() -> None:
    ((found, _),) = read_cubin(make_cubin(FakeKernel("k", smem_bytes=512), flags=FLAGS_SM_80[ABI_CUDA_12]))

    assert (found.target, found.static_smem_bytes) == ("sm_80", 512)


@pytest.mark.parametrize(
    ("abi", "flags", "options", "target"),
    [
        (ABI_CUDA_12, FLAGS_SM_90A, None, "sm_90a"), (ABI_CUDA_12, FLAGS_SM_80, None, "sm_80"),
        (ABI_CUDA_13, FLAGS_SM_90A, "-v  -arch sm_90a", "sm_90a"), (ABI_CUDA_13, FLAGS_SM_90A, None, "sm_90"),
        (ABI_CUDA_13, FLAGS_SM_80, "-arch=sm_80", "sm_80"),
    ],
)  # fmt: skip
def test_targets(abi: int, flags: dict[int, int], options: str | None, target: str) -> None:
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


PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry first(.param .u64 p) .reqntid 64 {
    .reg .b32 %r<3>; .reg .b64 %a;
    .shared .align 16 .b8 mine[768];
    ld.param.u64 %a, [p]; ld.global.u32 %r1, [%a]; mov.u32 %r2, mine; st.shared.u32 [%r2+4], %r1;
    bar.sync 0; ld.shared.u32 %r1, [%r2]; st.global.u32 [%a], %r1; ret;
}
"""


def test_what_ptxas_makes(tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        triton = pytest.importorskip("triton")
        ptxas = str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas")
    (tmp_path / "k.ptx").write_text(PTX, encoding="utf-8")
    done = subprocess.run(
        [ptxas, "-v", "-arch=sm_90", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ((found, code),) = read_cubin((tmp_path / "k.cubin").read_bytes())

    assert (found.kernel, found.target, found.num_threads) == ("first", "sm_90", 64)
    assert (found.static_smem_bytes, found.stack_bytes) == (768, 0)
    assert f"Used {found.registers} registers" in done.stderr
    assert len(code) % 128 == 0
