"""The operations of attention, from the projections of queries, keys and values to that of the output."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.dtypes import DType
from gemm_eval.transformer.attention_shapes import attention_shapes, local_kv_heads
from gemm_eval.transformer.operation_context import Context
from gemm_eval.transformer.operation_kinds import AttentionOperation, Operation
from gemm_eval.transformer.parts import GroupedAttention, LatentAttention
from gemm_eval.transformer.shapes import Shape
from gemm_eval.workload import AttentionProblem

__all__ = ["attention_inputs", "attention_operations"]


_INPUTS = ("qkv_proj", "q_proj", "q_a_proj", "kv_a_proj")


def attention_inputs(context: Context) -> tuple[Shape, ...]:
    """Return the GEMMs that read the norm before attention."""
    return tuple(shape for shape in attention_shapes(context.config, context.step) if shape.name in _INPUTS)


def attention_operations(context: Context, *, is_quantized: bool = False) -> Iterator[Operation]:
    """Yield the operations of attention in layers of one kind.

    `is_quantized`: the norm before writes its output as narrow as GEMMs read it.
    """
    shapes = {shape.name: shape for shape in attention_shapes(context.config, context.step)}
    attention = context.config.attention
    if isinstance(attention, GroupedAttention):
        yield from _grouped(context, attention, shapes, is_quantized)
    else:
        yield from _latent(context, attention, shapes, is_quantized)
    yield from context.gemms(shapes["o_proj"], is_quantized=_has_static_scale(context, shapes["o_proj"]))


def _has_static_scale(context: Context, output: Shape) -> bool:
    """Say whether what attention computes is written in fp8, by one scale that is known before.

    Scales of blocks and of tokens need values of several heads, so that they take a kernel of their own.
    """
    operand = context.narrow_input(output)
    return operand is not None and operand.dtype is DType.FP8 and operand.scale is None


def _grouped(
    context: Context, attention: GroupedAttention, shapes: dict[str, Shape], is_quantized: bool
) -> Iterator[Operation]:
    step, size = context.step, attention.head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")
    kv_heads = local_kv_heads(attention.num_kv_heads, step)
    qkv = shapes["qkv_proj"]
    if context.fusions.qkv:
        yield from context.gemms(qkv, is_quantized=is_quantized)
    else:
        for name, num in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            yield from context.gemms(qkv._replace(N=num * size), name, is_quantized=is_quantized)
    turned = (heads + kv_heads) * size
    is_normed = attention.qk_norm or (attention.qk_l2_norm and context.has_rope)
    if is_normed:
        yield context.memory("qk_norm", "qk_norm", turned)
    turning = (size if attention.rotary_dim is None else attention.rotary_dim) * context.has_rope
    yield from _positions(context, queries=heads * turning, keys=kv_heads * turning, cached=2 * kv_heads * size)
    window = attention.window_size
    for batch, q_len, kv_len in _pieces(context, window if attention.window_is_chunk else None):
        problem = AttentionProblem(
            batch, q_len, kv_len, heads, kv_heads, size, context.types.kept, context.kv_dtype,
            window=None if attention.window_is_chunk else window, has_sinks=attention.sinks,
        )  # fmt: skip
        yield AttentionOperation("attention", context.layer_kind, context.num_layers, problem)


def _pieces(context: Context, chunk: int | None) -> Iterator[tuple[int, int, int]]:
    """(batch, queries, keys) of each call: one, or those of the first, the whole and the last chunk it reaches into."""
    step = context.step
    if chunk is None:
        yield step.num_seqs, step.new_tokens, step.context
        return
    begun = (step.context - step.new_tokens) % chunk
    first = min(step.new_tokens, chunk - begun) if begun else 0
    if first:
        yield step.num_seqs, first, begun + first
    num_whole, last = divmod(step.new_tokens - first, chunk)
    if num_whole:
        yield step.num_seqs * num_whole, chunk, chunk
    if last:
        yield step.num_seqs, last, last


def _positions(context: Context, *, queries: int, keys: int, cached: int) -> Iterator[Operation]:
    """Yield what turns queries and keys and writes the cache. Sizes are elements of a token.

    Turned queries are written where they were; keys are read once and written to the cache, turned.
    """
    narrowed = context.kv_dtype.bits / context.types.kept.bits
    if context.fusions.rotary_kv_write or not queries:
        what = "rotary_kv_write" if queries else "kv_write"
        width = queries + cached
        yield context.memory(what, what, width, writes=(queries + cached * narrowed) / width)
        return
    yield context.memory("rotary", "rotary", queries + keys)
    yield context.memory("kv_write", "kv_write", cached, writes=narrowed)


def _latent(
    context: Context, attention: LatentAttention, shapes: dict[str, Shape], is_quantized: bool
) -> Iterator[Operation]:
    step, latent, rope = context.step, attention.kv_lora_rank, attention.qk_rope_head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")
    rank = attention.q_lora_rank
    if rank is None:
        yield from context.gemms(shapes["q_proj"], is_quantized=is_quantized)
        yield from context.gemms(shapes["kv_a_proj"], is_quantized=is_quantized)
    else:
        q_a, kv_a = shapes["q_a_proj"], shapes["kv_a_proj"]
        if context.fusions.qkv and context.types.of(q_a) == context.types.of(kv_a):
            yield from context.gemms(q_a._replace(N=q_a.N + kv_a.N), "qkv_a_proj", is_quantized=is_quantized)
        else:
            yield from context.gemms(q_a, is_quantized=is_quantized)
            yield from context.gemms(kv_a, is_quantized=is_quantized)
        operand = context.narrow_input(shapes["q_b_proj"])
        yield context.memory("q_a_norm", "rms_norm", rank, writes=context.written(operand, step.tokens, rank))
        yield from context.gemms(shapes["q_b_proj"], is_quantized=operand is not None)
    yield context.memory("kv_a_norm", "rms_norm", latent)
    cached = latent + rope
    yield from _positions(context, queries=heads * rope, keys=rope, cached=cached)
    if step.absorb_mla:
        yield from context.gemms(shapes["q_absorb"])
        key, value, kv_heads = cached, latent, 1
    else:
        expanded = shapes["kv_b_proj"]
        yield from context.gemms(expanded)
        key, value, kv_heads = attention.qk_nope_head_dim + rope, attention.v_head_dim, heads
        # the part with positions, which all heads share, is copied beside each head's own
        yield context.memory("keys_concat", "concat", heads * key, rows=expanded.M)
    problem = AttentionProblem(
        step.num_seqs, step.new_tokens, step.context, heads, kv_heads, key, context.types.kept,
        context.kv_dtype if step.absorb_mla else context.types.kept, value, is_latent=step.absorb_mla,
    )  # fmt: skip
    yield AttentionOperation("attention", context.layer_kind, context.num_layers, problem)
    if step.absorb_mla:
        yield from context.gemms(shapes["v_absorb"])
