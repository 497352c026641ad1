"""Attention of torch as `AttentionProblem`: scaled_dot_product_attention, flex_attention, and the kernels behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.torch.eager_mode import bias_of_mask_works
from gemm_eval.torch.matmuls import Precision, dense_work, type_of
from gemm_eval.torch.work import DEALT, ROWS, UnpricedWork, VectorGemmWork, Work, dealt, work_flop
from gemm_eval.transformer import AttentionWork, MemoryWork
from gemm_eval.workload import AttentionProblem

__all__ = ["attention_work", "flex_attention_work", "kernel_attention_works"]

_KERNELS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
)  # fmt: skip
_CAUSAL_TOLERANCE = 1.05
"""A mask of blocks that visits at most so many times the blocks of a causal one is taken for causal."""


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
    if not all(_lies_along_last_axis(x) for x in (q, k, v)) or (mask is not None and mask.stride(-1) != 1):
        return _unfused_works(problem, precision, q, v, mask_bytes, is_backward)
    if mask is not None and mask.element_size() == 1 and not is_backward:  # truth values are written out as a bias
        return *bias_of_mask_works(mask.numel(), q.element_size()), work
    return (work,)


def _lies_along_last_axis(tensor: Any) -> bool:
    return bool(tensor.shape[-1] == 1 or tensor.stride(-1) == 1)


def _unfused_works(
    of: AttentionProblem, precision: Precision, q: Any, v: Any, mask_bytes: int, is_backward: bool
) -> tuple[Work, ...]:
    """Return attention as torch has it where no fused kernel fits: scores in fp32, in memory.

    These are the kernels that torch.compile makes of it; eager mode scales Q and K and adds the mask in passes of their
    own.
    """
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

    Args:
        q, k, v: as of `attention_work`.
        block_mask: a `BlockMask` as a tuple; its counts are read where they are there. None: all pairs.
        precision: of fp32.
        is_backward: gradients.
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
    """Share of blocks of scores that are computed; None: their counts are not known in a trace."""
    counts = [x for x in block_mask[2:6:2] if x is not None]  # blocks that are masked in part, and full ones
    indices = block_mask[3]
    if not counts or any(x.is_meta for x in counts):
        return None
    total = int(counts[0].numel()) * int(indices.shape[-1])
    return sum(int(x.sum()) for x in counts) / max(1, total)


def kernel_attention_works(name: str, bound: Mapping[str, Any], precision: Precision) -> tuple[Work, ...] | None:
    """Return what one of torch's own kernels is, where it was called below the surface; None: it is none."""
    is_backward = name.endswith("_backward")
    if name.removesuffix("_backward") not in _KERNELS:
        return None
    q, k, v = bound["query"], bound["key"], bound["value"]
    mask = bound.get("attn_bias", bound.get("attn_mask"))
    is_causal = bool(bound.get("is_causal", False))
    return attention_work(q, k, v, precision, mask=mask, is_causal=is_causal, is_backward=is_backward)
