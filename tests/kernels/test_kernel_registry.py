"""Kernels that there are, which a GPU can run and what they take; compiling them without a GPU, and their cache."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.device import CompiledKernel, compile_text, compiler_version
from gemm_eval.device import runtime as building
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidMappingError, InvalidOptionError, UnsupportedError
from gemm_eval.kernels import DeviceLimits, Sizes, Variant, WeightMode, limits_of, registry
from gemm_eval.kernels.families import families, family_of
from gemm_eval.kernels.plan import choose, rank, spec_of
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder
from tests.cases import case

# ---- registry --------------------------------------------------------------------------------------------------------


SIZES = Sizes(64, 4096, 4096)


HOPPER, ADA, AMPERE = limits_of("h200-sxm"), limits_of("rtx-4090"), limits_of("a100-sxm-80gb")
BLACKWELL, ULTRA, RTX = limits_of("b200"), limits_of("b300"), limits_of("rtx-5090")
ALL_GPUS = (HOPPER, ADA, AMPERE, BLACKWELL, ULTRA, RTX)
PRESETS = {
    HOPPER: "h200-sxm", ADA: "rtx-4090", AMPERE: "a100-sxm-80gb", BLACKWELL: "b200", ULTRA: "b300", RTX: "rtx-5090"
}  # fmt: skip
SPECS = {gpu: load_arch(name, GpuSpec) for gpu, name in PRESETS.items()}


def first(family: str) -> KernelConfig:
    return next(families()[family].configs())


def test_limits_are_those_of_the_spec() -> None:
    assert DeviceLimits((9, 0), 132, 232448, 233472, 1024, 65536, 2048, 32) == HOPPER
    assert (ADA.compute_capability, AMPERE.compute_capability) == ((8, 9), (8, 0))


def test_every_kernel_is_listed_with_what_it_takes() -> None:
    for gpu, activation, mode in itertools.product(ALL_GPUS, ("fp16", "bf16"), WeightMode):
        with case(gpu.compute_capability, activation, mode):
            entries = registry.list_kernels(gpu, activation, mode)

            assert len(entries) == sum(len(list(family.configs())) for family in families().values())
            assert all(entry.refusal is None or entry.refusal for entry in entries)
            assert {entry.has_run for entry in entries} == {gpu is HOPPER}
            for entry in entries:
                if entry.refusal is None:
                    assert entry.smem_bytes <= gpu.smem_per_cta_bytes
                    assert 32 <= entry.num_threads <= 1024


def test_hopper_kernels_say_what_other_gpus_lack() -> None:
    refusals = {e.refusal for e in registry.list_kernels(AMPERE) if e.variant.config.family == "w4a16_sm90"}

    assert refusals == {"w4a16_sm90 has no kernels for GPUs of compute capability 8.0, only for 9.0"}
    assert any(e.refusal is None for e in registry.list_kernels(AMPERE))


def test_blackwell_runs_what_needs_no_wgmma() -> None:
    for gpu, capability in ((BLACKWELL, "10.0"), (ULTRA, "10.3"), (RTX, "12.0")):
        of_hopper, others = [], []
        for entry in registry.list_kernels(gpu):
            (of_hopper if entry.variant.config.family.startswith("w4a16_sm90") else others).append(entry.refusal)
        assert {str(refusal).partition(" ")[2] for refusal in of_hopper} == {
            f"has no kernels for GPUs of compute capability {capability}, only for 9.0: wgmma is Hopper's alone, "
            "Blackwell has no such instruction"
        }
        refused = [refusal for refusal in others if refusal is not None]
        assert all("shared memory" in refusal for refusal in refused)
        assert (len(refused) > 0) == (gpu is RTX)  # 99 KiB a CTA; 227 on the others, as on Hopper


def test_a_gpu_that_is_too_old_runs_nothing() -> None:
    turing = AMPERE._replace(compute_capability=(7, 5))

    assert all(entry.refusal for entry in registry.list_kernels(turing))
    with pytest.raises(UnsupportedError, match=r"no W4A16 kernel runs on a GPU of compute capability 7\.5"):
        spec_of("titan-rtx", turing)
    with pytest.raises(UnsupportedError, match=r"no W4A16 kernel runs on a GPU of compute capability 11\.0"):
        spec_of("thor", AMPERE._replace(compute_capability=(11, 0)))


LEGAL_SIZES = (Sizes(1, 4096, 4096), Sizes(17, 200, 72), Sizes(5, 8, 8), Sizes(4096, 8192, 28672))


def test_legal_configs_pass_the_check() -> None:
    for gpu, sizes, mode in itertools.product((HOPPER, ADA, AMPERE, BLACKWELL, RTX), LEGAL_SIZES, WeightMode):
        with case(gpu.compute_capability, sizes, mode):
            configs = list(registry.legal_configs(sizes, gpu, "bf16", mode))

            assert len(set(configs)) == len(configs) > 0
            for config in configs[:: max(1, len(configs) // 40)]:
                variant = registry.make_variant(config, "bf16", mode, None)
                registry.check_kernel(variant, sizes, gpu)
                launch = family_of(config).launch(variant, sizes, gpu.num_sms, 1)
                assert min(launch.grid) >= 1
                assert launch.grid[0] < 1 << 31
                assert max(launch.grid[1:]) < 1 << 16
                assert launch.smem_bytes <= gpu.smem_per_cta_bytes
                assert (launch.workspace_bytes > 0) <= (launch.num_counters > 0)


def test_ways_to_cut_k_are_legal() -> None:
    for (family, gpu), sizes in itertools.product(itertools.product(families().values(), (HOPPER, ADA)), LEGAL_SIZES):
        for config in family.configs():
            variant = registry.make_variant(config, "fp16", "group", 128)
            if registry.why_not(variant, sizes, gpu) is None:
                splits = list(family.splits(variant, sizes, gpu))
                first = Decomposition.SPLIT_K if family.name == "w4a16_sm90_cluster" else Decomposition.DATA_PARALLEL
                assert splits[0] == (first, config.split_k)
                assert len(set(splits)) == len(splits)
                for decomposition, split_k in splits:
                    cut = config._replace(decomposition=decomposition, split_k=split_k)
                    assert registry.why_not(variant._replace(config=cut), sizes, gpu) is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"family": "w4a16_sm70"}, InvalidMappingError, "config.family must be one of w4a16_gemv, "),
        ({"cta_m": 48}, InvalidMappingError, "w4a16_sm80 has no such kernel"),
        ({"split_k": 2}, InvalidMappingError, r"must be one of .*got \(<Decomposition.DATA_PARALLEL: 0>, 2\)"),
        ({"decomposition": 1, "split_k": 31}, InvalidMappingError, r"\(decomposition, split_k\) must be one of"),
        ({"schedule": 9}, InvalidMappingError, "9 is not a valid Schedule"),
    ],
)
def test_a_config_that_is_none_says_why(change: dict[str, Any], error: type[Exception], message: str) -> None:
    config = first("w4a16_sm80")._replace(**change)

    with pytest.raises(error, match=message):
        registry.check_kernel(registry.make_variant(config, "fp16", "group", 128), SIZES, HOPPER)


def test_plain_integers_count_as_members_of_enums() -> None:
    config = first("w4a16_sm80")
    plain = KernelConfig(*(int(value) if isinstance(value, int) else value for value in config))

    assert type(plain.schedule) is int
    assert registry.make_variant(plain, "fp16", "group", 128).config.schedule is config.schedule


@pytest.mark.parametrize(
    ("activation", "mode", "group_size"),
    [("fp32", "group", 128), ("fp16", "row", 128), ("fp16", "group", 48), ("fp16", "column", 128), ("x", "group", 128)],
)
def test_weights_that_are_none_say_why(activation: str, mode: str, group_size: int) -> None:
    with pytest.raises(InvalidInputError, match="must be"):
        registry.make_variant(first("w4a16_sm80"), activation, mode, group_size)


def test_a_config_must_be_one() -> None:
    with pytest.raises(InvalidOptionError, match="config must be a KernelConfig, got 'fast'"):
        registry.make_variant("fast", "fp16", "group", 128)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_threads", "registers", "smem_bytes", "ctas_per_sm", "limited_by"),
    [
        (384, 168, 1024, 1, "registers"),  # 12 warps of 168 x 32: 48 fit no better than once
        (128, 128, 1024, 4, "registers"),
        (128, 129, 1024, 3, "registers"),  # 136 registers: 3 warps a quarter
        (256, 32, 1024, 8, "registers"),
        (1024, 32, 1024, 2, "registers"),
        (256, 16, 1024, 8, "threads"),
        (32, 32, 0, 32, "CTAs"),
        (128, 32, 100_000, 2, "shared memory"),
        (128, 32, 116_736 - 1024, 2, "shared memory"),
        (128, 32, 116_736 - 1023, 1, "shared memory"),
        (128, 32, 232_448, 1, "shared memory"),
        (128, 32, 232_449, 0, "shared memory"),
        (1024, 72, 0, 0, "registers"),
    ],
)
def test_occupancy(
    num_threads: int, registers: int, smem_bytes: int, ctas_per_sm: int, limited_by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    variant = registry.make_variant(first("w4a16_sm80"), "fp16", "group", 128)
    kind = type(families()["w4a16_sm80"])
    monkeypatch.setattr(kind, "num_threads", lambda self, variant: num_threads)
    monkeypatch.setattr(kind, "smem_bytes", lambda self, variant: 0)
    compiled = CompiledKernel(b"", "k", "sm_90a", registers, 8, 16, 0, smem_bytes, ())
    found = registry.occupancy_of(variant, compiled, HOPPER)

    assert (found.ctas_per_sm, found.limited_by) == (ctas_per_sm, limited_by)
    assert found[2:] == (num_threads, registers, smem_bytes, 24)


@pytest.mark.parametrize("gpu", [HOPPER, AMPERE, ULTRA, RTX])
def test_the_choice_is_the_first_of_the_ranking(gpu: DeviceLimits) -> None:
    for M in (1, 33, 129, 1025):
        sizes = Sizes(M, 2048, 1096)
        ranked = rank(sizes, DType.FP16, WeightMode.GROUP, 128, SPECS[gpu])
        assert choose(sizes, DType.FP16, WeightMode.GROUP, 128, SPECS[gpu], gpu) == ranked[0]
        assert set(ranked) == set(registry.legal_configs(sizes, gpu, "fp16", "group", 128))
        assert rank(sizes, DType.FP16, WeightMode.GROUP, 128, SPECS[gpu], 3) == ranked[:3]


def test_a_choice_that_the_gpu_cannot_run_is_passed_over() -> None:
    sizes = Sizes(4096, 4096, 4096)
    ranked = rank(sizes, DType.FP16, WeightMode.GROUP, 128, SPECS[HOPPER])
    small = HOPPER._replace(smem_per_cta_bytes=100 * 1024)  # less than the spec says
    chosen = choose(sizes, DType.FP16, WeightMode.GROUP, 128, SPECS[HOPPER], small)

    assert chosen != ranked[0]
    assert chosen in ranked
    registry.check_kernel(registry.make_variant(chosen, "fp16", "group", 128), sizes, small)


def test_a_gpu_is_taken_for_its_preset_or_the_one_most_like_it() -> None:
    assert spec_of("h200-sxm", HOPPER) == SPECS[HOPPER]
    cut = spec_of("h200-sxm", HOPPER._replace(num_sms=66))
    assert (cut.num_sms, cut.l2_bytes) == (66, SPECS[HOPPER].l2_bytes)
    unknown = spec_of("some-hopper", HOPPER._replace(num_sms=114))
    assert (unknown.sm_arch, unknown.num_sms) == ("sm_90", 114)
    ampere = spec_of("geforce-rtx-3090", AMPERE._replace(compute_capability=(8, 6), num_sms=82))
    assert (ampere.sm_arch, ampere.num_sms) == ("sm_86", 82)
    for gpu in (BLACKWELL, ULTRA, RTX):
        assert spec_of(PRESETS[gpu], gpu) == SPECS[gpu]
    spark = spec_of("gb10", RTX._replace(compute_capability=(12, 1), num_sms=48))
    assert (spark.sm_arch, spark.num_sms) == ("sm_120", 48)
    assert spec_of("some-b300", ULTRA._replace(num_sms=132)).sm_arch == "sm_103"


def test_more_tiles_than_the_kernel_counts_are_refused() -> None:
    config = next(c for c in family_of(first("w4a16_sm90")).configs() if (c.cta_m, c.cta_n) == (8, 64))
    variant = registry.make_variant(config, "fp16", "group", 128)

    assert registry.why_not(variant, Sizes(100_000, 28_672, 128_000), HOPPER) == (
        "too many tiles: the kernel counts parts and units of them in 32 bits"
    )
    assert registry.why_not(variant, Sizes(10_000, 28_672, 128_000), HOPPER) is None


# ---- compiling -------------------------------------------------------------------------------------------------------


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

    assert registry.target_of(family, (8, 0)) == registry.target_of(family, (8, 6)) == "sm_80"
    assert registry.target_of(family, (8, 9)) == "sm_89"
    assert registry.target_of(family, (9, 0)) == "sm_90a"
    assert registry.target_of(family, (10, 0)) == registry.target_of(family, (10, 3)) == "sm_100"
    assert registry.target_of(family, (12, 0)) == registry.target_of(family, (12, 1)) == "sm_120"
    with pytest.raises(UnsupportedError, match=r"capability 11\.0, only for 8\.0, 8\.9, 9\.0, 10\.0, 12\.0$"):
        registry.target_of(family, (11, 0))
    with pytest.raises(UnsupportedError, match=r"w4a16_sm80 has no kernels for GPUs of compute capability 7\.5"):
        registry.target_of(family, (7, 5))


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
ALL = [registry.make_variant(config, *TURNS[i % len(TURNS)]) for i, config in enumerate(DISTINCT.values())]


def variant_id(variant: Variant) -> str:
    return f"{variant.config} {variant.activation} {variant.mode.name} {variant.group_size}".replace(" ", "-")


def check_resources(variant: Variant, limits: DeviceLimits, target: str | None = None) -> None:
    compiled = registry.compile_for(variant, limits)

    assert target in (None, compiled.target)
    assert (compiled.spill_store_bytes, compiled.spill_load_bytes) == (0, 0)
    assert compiled.registers <= MOST_REGISTERS[variant.config.family]
    assert compiled.warnings == ()
    assert registry.occupancy_of(variant, compiled, limits).ctas_per_sm >= 1


@pytest.mark.parametrize(("name", "target", "mode"), EACH)
def test_a_kernel_of_each_family_compiles_for_each_target_in_each_mode(
    name: str, target: str, mode: str, nvrtc: None
) -> None:
    limits, (activation, group_size) = limits_of(GPU_OF[target]), MODES[mode]
    variants = [registry.make_variant(config, activation, mode, group_size) for config in families()[name].configs()]
    able = [variant for variant in variants if registry.why_not(variant, None, limits) is None]
    assert len(able) > len(variants) // 3
    turn = EACH.index((name, target, mode))
    check_resources(able[turn * len(able) // len(EACH)], limits, target)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ALL, ids=variant_id)
def test_all_kernels_compile_without_spills(variant: Variant, nvrtc: None) -> None:
    known = [limits_of(gpu) for gpu in GPU_OF.values()]
    able = [limits for limits in known if registry.why_not(variant, None, limits) is None]
    if not able:
        pytest.skip(str(registry.why_not(variant, None, known[-1])))
    check_resources(variant, able[ALL.index(variant) % len(able)])
