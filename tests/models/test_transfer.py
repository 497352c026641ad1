"""The rule of transfer: whose coefficients a GPU takes, for every GPU preset and every kind of calibration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval.arch import GpuSpec, data_root, list_archs, load_arch
from gemm_eval.models.gpu import coefficients_for
from gemm_eval.models.gpu.attention import ATTENTION_LIBRARIES, attention_coefficients
from gemm_eval.models.gpu.calibration import Origin, chip_of, nearest_first
from gemm_eval.models.gpu.collective import collective_coefficients
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.memory_bound import memory_bound_coefficients
from gemm_eval.models.gpu.triton import triton_coefficients

GPUS = [name for name in list_archs() if isinstance(load_arch(name), GpuSpec)]
CALIBRATIONS = data_root() / "calibration"
SIBLINGS = {"sm_103": "sm_100"}
"""Generations without a timed GPU, and the one whose kernels they run."""


def sm_arch(gpu: str) -> str:
    return load_arch(gpu, GpuSpec).sm_arch


def check(arch: GpuSpec, kind: str, origin: Origin, fitted: set[str]) -> None:
    """Defaults only where nothing is fitted, and a GPU of the own or of the sibling generation where one is fitted."""
    assert (origin.gpu is not None) == bool(fitted), (arch.name, kind, origin)
    for generation in (arch.sm_arch, SIBLINGS.get(arch.sm_arch)):
        near = {gpu for gpu in fitted if sm_arch(gpu) == generation}
        if arch.name in fitted or near:
            assert origin.gpu in ({arch.name} if arch.name in fitted else near), (arch.name, kind, origin)
            return


@pytest.mark.parametrize("name", GPUS)
def test_no_kind_falls_to_defaults_where_a_sibling_is_calibrated(name: str) -> None:
    arch = load_arch(name, GpuSpec)

    def fitted(pattern: str) -> set[str]:
        return {path.parent.name for path in CALIBRATIONS.glob(f"*/{pattern}")}

    for library in ATTENTION_LIBRARIES:
        for family, origin in attention_coefficients(arch, library).origins.items():
            holders = {gpu for gpu in fitted(f"attention-{library}.yaml") if f"  {family}:  #" in text(gpu, library)}
            check(arch, f"attention {family}", origin, holders)
    check(arch, "memory-bound", memory_bound_coefficients(arch)[1], fitted("memory-bound.yaml"))
    check(arch, "triton", triton_coefficients(arch)[1], fitted("triton.yaml"))
    assert collective_coefficients(arch)[1].gpu is not None
    for path in {path.name: path for path in CALIBRATIONS.glob("*/*-*.yaml")}.values():
        library, _, family = path.stem.rpartition("-")
        if family in FAMILIES and arch.sm_arch in FAMILIES[family].sm_archs:
            check(arch, path.stem, coefficients_for(arch, library, family)[1], fitted(path.name))


def text(gpu: str, library: str) -> str:
    return (CALIBRATIONS / gpu / f"attention-{library}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gpu", "preferred", "expected"),
    [
        ("l40s", (), ["l40s", "a100-sxm-80gb", "rtx-5090", "h200-sxm", "b200"]),  # its own before all others
        ("rtx-4090", (), ["l40s", "a100-sxm-80gb", "rtx-5090", "h200-sxm", "b200"]),
        ("rtx-4090", ("sm_90", "sm_80"), ["l40s", "h200-sxm", "a100-sxm-80gb", "rtx-5090", "b200"]),
        ("b300", (), ["b200", "h200-sxm", "rtx-5090", "l40s", "a100-sxm-80gb"]),
    ],
)
def test_the_order_of_transfer(tmp_path: Path, gpu: str, preferred: tuple[str, ...], expected: list[str]) -> None:
    for name in ("a100-sxm-80gb", "b200", "h200-sxm", "l40s", "rtx-5090"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").touch()
    paths = nearest_first(tmp_path, chip_of(load_arch(gpu, GpuSpec)), "x.yaml", preferred)
    assert [path.parent.name for path in paths] == expected


@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "rtx-pro-6000-server", "rtx-5090"])
@pytest.mark.parametrize(("library", "family"), [("triton", "triton_moe"), ("marlin", "marlin_moe")])
def test_layers_of_experts_on_ada_and_rtx_blackwell_are_as_an_h200s(gpu: str, library: str, family: str) -> None:
    assert coefficients_for(load_arch(gpu, GpuSpec), library, family)[1].gpu == "h200-sxm"
