"""Autocast of CUDA on tensors without memory, for which torch has none: operands of GEMMs are cast before them.

What autocast keeps in fp32 (norms, softmax, losses) stays in the type it has: inputs of these are results of GEMMs
or of other norms, and a cast to fp32 that fuses costs no bytes.
"""

from __future__ import annotations

from typing import Any

from gemm_eval.extras import needs_extra

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.utils._pytree import tree_map_only

__all__ = ["AUTOCAST", "cast_as_autocast"]

_FUNCTIONAL = (
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "bilinear",
)  # fmt: skip
_TORCH = (
    "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "einsum", "chain_matmul", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
)  # fmt: skip
_METHODS = ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm")
AUTOCAST = frozenset(
    [getattr(torch.nn.functional, name) for name in _FUNCTIONAL]
    + [getattr(torch, name) for name in _TORCH]
    + [getattr(torch.Tensor, name) for name in _METHODS]
)
"""Functions that autocast runs in its lower type (https://docs.pytorch.org/docs/stable/amp.html, CUDA Op-Specific
Behavior)."""


def cast_as_autocast(args: Any, kwargs: Any) -> Any:
    """Return arguments with tensors of wider floating types in the type of autocast."""
    lower = torch.get_autocast_dtype("cuda")

    def cast(tensor: Any) -> Any:
        is_cast = tensor.is_floating_point() and tensor.dtype not in (lower, torch.float64)
        return tensor.to(lower) if is_cast else tensor

    return tree_map_only(torch.Tensor, cast, (args, kwargs))
