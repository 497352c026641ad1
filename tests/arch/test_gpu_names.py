"""What a GPU is called: driver names lead to presets, and a name that is nearly right to the right one."""

from __future__ import annotations

import pytest

from gemm_eval import ArchNotFoundError, list_archs, load_arch
from gemm_eval.arch import GpuSpec, gpu_slug
from gemm_eval.arch.gpu import _KNOWN

NO_PRESET = {"h200-nvl"}  # files of measurements have that name

DRIVER_NAMES = {
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "Tesla T4": "t4",
    "NVIDIA GeForce RTX 3090": "geforce-rtx-3090",
}

MEANT = {
    "A100-80GB": "a100-pcie-80gb or a100-sxm-80gb",
    "a100-pcie": "a100-pcie-40gb or a100-pcie-80gb",
    "RTX 5090": "rtx-5090",
    "5090": "rtx-5090",
    "h100": "h100-nvl or h100-pcie or h100-sxm",
    "h20": "h20-sxm",
    "tesla-t4": "t4",
    "rtx pro 6000": "rtx-pro-6000-server",
    "gb300-nvl72": "gb300",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
}


@pytest.mark.parametrize(("name", "slug"), DRIVER_NAMES.items())
def test_a_driver_name_leads_to_its_preset(name: str, slug: str) -> None:
    assert gpu_slug(name) == slug


def test_every_driver_name_leads_to_a_preset() -> None:
    """A preset without one is known by the words of its driver, as `gpu_slug` makes them: it needs no entry here."""
    gpus = {name for name in list_archs() if isinstance(load_arch(name), GpuSpec)}

    assert set(_KNOWN.values()) - NO_PRESET <= gpus


@pytest.mark.parametrize(("name", "presets"), MEANT.items())
def test_a_wrong_name_suggests_the_right_one(name: str, presets: str) -> None:
    with pytest.raises(ArchNotFoundError) as caught:
        load_arch(name)
    assert f"did you mean {presets}?" in str(caught.value)
