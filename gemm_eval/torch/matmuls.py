"""Matrix operations of torch as the problems that the models take: sizes from shapes, data types from tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.torch.work import DEALT, UnpricedWork, VectorGemmWork, Work, dealt
from gemm_eval.transformer import GemmWork
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import GemmProblem

__all__ = ["MATMULS", "Precision", "balanced_rows", "dense_work", "matmul_works", "type_of"]

_BALANCED = "rows dealt evenly to the groups"


class Precision(NamedTuple):
    """Whether fp32 may run on tensor cores as tf32: in GEMMs, and in convolutions."""

    matmul_tf32: bool
    convolution_tf32: bool


def type_of(tensor_dtype: Any, is_tf32: bool) -> DType | None:
    """Return the type in which operands of a torch type are multiplied; None: no model has it.

    fp32 without tf32 stays fp32, which tensor cores do not take.
    """
    try:
        found = parse_dtype(tensor_dtype)
    except InvalidProblemError:
        return None
    return DType.TF32 if found is DType.FP32 and is_tf32 else found


def dense_work(
    sizes: tuple[int, int, int, int], operand: Any, out: Any, is_tf32: bool, **types: Any
) -> tuple[Work, ...]:
    """Return a dense GEMM of G, M, K, N as what runs it: tensor cores, or fp32 without them.

    Args:
        sizes: G, M, K, N; nothing is left of it where one is 0.
        operand, out: torch's types of operands and result.
        is_tf32: fp32 may run as tf32.
        types: what else a `GemmProblem` takes.
    """
    G, M, K, N = sizes
    macs = G * M * K * N
    if not macs:
        return ()
    dtype = type_of(operand, is_tf32)
    flop = FLOP_PER_MAC * macs
    if dtype is DType.FP32:
        num_bytes = 4 * G * (M * K + K * N + M * N)
        return (VectorGemmWork(f"G={G} M={M} K={K} N={N} fp32", flop, num_bytes, flop),)
    if dtype is None or not dtype.is_operand:
        bits = getattr(operand, "itemsize", 8) * 8
        return (UnpricedWork(f"no model of GEMMs in {operand}", G * (M * K + K * N + M * N) * bits // 8, flop),)
    output = type_of(out, False)
    return (GemmWork(GemmProblem(G, M, K, N, dtype, dtype, output, **types)),)


def balanced_rows(rows: int, num_groups: int) -> tuple[int, ...]:
    """Deal rows to groups as evenly as they can be."""
    least, more = divmod(rows, num_groups)
    return (least + 1,) * more + (least,) * (num_groups - more)


def _mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b = args[0], args[1]
    return dense_work((1, a.shape[0], a.shape[1], b.shape[1]), a.dtype, out.dtype, is_tf32)


def _bmm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b = args[0], args[1]
    G, M = a.shape[0], a.shape[1]
    if G > 1 and b.stride(0) == 0:  # one matrix for the whole batch, which is read once
        G, M = 1, G * M
    return dense_work((G, M, a.shape[2], b.shape[2]), a.dtype, out.dtype, is_tf32)


def _with_bias(of: Callable[..., tuple[Work, ...]]) -> Callable[..., tuple[Work, ...]]:
    """A GEMM onto its first argument: a vector is added by the kernel, a matrix is copied to the result before."""

    def works(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
        found = of(args[1:], out, is_tf32)
        bias = args[0]
        if found and bias.dim() > 1 and bias.numel() == out.numel():
            num_bytes = out.numel() * out.element_size()
            found = (*found, dealt(DEALT, num_bytes, num_bytes, num_bytes))
        return found

    return works


def _mv(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a = args[0]
    return dense_work((1, a.shape[0], a.shape[1], 1), a.dtype, out.dtype, is_tf32)


def _dot(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    return dense_work((1, 1, args[0].numel(), 1), args[0].dtype, out.dtype, is_tf32)


def _linear(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    x, weight = args[0], args[1]
    N, K = weight.shape
    return dense_work((1, math.prod(x.shape[:-1]), K, N), x.dtype, out.dtype, is_tf32)


def _int_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    return _mm(args, out, is_tf32)


def _grouped_sizes(a: Any, b: Any) -> tuple[int, int, int, int, str]:
    """Groups, rows in all (or of each), K, N, and which dimension is dealt to groups."""
    if a.dim() == 2 and b.dim() == 3:  # rows of A
        return b.shape[0], a.shape[0], a.shape[1], b.shape[2], "M"
    if a.dim() == 3 and b.dim() == 2:  # columns of B
        return a.shape[0], a.shape[1], a.shape[2], b.shape[1], "N"
    if a.dim() == 2:  # the reduction
        return 0, a.shape[0], a.shape[1], b.shape[1], "K"
    return a.shape[0], a.shape[1], a.shape[2], b.shape[2], ""


def grouped_works(
    a: Any, b: Any, num_groups: int, operand: Any, out: Any, is_tf32: bool, **types: Any
) -> tuple[Work, ...]:
    """Return a grouped GEMM; how many rows a group has is not in a trace, so that they are dealt evenly."""
    G, M, K, N, dealt = _grouped_sizes(a, b)
    G = G or num_groups
    if not dealt:
        return dense_work((G, M, K, N), operand, out, is_tf32, **types)
    if dealt == "K":
        per_group = max(1, K // max(1, G))
        return _noted(dense_work((G, M, per_group, N), operand, out, is_tf32, **types))
    if dealt == "N":
        M, N = N, M
    dtype = type_of(operand, is_tf32)
    if not G * M * K * N:
        return ()
    if dtype in (None, DType.FP32) or len(balanced_rows(M, G)) > 1024:
        return _noted(dense_work((1, M, K, N), operand, out, is_tf32, **types))
    problem = GemmProblem.grouped(
        balanced_rows(M, G), K, N, input_dtype=dtype, weight_dtype=dtype, output_dtype=type_of(out, False), **types
    )
    return (GemmWork(problem, note=_BALANCED),)


def _noted(works: tuple[Work, ...]) -> tuple[Work, ...]:
    return tuple(GemmWork(work.problem, note=_BALANCED) if isinstance(work, GemmWork) else work for work in works)


def _offsets(args: Sequence[Any], at: int) -> int:
    offs = args[at] if len(args) > at else None
    return 0 if offs is None else int(offs.shape[0])


def _grouped_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b = args[0], args[1]
    return grouped_works(a, b, _offsets(args, 2), a.dtype, out.dtype, is_tf32)


def _scales(a: Any, scale: Any, K: int) -> dict[str, Any]:
    """Block scales of operands, as their shapes and types say; one of a row or a tensor costs nothing."""
    name = str(scale.dtype)
    dtype = str(a.dtype)
    if "e8m0" in name:
        return {"group_size": 32, "scale_dtype": DType.E8M0}
    if "float4" in dtype:
        return {"group_size": 16, "scale_dtype": DType.FP8}
    if scale.dim() == 2 and min(scale.shape) > 1 and scale.numel() >= a.numel() // 128 > 0:
        return {"group_size": -(-K // max(1, scale.shape[-1])), "scale_dtype": DType.FP32}
    return {}


def _scaled_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b, scale = args[0], args[1], args[2]
    packed = 2 if "float4" in str(a.dtype) else 1  # two values in an element
    M, K, N = a.shape[0], a.shape[1] * packed, b.shape[1]
    return dense_work((1, M, K, N), a.dtype, out.dtype, is_tf32, **_scales(a, _first(scale), K))


def _first(scale: Any) -> Any:
    return scale[0] if isinstance(scale, list | tuple) else scale


def _scaled_grouped_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b, scale = args[0], args[1], _first(args[2])
    num_groups = next((int(x.shape[0]) for x in args[3:] if getattr(x, "dtype", None) is not None and x.dim() == 1), 0)
    return grouped_works(a, b, num_groups, a.dtype, out.dtype, is_tf32, **_scales(a, scale, a.shape[-1]))


MATMULS: Mapping[str, Callable[[Sequence[Any], Any, bool], tuple[Work, ...]]] = {
    "mm": _mm,
    "addmm": _with_bias(_mm),
    "_addmm_activation": _with_bias(_mm),
    "bmm": _bmm,
    "baddbmm": _with_bias(_bmm),
    "addbmm": _with_bias(_bmm),
    "mv": _mv,
    "addmv": _with_bias(_mv),
    "dot": _dot,
    "vdot": _dot,
    "linear": _linear,
    "_int_mm": _int_mm,
    "_grouped_mm": _grouped_mm,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm,
    "_scaled_grouped_mm": _scaled_grouped_mm,
    "_scaled_grouped_mm_v2": _scaled_grouped_mm,
}
"""Operations that are GEMMs, by name; `matmul` and `einsum` arrive as these."""


def matmul_works(name: str, args: Sequence[Any], out: Any, precision: Precision) -> tuple[Work, ...] | None:
    """Return what a matrix operation is for the models; None: it is none."""
    known = MATMULS.get(name)
    return None if known is None else known(args, out, precision.matmul_tf32)
