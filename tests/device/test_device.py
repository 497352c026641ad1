"""Machine code of kernels, and which versions of CUDA there are."""

import importlib.metadata
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemm_eval.device import runtime, sass
from gemm_eval.device.sass import Instruction, class_of, disassemble, find_main_loop, parse_sass
from gemm_eval.errors import GemmEvalError

# ---- kernel sass -----------------------------------------------------------------------------------------------------


SNIPPETS = Path(__file__).parents[1] / "data" / "snippets"
# A loop that waits on an mbarrier (and spins behind it), may skip a copy, and ends with a loop over lanes; around it
# the loop over tiles, which zeroes sums with an instruction of the same name.
SASS = (SNIPPETS / "main_loop.sass").read_text(encoding="utf-8")


def counted(*lines: str) -> dict[str, int]:
    text = "\n".join(f"        /*{16 * i:04x}*/ {line} ;" for i, line in enumerate(lines))
    return Counter(map(class_of, parse_sass(text)))


def test_instructions_are_read() -> None:
    instructions = parse_sass(SASS)

    assert len(instructions) == 21
    assert instructions[3] == Instruction(0x30, "@!P0", "BRA", "`(.L_x_spin)", 0x110)
    assert instructions[5] == Instruction(0x50, "", "HMMA.16816.F32", "R8, R4, R6, R8", None)
    assert instructions[-1].operands == "`(.L_x_end)"


def test_what_may_follow() -> None:
    follows = {i.address: i.may_fall_through for i in parse_sass(SASS)}

    assert [address for address, may in follows.items() if not may] == [0x100, 0x130, 0x140]


def test_no_loop_with_such_work() -> None:
    with pytest.raises(GemmEvalError, match="no loop"):
        find_main_loop(parse_sass(SASS), lambda instruction: instruction.name == "HGMMA")


@pytest.mark.parametrize("text", ["", "k:\n", "/*0000*/ ;"])
def test_no_instructions(text: str) -> None:
    with pytest.raises(GemmEvalError, match="no instructions"):
        parse_sass(text)


def test_cuobjdump_and_triton_write_the_same_instructions() -> None:
    """Targets are addresses, or labels of another form; Triton writes no addresses, and labels of some targets only."""
    expected = [
        Instruction(0x0, "", "MOV", "R1, c[0x0][0x28]", None), Instruction(0x10, "@!P0", "BRA", "TO", 0x30),
        Instruction(0x20, "", "BRA", "P1, TO", 0x0), Instruction(0x30, "", "BRA", "TO", 0x30),
    ]  # fmt: skip
    cuobjdump = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;    /* 0x00000a0000017a02 */
                                                             /* 0x000fe40000000f00 */
        /*0010*/              @!P0 BRA 0x30 ;                /* 0x0000000000008947 */
        /*0020*/                   BRA P1, 0x0 ;             /* 0x0000000000008947 */
        /*0030*/                   BRA 0x30;                 /* 0xfffffff000007947 */
"""
    triton = (
        "Function:k\n--:-:-:Y:4\tMOV R1, c[0x0][0x28];\n01:0:-:-:5\t@!P0 BRA LBB0;\n--:-:1:-:f\tBRA P1, 0x0;\n"
        "LBB0:\n--:-:-:Y:0\tBRA LBB0;\n"
    )
    for text, target in ((cuobjdump, "0x30"), (triton, "LBB0")):
        found = parse_sass(text)
        targets = [None, target, "0x0", target]
        assert found == tuple(
            i._replace(operands=i.operands.replace("TO", to or "")) for i, to in zip(expected, targets, strict=True)
        )
        assert [i.may_fall_through for i in found] == [True, True, True, False]


def test_classes() -> None:
    assert counted("HGMMA.64x16x16.F32 R24, R48, gdesc[UR4], R24", "HMMA.16816.F32 R8, R4, R6, R8") == {"tensor": 2}
    assert counted("LOP3.LUT R1, R2, 0xf, R3, 0xea, !PT", "MOV R1, R2", "VIADD R1, R2, 0x1") == {"integer": 3}
    assert counted("IMAD.MOV.U32 R1, RZ, RZ, R2", "IMAD.U32 R1, R2, 0x10000, RZ") == {"imad": 2}
    assert counted("HADD2 R1, R2, -1032, -1032", "HFMA2.MMA R1, R2, R3, R4", "HMUL2.BF16_V2 R1, R2, R3") == {"half": 3}
    assert counted("HADD2.F32 R1, -RZ, R2.H0_H0", "F2FP.F16.F32.PACK_AB R1, R2, R3") == {"convert": 2}
    assert counted("FFMA R1, R2, R3, R4", "FADD R1, R2, R3", "FMUL R1, R2, R3") == {"single": 3}
    assert counted("LDS R1, [R2]", "LDSM.16.M88.4 R4, [R2]", "STS [R2], R1") == {
        "load_shared": 1, "load_matrix": 1, "store_shared": 1,
    }  # fmt: skip
    assert counted("LDG.E.128 R4, desc[UR4][R2.64]", "UTMALDG.2D [UR8], [UR4]", "UBLKCP.S.G [UR6], [UR10], UR5") == {
        "copy": 3
    }
    assert counted("R2UR UR4, R1", "ULDC.64 UR4, c[0x0][0x28]", "UMOV UR4, 0x1") == {"uniform": 3}
    assert counted("WARPSYNC.ALL", "WARPGROUP.ARRIVE", "LDGDEPBAR", "BAR.SYNC.DEFER_BLOCKING 0x0") == {
        "synchronisation": 4
    }
    assert counted("BSSY B0, 0x10", "BSYNC B0", "EXIT") == {"control": 3}
    assert counted("NOP", "S2R R1, SR_TID.X", "@!PT LDS RZ, [RZ]") == {"other": 3}


@pytest.fixture
def no_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither its package, nor one on the PATH, nor Triton's."""
    monkeypatch.setattr(sass, "_PACKAGE", "no-such-package-of-ours")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sass._nvdisasm.cache_clear()
    yield
    sass._nvdisasm.cache_clear()


def test_without_nvdisasm_the_extra_is_named(no_nvdisasm: None) -> None:
    with pytest.raises(GemmEvalError, match=r"needs nvdisasm: pip install 'gemm_eval\[asm\]'"):
        disassemble(b"\x7fELF\x02" + bytes(100))
    with pytest.raises(GemmEvalError, match="no 64-bit ELF"):
        disassemble(b"MZ")


def test_nvdisasm_of_triton_is_taken_when_there_is_no_other(
    no_nvdisasm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "backends" / "nvidia" / "bin" / "nvdisasm"
    program.parent.mkdir(parents=True)
    program.touch()
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "triton" else None)

    assert sass._nvdisasm() == program


# ---- cuda versions ---------------------------------------------------------------------------------------------------


UNLIKE = RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")


def refuse() -> int:
    raise UNLIKE


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], str]]:
    """What is said where the driver is for one CUDA, CuPy for another, and no GPU is found."""

    def said(of_driver: int, of_cupy: int) -> str:
        versions = SimpleNamespace(
            getDeviceCount=refuse, driverGetVersion=lambda: of_driver, runtimeGetVersion=lambda: of_cupy
        )
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=versions)))
        runtime.import_cupy.cache_clear()
        with pytest.raises(GemmEvalError) as caught:
            runtime.import_cupy()
        return str(caught.value)

    yield said
    runtime.import_cupy.cache_clear()


def test_a_driver_for_cuda_12_and_cupy_for_13(no_gpu: Callable[[int, int], str]) -> None:
    assert no_gpu(12040, 13020) == (
        "this CuPy is for CUDA 13, the driver for CUDA 12: update the driver, or pip uninstall cupy-cuda13x and "
        "pip install 'gemm_eval[gpu-cuda12]'"
    )


def test_a_driver_that_no_extra_is_for(no_gpu: Callable[[int, int], str]) -> None:
    assert no_gpu(11080, 12090) == "this CuPy is for CUDA 12, the driver for CUDA 11: update the driver"


@pytest.mark.parametrize("of_driver", [0, 13000, 13020])
def test_no_driver_or_one_of_the_same_cuda(no_gpu: Callable[[int, int], str], of_driver: int) -> None:
    assert no_gpu(of_driver, 13020) == f"this needs an NVIDIA GPU and its driver: {UNLIKE}"


@pytest.mark.parametrize(("version", "package"), [((12, 9), "nvidia-cuda-nvrtc-cu12"), ((13, 0), "nvidia-cuda-nvrtc")])
def test_the_compiler_is_named_by_the_package_of_its_cuda(
    version: tuple[int, int], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may be installed, where PyTorch brings the other one: kernels are kept by the version that made them."""
    monkeypatch.setattr(runtime, "_nvrtc", lambda: SimpleNamespace(getVersion=lambda: version))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"from {name}")
    runtime.compiler_version.cache_clear()
    try:
        assert runtime.compiler_version() == f"{version[0]}.{version[1]} from {package}"
    finally:
        runtime.compiler_version.cache_clear()


def test_an_nvrtc_that_is_missing_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_nvrtc", lambda: SimpleNamespace(getVersion=refuse))
    runtime.compiler_version.cache_clear()

    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[gpu\]', or 'gemm_eval\[gpu-cuda12\]' where"):
        runtime.compiler_version()
