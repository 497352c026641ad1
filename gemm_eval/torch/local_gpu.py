"""Which arch the GPU that is here is."""

from __future__ import annotations

from gemm_eval.arch import gpu_slug, list_archs
from gemm_eval.errors import ArchNotFoundError
from gemm_eval.extras import needs_extra

__all__ = ["arch_of_name", "local_arch"]


def local_arch() -> str:
    """Return the preset of the GPU that torch uses.

    Raises:
        ArchNotFoundError: there is none of its name.
    """
    with needs_extra("compare", "torch"):
        import torch
    return arch_of_name(str(torch.cuda.get_device_name()))


def arch_of_name(device_name: str) -> str:
    """Return the preset of a GPU by the name that its driver has for it: ``"NVIDIA H200"``.

    Raises:
        ArchNotFoundError: there is none.
    """
    slug = gpu_slug(device_name)
    if slug in list_archs():
        return slug
    raise ArchNotFoundError(f"no preset is a {device_name} ({slug}): say which arch to predict for")
