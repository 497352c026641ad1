"""Which GEMMs with 4-bit weights our kernels are timed on: layers of real models, and every regime of M."""

from __future__ import annotations

from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels._family import WeightMode
from gemm_eval.measure._shapes import GemmShape

__all__ = ["KERNEL_SETS", "QuantShape", "list_quant_shapes"]

_NK = (
    # Llama 3 8B: o, qkv, gate_up, down; Llama 2 7B: qkv
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (12288, 4096),
    # Llama 3 70B: qkv, o, gate or up, down, and qkv on one of eight GPUs
    (10240, 8192), (8192, 8192), (28672, 8192), (8192, 28672), (1280, 8192),
    # Qwen3 4B: q and k; Qwen2 7B: gate_up
    (5120, 2560), (37888, 3584),
)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_SPREAD_STEP = 4  # every fourth value of M of a pair, others for its neighbours

_CHECK_NK, _CHECK_ROWS = ((4096, 4096), (12288, 4096), (28672, 8192), (8192, 28672)), (1, 16, 64, 256, 1024, 4096)

_MODES_NK, _MODES_ROWS = ((4096, 4096), (28672, 8192)), (1, 16, 64, 256, 2048)
_MODES = (
    (WeightMode.GROUP, 32), (WeightMode.GROUP, 64), (WeightMode.COLUMN, 0), (WeightMode.GROUP_ZERO, 128),
)  # fmt: skip
_USUAL = (WeightMode.GROUP, 128)


class QuantShape(NamedTuple):
    """One GEMM with 4-bit weights; G is 1, and `group_size` 0 in mode COLUMN."""

    G: int
    M: int
    K: int
    N: int
    mode: WeightMode
    group_size: int

    @property
    def shape(self) -> GemmShape:
        """Its sizes."""
        return GemmShape(*self[:4])


KERNEL_SETS = ("w4a16", "w4a16-spread", "w4a16-check", "w4a16-modes", "w4a16-smoke")
"""Names that `list_quant_shapes` knows."""


def list_quant_shapes(shape_set: str) -> list[QuantShape]:
    """Return the GEMMs of a set.

    Args:
        shape_set: ``w4a16`` (12 pairs of N and K, 14 values of M), ``w4a16-spread`` (a quarter of them: few enough to
            time all kernels on each), ``w4a16-check`` (the GEMMs that other engines are timed on), ``w4a16-modes``
            (groups of 32 and 64, one scale a column, zero points) or ``w4a16-smoke``. All but the modes have a scale
            for each group of 128 weights.

    Raises:
        InvalidOptionError: no set of that name.
    """
    if shape_set not in KERNEL_SETS:
        raise InvalidOptionError(f"--set must be one of {', '.join(KERNEL_SETS)} for our kernels, got {shape_set!r}")
    if shape_set == "w4a16-smoke":
        return [QuantShape(1, m, 4096, 4096, *_USUAL) for m in (1, 64)]
    if shape_set == "w4a16-check":
        return [QuantShape(1, m, k, n, *_USUAL) for n, k in _CHECK_NK for m in _CHECK_ROWS]
    if shape_set == "w4a16-modes":
        return [QuantShape(1, m, k, n, *mode) for n, k in _MODES_NK for m in _MODES_ROWS for mode in _MODES]
    step = _SPREAD_STEP if shape_set == "w4a16-spread" else 1
    return [
        QuantShape(1, m, k, n, *_USUAL)
        for pair, (n, k) in enumerate(_NK)
        for place, m in enumerate(_ROWS)
        if (pair + place) % step == 0
    ]
