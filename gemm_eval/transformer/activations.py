"""The activations that are alive at once, at the peak of a pass over a chunk of tokens.

With T tokens, a bytes an element, h the width of the model and all other widths those of one device:

    peak = a T 2h + max(attention, ffn, experts, head)

    residual and the block's input, which live through each block                        2h
    attention   projections (queries, keys, values; of MLA all latents too), heads' outputs, o_proj's output
    ffn         gate and up, the activation, down's output                               (2 + 1) I + h
    experts     of T k rows: gate and up or what is added up, whichever is wider, the activation; the router's logits
                in fp32; the sum                                                         k (max(2 I, h) + I) + ... + h
                where rows are copied before GEMM 1 (`expert_copies`): these, gate and up   k (h + 2 I) if that is more
    head        of the rows that are sampled: logits of this device, of all where there are others, and in fp32

That is what is alive when each operation keeps its inputs until it is done and the allocator gives back what is freed:
PyTorch's caching allocator with the modules of vLLM, without its own workspaces. Kernels keep scores in registers.
"""

from __future__ import annotations

from dataclasses import replace

from gemm_eval.dtypes import DType
from gemm_eval.transformer.attention_shapes import attention_shapes
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.ffn_shapes import ffn_shapes, lm_head_shape
from gemm_eval.transformer.shapes import Operand, Step

__all__ = ["activation_bytes"]

_BITS_PER_BYTE = 8
_FP32_BYTES = 4


def activation_bytes(
    config: ModelConfig, step: Step, kept: DType, num_tokens: int, *, has_head: bool = True, expert_copies: bool = False
) -> int:
    """Return the bytes of activations at the peak of a pass over `num_tokens` tokens, by the formula above."""
    one = replace(step, num_seqs=1, new_tokens=num_tokens, context=num_tokens, absorb_mla=False, expands_cache=False)
    widths = {
        shape.name: shape for shape in (*attention_shapes(config, one), *ffn_shapes(config, one))
        if shape.operand is not Operand.ACTIVATION
    }  # fmt: skip
    hidden = config.hidden_size
    inner = ("qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj")
    phases = [sum(widths[name].N for name in inner if name in widths) + widths["o_proj"].K + hidden]
    for up, down in (("gate_up_proj", "down_proj"), ("up_proj", "down_proj")):
        if up in widths:
            phases.append(widths[up].N + widths[down].K + hidden)
    elems = num_tokens * max(phases)
    num_bytes = kept.bits // _BITS_PER_BYTE
    peak = max(elems * num_bytes, _expert_bytes(config, step, num_tokens, num_bytes, expert_copies=expert_copies))
    if has_head:
        rows = min(step.num_seqs, num_tokens)
        local = lm_head_shape(config, step).N
        of_all = config.vocab_size * num_bytes * (step.tensor_parallel > 1)
        peak = max(peak, rows * (local * num_bytes + of_all + config.vocab_size * _FP32_BYTES))
    return 2 * num_tokens * hidden * num_bytes + peak


def _expert_bytes(config: ModelConfig, step: Step, num_tokens: int, num_bytes: int, *, expert_copies: bool) -> int:
    """Bytes of a layer of experts; beyond the tensor-parallel group, tokens are where their experts are."""
    moe, hidden = config.moe, config.hidden_size
    if moe is None:
        return 0
    rows = num_tokens * moe.experts_per_token
    if step.expert_parallel > step.tensor_parallel:
        rows = -(-rows // step.tensor_parallel)
    width = moe.intermediate_size // max(1, step.tensor_parallel // step.expert_parallel)
    up = (1 + moe.is_gated) * width
    routed = rows * max(max(up, hidden) + width, expert_copies * (hidden + up))
    shared = num_tokens * hidden if moe.num_shared_experts else 0
    logits = num_tokens * moe.num_experts * _FP32_BYTES
    return (routed + shared + num_tokens * hidden) * num_bytes + logits
