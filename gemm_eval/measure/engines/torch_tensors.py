"""What engines of PyTorch share: whether it is there, and CuPy's memory as its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.extras import has_package, install_command

__all__ = ["as_tensor", "import_torch", "why_no_torch"]


def import_torch() -> Any:
    """Return the module torch; see `why_no_torch`."""
    import torch

    return torch


def why_no_torch() -> str | None:
    """Say why PyTorch cannot be used, and what to do; None: it can."""
    if not has_package("torch"):
        return f"PyTorch is not installed: {install_command('torch')}"
    try:
        torch = import_torch()
    except (ImportError, OSError) as error:
        return f"PyTorch does not load: {error}"
    return None if torch.cuda.is_available() else "PyTorch finds no GPU: it must be a build for CUDA"


def as_tensor(array: Any, *, is_bf16: bool = False) -> Any:
    """Return CuPy's memory as a tensor of PyTorch, not copied; `is_bf16`: what it holds are the bits of bf16."""
    torch = import_torch()
    if is_bf16:
        return torch.as_tensor(array.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(array, device="cuda")
