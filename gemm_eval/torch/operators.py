"""Operators of torch as work: matrix products, convolutions, attention, and operators of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.models.gpu import has_few_channels_on_cuda_cores
from gemm_eval.torch.eager_mode import bias_of_mask_works, bias_work, has_channels_last, layout_work, vector_work
from gemm_eval.torch.graph import DEALT, ROWS, ConvolutionWork, UnpricedWork, VectorGemmWork, Work, dealt, work_flop
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import AttentionProblem, GemmProblem

_BALANCED = "rows dealt evenly to the groups"


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


def dense_work(
    sizes: tuple[int, int, int, int], operand: Any, out: Any, is_tf32: bool, **types: Any
) -> tuple[Work, ...]:
    """Return a dense GEMM as what runs it: tensor cores, or fp32 without them; nothing where a size is 0.

    `sizes` are G, M, K, N; `operand` and `out` are torch's types of operands and result; `types` are what else a
    `GemmProblem` takes.
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
    """Return a GEMM onto its first argument: the kernel adds a vector, a matrix is copied to the result before."""

    def works(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
        result = of(args[1:], out, is_tf32)
        bias = args[0]
        if result and bias.dim() > 1 and bias.numel() == out.numel():
            num_bytes = out.numel() * out.element_size()
            result = (*result, dealt(DEALT, num_bytes, num_bytes, num_bytes))
        return result

    return works


def _mv(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    return dense_work((1, *args[0].shape, 1), args[0].dtype, out.dtype, is_tf32)


def _dot(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    return dense_work((1, 1, args[0].numel(), 1), args[0].dtype, out.dtype, is_tf32)


def _linear(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    x, weight = args[0], args[1]
    N, K = weight.shape
    return dense_work((1, math.prod(x.shape[:-1]), K, N), x.dtype, out.dtype, is_tf32)


def grouped_works(
    a: Any, b: Any, num_groups: int, operand: Any, out: Any, is_tf32: bool, **types: Any
) -> tuple[Work, ...]:
    """Return a grouped GEMM; how many rows a group has is not in a trace, so that they are dealt evenly."""
    G = b.shape[0] if b.dim() == 3 else a.shape[0] if a.dim() == 3 else num_groups
    M, K, N = a.shape[-2], a.shape[-1], b.shape[-1]
    dealt = {(2, 3): "M", (3, 2): "N", (2, 2): "K"}.get((a.dim(), b.dim()))
    if dealt is None:
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


def _grouped_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    num_groups = next((int(offsets.shape[0]) for offsets in args[2:3] if offsets is not None), 0)
    return grouped_works(args[0], args[1], num_groups, args[0].dtype, out.dtype, is_tf32)


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
    a, b, scale = args[0], args[1], _first(args[2])
    packed = 2 if "float4" in str(a.dtype) else 1  # two values in an element
    M, K, N = a.shape[0], a.shape[1] * packed, b.shape[1]
    return dense_work((1, M, K, N), a.dtype, out.dtype, is_tf32, **_scales(a, scale, K))


def _first(scale: Any) -> Any:
    return scale[0] if isinstance(scale, list | tuple) else scale


def _scaled_grouped_mm(args: Sequence[Any], out: Any, is_tf32: bool) -> tuple[Work, ...]:
    a, b, scale = args[0], args[1], _first(args[2])
    num_groups = next((int(x.shape[0]) for x in args[3:] if getattr(x, "dtype", None) is not None and x.dim() == 1), 0)
    return grouped_works(a, b, num_groups, a.dtype, out.dtype, is_tf32, **_scales(a, scale, a.shape[-1]))


MATMULS: Mapping[str, Callable[[Sequence[Any], Any, bool], tuple[Work, ...]]] = {
    "mm": _mm, "addmm": _with_bias(_mm), "_addmm_activation": _with_bias(_mm), "bmm": _bmm, "baddbmm": _with_bias(_bmm),
    "addbmm": _with_bias(_bmm), "mv": _mv, "addmv": _with_bias(_mv), "dot": _dot, "vdot": _dot, "linear": _linear,
    "_int_mm": _mm, "_grouped_mm": _grouped_mm, "_scaled_mm": _scaled_mm, "_scaled_mm_v2": _scaled_mm,
    "_scaled_grouped_mm": _scaled_grouped_mm, "_scaled_grouped_mm_v2": _scaled_grouped_mm,
}  # fmt: skip
"""Operations that are GEMMs, by name; `matmul` and `einsum` arrive as these."""


_LOAD_BYTES = 16  # channels of a position, or filters, are filled up to a multiple: tensor cores are fed so much
_ALIGNED_BYTES = 8  # channels first and a window of one are a GEMM of each image, if its rows start on so many bytes


def _gemm_sizes(x: Any, weight: Any, out_shape: Sequence[int], groups: int, transposed: bool) -> tuple[int, ...]:
    """Return G, M, K, N of a forward pass; a transposed one goes over its input, and adds up windows of all filters."""
    window = math.prod(weight.shape[2:])
    batch = x.shape[0] if x.dim() == weight.dim() else 1
    if transposed:
        positions = batch * math.prod(x.shape[-(weight.dim() - 2) :])
        return groups, positions, weight.shape[0] // groups, weight.shape[1] * window
    positions = batch * math.prod(out_shape[-(weight.dim() - 2) :])
    return groups, positions, weight.shape[1] * window, weight.shape[0] // groups


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _work(
    sizes: tuple[int, ...], reads: Sequence[Any], write_bytes: int, dtype: Any, is_tf32: bool, weight: Any, groups: int
) -> tuple[Work, ...]:
    G, M, K, N = sizes
    works = dense_work((G, M, K, N), dtype, dtype, is_tf32)
    if not works or not isinstance(works[0], GemmWork):
        return works
    window = math.prod(weight.shape[2:])
    unit = _LOAD_BYTES // dtype.itemsize
    padded_K, padded_N = _padded(K, window, unit), _padded(N, window, unit)
    is_depthwise = groups > 1 and weight.shape[1] == 1
    padded = None
    if (padded_K, padded_N) != (K, N) and not is_depthwise:
        result = dense_work((G, M, padded_K, padded_N), dtype, dtype, is_tf32)[0]
        padded = result.problem if isinstance(result, GemmWork) else None
    return (ConvolutionWork(works[0].problem, sum(map(_bytes, reads)), write_bytes, is_depthwise, padded),)


def _padded(size: int, window: int, unit: int) -> int:
    """Return a reduction or a number of columns, whose channels are filled up: of a window of them each position's."""
    per_window = window if size % window == 0 and window > 1 else 1
    channels = size // per_window
    return -(-channels // unit) * unit * per_window


def _convolution_works(
    name: str, args: Sequence[Any], out: Any, precision: Precision
) -> tuple[tuple[Work, ...] | None, tuple[Work, ...]]:
    """Return what a convolution or its gradients are, and what eager mode runs; None: it is neither."""
    is_tf32 = precision.convolution_tf32
    if name in ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"):
        x, weight = args[0], args[1]
        transposed, groups = (False, args[6]) if name == "cudnn_convolution" else (bool(args[6]), int(args[8]))
        bias, stride = (None, args[3]) if name == "cudnn_convolution" else (args[2], args[3])
        sizes = _gemm_sizes(x, weight, out.shape, groups, transposed)
        works = _work(sizes, (x, weight), _bytes(out), x.dtype, is_tf32, weight, groups)
        if len(works) != 1 or not isinstance(works[0], ConvolutionWork):
            return works, ()
        work = works[0]
        is_strided = transposed or any(step != 1 for step in stride)
        if work.is_depthwise or (groups == 1 and (is_strided or weight.shape[2:].numel() > 1)):
            work = replace(work, window=1 if transposed else weight.shape[2:].numel())
        return (work,), _eager(work, x, weight, out, bias, is_tf32)
    if name != "convolution_backward":
        return None, ()
    grad, x, weight = args[0], args[1], args[2]
    transposed, groups, wanted = bool(args[7]), int(args[9]), args[10]
    G, M, K, N = _gemm_sizes(x, weight, grad.shape, groups, transposed)
    result: tuple[Work, ...] = ()
    if wanted[0]:
        result += _work((G, M, N, K), (grad, weight), _bytes(x), x.dtype, is_tf32, weight, groups)
    if wanted[1]:
        result += _work((G, K, M, N), (grad, x), _bytes(weight), x.dtype, is_tf32, weight, groups)
    return result, ()


def _eager(work: ConvolutionWork, x: Any, weight: Any, out: Any, bias: Any, is_tf32: bool) -> tuple[Work, ...]:
    """Return the kernels of eager mode: changes of layout around that of channels side by side, and the bias."""
    channels, filters = int(x.shape[-weight.dim() + 1]), int(out.shape[-weight.dim() + 1])
    images = int(x.shape[0]) if x.dim() == weight.dim() else 1
    in_positions, out_positions = (t.numel() // max(1, images * c) for t, c in ((x, channels), (out, filters)))
    is_first = not (has_channels_last(x) or has_channels_last(weight))
    add_bias = () if bias is None else (bias_work(out.numel(), _bytes(out)),)
    if work.is_depthwise:
        return (replace(work, is_channels_first=True),) if is_first else (work, *add_bias)
    is_few = channels * x.dtype.itemsize < _LOAD_BYTES and work.window > 1
    if is_few and has_few_channels_on_cuda_cores(work.problem.K):
        return work, *add_bias
    is_plain = not work.window and work.problem.G == 1
    if is_first and is_plain and out_positions * x.dtype.itemsize % _ALIGNED_BYTES == 0:
        sizes = images, work.problem.N, work.problem.K, out_positions
        (result,) = dense_work(sizes, x.dtype, x.dtype, is_tf32)
        if isinstance(result, GemmWork):  # filters times the channels of each image, as they lie
            return replace(work, problem=result.problem, padded=None), *add_bias
    filled = _LOAD_BYTES // x.dtype.itemsize if is_few else channels
    if is_first:
        window = weight.shape[2:].numel()
        tensors = (images, channels, in_positions, _bytes(x)), (*map(int, weight.shape[:2]), window, _bytes(weight))
        before = [
            layout_work(count, size, positions, num_bytes, num_bytes * filled // channels)
            for count, size, positions, num_bytes in tensors
            if positions > 1
        ]
        return *before, work, layout_work(images, filters, out_positions, _bytes(out), _bytes(out)), *add_bias
    if is_few:
        filling = [vector_work(_bytes(one), _bytes(one) * filled // channels) for one in (x, weight)]
        return *filling, work, *add_bias
    return work, *add_bias


_KERNELS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
)  # fmt: skip
_CAUSAL_TOLERANCE = 1.05  # times the blocks that a causal mask visits, up to which a mask of blocks is taken for one


def attention_work(
    q: Any, k: Any, v: Any, precision: Precision, *,
    mask: Any = None, is_causal: bool = False, is_backward: bool = False, note: str = "",
) -> tuple[Work, ...]:  # fmt: skip
    """Return attention of q [..., heads, q_len, head_dim] to k and v [..., kv_heads, kv_len, head_dim].

    A causal mask of torch lets query i see keys 0..i, whatever there are more: of fewer queries than keys, the keys
    behind are never read. A mask that is a tensor saves nothing, and is read; one of truth values becomes a bias first.
    Fused kernels read along the last axis: where a head or a mask does not lie so (a mask that was expanded from one
    value), torch does without them.
    """
    batch, heads, q_len, dim = math.prod(q.shape[:-3]), q.shape[-3] if q.dim() > 2 else 1, q.shape[-2], q.shape[-1]
    kv_heads, kv_len, v_dim = k.shape[-3] if k.dim() > 2 else 1, k.shape[-2], v.shape[-1]
    if not batch * heads * q_len * kv_len * dim * v_dim:
        return ()
    if is_causal and q_len < kv_len:
        kv_len = q_len
    if is_causal and q_len > kv_len:
        note, is_causal = "causal with more queries than keys, priced as full", False
    sizes = (batch, q_len, kv_len, heads, kv_heads, dim)
    dtype = type_of(q.dtype, precision.matmul_tf32)
    mask_bytes = 0 if mask is None else mask.numel() * mask.element_size()
    num_bytes = sum(x.numel() * x.element_size() for x in (q, k, v, q)) + mask_bytes
    try:
        # fp32 is no type that a model has without tf32, but its sizes and masks are those of any other
        known = DType.BF16 if dtype in (None, DType.FP32) else dtype
        problem = AttentionProblem(*sizes, known, known, v_dim, causal=is_causal)
    except InvalidProblemError as error:
        return (UnpricedWork(str(error), num_bytes),)
    work = AttentionWork(problem, mask_bytes, is_backward, note)
    flop, full = work_flop(work)
    if dtype is DType.FP32:
        words = str(problem).removesuffix(f" {known}")
        return (VectorGemmWork(f"attention {words} fp32", flop, num_bytes, full),)
    if dtype is None:
        return (UnpricedWork(f"no model of attention in {q.dtype}", num_bytes, full),)
    if not all(x.shape[-1] == 1 or x.stride(-1) == 1 for x in (q, k, v)) or (mask is not None and mask.stride(-1) != 1):
        return _unfused_works(problem, precision, q, v, mask_bytes, is_backward)
    if mask is not None and mask.element_size() == 1 and not is_backward:  # truth values are written out as a bias
        return *bias_of_mask_works(mask.numel(), q.element_size()), work
    return (work,)


def _unfused_works(
    of: AttentionProblem, precision: Precision, q: Any, v: Any, mask_bytes: int, is_backward: bool
) -> tuple[Work, ...]:
    """Return attention without a fused kernel, as torch.compile has it: scores in fp32, in memory."""
    groups, word = of.batch * of.num_heads, 4
    scores = (groups, of.q_len, of.head_dim, of.kv_len)
    values = (groups, of.q_len, of.kv_len, of.value_dim)
    score_bytes = groups * of.q_len * of.kv_len * word
    copies: list[Work] = []
    for rows, dim in ((of.q_len, of.head_dim), (of.kv_len, of.head_dim), (of.kv_len, of.value_dim)):
        elements = groups * rows * dim  # keys of one head are copied for all heads that share them
        copies.append(dealt(DEALT, elements * q.element_size(), elements * word, elements * word))
    product, weighted = (dense_work(sizes, "fp32", "fp32", precision.matmul_tf32) for sizes in (scores, values))
    passes = 2 if is_backward else 1
    softmax = MemoryWork(ROWS, passes * score_bytes + mask_bytes, score_bytes, groups * of.q_len, of.kv_len)
    out_elements = groups * of.q_len * of.value_dim
    out = dealt(DEALT, out_elements * word, out_elements * v.element_size(), out_elements * word)
    return (*copies, *product * passes, softmax, *weighted * passes, out)


def flex_attention_work(
    q: Any, k: Any, v: Any, block_mask: Any, precision: Precision, *, is_backward: bool = False
) -> tuple[Work, ...]:
    """Return what flex_attention is: causal, where its mask of blocks visits no more than that; else full.

    `block_mask` is a `BlockMask` as a tuple, whose counts are read where they are there; None: all pairs.
    """
    if block_mask is None:
        return attention_work(q, k, v, precision, is_backward=is_backward)
    visited = _visited_frac(block_mask)
    if visited is None:
        return attention_work(q, k, v, precision, is_backward=is_backward, note="mask unknown, priced as full")
    num = max(1, math.ceil(q.shape[-2] / int(block_mask[-3])))
    is_causal = q.shape[-2] == k.shape[-2] and num > 1 and visited <= _CAUSAL_TOLERANCE * (num + 1) / (2 * num)
    note = f"mask visits {visited:.0%} of blocks, priced as {'causal' if is_causal else 'full'}"
    return attention_work(q, k, v, precision, is_causal=is_causal, is_backward=is_backward, note=note)


def _visited_frac(block_mask: Any) -> float | None:
    counts = [x for x in block_mask[2:6:2] if x is not None]  # blocks that are masked in part, and full ones
    indices = block_mask[3]
    if not counts or any(x.is_meta for x in counts):
        return None
    total = int(counts[0].numel()) * int(indices.shape[-1])
    return sum(int(x.sum()) for x in counts) / max(1, total)


def _kernel_attention(name: str, bound: Mapping[str, Any], precision: Precision) -> tuple[Work, ...]:
    return attention_work(
        bound["query"], bound["key"], bound["value"], precision, mask=bound.get("attn_bias", bound.get("attn_mask")),
        is_causal=bool(bound.get("is_causal", False)), is_backward=name.endswith("_backward"),
    )  # fmt: skip


def _w4a16_linear(bound: Mapping[str, Any], precision: Precision) -> tuple[Work, ...]:
    from gemm_eval.kernels import WeightMode

    x, N, K = bound["x"], bound["N"], bound["K"]
    mode, group_size = WeightMode(bound["mode"]), bound["group_size"] or None
    M = math.prod(x.shape[:-1])
    if not M:
        return ()
    dtype = type_of(x.dtype, precision.matmul_tf32)
    assert dtype is not None
    weight = DType.FP4 if mode.is_fp4 else DType.INT4
    zero = DType.INT4 if mode is WeightMode.GROUP_ZERO else None
    return (GemmWork(GemmProblem(1, M, K, N, dtype, weight, dtype, group_size=group_size, zero_dtype=zero)),)


def library_works(
    name: str, full_name: str, args: Sequence[Any], bound: Mapping[str, Any], out: Any, precision: Precision
) -> tuple[tuple[Work, ...] | None, tuple[Work, ...]]:
    """Return what an operation of a library is for the models, and what eager mode runs; None: it is none.

    Args:
        name, full_name: without and with its namespace.
        args, bound: its arguments by place and by name.
        out: its first result.
        precision: of fp32.
    """
    if name in MATMULS:
        return MATMULS[name](args, out, precision.matmul_tf32), ()
    if name.removesuffix("_backward") in _KERNELS:  # called below the surface
        return _kernel_attention(name, bound, precision), ()
    if full_name == "gemm_eval.w4a16_linear":
        return _w4a16_linear(bound, precision), ()
    return _convolution_works(name, args, out, precision)
