"""Compiling CUDA text without a GPU, and the cache of compiled kernels on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemm_eval.device import CompiledKernel, compile_text, compiler_version
from gemm_eval.device import nvrtc as building
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.kernels import DeviceLimits, Variant, limits_of
from gemm_eval.kernels.families import families
from gemm_eval.kernels.registry import compile_for, has_run_on, make_variant, occupancy_of, target_of, why_not
from gemm_eval.mapping import RasterOrder

TEXT = """extern "C" __global__ void twice(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[0] * FACTOR;
  x[1] = s[1];
}"""
SPILLING = """ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     160 bytes stack frame, 96 bytes spill stores, 128 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 160 bytes cumulative stack size, 1024 bytes smem
"""
# Recorded with NVRTC 13.0: registers of a thread that no kernel of a family passes.
MOST_REGISTERS = {
    "w4a16_gemv": 255, "w4a16_gemv_mma": 255, "w4a16_sm80": 255, "w4a16_sm90": 168, "w4a16_sm90_cluster": 168,
}  # fmt: skip


@pytest.fixture
def nvrtc() -> None:
    try:
        compiler_version()
    except GemmEvalError as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(building, "_memo", {})
    return tmp_path / "cuda"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Targets that were really compiled for."""
    targets: list[str] = []

    def compile_(text: str, entry: str, target: str, options: tuple[str, ...]) -> CompiledKernel:
        targets.append(target)
        return CompiledKernel(b"\x7fELF\n" + text.encode(), entry, target, 40, 0, 0, 0, 0, ("line 1: warning",))

    monkeypatch.setattr(building, "_compile", compile_)
    monkeypatch.setattr(building, "compiler_version", lambda: "13.0 13.0.88")
    return targets


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_memo", {})


def compile_twice(**macros: int) -> CompiledKernel:
    return compile_text(TEXT, "twice", "sm_90a", macros)


def test_a_kernel_is_compiled_and_described(nvrtc: None, folder: Path) -> None:
    kernel = compile_twice(FACTOR=2)

    assert kernel.cubin.startswith(b"\x7fELF")
    assert (kernel.entry, kernel.target) == ("twice", "sm_90a")
    assert 0 < kernel.registers < 64
    assert kernel.static_smem_bytes == 128
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes, kernel.stack_bytes, kernel.warnings) == (0, 0, 0, ())


def test_what_ptxas_says_is_read() -> None:
    kernel = building._describe(b"", "k", "sm_90a", SPILLING)

    assert (kernel.registers, kernel.static_smem_bytes) == (255, 1024)
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes, kernel.stack_bytes) == (96, 128, 160)
    assert len(kernel.warnings) == 1
    assert "serialized" in kernel.warnings[0]


def test_a_silent_ptxas_is_an_error(counted: list[str]) -> None:
    with pytest.raises(GemmEvalError, match="did not say how many registers"):
        building._describe(b"", "k", "sm_90a", "")


def test_an_error_of_the_compiler_is_told(nvrtc: None, folder: Path) -> None:
    with pytest.raises(GemmEvalError, match='FACTOR" is undefined') as caught:
        compile_twice()

    assert "\0" not in str(caught.value)
    assert not folder.exists()


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[gpu\]'"):
        building._nvrtc()


def test_a_process_compiles_once_and_the_next_one_not_at_all(
    folder: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_twice(FACTOR=2)
    assert compile_twice(FACTOR=2) is first
    forget(monkeypatch)
    again = compile_twice(FACTOR=2)

    assert again == first
    assert counted == ["sm_90a"]
    assert len(list(folder.iterdir())) == 1


def test_text_macros_target_and_compiler_make_another_kernel_and_damage_the_same(
    folder: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_twice(FACTOR=2)
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    forget(monkeypatch)
    assert compile_twice(FACTOR=2) == first
    assert path.read_bytes() == sound
    compile_twice(FACTOR=3)
    compile_text(TEXT, "twice", "sm_80", {"FACTOR": 2})
    compile_text(TEXT + "\n", "twice", "sm_90a", {"FACTOR": 2})
    monkeypatch.setattr(building, "compiler_version", lambda: "13.1 13.1.5")
    compile_twice(FACTOR=2)

    assert len(counted) - 1 == len(list(folder.iterdir())) == 5


def test_the_cache_can_be_turned_off(tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    for _ in range(2):
        forget(monkeypatch)
        compile_twice(FACTOR=2)

    assert len(counted) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_closest_target_is_taken() -> None:
    family = families()["w4a16_sm80"]

    assert target_of(family, (8, 0)) == target_of(family, (8, 6)) == "sm_80"
    assert target_of(family, (8, 9)) == "sm_89"
    assert target_of(family, (9, 0)) == "sm_90a"
    assert target_of(family, (10, 0)) == target_of(family, (10, 3)) == "sm_100"
    assert target_of(family, (12, 0)) == target_of(family, (12, 1)) == "sm_120"
    with pytest.raises(UnsupportedError, match=r"capability 11\.0, only for 8\.0, 8\.9, 9\.0, 10\.0, 12\.0$"):
        target_of(family, (11, 0))
    with pytest.raises(UnsupportedError, match=r"w4a16_sm80 has no kernels for GPUs of compute capability 7\.5"):
        target_of(family, (7, 5))


def test_what_has_run_is_said_of_each_gpu() -> None:
    family = families()["w4a16_sm80"]

    assert [has_run_on(family, (major, 0)) for major in (7, 8, 9, 10, 12)] == [False, False, True, False, False]
    assert not has_run_on(families()["w4a16_sm90"], (10, 0))


# ---- our kernels ----------------------------------------------------------------------------------------------------

GPU_OF = {"sm_80": "a100-sxm-80gb", "sm_89": "rtx-4090", "sm_90a": "h200-sxm", "sm_100": "b200", "sm_120": "rtx-5090"}
MODES = {
    "group": ("fp16", 128), "group_zero": ("bf16", 32), "column": ("fp16", None), "mxfp4": ("bf16", None),
    "nvfp4": ("fp16", None),
}  # fmt: skip
EACH = [
    (name, target, mode)
    for name, family in families().items()
    for target in dict.fromkeys(family.targets.values())
    for mode in MODES
]
# Every kernel once, with one of the types and modes and for one of the GPUs that have it, in turn: all of them with all
# would take an hour. How tiles follow each other is no matter of the compiler.
TURNS = [("fp16", "group", 128), ("bf16", "group_zero", 32), ("fp16", "column", None), ("bf16", "group", 64)]
TURNS += [("fp16", "group_zero", 64), ("bf16", "column", None), ("fp16", "group", 32), ("bf16", "mxfp4", None)]
TURNS += [("fp16", "nvfp4", None), ("fp16", "mxfp4", None), ("bf16", "nvfp4", None)]
DISTINCT = {
    config._replace(raster_order=RasterOrder.ALONG_M, raster_swizzle=1): config
    for family in families().values()
    for config in family.configs()
}
ALL = [make_variant(config, *TURNS[i % len(TURNS)]) for i, config in enumerate(DISTINCT.values())]


def variant_id(variant: Variant) -> str:
    return f"{variant.config} {variant.activation} {variant.mode.name} {variant.group_size}".replace(" ", "-")


def check_resources(variant: Variant, limits: DeviceLimits, target: str | None = None) -> None:
    compiled = compile_for(variant, limits)

    assert target in (None, compiled.target)
    assert (compiled.spill_store_bytes, compiled.spill_load_bytes) == (0, 0)
    assert compiled.registers <= MOST_REGISTERS[variant.config.family]
    assert compiled.warnings == ()
    assert occupancy_of(variant, compiled, limits).ctas_per_sm >= 1


@pytest.mark.parametrize(("name", "target", "mode"), EACH)
def test_a_kernel_of_each_family_compiles_for_each_target_in_each_mode(
    name: str, target: str, mode: str, nvrtc: None
) -> None:
    limits, (activation, group_size) = limits_of(GPU_OF[target]), MODES[mode]
    variants = [make_variant(config, activation, mode, group_size) for config in families()[name].configs()]
    able = [variant for variant in variants if why_not(variant, None, limits) is None]
    assert len(able) > len(variants) // 3
    turn = EACH.index((name, target, mode))
    check_resources(able[turn * len(able) // len(EACH)], limits, target)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ALL, ids=variant_id)
def test_all_kernels_compile_without_spills(variant: Variant, nvrtc: None) -> None:
    known = [limits_of(gpu) for gpu in GPU_OF.values()]
    able = [limits for limits in known if why_not(variant, None, limits) is None]
    if not able:
        pytest.skip(str(why_not(variant, None, known[-1])))
    check_resources(variant, able[ALL.index(variant) % len(able)])
