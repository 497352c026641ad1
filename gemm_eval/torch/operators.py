"""Operators of torch as work: matrix products, convolutions, attention, and operators of ours."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.torch.convolutions import LOAD_BYTES, convolution_kernels, gradient_kernels
from gemm_eval.torch.eager_mode import bias_of_mask_works, bytes_of, has_channels_last
from gemm_eval.torch.graph import (
    DEALT,
    ConvolutionLayout,
    ConvolutionWork,
    EfficientAttentionWork,
    UnpricedWork,
    Work,
    blocks,
    dealt,
    work_flop,
)
from gemm_eval.transformer import AttentionWork, GemmWork
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import MAX_GROUPS, AttentionProblem, GemmProblem

_MASK_DIMS = (2, 4)
_BALANCED = "rows dealt evenly to the groups"
Works = tuple[Work, ...]
Sizes = tuple[int, int, int, int]


class Precision(NamedTuple):
    """Permission for fp32 to run on tensor cores as tf32: in GEMMs, and in convolutions."""

    matmul_tf32: bool
    convolution_tf32: bool


def type_of(tensor_dtype: Any, is_tf32: bool) -> DType | None:
    """Return the type in which operands of a torch type are multiplied; None: no model has it.

    fp32 without tf32 stays fp32, which tensor cores do not take.
    """
    try:
        result = parse_dtype(tensor_dtype)
    except InvalidProblemError:
        return None
    return DType.TF32 if result is DType.FP32 and is_tf32 else result


# ---- matrix products -----------------------------------------------------------------------------------------------


def _dense_works(sizes: Sizes, operand: Any, out: Any, is_tf32: bool, note: str = "", **types: Any) -> Works:
    """Return a dense GEMM; nothing where a size is 0.

    `sizes` are G, M, K, N; `operand` and `out` are torch's types of operands and result; `types` are what else a
    `GemmProblem` takes.
    """
    G, M, K, N = sizes
    if not math.prod(sizes):
        return ()
    dtype = type_of(operand, is_tf32)
    flop, elements = FLOP_PER_MAC * math.prod(sizes), G * (M * K + K * N + M * N)
    if dtype is None or not dtype.is_operand:
        bits = getattr(operand, "itemsize", 8) * 8
        return (UnpricedWork(f"no model of GEMMs in {operand}", elements * bits // 8, flop),)
    return (GemmWork(GemmProblem(G, M, K, N, dtype, dtype, type_of(out, False), **types), note=note),)


def _mm_sizes(a: Any, b: Any) -> Sizes:
    return 1, a.shape[0], a.shape[1], b.shape[1]


def _bmm_sizes(a: Any, b: Any) -> Sizes:
    G, M, K, N = a.shape[0], a.shape[1], a.shape[2], b.shape[2]
    return (1, G * M, K, N) if G > 1 and b.stride(0) == 0 else (G, M, K, N)  # of one matrix for all, which is read once


_SIZES: Mapping[str, Callable[[Any, Any], Sizes]] = {
    "mm": _mm_sizes, "_int_mm": _mm_sizes, "bmm": _bmm_sizes, "mv": lambda a, _: (1, *a.shape, 1),
    "linear": lambda x, weight: (1, math.prod(x.shape[:-1]), *reversed(weight.shape)),
    **dict.fromkeys(("dot", "vdot"), lambda a, _: (1, 1, a.numel(), 1)),
}  # fmt: skip


def _layout_of(a: Any, b: Any) -> str:
    """Return how operands A[..,M,K] and B[..,K,N] lie in memory, of `gemm_eval.workload.LAYOUTS`."""
    is_b_along_n = b.stride(-1) == 1 and b.shape[-1] > 1 and b.stride(-2) != 1
    is_a_along_m = a.stride(-2) == 1 and a.shape[-2] > 1 and a.stride(-1) != 1
    return f"{'n' if is_b_along_n else 't'}{'t' if is_a_along_m else 'n'}"


_WITH_BIAS = {
    "addmm": "mm", "_addmm_activation": "mm", "baddbmm": "bmm", "addbmm": "bmm", "addmv": "mv",
}  # fmt: skip
"""GEMMs onto their first argument: the kernel adds a vector, and what else there is lies in the result before."""


def _matmul_works(name: str, args: Sequence[Any], out: Any, is_tf32: bool, *, beta: Any = None) -> Works | None:
    """Return an operation that is a GEMM; `matmul` and `einsum` arrive as these. None: it is none.

    `beta` is the factor of what is added to the product; None: 1.
    """
    if name in _WITH_BIAS:
        works = _matmul_works(_WITH_BIAS[name], args[1:], out, is_tf32)
        return _onto(args[0], args[2], out, works) if works and out.dim() > 1 and beta != 0 else works
    if name in _SIZES:
        a, b = args[0], args[1]
        is_laid_out = name in ("mm", "bmm") and a.element_size() > 1
        types = {"layout": _layout_of(a, b)} if is_laid_out else {}
        return _dense_works(_SIZES[name](a, b), a.dtype, out.dtype, is_tf32, **types)
    name = name.removesuffix("_v2")
    if name == "_grouped_mm":
        return _grouped_works(args[0], args[1], args[2:3], out, is_tf32, {})
    if name not in ("_scaled_mm", "_scaled_grouped_mm"):
        return None
    a, b, scale = args[0], args[1], args[2][0] if isinstance(args[2], list | tuple) else args[2]
    packed = 2 if "float4" in str(a.dtype) else 1  # two values in an element
    if name == "_scaled_mm":
        M, K, N = a.shape[0], a.shape[1] * packed, b.shape[1]
        scales = _scales(a, scale, K)
        is_plain = not scales and DType.FP8 is type_of(a.dtype, False)
        is_fast = any(arg is True for arg in args[3:])  # use_fast_accum, the last of them
        how = {"accumulate": "fast" if is_fast else "full"} if is_plain else {}
        return _dense_works((1, M, K, N), a.dtype, out.dtype, is_tf32, **scales, **how)
    offsets = [x for x in args[3:] if getattr(x, "dtype", None) is not None and x.dim() == 1]
    return _grouped_works(a, b, offsets, out, is_tf32, _scales(a, scale, a.shape[-1]))


def _onto(bias: Any, b: Any, out: Any, works: Works) -> Works:
    """Return a GEMM with its bias: cuBLASLt's epilogue adds a vector to columns of more than one, of more than one row.

    Anything else is copied to the result before (Blas.cpp, `addmm_out_cuda_impl`).
    """
    if bias.dim() == 1 and out.dim() == 2 and min(b.shape) > 1:
        return tuple(replace(work, has_bias=True) if isinstance(work, GemmWork) else work for work in works)
    num_bytes = bytes_of(out)
    if bias.numel() == out.numel():
        return dealt(DEALT, num_bytes, num_bytes, num_bytes), *works
    return blocks("torch_offsets", bytes_of(bias), num_bytes, out.numel()), *works


def _scales(a: Any, scale: Any, K: int) -> dict[str, Any]:
    """Block scales of operands, as their shapes and types say; one of a row or a tensor costs nothing."""
    if "e8m0" in str(scale.dtype):
        return {"group_size": 32, "scale_dtype": DType.E8M0}
    if "float4" in str(a.dtype):
        return {"group_size": 16, "scale_dtype": DType.FP8}
    if scale.dim() == 2 and min(scale.shape) > 1 and scale.numel() >= a.numel() // 128 > 0:
        return {"group_size": -(-K // max(1, scale.shape[-1])), "scale_dtype": DType.FP32}
    return {}


def _grouped_works(a: Any, b: Any, offsets: Sequence[Any], out: Any, is_tf32: bool, types: dict[str, Any]) -> Works:
    """Return a grouped GEMM; how many rows a group has is not in a trace, so that they are dealt evenly."""
    num_groups = next((int(each.shape[0]) for each in offsets if each is not None), 0)
    G = b.shape[0] if b.dim() == 3 else a.shape[0] if a.dim() == 3 else num_groups
    M, K, N = a.shape[-2], a.shape[-1], b.shape[-1]
    whole = (a.dtype, out.dtype, is_tf32)
    if (a.dim(), b.dim()) == (3, 3):
        return _dense_works((G, M, K, N), *whole, **types)
    if (a.dim(), b.dim()) == (2, 2):
        return _dense_works((G, M, max(1, K // max(1, G)), N), *whole, _BALANCED, **types)
    if a.dim() == 3:
        M, N = N, M
    dtype = type_of(a.dtype, is_tf32)
    if not G * M * K * N:
        return ()
    least, more = divmod(M, G)
    rows = (least + 1,) * more + (least,) * (G - more)
    if dtype in (None, DType.FP32) or G > MAX_GROUPS:
        return _dense_works((1, M, K, N), *whole, _BALANCED, **types)
    problem = GemmProblem.grouped(
        rows, K, N, input_dtype=dtype, weight_dtype=dtype, output_dtype=type_of(out.dtype, False), **types
    )
    return (GemmWork(problem, note=_BALANCED),)


# ---- convolutions --------------------------------------------------------------------------------------------------

_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution")


def _conv_sizes(x: Any, weight: Any, out_shape: Sequence[int], groups: int, transposed: bool) -> Sizes:
    """Return G, M, K, N of a forward pass; a transposed one goes over its input, and adds up windows of all filters."""
    window, sides = math.prod(weight.shape[2:]), -(weight.dim() - 2)
    batch = x.shape[0] if x.dim() == weight.dim() else 1
    if transposed:
        return groups, batch * math.prod(x.shape[sides:]), weight.shape[0] // groups, weight.shape[1] * window
    return groups, batch * math.prod(out_shape[sides:]), weight.shape[1] * window, weight.shape[0] // groups


def convolution_layout(name: str, args: Sequence[Any]) -> ConvolutionLayout | None:
    """Return the sizes and order in memory of a convolution forward, not transposed; None: it is none."""
    if name not in _CONVOLUTIONS or name == "cudnn_convolution" or bool(args[6]):
        return None
    x, weight, bias = args[:3]
    filters, channels, *window = map(int, weight.shape)
    return ConvolutionLayout(
        filters, channels, math.prod(window), int(args[8]) > 1 and channels > 1, len(window) == 2, bias is not None,
        has_channels_last(x), has_channels_last(weight),
    )  # fmt: skip


def _implicit_works(
    sizes: Sizes, reads: Sequence[Any], write_bytes: int, weight: Any, dtype: Any, is_tf32: bool
) -> Works:
    G, M, K, N = sizes
    works = _dense_works(sizes, dtype, dtype, is_tf32)
    if not works or not isinstance(works[0], GemmWork):
        return works
    window, unit = math.prod(weight.shape[2:]), LOAD_BYTES // dtype.itemsize

    def padded(size: int) -> int:
        """Fill up the channels of a reduction or of columns: of a window of them those of each position."""
        per_window = window if size % window == 0 and window > 1 else 1
        return int(-(-(size // per_window) // unit) * unit * per_window)

    is_depthwise = G > 1 and weight.shape[1] == 1
    runs = None
    if (padded(K), padded(N)) != (K, N) and not is_depthwise:
        (filled,) = _dense_works((G, M, padded(K), padded(N)), dtype, dtype, is_tf32)
        runs = filled.problem if isinstance(filled, GemmWork) else None
    return (ConvolutionWork(works[0].problem, sum(map(bytes_of, reads)), write_bytes, is_depthwise, runs),)


def _convolution_works(name: str, args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Works | None, Works]:
    """Return what a convolution or its gradients are, and what eager mode runs; None: it is neither."""
    if name in _CONVOLUTIONS:
        x, weight, bias, stride, _, dilation, is_transposed, _, groups = args[:9]
        if name == "cudnn_convolution":
            bias, is_transposed, dilation, groups = None, False, args[4], args[5]
        sizes = _conv_sizes(x, weight, out.shape, groups, is_transposed)
        works = _implicit_works(sizes, (x, weight), bytes_of(out), weight, x.dtype, is_tf32)
        if len(works) != 1 or not isinstance(works[0], ConvolutionWork):
            return works, ()
        return convolution_kernels(works[0], x, weight, bias, stride, dilation, is_transposed, groups, out)
    if name != "convolution_backward":
        return None, ()
    grad, x, weight, wanted = args[0], args[1], args[2], args[10]
    G, M, K, N = _conv_sizes(x, weight, grad.shape, int(args[9]), bool(args[7]))
    of_input = _implicit_works((G, M, N, K), (grad, weight), bytes_of(x), weight, x.dtype, is_tf32) * bool(wanted[0])
    of_weight = _implicit_works((G, K, M, N), (grad, x), bytes_of(weight), weight, x.dtype, is_tf32) * bool(wanted[1])
    works = (*of_input, *of_weight)
    if not all(isinstance(work, ConvolutionWork) for work in works):
        return works, ()
    return works, gradient_kernels(
        of_input, of_weight, grad, x, weight, args[4], args[6], bool(args[7]), int(args[9]), has_bias=bool(wanted[2])
    )


# ---- attention -----------------------------------------------------------------------------------------------------

_KERNELS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
)  # fmt: skip
_CAUSAL_TOLERANCE = 1.05  # times the blocks that a causal mask visits, up to which a mask of blocks is taken for one


def attention_work(
    q: Any, k: Any, v: Any, precision: Precision, *,
    mask: Any = None, is_causal: bool = False, is_backward: bool = False, note: str = "",
) -> Works:  # fmt: skip
    """Return attention of q [..., heads, q_len, head_dim] to k and v [..., kv_heads, kv_len, head_dim].

    A causal mask of torch lets query i see keys 0..i, whatever there are more: of fewer queries than keys, the keys
    behind are never read. A mask that is a tensor saves nothing, and is read; one of truth values becomes a bias first.
    fp32 runs the memory-efficient kernel, with tf32 or without.
    """
    batch, heads, q_len, dim = math.prod(q.shape[:-3]), q.shape[-3] if q.dim() > 2 else 1, q.shape[-2], q.shape[-1]
    kv_heads, kv_len, v_dim = k.shape[-3] if k.dim() > 2 else 1, k.shape[-2], v.shape[-1]
    if not batch * heads * q_len * kv_len * dim * v_dim:
        return ()
    if is_causal and q_len < kv_len:
        kv_len = q_len
    if is_causal and q_len > kv_len:
        note, is_causal = "causal with more queries than keys, priced as full", False
    dtype = type_of(q.dtype, precision.matmul_tf32)
    is_truth = mask is not None and mask.element_size() == 1
    mask_bytes = 0 if mask is None else _own_elements(mask) * (q.element_size() if is_truth else mask.element_size())
    num_bytes = sum(map(bytes_of, (q, k, v, q))) + mask_bytes
    # fp32 is no type that a model has, but its sizes and masks are those of any other
    known = dtype if dtype in _HALVES else DType.BF16
    try:
        problem = AttentionProblem(
            batch, q_len, kv_len, heads, kv_heads, dim, known, known, v_dim, is_causal, backward=is_backward
        )
    except InvalidProblemError as error:
        return (UnpricedWork(str(error), num_bytes),)
    is_of_keys = mask is not None and (mask.dim() < 2 or mask.shape[-2] == 1 or mask.stride(-2) == 0)
    work = AttentionWork(problem, mask_bytes, note, is_of_keys)
    if dtype is None:
        return (UnpricedWork(f"no model of attention in {q.dtype}", num_bytes, work_flop(work)[1]),)
    to_bias: Works = ()
    if is_truth and not is_backward:  # truth values are written out as a bias
        to_bias = bias_of_mask_works(mask.numel(), q.element_size())
    if dtype not in _HALVES or _is_refused(mask):
        return *to_bias, EfficientAttentionWork(problem, num_bytes, dtype in _HALVES)
    return *to_bias, work


def _own_elements(tensor: Any) -> int:
    """Return elements of a tensor, dimensions that are expanded counting as one."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def _is_refused(mask: Any) -> bool:
    """Say whether cuDNN and FlashAttention refuse a mask (`check_attn_mask_shape`), so that another kernel takes it."""
    return mask is not None and (mask.requires_grad or mask.dim() not in _MASK_DIMS)


_HALVES = (DType.FP16, DType.BF16)
_MAX_FLASH_HEAD = 256


def is_fused(q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> bool:
    """Say whether torch has a fused kernel for attention on a GPU: cuDNN's, FlashAttention or the memory-efficient one.

    The conditions are those of torch's main branch (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), but that
    the memory-efficient kernel of torch 2.11 takes no heads that share keys, as its profiler shows. Else
    `_scaled_dot_product_attention_math` runs, with scores in fp32.
    """
    dtype, dims = type_of(q.dtype, False), (q.shape[-1], k.shape[-1], v.shape[-1])
    if any(x.dim() != 4 or not x.numel() for x in (q, k, v)) or (mask is not None and mask.stride(-1) != 1):
        return False
    if any(x.shape[-1] != 1 and x.stride(-1) != 1 for x in (q, k, v)):
        return False
    is_half, is_grouped = dtype in _HALVES, q.shape[1] != k.shape[1]
    is_flash = mask is None and len(set(dims)) == 1 and dims[0] <= _MAX_FLASH_HEAD
    is_flash = is_flash and not (is_causal and q.shape[2] != k.shape[2])
    is_cudnn = max(dims) <= _MAX_FLASH_HEAD and not any(dim % 8 for dim in dims) and k.shape[2] > 1
    if is_half and (is_flash or (is_cudnn and not _is_refused(mask))):
        return True
    return (is_half or dtype is DType.FP32) and not is_grouped and not any(dim % (8 if is_half else 4) for dim in dims)


def flex_attention_work(
    q: Any, k: Any, v: Any, block_mask: Any, precision: Precision, *, is_backward: bool = False
) -> Works:
    """Return what flex_attention is: causal, where its mask of blocks visits no more than that; else full.

    `block_mask` is a `BlockMask` as a tuple, whose counts are read where they are there; None: all pairs.
    """
    if block_mask is None:
        return attention_work(q, k, v, precision, is_backward=is_backward)
    counts = [x for x in block_mask[2:6:2] if x is not None]  # blocks that are masked in part, and full ones
    if not counts or any(x.is_meta for x in counts):
        return attention_work(q, k, v, precision, is_backward=is_backward, note="mask unknown, priced as full")
    total = int(counts[0].numel()) * int(block_mask[3].shape[-1])
    visited = sum(int(x.sum()) for x in counts) / max(1, total)
    num = max(1, math.ceil(q.shape[-2] / int(block_mask[-3])))
    is_causal = q.shape[-2] == k.shape[-2] and num > 1 and visited <= _CAUSAL_TOLERANCE * (num + 1) / (2 * num)
    note = f"mask visits {visited:.0%} of blocks, priced as {'causal' if is_causal else 'full'}"
    return attention_work(q, k, v, precision, is_causal=is_causal, is_backward=is_backward, note=note)


def _w4a16_linear(precision: Precision, x: Any, N: int, K: int, mode: Any, group_size: int) -> Works:
    from gemm_eval.kernels import WeightMode

    mode, M = WeightMode(mode), math.prod(x.shape[:-1])
    dtype = type_of(x.dtype, precision.matmul_tf32)
    weight = DType.FP4 if mode.is_fp4 else DType.INT4
    zero = DType.INT4 if mode is WeightMode.GROUP_ZERO else None
    if not M or dtype is None:
        return ()
    return (GemmWork(GemmProblem(1, M, K, N, dtype, weight, dtype, group_size=group_size or None, zero_dtype=zero)),)


def library_works(
    name: str, full_name: str, args: Sequence[Any], bound: Mapping[str, Any], out: Any, precision: Precision
) -> tuple[Works | None, Works]:
    """Return what an operation of a library is for the models, and what eager mode runs; None: it is none.

    `name` and `full_name` are without and with its namespace, `args` and `bound` its arguments by place and by name,
    `out` is its first result.
    """
    works = _matmul_works(name, args, out, precision.matmul_tf32, beta=bound.get("beta"))
    if works is not None:
        return works, ()
    if name.removesuffix("_backward") in _KERNELS:  # called below the surface
        q, k, v = (bound[word] for word in ("query", "key", "value"))
        mask, is_causal = bound.get("attn_bias", bound.get("attn_mask")), bool(bound.get("is_causal", False))
        is_backward = name.endswith("_backward")
        return attention_work(q, k, v, precision, mask=mask, is_causal=is_causal, is_backward=is_backward), ()
    if full_name == "gemm_eval.w4a16_linear":
        names = ("x", "N", "K", "mode", "group_size")
        return _w4a16_linear(precision, *(bound[word] for word in names)), ()
    return _convolution_works(name, args, out, precision.convolution_tf32)
