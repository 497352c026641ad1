"""Memory that a model takes on a device: weights, KV cache and activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gemm_eval.checks import as_integer, check_flag
from gemm_eval.dtypes import DType, DtypeScheme, parse_dtype
from gemm_eval.transformer.config import ModelConfig, stage_config, stage_layers
from gemm_eval.transformer.gemms import make_step
from gemm_eval.transformer.parameters import MTP_NORMS, num_bias_elems, num_norm_elems
from gemm_eval.transformer.parts import GroupedAttention
from gemm_eval.transformer.shapes import EXPECTED, Operand, Shape, Step, layer_shapes, lm_head_shape, local_kv_heads
from gemm_eval.transformer.types import WeightTypes, weight_types
from gemm_eval.workload import MAX_DIM

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some weights of one type on one device, in all of its layers.

    Attributes:
        name: the GEMM they are of, ``"embedding"``, ``"positions"``, ``"norms"`` or ``"biases"``; those of layers that
            predict further tokens begin with ``mtp_``.
        types: type of an element, and how it is scaled.
        num_elems: elements without scales.
        num_bytes: with all that is stored beside them.
    """

    name: str
    types: str
    num_elems: int
    num_bytes: int


def local_weights(
    config: ModelConfig, step: Step, types: WeightTypes, *, has_embedding: bool = True, has_head: bool = True
) -> tuple[WeightPart, ...]:
    """Return the weights of one device of a tensor-parallel group that has all layers of `config`.

    The vocabulary and what belongs to heads and intermediate channels is divided; norms, routers, latent projections
    and biases on hidden channels are on every device.
    """
    head = lm_head_shape(config, step)
    result = [*_matrices(layer_shapes(config, step), types)]
    if has_embedding or (has_head and config.tied_embeddings):
        result.insert(0, _kept("embedding", head.N * config.hidden_size, types.kept))
    if has_embedding and config.num_positions:
        result.append(_kept("positions", config.num_positions * config.hidden_size, types.kept))
    result.append(_kept("norms", num_norm_elems(config, has_head=has_head), types.kept))
    biases = num_bias_elems(config, step) + has_head * config.lm_head_bias * head.N
    if biases:
        result.append(_kept("biases", biases, types.kept))
    if has_head and not config.tied_embeddings:
        result += _matrices((head,), types)
    return tuple(result)


def mtp_weights(
    config: ModelConfig, step: Step, dtype: str | DtypeScheme | None, dense_dtype: str | None
) -> tuple[WeightPart, ...]:
    """Return the weights of the layers that predict further tokens: each a last layer, a projection and three norms.

    Embedding and head are the model's own.
    """
    last = stage_config(config, range(config.num_layers - 1, config.num_layers))
    types = weight_types(last, dtype, dense_dtype)
    hidden = config.hidden_size
    one = [
        *local_weights(last, step, types, has_embedding=False, has_head=False),
        _kept("eh_proj", 2 * hidden * hidden, types.kept),
        _kept("norms", MTP_NORMS * hidden, types.kept),
    ]
    num = config.num_mtp_layers
    return tuple(WeightPart(f"mtp_{p.name}", p.types, num * p.num_elems, num * p.num_bytes) for p in one if num)


def _kept(name: str, num_elems: int, dtype: DType) -> WeightPart:
    return WeightPart(name, str(dtype), num_elems, num_elems * dtype.bits // _BITS_PER_BYTE)


def _matrices(shapes: Iterable[Shape], types: WeightTypes) -> Iterator[WeightPart]:
    for shape in shapes:
        if shape.operand is Operand.ACTIVATION:
            continue
        for stored in types.of(shape):
            num = (shape.num_held or shape.G) * stored.num_layers
            num_bytes = -(-stored.stored_bits(shape.N, shape.K, types.kept) // _BITS_PER_BYTE)
            yield WeightPart(shape.name, str(stored.types.b), num * shape.K * shape.N, num * num_bytes)


def kv_token_bytes(config: ModelConfig, step: Step, dtype: DType) -> int:
    """Return the bytes of one position in one layer: keys and values of a device's heads, or one latent.

    KV heads are replicated beyond one a device, latents always.
    """
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        elems = 2 * local_kv_heads(attention.num_kv_heads, step) * attention.head_dim
    else:
        elems = attention.kv_lora_rank + attention.qk_rope_head_dim
    return elems * dtype.bits // _BITS_PER_BYTE


def kv_cache_bytes(config: ModelConfig, step: Step, dtype: DType, block_size: int = 1) -> int:
    """Return the bytes of the cache of all sequences of a step, each of `step.context` positions.

    A window layer holds the last `window_size` positions. With blocks of `block_size` positions (paged attention), each
    sequence holds whole blocks, and a window one more than it fills, as it begins anywhere in one.
    """
    context = -(-step.context // block_size) * block_size
    window = config.attention.window_size if isinstance(config.attention, GroupedAttention) else None
    in_window = context
    if window is not None:
        in_window = min(context, (-(-(window - 1) // block_size) + 1) * block_size)
    positions = context * (config.num_layers - config.num_window_layers) + in_window * config.num_window_layers
    return step.num_seqs * positions * kv_token_bytes(config, step, dtype)


_FP32_BYTES = 4


def activation_bytes(
    config: ModelConfig, step: Step, kept: DType, num_tokens: int, *, has_head: bool = True, expert_copies: bool = False
) -> int:
    """Return the bytes of activations that are alive at once, at the peak of a pass over `num_tokens` tokens.

    With T tokens, a bytes an element, h the width of the model and all other widths those of one device:

        peak = a T 2h + max(attention, ffn, experts, head)

        residual and the block's input, which live through each block                        2h
        attention   projections (of MLA all latents too), heads' outputs, o_proj's output
        ffn         gate and up, the activation, down's output                               (2 + 1) I + h
        experts     of T k rows: gate and up or what is added up, whichever is wider, the activation; the router's
                    logits in fp32; the sum                                                k (max(2 I, h) + I) + ... + h
                    where rows are copied before GEMM 1 (`expert_copies`): if it is more   k (h + 2 I)
        head        of the rows that are sampled: logits of this device, of all where there are others, and in fp32

    Each operation keeps its inputs until it is done, and the allocator gives back what is freed: PyTorch's caching
    allocator with the modules of vLLM, without its own workspaces. Kernels keep scores in registers.
    """
    whole = replace(step, num_seqs=1, new_tokens=num_tokens, context=num_tokens, absorb_mla=False, expands_cache=False)
    widths = {s.name: s for s in layer_shapes(config, whole) if s.operand is not Operand.ACTIVATION}
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


WHAT_COUNTS = (
    "Attention is modelled as two GEMMs, scores and values, written out and over the full square in prefill: a fused, "
    "causal kernel takes less. Norms, softmax and the communication of parallel devices are not counted. So sums are "
    "no bound on the time of a pass, neither from below nor from above: `gemm-eval model` has whole steps."
)
"""What the GEMMs of `transformer_gemms` say of a whole pass, and what not."""

CHUNK_TOKENS = 8192
"""Tokens of a pass at most, unless it is said: prefill is done in chunks (vLLM: max_num_batched_tokens)."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a device that a model takes, without that of the runtime.

    Attributes:
        weight_bytes: all weights as stored, with the scales of quantized ones, all experts, and the embedding.
        kv_cache_bytes: keys and values of all positions; of latent attention the latents.
        activation_bytes: what is alive at the peak of a pass; `gemm_eval.transformer.memory` has the formula.
        weights: the parts of `weight_bytes`, in the order they are used.
        stage: the pipeline stage that it is of, counted from 0.
    """

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    weights: tuple[WeightPart, ...] = ()
    stage: int = 0

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    @property
    def weight_bytes_by_type(self) -> dict[str, int]:
        """Bytes of weights by how they are stored, most first."""
        result: dict[str, int] = {}
        for part in self.weights:
            result[part.types] = result.get(part.types, 0) + part.num_bytes
        return dict(sorted(result.items(), key=lambda item: -item[1]))


def model_memory(
    config: ModelConfig, *, batch_size: int, seq_len: int, tensor_parallel: int = 1, expert_parallel: int = 1,
    pipeline_parallel: int = 1, stage: int | None = None, dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None, expert_dtype: str | DtypeScheme | None = None, kv_dtype: str | None = None,
    block_size: int = 1, chunk_tokens: int = CHUNK_TOKENS, with_mtp: bool = False, expert_copies: bool = False,
) -> ModelMemory:  # fmt: skip
    """Return what a device holds of a model with `batch_size` sequences of `seq_len` positions.

    Arguments not named here are those of `transformer_gemms`. Embedding and LM head are divided over the
    tensor-parallel group, latents and norms are replicated in it.

    Args:
        config: the model.
        batch_size, seq_len: sequences in the cache, and positions of each.
        tensor_parallel, expert_parallel: as for `transformer_gemms`.
        pipeline_parallel: stages that the layers are divided over; see `gemm_eval.transformer.config`.
        stage: which of them; None: the one that holds most.
        dtype, dense_dtype, expert_dtype: as for `transformer_gemms`.
        kv_dtype: type of the KV cache; None: that of the checkpoint where `dtype` is None and it says one, else the
            type of what is kept.
        block_size: positions of a block of the cache (paged attention).
        chunk_tokens: tokens of a pass at most.
        expert_copies: the library of experts copies rows before their GEMM (PyTorch's, CUTLASS's and our grouped
            kernels), not reads them where tokens are (Triton's).
        with_mtp: also the layers that predict further tokens, which engines load to guess tokens by them; they are
            with the last stage.

    Raises:
        InvalidOptionError, InvalidProblemError: as `transformer_gemms`.
    """
    step = make_step(config, "prefill", batch_size, seq_len, tensor_parallel, expert_parallel, expert_load=EXPECTED)
    block = as_integer("block_size", block_size, 1, MAX_DIM)
    num_tokens = min(step.tokens, as_integer("chunk_tokens", chunk_tokens, 1, MAX_DIM))
    check_flag("with_mtp", with_mtp)
    check_flag("expert_copies", expert_copies)
    stages = stage_layers(config.num_layers, pipeline_parallel)
    asked = range(len(stages)) if stage is None else (as_integer("stage", stage, 0, len(stages) - 1),)
    result = []
    for index in asked:
        part = stage_config(config, stages[index])
        is_first, is_last = index == 0, index == len(stages) - 1
        types = weight_types(part, dtype, dense_dtype, expert_dtype)
        own_kv = config.quantization.kv_cache_dtype if dtype is None and config.quantization is not None else None
        kv = parse_dtype(kv_dtype or own_kv or types.kept, what="kv_dtype")
        inner = step if part.moe is not None or config.moe is None else replace(step, expert_parallel=1)
        weights = local_weights(part, inner, types, has_embedding=is_first, has_head=is_last)
        if with_mtp and is_last:
            weights += mtp_weights(config, step, dtype, dense_dtype)
        result.append(
            ModelMemory(
                sum(item.num_bytes for item in weights),
                kv_cache_bytes(part, inner, kv, block),
                activation_bytes(part, inner, types.kept, num_tokens, has_head=is_last, expert_copies=expert_copies),
                weights,
                index,
            )
        )
    return max(result, key=lambda memory: memory.total_bytes)
