"""Sizes of a model's GEMMs in one step of inference on one device of a parallel group, and its legal layouts."""

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution, MoeLayer, expected_counts, parse_distribution, route
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention, LatentAttention, LinearAttention, Moe
from gemm_eval.words import as_integer
from gemm_eval.workload import MAX_GROUPS, RowGroups

UNIFORM, EXPECTED = "uniform", "expected"
"""Words for the rows of experts, besides distributions; see `transformer_gemms`."""

_MAX_DIVISORS_SHOWN = 12


class Operand(enum.Enum):
    """The kind of operand B of a GEMM, which decides its data type."""

    WEIGHT = "weight"
    EXPERT = "expert"
    ROUTER = "router"
    LM_HEAD = "lm_head"
    ACTIVATION = "activation"


class Shape(NamedTuple):
    """A GEMM before it has data types, C[G,M,N] = A[G,M,K] x B[G,K,N], run once in each of `num_layers` layers.

    `num_held` counts the matrices B that the device holds, where they are more than the G at work: idle experts.
    `row_groups`: rows of each of G groups, where they differ; M is then the most.
    """

    name: str
    G: int
    M: int
    K: int
    N: int
    num_layers: int
    operand: Operand = Operand.WEIGHT
    num_held: int | None = None
    row_groups: RowGroups | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A forward pass of one tensor-parallel group: `num_seqs` sequences, `new_tokens` tokens of each.

    `context` counts the positions that the last new token attends to, itself included. `expands_cache`: latents of
    cached positions are expanded too, where they are not absorbed. In a mixed step, `num_decodes` sequences more have
    one new token each, which attends to `decode_context` positions.
    """

    model: str
    num_seqs: int
    new_tokens: int
    context: int
    tensor_parallel: int
    expert_parallel: int
    expert_imbalance: float = 1.0
    expert_load: str | Distribution = EXPECTED
    absorb_mla: bool = False
    lm_head_all_tokens: bool = False
    expands_cache: bool = False
    num_decodes: int = 0
    decode_context: int = 1

    @property
    def tokens(self) -> int:
        """Rows of every GEMM on all tokens."""
        return self.num_seqs * self.new_tokens + self.num_decodes

    @property
    def sampled(self) -> int:
        """Rows of the LM head: the last token of each sequence, or all of them."""
        return self.tokens if self.lm_head_all_tokens else self.num_seqs + self.num_decodes

    @property
    def calls(self) -> tuple[tuple[int, int, int, bool], ...]:
        """Calls of attention: sequences, new tokens and positions of each, and whether latents are absorbed."""
        own = (self.num_seqs, self.new_tokens, self.context, self.absorb_mla)
        return (own, (self.num_decodes, 1, self.decode_context, True)) if self.num_decodes else (own,)

    @property
    def absorbed_tokens(self) -> int:
        """Tokens whose queries are multiplied into the latents."""
        return self.tokens if self.absorb_mla else self.num_decodes

    def tensor_split(self, size: int, what: str) -> int:
        """Return `size` over the tensor-parallel degree; see `split`."""
        return split(size, self.tensor_parallel, "tensor_parallel", f"{what} of {self.model}")

    @classmethod
    def of_whole(cls, model: str) -> Self:
        """Return the step of one token on one device, which holds all weights of `model` undivided."""
        return cls(model, 1, 1, 1, 1, 1)


def split(size: int, degree: int, option: str, what: str) -> int:
    """Return ``size // degree``."""
    if size % degree == 0:
        return size // degree
    good = [d for d in range(1, min(size, 1024) + 1) if size % d == 0]
    shown = ", ".join(map(str, good[:_MAX_DIVISORS_SHOWN])) + (", ..." if len(good) > _MAX_DIVISORS_SHOWN else "")
    raise InvalidOptionError(f"{option} must divide {what} = {size}, got {degree}; possible: {shown}")


_NUM_DRAWS = 5  # of which the one of median load stands for all
_NUM_KEPT = 4096


def check_expert_load(load: Any, imbalance: float) -> str | Distribution:
    """Return what `transformer_gemms` is asked for: a word of its own, or a distribution."""
    word = load.strip().lower() if isinstance(load, str) else ""
    if word in (UNIFORM, EXPECTED):
        return EXPECTED if imbalance > 1.0 else word
    try:
        result = parse_distribution(load)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"expert_load is expected, or a distribution: {error}") from None
    if imbalance > 1.0:
        raise InvalidOptionError(
            f"expert_imbalance is for expert_load uniform or expected; {result} has one of its own: leave it at 1"
        )
    return result


@lru_cache(maxsize=_NUM_KEPT)
def expert_rows(
    tokens: int, num_experts: int, experts_per_token: int, num_ranks: int, load: str | Distribution
) -> RowGroups | None:
    """Return the rows of each expert of a device, most first; None where a batch of equal experts must do.

    `tokens` are those that all devices see which share the experts, `num_ranks` devices with num_experts/num_ranks of
    them each. `load` is `UNIFORM`: the expected histogram (`gemm_eval.moe.expected_counts`) of a device; `EXPECTED`:
    None; or a distribution: of five draws the one in which the most loaded device has the median load.
    """
    local = num_experts // num_ranks
    if load == EXPECTED or local > MAX_GROUPS:
        return None
    if isinstance(load, str):
        return tuple(expected_counts(tokens, num_experts, experts_per_token, local).tolist())
    layer = MoeLayer(
        tokens, 1, 1, num_experts, experts_per_token, ep=num_ranks, distribution=load, num_draws=_NUM_DRAWS
    )
    drawn = route(layer)
    order = np.argsort(drawn.rows, kind="stable")
    return drawn.groups[order[(len(order) - 1) // 2]]


def expected_expert_load(
    tokens: int, *, num_experts: int, experts_per_token: int, num_local_experts: int, imbalance: float = 1.0
) -> tuple[int, int]:
    """Return G and M of `num_local_experts` out of `num_experts` experts that `tokens` tokens are routed to.

    Routing is taken as uniform: each of T tokens picks k of E experts at random. An expert is idle if every token
    passes it by, with probability (1 - k/E)^T, so the expected number of active local experts is

        G = E_local * (1 - (1 - k/E)^T),    and their mean load    M = T * (k/E) * E_local / G.

    Both are rounded to the nearest integer, halves up, and are at least 1; M follows from the rounded G, so that G*M
    keeps the expected T*k*E_local/E rows as well as integers can. All experts get the same M, because a batched GEMM
    has one. `imbalance` is the load of the busiest expert over the mean: it multiplies M (at most T, an expert sees a
    token once), so every expert is charged as the busiest, an upper bound that is sharp where the slowest decides.

    Needs tokens >= 1, 1 <= experts_per_token <= num_experts, 1 <= num_local_experts <= num_experts, imbalance >= 1.
    """
    share = experts_per_token / num_experts
    hit = 1.0 if share >= 1 else -math.expm1(tokens * math.log1p(-share))
    active = min(max(1, _round(num_local_experts * hit)), num_local_experts)
    mean = tokens * experts_per_token * num_local_experts / (num_experts * active)
    return active, max(1, _round(min(imbalance * mean, tokens)))


def _round(value: float) -> int:
    return math.floor(value + 0.5)


def moe_layer_of(config: ModelConfig, num_tokens: int, **options: Any) -> MoeLayer:
    """Return the layer of experts of a model, for `gemm_eval.moe_layers`, its shared experts included.

    `num_tokens` are those that all ranks of an expert-parallel group see together; `options` are other fields of
    `MoeLayer` (`tp`, `ep`, `distribution`, `dtype`, ...), which win over the model's sizes.
    """
    moe = config.moe
    if moe is None:
        raise InvalidOptionError(f"{config.name} has no layers with experts: name a mixture of experts, or give sizes")
    sizes: dict[str, Any] = {
        "hidden": config.hidden_size, "inter": moe.intermediate_size, "num_experts": moe.num_experts,
        "topk": moe.experts_per_token, "gated": moe.is_gated, "num_shared_experts": moe.num_shared_experts,
        "shared_inter": moe.shared_intermediate_size,
    }  # fmt: skip
    fields = sizes | options
    if not fields["num_shared_experts"] and "shared_inter" not in options:
        fields["shared_inter"] = None
    return MoeLayer(num_tokens, **fields)


def layer_shapes(config: ModelConfig, step: Step) -> Iterator[Shape]:
    """Yield the GEMMs of the layers of a model on one device: attention, dense layers, layers with experts."""
    if config.linear is not None:
        yield from _linear_shapes(config, config.linear, step)
    if not config.num_attention_layers:
        pass
    elif isinstance(config.attention, GroupedAttention):
        yield from _grouped_shapes(config, config.attention, step)
    else:
        yield from _latent_shapes(config, config.attention, step)
    if config.ffn is not None:
        width = step.tensor_split(config.ffn.intermediate_size, "ffn.intermediate_size")
        yield from _network(config, "", width, config.ffn.is_gated, 1, step.tokens, config.num_dense_layers)
    if config.moe is not None:
        yield from _moe_shapes(config, config.moe, step)
    elif step.expert_parallel > 1:
        raise InvalidOptionError(
            f"expert_parallel is for models with experts, and {step.model} has none: leave it at 1, got "
            f"{step.expert_parallel}"
        )


def _linear_shapes(config: ModelConfig, linear: LinearAttention, step: Step) -> Iterator[Shape]:
    """Yield projections of linear attention; the gates of KDA are of low rank, key_dim, which every device has."""
    hidden, layers, tokens = config.hidden_size, linear.num_layers, step.tokens
    heads = step.tensor_split(linear.num_heads, "linear.num_heads")
    values, keys = heads * linear.value_dim, local_kv_heads(linear.key_heads, step) * linear.key_dim
    if linear.kind == "mamba2":  # gate, values, both projections of states, and the time step of each head
        yield Shape("linear_in_proj", 1, tokens, hidden, 2 * values + 2 * keys + heads, layers)
        yield Shape("linear_o_proj", 1, tokens, values, hidden, layers)
        return
    has_gate = linear.kind == "gdn"  # of the output, which the projection of inputs gives too
    yield Shape("linear_in_proj", 1, tokens, hidden, 2 * keys + (1 + has_gate) * values, layers)
    yield Shape("linear_gates_proj", 1, tokens, hidden, (1 + has_gate) * heads, layers)
    if not has_gate:
        yield Shape("linear_low_rank_a", 1, tokens, hidden, 2 * linear.key_dim, layers)
        yield Shape("linear_low_rank_b", 2, tokens, linear.key_dim, values, layers)
    yield Shape("linear_o_proj", 1, tokens, values, hidden, layers)


def _grouped_shapes(config: ModelConfig, attention: GroupedAttention, step: Step) -> Iterator[Shape]:
    layers, head_dim = config.num_attention_layers, attention.head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")
    kv_heads = local_kv_heads(attention.num_kv_heads, step)
    num_heads = (1 + attention.has_gate) * heads + 2 * kv_heads
    yield Shape("qkv_proj", 1, step.tokens, config.hidden_size, num_heads * head_dim, layers)

    # the query heads that share a KV head are rows of one GEMM, so that K and V are read once
    groups, rows = step.num_seqs * kv_heads, step.new_tokens * (heads // kv_heads)
    window = attention.window_size or step.context
    in_window = attention.num_window_layers if window < step.context else 0
    for suffix, context, count in (("", step.context, layers - in_window), ("_window", window, in_window)):
        if count:
            yield Shape(f"attn_score{suffix}", groups, rows, head_dim, context, count, Operand.ACTIVATION)
            yield Shape(f"attn_value{suffix}", groups, rows, context, head_dim, count, Operand.ACTIVATION)

    yield Shape("o_proj", 1, step.tokens, heads * head_dim, config.hidden_size, layers)


def local_kv_heads(num_kv_heads: int, step: Step) -> int:
    """Return the KV heads of one device; beyond one device a KV head, each is replicated."""
    if step.tensor_parallel <= num_kv_heads:
        return step.tensor_split(num_kv_heads, "num_kv_heads")
    if step.tensor_parallel % num_kv_heads:
        raise InvalidOptionError(
            f"tensor_parallel above num_kv_heads = {num_kv_heads} of {step.model} replicates them and must be a "
            f"multiple of it, got {step.tensor_parallel}"
        )
    return 1


def _latent_shapes(config: ModelConfig, attention: LatentAttention, step: Step) -> Iterator[Shape]:
    hidden, layers, tokens = config.hidden_size, config.num_attention_layers, step.tokens
    latent, nope, rope = attention.kv_lora_rank, attention.qk_nope_head_dim, attention.qk_rope_head_dim
    heads = step.tensor_split(attention.num_heads, "num_heads")

    # the projections into the latents belong to no head: every device of the group does them whole
    if attention.q_lora_rank is None:
        yield Shape("q_proj", 1, tokens, hidden, heads * (nope + rope), layers)
    else:
        yield Shape("q_a_proj", 1, tokens, hidden, attention.q_lora_rank, layers)
        yield Shape("q_b_proj", 1, tokens, attention.q_lora_rank, heads * (nope + rope), layers)
    yield Shape("kv_a_proj", 1, tokens, hidden, latent + rope, layers)
    if attention.indexer is not None:
        assert attention.q_lora_rank is not None
        of = attention.indexer
        yield Shape("index_q_proj", 1, tokens, attention.q_lora_rank, of.num_heads * of.head_dim, layers)
        yield Shape("index_k_proj", 1, tokens, hidden, of.head_dim, layers)
        yield Shape("index_weights_proj", 1, tokens, hidden, of.num_heads, layers)

    if step.absorbed_tokens:
        yield Shape("q_absorb", heads, step.absorbed_tokens, nope, latent, layers)
    if step.absorb_mla:
        groups, rows, value = step.num_seqs, step.new_tokens * heads, latent
        key = latent + rope
    else:
        expanded = step.num_seqs * (step.context if step.expands_cache else step.new_tokens)
        yield Shape("kv_b_proj", 1, expanded, latent, heads * (nope + attention.v_head_dim), layers)
        groups, rows, value = step.num_seqs * heads, step.new_tokens, attention.v_head_dim
        key = nope + rope
    keys = step.context if attention.indexer is None else min(step.context, attention.indexer.top_k)
    yield Shape("attn_score", groups, rows, key, keys, layers, Operand.ACTIVATION)
    yield Shape("attn_value", groups, rows, keys, value, layers, Operand.ACTIVATION)
    if step.absorbed_tokens:
        yield Shape("v_absorb", heads, step.absorbed_tokens, latent, attention.v_head_dim, layers)

    yield Shape("o_proj", 1, tokens, heads * attention.v_head_dim, hidden, layers)


def _moe_shapes(config: ModelConfig, moe: Moe, step: Step) -> Iterator[Shape]:
    router = Shape("router", 1, step.tokens, config.hidden_size, moe.num_experts, moe.num_layers, Operand.ROUTER)
    yield router

    small, large = sorted((step.tensor_parallel, step.expert_parallel))
    if large % small:
        raise InvalidOptionError(
            f"one of tensor_parallel and expert_parallel must divide the other, got {step.tensor_parallel} and "
            f"{step.expert_parallel}"
        )
    where = f"of {step.model}"
    local = split(moe.num_experts, step.expert_parallel, "expert_parallel", f"moe.num_experts {where}")
    per_expert = max(1, step.tensor_parallel // step.expert_parallel)  # devices that share one expert
    num_groups = max(1, step.expert_parallel // step.tensor_parallel)  # tensor-parallel groups that feed the experts
    option = "tensor_parallel / expert_parallel" if step.expert_parallel > 1 else "tensor_parallel"
    width = split(moe.intermediate_size, per_expert, option, f"moe.intermediate_size {where}")
    tokens = step.tokens * num_groups
    groups = expert_rows(tokens, moe.num_experts, moe.experts_per_token, step.expert_parallel, step.expert_load)
    G, M = (len(groups), groups[0]) if groups is not None else expected_expert_load(
        tokens, num_experts=moe.num_experts, experts_per_token=moe.experts_per_token, num_local_experts=local,
        imbalance=step.expert_imbalance,
    )  # fmt: skip
    for shape in _network(config, "expert_", width, moe.is_gated, G, M, moe.num_layers):
        yield shape._replace(operand=Operand.EXPERT, num_held=local, row_groups=groups)

    if moe.num_shared_experts:
        shared = step.tensor_split(moe.shared_width, "the intermediate size of the shared experts")
        yield from _network(config, "shared_", shared, moe.is_gated, 1, step.tokens, moe.num_layers)
        if moe.shared_gate:
            yield router._replace(name="shared_gate", N=1)


def _network(
    config: ModelConfig, prefix: str, width: int, is_gated: bool, G: int, M: int, num_layers: int
) -> Iterator[Shape]:
    """Yield gate and up projection as one GEMM (or up alone), and down; only dense networks are called ``*_proj``."""
    suffix = "" if prefix else "_proj"
    up = "gate_up" if is_gated else "up"
    yield Shape(f"{prefix}{up}{suffix}", G, M, config.hidden_size, (1 + is_gated) * width, num_layers)
    yield Shape(f"{prefix}down{suffix}", G, M, width, config.hidden_size, num_layers)


def lm_head_shape(config: ModelConfig, step: Step) -> Shape:
    """Return the LM head on the last token of each sequence, or on all; its columns are padded to split evenly."""
    columns = -(-config.vocab_size // step.tensor_parallel)
    return Shape("lm_head", 1, step.sampled, config.hidden_size, columns, 1, Operand.LM_HEAD)


_MAX_DEVICES = 1 << 20


class Layout(NamedTuple):
    """Degrees of parallelism. Ranks are dealt to devices in Megatron's order: tensor, context, data, then pipeline.

    The product of all degrees but `expert` is the number of devices. Experts are spread over `expert` devices of the
    tensor-, context- and data-parallel ones of a pipeline stage.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def num_expert_replicas(self) -> int:
        """Devices of a pipeline stage that hold the same experts, or the same part of them."""
        return self.tensor * self.context * self.data // max(self.expert, self.tensor)

    def __str__(self) -> str:
        names = zip(("TP", "PP", "CP", "EP", "DP"), self, strict=True)
        return " ".join(f"{name}{degree}" for name, degree in names if degree > 1) or "one device"


@lru_cache(maxsize=4096)
def divides(config: ModelConfig, tensor_parallel: int, expert_parallel: int = 1) -> bool:
    """Return True where heads, widths and experts of a model divide by these degrees."""
    try:
        for _ in layer_shapes(config, Step(config.name, 1, 1, 1, tensor_parallel, expert_parallel)):
            pass
    except InvalidOptionError:
        return False
    return True


def legal_layouts(
    config: ModelConfig, num_devices: int, *, max_tensor: int = 8, max_context: int = 1,
    tensor: Iterable[int] | None = None, pipeline: Iterable[int] | None = None, context: Iterable[int] | None = None,
    expert: Iterable[int] | None = None, data: Iterable[int] | None = None,
) -> Iterator[Layout]:  # fmt: skip
    """Yield each layout of a model on exactly `num_devices` devices, tensor parallelism outermost.

    Args:
        max_tensor: largest tensor-parallel degree: devices that share a fast link.
        max_context: largest context-parallel degree; 1: sequences are not divided.
        tensor, pipeline, context, expert, data: degrees to which the search is limited; None: all that divide.

    Raises:
        InvalidOptionError: `num_devices` is no positive number.
    """
    num = as_integer("num_devices", num_devices, 1, _MAX_DEVICES)
    num_experts = 1 if config.moe is None else config.moe.num_experts
    for tp in _degrees(num, min(max_tensor, num), tensor):
        if not divides(config, tp):
            continue
        for pp in _degrees(num // tp, config.num_layers + 2, pipeline):
            rest = num // tp // pp
            for cp in _degrees(rest, max_context, context):
                dp = rest // cp
                if data is not None and dp not in data:
                    continue
                for ep in _degrees(tp * rest, num_experts, expert):
                    if divides(config, tp, ep):
                        yield Layout(tp, pp, cp, ep, dp)


@lru_cache(maxsize=4096)
def _divisors(num: int) -> Sequence[int]:
    return tuple(divisor for divisor in range(1, num + 1) if num % divisor == 0)


def _degrees(num: int, at_most: int, asked: Iterable[int] | None) -> Sequence[int]:
    wanted = None if asked is None else set(asked)
    return [d for d in _divisors(num) if d <= at_most and (wanted is None or d in wanted)]
