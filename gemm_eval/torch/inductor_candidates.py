"""Reads Inductor's own data: the GEMM that it lowers, and what a candidate of a template launches.

Nothing here imports torch: all is read off objects that Inductor hands over. Interfaces as of torch 2.10 to 2.15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gemm_eval.autotune.triton import dtype_of
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.torch.inductor_ranking import KernelTraits
from gemm_eval.workload import GemmProblem

__all__ = ["GROUPED_TEMPLATES", "Operand", "config_of", "gemm_of", "grouped_gemm_of", "traits_of"]

GROUPED_TEMPLATES = ("triton_grouped_mm", "triton_scaled_grouped_mm")
"""Names, less their number, of the candidates that Inductor appends without asking its choices handler."""

_COPY_BYTES = 16
_DEFAULT_GROUP_M = 8  # of Inductor's templates
_TWO_PRODUCTS = "mm_plus_mm"


class Operand(NamedTuple):
    """A matrix, or a batch of them.

    Attributes:
        sizes, strides: in elements, with hints in place of symbols.
        dtype: torch's.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def copy_bytes(self) -> int:
        """The widest piece of a row or column, whichever lies together, that is aligned: 1 to 16."""
        elem_bytes: int = self.dtype.itemsize
        others = [stride for size, stride in zip(self.sizes, self.strides, strict=True) if size > 1 and stride > 1]
        if not any(stride == 1 for stride in self.strides):
            return elem_bytes
        return math.gcd(_COPY_BYTES, *(stride * elem_bytes for stride in others))


def gemm_of(inputs: Any, op_name: str, *, is_tf32: bool) -> tuple[GemmProblem, Operand, Operand]:
    """Return the GEMM of an `MMKernelInputs`, with its operands.

    The two products of an mm_plus_mm are one of twice the K.

    Args:
        inputs: Inductor's.
        op_name: Inductor's name of the operation.
        is_tf32: whether fp32 is multiplied as tf32.

    Raises:
        UnsupportedError: its types are none of ours.
    """
    nodes, sizes, strides = inputs.nodes(), inputs.shapes_hinted(), inputs.strides_hinted()
    a, b = (
        Operand(sizes[i], strides[i], nodes[i].get_dtype())
        for i in (next(i for i, node in enumerate(nodes) if node is one) for one in inputs.mat1mat2())
    )
    M, N, K = inputs.mnk_hinted()
    G = math.prod(a.sizes[:-2])
    K = 2 * K if op_name == _TWO_PRODUCTS else K
    return _problem((G, M, K, N), (a.dtype, b.dtype, inputs.output_layout(flexible=False).dtype), is_tf32), a, b


def grouped_gemm_of(
    choice: Any, hint: Callable[[Sequence[Any]], tuple[int, ...]]
) -> tuple[GemmProblem, Operand, Operand]:
    """Return the GEMM of a candidate of a grouped template, its groups as a batch, for rows that are dealt out evenly.

    Args:
        choice: Inductor's caller of a template's kernel.
        hint: makes integers of sizes.

    Raises:
        UnsupportedError: its types are none of ours.
    """
    a, b = (
        Operand(hint(node.get_size()), hint(node.get_stride()), node.get_dtype()) for node in choice.input_nodes[:2]
    )
    M, K, N = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    if len(a.sizes) == 3 or len(b.sizes) == 3:
        G = a.sizes[0] if len(a.sizes) == 3 else b.sizes[0]
    else:
        G = hint(choice.input_nodes[-1].get_size())[0]  # of the offsets
    if len(a.sizes) == 2 and len(b.sizes) == 3:
        M = math.ceil(M / G)
    elif len(a.sizes) == 3 and len(b.sizes) == 2:
        N = math.ceil(N / G)
    elif len(a.sizes) == 2:
        K = math.ceil(K / G)
    return _problem((G, M, K, N), (a.dtype, b.dtype, choice.layout.dtype), False), a, b


def config_of(values: Mapping[str, Any], band_rows: int | None = None) -> TritonConfig | None:
    """Return what a candidate is launched with; None if it is no tiled kernel.

    Args:
        values: what Inductor makes its kernel of, by name.
        band_rows: rows whose tiles are finished before the next columns'; None: as `values` say.
    """
    if not {"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"} <= values.keys():
        return None
    m, n, k = (int(values[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    group_m = values.get("GROUP_M", _DEFAULT_GROUP_M) if band_rows is None else math.ceil(band_rows / m)
    return TritonConfig(m, n, k, int(values["num_warps"]), int(values["num_stages"]), int(group_m))


def traits_of(values: Mapping[str, Any], a: Operand, b: Operand) -> KernelTraits:
    """Return what else a template's kernels are.

    Args:
        values: what Inductor makes its kernel of, by name, options of the template too.
        a, b: the operands.
    """
    return KernelTraits(
        is_persistent="NUM_SMS" in values,
        is_tma="TMA_SIZE" in values or bool(values.get("USE_TMA_LOAD")) or "WARP_SPECIALIZE" in values,
        a_copy_bytes=a.copy_bytes,
        b_copy_bytes=b.copy_bytes,
    )


def _problem(sizes: tuple[int, int, int, int], torch_dtypes: tuple[Any, Any, Any], is_tf32: bool) -> GemmProblem:
    found = [dtype_of(dtype) for dtype in torch_dtypes]
    if None in found:
        a, b, c = torch_dtypes
        raise UnsupportedError(f"GEMMs of {a} and {b} to {c} are not in the Triton model")
    # `dtype_of` takes all fp32 for what it is usually multiplied as
    types = [DType.FP32 if dtype is DType.TF32 and not is_tf32 else dtype for dtype in found]
    types[2] = DType.FP32 if found[2] is DType.TF32 else found[2]
    return GemmProblem(*sizes, *types)  # type: ignore[arg-type]
