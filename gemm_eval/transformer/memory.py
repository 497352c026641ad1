"""Exact parameter counts, and the memory that a model takes on a device: weights, cache and activations."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.frozen import FrozenDict
from gemm_eval.transformer.config import ModelConfig, stage_config, stage_layers
from gemm_eval.transformer.gemms import WeightTypes, kv_type, make_step, weight_types
from gemm_eval.transformer.parts import GroupedAttention, LatentAttention
from gemm_eval.transformer.shapes import EXPECTED, Operand, Shape, Step, layer_shapes, lm_head_shape, local_kv_heads
from gemm_eval.words import as_integer, check_flag, suggests_names
from gemm_eval.workload import MAX_DIM, MIXER_STATE_BYTES


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by part, over all layers; the parts do not overlap.

    The router has the shared experts' gate with it; `vectors` are norms, biases and attention's sinks; `lm_head` is 0
    if it is the embedding. `idle_experts` and `idle_vectors` are parts of `experts` and `vectors`: of experts that a
    token does not use.
    """

    embedding: int
    position: int
    attention: int
    ffn: int
    router: int
    experts: int
    shared_experts: int
    lm_head: int
    vectors: int
    idle_experts: int
    idle_vectors: int = 0

    @property
    def layer_matrices(self) -> int:
        """Weight matrices of all layers: what the weight GEMMs without the LM head multiply by."""
        return self.attention + self.ffn + self.router + self.experts + self.shared_experts

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.position + self.layer_matrices + self.lm_head + self.vectors

    @property
    def active(self) -> int:
        """Parameters of the model without the experts that a token does not use; embeddings are counted."""
        return self.total - self.idle_experts - self.idle_vectors


def num_parameters(config: ModelConfig) -> int:
    """Return the exact number of parameters: embeddings, matrices, norms, biases, all experts.

    Buffers (rotary tables, causal masks), quantization scales and multi-token-prediction layers are not counted.
    """
    return count_parameters(config).total


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Return the exact parameter count of `config`, part by part: of matrices those that its GEMMs multiply by."""
    step, hidden, moe = Step.of_whole(config.name), config.hidden_size, config.moe
    matrices: Counter[str] = Counter()
    for shape in layer_shapes(config, step):
        if shape.operand is not Operand.ACTIVATION:
            matrices[_part_of(shape.name)] += shape.num_layers * (shape.num_held or shape.G) * shape.K * shape.N
    num_idle = 0 if moe is None else moe.num_experts - moe.experts_per_token
    return ParameterCounts(
        embedding=config.vocab_size * hidden,
        position=config.num_positions * hidden,
        **{part: matrices[part] for part in ("attention", "ffn", "router", "experts", "shared_experts")},
        lm_head=0 if config.tied_embeddings else config.vocab_size * hidden,
        vectors=num_norm_elems(config, has_head=True)
        + num_bias_elems(config, step)
        + config.lm_head_bias * config.vocab_size,
        idle_experts=0 if moe is None else matrices["experts"] // moe.num_experts * num_idle,
        idle_vectors=0 if moe is None else num_idle * _expert_bias_elems(config, moe.intermediate_size),
    )


def _part_of(gemm: str) -> str:
    if gemm in ("router", "shared_gate"):
        return "router"
    if gemm.startswith(("index_", "linear_")):
        return "attention"
    if gemm.startswith(("expert_", "shared_")):
        return "experts" if gemm.startswith("expert_") else "shared_experts"
    return "ffn" if gemm in ("gate_up_proj", "up_proj", "down_proj") else "attention"


def num_norm_elems(config: ModelConfig, *, has_head: bool) -> int:
    """Return the parameters of all norms, those of queries, keys and latents too; `has_head`: and of the last one."""
    norm = config.hidden_size * (1 if config.norm == "rms" else 2)
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        heads = attention.num_heads + attention.num_kv_heads if attention.qk_norm_is_whole else 2
        own = attention.qk_norm * heads * attention.head_dim
    else:
        own = attention.kv_lora_rank + (attention.q_lora_rank or 0)
        own += 0 if attention.indexer is None else 2 * attention.indexer.head_dim
    linear, of_linear = config.linear, 0
    if linear is not None:
        of_linear = linear.num_layers * linear.value_dim * (linear.num_heads if linear.kind == "mamba2" else 1)
    total = (
        (config.num_layers * config.norms_per_layer - len(config.bare_layers)) * norm
        + config.num_attention_layers * own
        + of_linear
    )
    return total + has_head * norm


def num_bias_elems(config: ModelConfig, step: Step) -> int:
    """Return the biases and sinks in the layers of one device.

    Biases of hidden channels are on every device; those of heads and of intermediate channels are divided.
    """
    hidden, attention, total = config.hidden_size, config.attention, 0
    if config.linear is not None:  # taps of the convolution, decays of heads, and biases of gates
        linear = config.linear
        gates = linear.num_heads * (linear.key_dim if linear.kind == "kda" else 1)
        own = linear.channels * linear.conv_width + linear.num_heads + gates
        if linear.kind == "mamba2":  # a bias of each channel, and what a head adds of its input
            own += linear.channels + linear.num_heads
        total += linear.num_layers * own // step.tensor_parallel
    if isinstance(attention, GroupedAttention):
        heads = step.tensor_split(attention.num_heads, "num_heads")
        qkv = (heads + 2 * local_kv_heads(attention.num_kv_heads, step)) * attention.head_dim
        total += config.num_attention_layers * (
            attention.qkv_bias * qkv + attention.output_bias * hidden + attention.sinks * heads
        )
    if config.ffn is not None and config.ffn.has_bias:
        width = step.tensor_split(config.ffn.intermediate_size, "ffn.intermediate_size")
        total += config.num_dense_layers * ((1 + config.ffn.is_gated) * width + hidden)
    if config.moe is not None:
        moe = config.moe
        width = moe.intermediate_size // max(1, step.tensor_parallel // step.expert_parallel)
        total += moe.num_layers * moe.router_bias * moe.num_experts
        total += moe.num_experts // step.expert_parallel * _expert_bias_elems(config, width)
    return total


def _expert_bias_elems(config: ModelConfig, width: int) -> int:
    moe = config.moe
    return 0 if moe is None else moe.num_layers * moe.expert_bias * ((1 + moe.is_gated) * width + config.hidden_size)


_BITS_PER_BYTE = 8
_FP32_BYTES = 4
_NO_MULTIPLES: FrozenDict[str, tuple[int, int]] = FrozenDict()


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some weights of one type on one device, in all of its layers, with all that is stored beside them.

    The name is that of their GEMM, ``"embedding"``, ``"positions"``, ``"norms"`` or ``"biases"``. `num_elems` counts no
    scales.
    """

    name: str
    types: str
    num_elems: int
    num_bytes: int


def local_weights(
    config: ModelConfig, step: Step, types: WeightTypes, *, has_embedding: bool = True, has_head: bool = True,
    multiples: Mapping[str, tuple[int, int]] = _NO_MULTIPLES,
) -> tuple[WeightPart, ...]:  # fmt: skip
    """Return the weights of one device of a tensor-parallel group that has all layers of `config`.

    The vocabulary and what belongs to heads and intermediate channels is divided; norms, routers, latent projections
    and biases on hidden channels are on every device.
    """
    head, kept, hidden = lm_head_shape(config, step), types.kept, config.hidden_size
    biases = num_bias_elems(config, step) + has_head * config.lm_head_bias * head.N
    outside = (
        _kept("positions", has_embedding * config.num_positions * hidden, kept),
        _kept("norms", num_norm_elems(config, has_head=has_head), kept), _kept("biases", biases, kept),
    )  # fmt: skip
    has_rows = has_embedding or (has_head and config.tied_embeddings)
    has_own_head = has_head and not config.tied_embeddings
    rows = [_kept("embedding", head.N * hidden, kept)] if has_rows else []
    return (
        *rows, *_matrices(layer_shapes(config, step), types, multiples),
        *(part for part in outside if part.num_elems), *(_matrices((head,), types) if has_own_head else []),
    )  # fmt: skip


def _kept(name: str, num_elems: int, dtype: DType) -> WeightPart:
    return WeightPart(name, str(dtype), num_elems, num_elems * dtype.bits // _BITS_PER_BYTE)


def _matrices(
    shapes: Iterable[Shape], types: WeightTypes, multiples: Mapping[str, tuple[int, int]] = _NO_MULTIPLES
) -> Iterator[WeightPart]:
    for shape in shapes:
        if shape.operand is Operand.ACTIVATION:
            continue
        for stored in types.of(shape):
            num = (shape.num_held or shape.G) * stored.num_layers
            padded = _padded(shape, *multiples.get(str(stored.types.b), (1, 1)))
            num_bytes = -(-stored.stored_bits(*padded, types.kept) // _BITS_PER_BYTE)
            yield WeightPart(shape.name, str(stored.types.b), num * shape.K * shape.N, num * num_bytes)


def _padded(shape: Shape, width: int, hidden: int) -> tuple[int, int]:
    """Return N and K of a matrix; those of experts padded to multiples of their width and of the hidden size."""
    if not shape.name.startswith("expert_"):
        return shape.N, shape.K
    of_n, of_k = (hidden, width) if shape.name == "expert_down" else (width * (1 + ("gate" in shape.name)), hidden)
    return -(-shape.N // of_n) * of_n, -(-shape.K // of_k) * of_k


def kv_token_bytes(config: ModelConfig, step: Step, dtype: DType) -> int:
    """Return the bytes of one position in one layer: keys and values of a device's heads, or one latent.

    KV heads are replicated beyond one a device, latents always.
    """
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        elems = 2 * local_kv_heads(attention.num_kv_heads, step) * attention.head_dim
    else:
        elems = attention.kv_lora_rank + attention.qk_rope_head_dim
    index_bytes = 0  # a key of an indexer is fp8, with an fp32 scale
    if isinstance(attention, LatentAttention) and attention.indexer is not None:
        index_bytes = attention.indexer.head_dim + _FP32_BYTES
    return elems * dtype.bits // _BITS_PER_BYTE + index_bytes


def linear_state_bytes(config: ModelConfig, step: Step) -> int:
    """Return the bytes of a sequence's states in all layers of linear attention, convolutions' in 16 bits included."""
    linear = config.linear
    if linear is None:
        return 0
    elements = linear.num_heads * linear.key_dim * linear.value_dim
    size = elements * MIXER_STATE_BYTES[linear.kind] + linear.channels * (linear.conv_width - 1) * 2
    return linear.num_layers * size // step.tensor_parallel


def kv_cache_bytes(config: ModelConfig, step: Step, dtype: DType, block_size: int = 1) -> int:
    """Return the bytes of the cache of all sequences of a step, each of `step.context` positions.

    States of linear attention are in it, which do not grow with the positions. A window layer holds the last
    `window_size` positions. With blocks of `block_size` positions (paged attention), each sequence holds whole blocks,
    and a window one more than it fills, as it begins anywhere in one. Beside layers of linear attention a block is a
    multiple of that, as large as the state of a layer, since both are pages of one pool (vLLM's hybrid allocator).
    """
    token_bytes, state_bytes = kv_token_bytes(config, step, dtype), linear_state_bytes(config, step)
    if block_size > 1 and state_bytes and config.num_attention_layers:  # a block is as large as a state of a layer
        assert config.linear is not None
        per_layer = state_bytes // config.linear.num_layers
        block_size *= -(-per_layer // (block_size * token_bytes))
    context = -(-step.context // block_size) * block_size
    window = config.attention.window_size if isinstance(config.attention, GroupedAttention) else None
    in_window = context
    if window is not None:
        in_window = min(context, (-(-(window - 1) // block_size) + 1) * block_size)
    positions = context * (config.num_attention_layers - config.num_window_layers)
    positions += in_window * config.num_window_layers
    return step.num_seqs * (positions * token_bytes + state_bytes)


def activation_bytes(
    config: ModelConfig, step: Step, kept: DType, num_tokens: int, *, has_head: bool = True,
    expert_copies: bool = False, logit_bytes: int = _FP32_BYTES,
) -> int:  # fmt: skip
    """Return the bytes of activations that are alive at once, at the peak of a pass over `num_tokens` tokens.

    MODELS.md has the formula. `expert_copies`: rows of experts are copied before GEMM 1. `logit_bytes`: of a logit
    while tokens are sampled.
    """
    whole = replace(step, num_seqs=1, new_tokens=num_tokens, context=num_tokens, absorb_mla=False, expands_cache=False)
    widths = {s.name: s for s in layer_shapes(config, whole) if s.operand is not Operand.ACTIVATION}
    hidden = config.hidden_size
    inner = ("qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj")
    phases = [0]
    if "o_proj" in widths:
        phases += [sum(widths[name].N for name in inner if name in widths) + widths["o_proj"].K + hidden]
    if "linear_o_proj" in widths:
        phases += [widths["linear_in_proj"].N + widths["linear_o_proj"].K + hidden]
    phases += [widths[up].N + widths["down_proj"].K + hidden for up in ("gate_up_proj", "up_proj") if up in widths]
    elems = num_tokens * max(phases)
    num_bytes = kept.bits // _BITS_PER_BYTE
    peak = max(elems * num_bytes, _expert_bytes(config, step, num_tokens, num_bytes, expert_copies=expert_copies))
    if has_head:
        rows = min(step.num_seqs, num_tokens)
        local = lm_head_shape(config, step).N
        of_all = config.vocab_size * num_bytes * (step.tensor_parallel > 1)
        peak = max(peak, rows * (local * num_bytes + of_all + config.vocab_size * logit_bytes))
    return 2 * num_tokens * hidden * num_bytes + peak


def _expert_bytes(config: ModelConfig, step: Step, num_tokens: int, num_bytes: int, *, expert_copies: bool) -> int:
    """Return the bytes of a layer of experts; beyond the tensor-parallel group, tokens are where their experts are."""
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
"""Parts of a whole pass that the GEMMs of `transformer_gemms` cover, and parts that they leave out."""

CHUNK_TOKENS = 8192
"""Tokens of a pass at most, unless it is said: prefill is done in chunks (vLLM: max_num_batched_tokens)."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a device that a model takes in one pipeline stage, counted from 0, without that of the runtime.

    Weights are as stored, with scales, all experts and the embedding; `weights` are their parts in the order they are
    used. `activation_bytes` are alive at the peak of a pass (MODELS.md has the formula).
    """

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    weights: tuple[WeightPart, ...] = ()
    stage: int = 0
    plain_names: ClassVar = (
        "weight_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes", "weight_bytes_by_type",
    )  # fmt: skip

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    @property
    def weight_bytes_by_type(self) -> dict[str, int]:
        """Bytes of weights by how they are stored, most first."""
        result: Counter[str] = Counter()
        for part in self.weights:
            result[part.types] += part.num_bytes
        return dict(result.most_common())

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {name: getattr(self, name) for name in self.plain_names}


@suggests_names
def model_memory(
    config: ModelConfig, *, batch_size: int, seq_len: int, tensor_parallel: int = 1, expert_parallel: int = 1,
    pipeline_parallel: int = 1, stage: int | None = None, dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None, expert_dtype: str | DtypeScheme | None = None, kv_dtype: str | None = None,
    block_size: int = 1, chunk_tokens: int = CHUNK_TOKENS, expert_copies: bool = False,
    logit_bytes: int = _FP32_BYTES, multiples: Mapping[str, tuple[int, int]] = _NO_MULTIPLES,
) -> ModelMemory:  # fmt: skip
    """Return what a device holds of a model with `batch_size` sequences of `seq_len` positions in the cache.

    Arguments not named here, and errors, are those of `transformer_gemms`. Embedding and LM head are divided over the
    tensor-parallel group, latents and norms are replicated in it.

    Args:
        pipeline_parallel: stages that the layers are divided over; see `gemm_eval.transformer.config`.
        stage: which of them; None: the one that holds most.
        kv_dtype: type of the KV cache; None: that of the checkpoint where `dtype` is None and it says one, else the
            type of what is kept.
        block_size: positions of a block of the cache (paged attention).
        chunk_tokens: tokens of a pass at most.
        expert_copies: the library of experts copies rows before their GEMM (PyTorch's, CUTLASS's and our grouped
            kernels), not reads them where tokens are (Triton's).
        logit_bytes: of a logit while tokens are sampled, with all that is made of it.
        multiples: weights, as `WeightPart.types` names them -> to which multiples the width of experts and the hidden
            size are padded.
    """
    step = make_step(config, "prefill", batch_size, seq_len, tensor_parallel, expert_parallel, expert_load=EXPECTED)
    block = as_integer("block_size", block_size, 1, MAX_DIM)
    num_tokens = min(step.tokens, as_integer("chunk_tokens", chunk_tokens, 1, MAX_DIM))
    check_flag("expert_copies", expert_copies)
    stages = stage_layers(config.num_layers, pipeline_parallel)
    asked = range(len(stages)) if stage is None else (as_integer("stage", stage, 0, len(stages) - 1),)
    result = []
    for index in asked:
        part = stage_config(config, stages[index])
        is_first, is_last = index == 0, index == len(stages) - 1
        types = weight_types(part, dtype, dense_dtype, expert_dtype)
        kv = kv_type(config, types, dtype, kv_dtype)
        inner = step if part.moe is not None or config.moe is None else replace(step, expert_parallel=1)
        weights = local_weights(part, inner, types, has_embedding=is_first, has_head=is_last, multiples=multiples)
        alive = activation_bytes(
            part, inner, types.kept, num_tokens, has_head=is_last, expert_copies=expert_copies, logit_bytes=logit_bytes
        )
        num_bytes = sum(item.num_bytes for item in weights)
        result.append(ModelMemory(num_bytes, kv_cache_bytes(part, inner, kv, block), alive, weights, index))
    return max(result, key=lambda memory: memory.total_bytes)
