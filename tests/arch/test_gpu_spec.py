"""`GpuSpec`: frozen, strict, consistent; what follows from its numbers, and names of GPUs as drivers give them."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gemm_eval import ArchNotFoundError, ArchValidationError, InvalidOptionError, MulticoreSpec, list_archs, load_arch
from gemm_eval.arch import GFX_ARCHS, SM_ARCHS, GpuSpec, check_arch, gpu_slug
from gemm_eval.arch.gpu import _SLUGS
from gemm_eval.arch.paths import data_root
from gemm_eval.cli.render_arch import _GPU_GROUPS, unit_of
from gemm_eval.dtypes import DType

H200 = load_arch("h200-sxm", GpuSpec)
GPU_FOLDER = data_root() / "gpu"
GPUS = sorted(path.stem for path in GPU_FOLDER.glob("[!_]*.yaml"))
BASES = sorted(path.stem for path in GPU_FOLDER.glob("_*.yaml"))


def changed(**changes: Any) -> GpuSpec:
    fields = {field: getattr(H200, field) for field in H200.model_fields_set}
    return GpuSpec(**{**fields, **changes})


def test_bases_are_no_presets() -> None:
    assert {"_power", *(name.replace("sm_", "_sm") for name in SM_ARCHS), *(f"_{of}" for of in GFX_ARCHS)} == set(BASES)
    assert set(GPUS) <= set(list_archs())
    for base in BASES:
        assert base not in list_archs()
        with pytest.raises(ArchNotFoundError):
            load_arch(base)


def test_a_base_alone_says_what_it_lacks() -> None:
    with pytest.raises(ArchValidationError, match=r"num_sms must be given \(.*_sm90\.yaml: num_sms\)"):
        load_arch(GPU_FOLDER / "_sm90.yaml")


@pytest.mark.parametrize("name", GPUS)
def test_every_generation_is_the_one_of_its_base(name: str) -> None:
    text = (GPU_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    (base,) = re.findall(r"^base: _((?:sm\d|gfx)\w+)\.yaml$", text, flags=re.MULTILINE)

    assert load_arch(name, GpuSpec).sm_arch.replace("_", "") == base


@pytest.mark.parametrize("name", GPUS)
def test_instruction_fits_the_machine(name: str) -> None:
    gpu = load_arch(name, GpuSpec)
    flop = 2 * gpu.mma_m * gpu.mma_n_max * gpu.mma_k_bytes * 8 // DType.FP16.bits

    # The largest instruction is limited by arithmetic, not by the floor.
    assert flop / gpu.tensor_flop_per_cycle[DType.FP16] >= gpu.mma_floor_cycles
    assert gpu.max_warps_per_sm * gpu.threads_per_warp == gpu.max_threads_per_sm
    assert gpu.has_multicast == (gpu.max_cluster_ctas > 1)
    assert gpu.has_multicast <= gpu.has_tma <= gpu.has_cp_async
    assert gpu.l2_gb_per_s > gpu.dram_gb_per_s >= gpu.dram_achievable_gb_per_s


def test_peak_is_the_published_one_and_load_is_slower() -> None:
    assert H200.peak_tflop_per_s() == pytest.approx(132 * 4096 * 1.83e9 / 1e12)
    assert H200.peak_tflop_per_s("fp8") == pytest.approx(2 * H200.peak_tflop_per_s("fp16"))
    assert H200.tensor_tflop_per_s("bf16", "sustained") == pytest.approx(132 * 4096 * 1.49e9 / 1e12)
    assert H200.peak_tflop_per_s("fp32") == pytest.approx(132 * 256 * 1.83e9 / 1e12)  # CUDA cores
    with pytest.raises(KeyError):
        H200.peak_tflop_per_s("int4")
    with pytest.raises(KeyError):
        H200.tensor_clock_ghz("int4")
    with pytest.raises(InvalidOptionError, match="clock must be one of burst, sustained, got 'sustain', did you mean"):
        H200.tensor_clock_ghz("fp16", "sustain")


def test_a_type_without_a_clock_has_that_of_the_default_type() -> None:
    assert DType.FP8 not in H200.tensor_clock_burst_ghz
    assert H200.tensor_clock_ghz("fp8") == H200.tensor_clock_ghz() == H200.tensor_clock_burst_ghz[DType.FP16]
    assert H200.tensor_clock_ghz("bf16") != H200.tensor_clock_ghz()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"default_dtype": "fp32"}, "default_dtype fp32 must have an entry in tensor_flop_per_cycle"),
        ({"default_dtype": "tf32"}, "tensor_clock_burst_ghz must have an entry for default_dtype tf32"),
        ({"tensor_flop_per_cycle": {}}, "^tensor_flop_per_cycle must"),
        ({"tensor_flop_per_cycle": {"fp16": 1.0, "int32": 1.0}}, "int32 is an accumulator type"),
        ({"tensor_clock_burst_ghz": {}}, "^tensor_clock_burst_ghz must"),
        ({"tensor_clock_burst_ghz": {"fp16": 2.5}}, r"fp16 must be <= max_clock_ghz 1\.98, got 2\.5"),
        (
            {"tensor_clock_sustained_ghz": {"fp16": 1.0, "fp4": 1.0}},
            "fp4 must have an entry in tensor_flop_per_cycle",
        ),
        ({"boost_clock_ghz": 2.0}, r"boost_clock_ghz must be <= max_clock_ghz 1\.98, got 2\.0"),
        ({"smem_per_cta_bytes": 233472}, "together must fit into smem_per_sm_bytes"),
        ({"mma_n_max": 250}, "mma_n_max must be a multiple of mma_n_step 8, got 250"),
        ({"max_cluster_ctas": 1}, "has_multicast needs clusters"),
        ({"sm_arch": "sm_60"}, "^sm_arch must be 'sm_70'"),
        ({"mma_operands_from": "dram"}, "^mma_operands_from must be"),
        ({"num_sms": 0}, "^num_sms must be >= 1, got 0"),
        ({"num_sms": 132.0}, "^num_sms must be a valid integer"),
        ({"dram_efficiency_frac": 1.1}, "^dram_efficiency_frac must be <= 1"),
        ({"has_tma": 1}, "^has_tma must be"),
        ({"type": "multicore"}, "^type must be 'gpu'"),
        ({"num_sm": 132}, "^num_sm is not a field, did you mean num_sms?"),
        ({"is_coarse": True}, "^is_coarse is not a field"),
    ],
)
def test_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError):
        changed(**changes)
    with pytest.raises(ArchValidationError, match=message) as caught:
        H200.with_(**changes)
    assert "h200-sxm.with_" in str(caught.value)


def test_load_arch_insists_on_the_kind_that_is_expected(tmp_path: Path) -> None:
    assert type(load_arch("h200-sxm")) is GpuSpec
    assert type(load_arch("sg2260")) is MulticoreSpec
    with pytest.raises(ArchValidationError, match=r"type must be gpu here, got multicore \(.*sg2260\.yaml: type\)"):
        load_arch("sg2260", GpuSpec)
    with pytest.raises(ArchValidationError, match="type must be multicore here, got gpu"):
        load_arch("h200-sxm", MulticoreSpec)


def test_a_file_may_build_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "h20.yaml"
    path.write_text("base: h200-sxm\ntitle: fewer SMs\nnum_sms: 78\n", encoding="utf-8")

    gpu = load_arch(path, GpuSpec)

    assert (gpu.name, gpu.num_sms, gpu.published) == ("h20", 78, None)
    assert [finding.field for finding in check_arch(gpu)] == ["published", "num_sms"]


def test_every_field_but_the_plain_ones_is_described() -> None:
    """A field's unit is its suffix; what is neither a unit nor plain words needs a description."""
    plain = re.compile(r"_(ghz|gb_per_s|frac|w|bytes|cycles|sms|ns|us|per_sm|per_thread)$")
    bare = [name for name, field in GpuSpec.model_fields.items() if not field.description and not plain.search(name)]

    assert set(bare) <= {"type", "name", "title", "published"}


def test_numbers_have_units_and_groups_exist() -> None:
    for name in GPUS:
        assert all(unit_of(key) or unit_of(key.split(".")[0]) for key in load_arch(name).provenance)
    assert set(_GPU_GROUPS) <= set(GpuSpec.model_fields)
    assert next(iter(_GPU_GROUPS)) == "type"


NO_PRESET = {"h200-nvl"}  # files of measurements have that name

DRIVER_NAMES = {
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "Tesla T4": "t4",
    "NVIDIA GeForce RTX 3090": "geforce-rtx-3090",
}

MEANT = {
    "A100-80GB": "a100-pcie-80gb or a100-sxm-80gb", "a100-pcie": "a100-pcie-40gb or a100-pcie-80gb",
    "RTX 5090": "rtx-5090", "5090": "rtx-5090", "h100": "h100-nvl or h100-pcie or h100-sxm", "h20": "h20-sxm",
    "tesla-t4": "t4", "rtx pro 6000": "rtx-pro-6000-server", "gb300-nvl72": "gb300",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
}  # fmt: skip


@pytest.mark.parametrize(("name", "slug"), DRIVER_NAMES.items())
def test_a_driver_name_leads_to_its_preset(name: str, slug: str) -> None:
    assert gpu_slug(name) == slug


def test_every_driver_name_leads_to_a_preset() -> None:
    """A preset without one is known by the words of its driver, as `gpu_slug` makes them: it needs no entry here."""
    gpus = {name for name in list_archs() if isinstance(load_arch(name), GpuSpec)}

    assert set(_SLUGS.values()) - NO_PRESET <= gpus


@pytest.mark.parametrize(("name", "presets"), MEANT.items())
def test_a_wrong_name_suggests_the_right_one(name: str, presets: str) -> None:
    with pytest.raises(ArchNotFoundError) as caught:
        load_arch(name)
    assert f"did you mean {presets}?" in str(caught.value)
