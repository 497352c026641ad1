"""The parts of a `ModelConfig`: attention, feed-forward networks, experts, quantized weights, and sets of layers."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import comb, prod
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.words import one_line
from gemm_eval.workload import GemmTypes, make_types

_MAX_LAYERS = 1 << 16
_RUN = re.compile(r"(\d{1,5})(?:-(\d{1,5})(?::(\d{1,5}))?)?")
_MIN_RUN = 3  # layers that are worth a run with a step


@lru_cache(maxsize=4096)
def parse_layers(text: str) -> tuple[int, ...]:
    """Return the layers that a text means, counted from 0, in order."""
    result: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part.strip())
        if match is None:
            raise ValueError('layers are written as "0, 5-7, 9-47:2", counted from 0')
        first, last, step = (None if group is None else int(group) for group in match.groups())
        assert first is not None
        last = first if last is None else last
        if last < first or step == 0 or last >= _MAX_LAYERS:
            raise ValueError(f"a run of layers goes up, to at most {_MAX_LAYERS - 1}: {part.strip()} does not")
        result += range(first, last + 1, step or 1)
    if len(set(result)) < len(result):
        raise ValueError("layers are named twice")
    return tuple(sorted(result))


def layers_text(layers: Iterable[int]) -> str:
    """Return the shortest text in runs for some layers; `parse_layers` reads it."""
    rest, runs = sorted(layers), []
    while rest:
        length, step = 1, 1
        if len(rest) > 1:
            step = rest[1] - rest[0]
            while length < len(rest) and rest[length] == rest[0] + length * step:
                length += 1
        if length < _MIN_RUN and step > 1:
            length = 1
        suffix = f":{step}" if step > 1 and length > 1 else ""
        runs.append(f"{rest[0]}-{rest[length - 1]}{suffix}" if length > 1 else f"{rest[0]}")
        rest = rest[length:]
    return ", ".join(runs)


def _canonical(text: str) -> str:
    return layers_text(parse_layers(text))


LayerSet = Annotated[str, Field(max_length=4000), AfterValidator(_canonical)]
"""Some layers of a model, as text that `parse_layers` reads."""


Text = Annotated[str, Field(max_length=4000)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Few = Annotated[int, Field(ge=1, le=1 << 16)]
Maybe = Annotated[int, Field(ge=0, le=1 << 24)]


_MAX_REPR_CHARS = 40


class Frozen(BaseModel):
    """A model of fields that does not change, and takes no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what `repr` and `str` show: the fields that were given, texts shortened."""
        for name, value in super().__repr_args__():
            if name in self.model_fields_set:
                yield name, one_line(value, _MAX_REPR_CHARS) if isinstance(value, str) else value


class GroupedAttention(Frozen):
    """Attention whose query heads share KV heads in equal groups: MHA (groups of one), GQA, MQA (one KV head).

    A window layer attends to the last `window_size` positions only; `num_window_layers` of the model's layers do so:
    those of `window_layers`, or the first ones. With `window_is_chunk` (Llama 4) they attend within chunks of so many
    positions instead; GEMMs take a chunk as a window, which is what the last position of a chunk sees.
    """

    kind: Literal["gqa"] = "gqa"
    num_heads: Few = Field(description="query heads")
    num_kv_heads: Few = Field(description="key and value heads, a divisor of num_heads")
    head_dim: Size = Field(description="elements of a head; not always hidden_size / num_heads")
    qkv_bias: bool = Field(default=False, description="bias on the query, key and value projections")
    output_bias: bool = Field(default=False, description="bias on the output projection")
    qk_norm: bool = Field(default=False, description="a norm of head_dim weights on queries and one on keys")
    qk_norm_is_whole: bool = Field(default=False, description="those norms are over all heads, with weights for each")
    sinks: bool = Field(default=False, description="a learned logit for each query head, in the sum of its softmax")
    window_size: Size | None = Field(default=None, description="positions that a window layer attends to")
    num_window_layers: Maybe = Field(default=0, description="layers that attend to a window; the rest to all")
    window_layers: LayerSet | None = Field(default=None, description="which, as 0-46:2; None: the first ones")
    window_is_chunk: bool = Field(default=False, description="within chunks of window_size, not the last positions")
    rotary_dim: Maybe | None = Field(default=None, description="elements of a head that turn; None: all")
    no_rope_layers: LayerSet | None = Field(default=None, description="layers without rotary positions; None: none")
    qk_l2_norm: bool = Field(default=False, description="norms of queries and keys, without weights")
    has_gate: bool = Field(default=False, description="a gate beside each query, which its head's output is scaled by")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"attention.num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}"
            )
        if (self.window_size is None) != (self.num_window_layers == 0):
            raise ValueError("attention.window_size and num_window_layers go together: give both, or neither")
        check_layers("attention.window_layers", self.window_layers, self.num_window_layers, "num_window_layers")
        if self.rotary_dim is not None and self.rotary_dim > self.head_dim:
            raise ValueError(f"attention.rotary_dim must be <= head_dim = {self.head_dim}, got {self.rotary_dim}")
        return self


class Indexer(Frozen):
    """The lightning indexer of DeepSeek sparse attention (DSA): its scores choose the keys that a query attends to.

    Source: DeepSeek-V3.2-Exp, https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py.
    """

    num_heads: Few = Field(description="query heads, each with a weight; they share one key")
    head_dim: Size = Field(description="elements of a query and of the key, which the cache holds in fp8")
    top_k: Size = Field(description="keys that a query attends to")


class LinearAttention(Frozen):
    """Layers of linear attention in place of `attention`: states of fixed size, behind a causal convolution.

    ``gdn``: Gated DeltaNet (arXiv:2412.06464), a gate for each head; ``kda``: Kimi Delta Attention (arXiv:2510.26692),
    a gate for each channel of a key; ``mamba2`` (arXiv:2405.21060): a decay for each head. States are kept in 16 bits
    (gdn) or fp32, as vLLM has them.
    """

    kind: Literal["gdn", "kda", "mamba2"]
    num_layers: Few
    layers: LayerSet | None = Field(default=None, description="which, as 0-46:2; None: the first ones")
    num_heads: Few = Field(description="heads of values, each with a state")
    key_heads: Few = Field(description="heads of queries and keys, a divisor of num_heads; of mamba2 the groups")
    key_dim: Size = Field(description="elements of a key; of mamba2 the size of a state")
    value_dim: Size = Field(description="elements of a value")
    conv_width: Few = Field(default=4, description="taps of the convolution")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.key_heads:
            raise ValueError(f"linear.key_heads must divide num_heads = {self.num_heads}, got {self.key_heads}")
        check_layers("linear.layers", self.layers, self.num_layers, "linear.num_layers")
        return self

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.num_heads * self.value_dim


class LatentAttention(Frozen):
    """Multi-head latent attention (MLA): keys and values are expanded from one latent vector for each token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.
    """

    kind: Literal["mla"] = "mla"
    num_heads: Few = Field(description="query heads")
    q_lora_rank: Size | None = Field(default=None, description="latent size of queries; None: projected directly")
    kv_lora_rank: Size = Field(description="latent size of keys and values, what the cache holds")
    qk_nope_head_dim: Size = Field(description="elements of a query or key head without position")
    qk_rope_head_dim: Size = Field(description="elements with rotary position; of keys, shared by all heads")
    v_head_dim: Size = Field(description="elements of a value head")
    has_rope: bool = Field(default=True, description="those elements turn; False: they have no positions either")
    indexer: Indexer | None = Field(default=None, description="sparse attention; None: a query attends to all keys")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.indexer is not None and self.q_lora_rank is None:
            raise ValueError("attention.indexer reads the latents of queries: give q_lora_rank")
        return self


Attention = Annotated[GroupedAttention | LatentAttention, Field(discriminator="kind")]
"""The attention of a model, told apart by its field `kind`."""


class Ffn(Frozen):
    """The feed-forward network of a dense layer: gated (gate, up, down) or plain (up, down)."""

    intermediate_size: Size
    is_gated: bool = True
    has_bias: bool = False


class Moe(Frozen):
    """The mixture of experts that takes the place of the feed-forward network in `num_layers` layers."""

    num_layers: Few = Field(description="layers with experts; the other layers of the model are dense")
    layers: LayerSet | None = Field(default=None, description="which, as 3-60; None: the last ones")
    num_experts: Few = Field(description="routed experts of a layer")
    experts_per_token: Few
    num_groups: Few = Field(default=1, description="groups of experts, in order, of which a token chooses some first")
    groups_per_token: Few = Field(default=1, description="groups that a token chooses, among whose experts it chooses")
    intermediate_size: Size = Field(description="of one routed expert")
    is_gated: bool = True
    num_shared_experts: Annotated[int, Field(ge=0, le=1 << 16)] = Field(default=0, description="seen by every token")
    shared_intermediate_size: Size | None = Field(
        default=None, description="of one shared expert; None: as the routed ones"
    )
    shared_gate: bool = Field(default=False, description="a learned gate, hidden_size to 1, on the shared experts")
    router_bias: bool = Field(default=False, description="one bias for each expert in the router")
    expert_bias: bool = Field(default=False, description="biases on the projections of each routed expert")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"moe.experts_per_token must be <= num_experts = {self.num_experts}, got {self.experts_per_token}"
            )
        if self.groups_per_token > self.num_groups or self.num_experts % self.num_groups:
            raise ValueError(
                f"moe.num_groups must divide num_experts = {self.num_experts} and be >= groups_per_token, got "
                f"{self.num_groups} and {self.groups_per_token}"
            )
        if self.experts_per_token * self.num_groups > self.num_experts * self.groups_per_token:
            raise ValueError(f"moe.groups_per_token = {self.groups_per_token} groups have fewer than experts_per_token")
        if self.num_shared_experts == 0 and (self.shared_intermediate_size is not None or self.shared_gate):
            raise ValueError("moe.shared_intermediate_size and shared_gate are for num_shared_experts >= 1, got 0")
        check_layers("moe.layers", self.layers, self.num_layers, "moe.num_layers")
        return self

    @property
    def shared_width(self) -> int:
        """Intermediate size of all shared experts together, which run as one FFN."""
        return self.num_shared_experts * (self.shared_intermediate_size or self.intermediate_size)

    def nodes_of_token(self, num_nodes: int) -> float:
        """Return in how many of `num_nodes` nodes the experts of a token lie, in expectation.

        A token chooses groups at random, then experts at random among theirs; nodes hold equally many experts, in
        order. A node has none of them with the chances of two draws without replacement (hypergeometric). Groups that
        nodes cut, neither holding whole ones, are left out, which counts too many nodes.
        """
        groups, chosen, topk = self.num_groups, self.groups_per_token, self.experts_per_token
        if groups % num_nodes and num_nodes % groups:
            groups = chosen = 1
        among = self.num_experts * chosen // groups  # experts of the groups chosen
        inside = max(1, groups // num_nodes)  # groups that a node holds, of some experts each
        size = self.num_experts / max(groups, num_nodes)
        without = sum(
            comb(inside, num) * comb(groups - inside, chosen - num) * _chance_of_none(among, num * size, topk)
            for num in range(min(inside, chosen) + 1)
        )
        return num_nodes * (1.0 - without / comb(groups, chosen))


def _chance_of_none(total: int, marked: float, draws: int) -> float:
    """Return the chance that of `draws` out of `total` without replacement none is among `marked`."""
    return prod(max(0.0, total - marked - index) / (total - index) for index in range(draws))


class PublishedParameters(Frozen):
    """The parameter count that the maker publishes, which `num_parameters` has to reproduce."""

    num_parameters: Annotated[int, Field(ge=1)]
    is_exact: bool = Field(default=True, description="False: a rounded figure, held to 1%")
    source: Annotated[Text, Field(min_length=1)]


def check_layers(what: str, layers: str | None, num: int, what_num: str) -> None:
    """Check that `layers`, where they are given, are as many as is said elsewhere."""
    if layers is not None and len(parse_layers(layers)) != num:
        raise ValueError(f"{what} must be {what_num} = {num} layers, got {len(parse_layers(layers))}")


GEMM_NAMES = (
    "qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "o_proj", "gate_up_proj", "up_proj",
    "down_proj", "router", "expert_gate_up", "expert_up", "expert_down", "shared_gate_up", "shared_up", "shared_down",
    "shared_gate", "index_q_proj", "index_k_proj", "index_weights_proj", "linear_in_proj", "linear_gates_proj",
    "linear_low_rank_a", "linear_low_rank_b", "linear_o_proj", "lm_head",
)  # fmt: skip
"""The GEMMs with weights, by the names that `transformer_gemms` gives them."""

_WRITTEN_BITS = 16
_BITS_OF_INDEX = 32
_BITS_OF_TENSOR_SCALE = 32
_AnyDType = Annotated[DType, Field(strict=False)]
_Group = Annotated[int, Field(ge=1, le=1 << 24)]


class WeightFormat(Frozen):
    """The format of a GEMM's weights as they are stored, and the type that they are multiplied in.

    The fields that a `GemmProblem` has too mean the same. The others are stored, but no traffic worth counting.
    """

    weight_dtype: _AnyDType
    input_dtype: _AnyDType | None = Field(default=None, description="None: activations stay in the model's type")
    group_size: _Group | None = None
    group_n: _Group | None = None
    scale_dtype: _AnyDType | None = None
    zero_dtype: _AnyDType | None = None
    column_scale_dtype: _AnyDType | None = Field(
        default=None, description="of one scale for each column, applied to C; None: there are none"
    )
    num_tensor_scales: Annotated[int, Field(ge=0, le=8)] = Field(
        default=0, description="fp32 scales of a whole matrix and of its inputs"
    )
    has_group_index: bool = Field(
        default=False, description="an int32 for each row of K says its group (GPTQ desc_act)"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.types(DType.BF16)
        except InvalidProblemError as error:
            raise ValueError(str(error)) from None
        return self

    def types(self, activation: DType) -> GemmTypes:
        """Return the types of a GEMM in a model of this type, which C has too."""
        return _types_of_format(self, activation)

    def stored_bits(self, N: int, K: int, activation: DType) -> int:
        """Bits of a matrix of N columns of K, with all that is stored beside it."""
        bits = self.types(activation).b.total_bits(N, K)
        if self.column_scale_dtype is not None:
            bits += N * self.column_scale_dtype.bits
        return bits + self.num_tensor_scales * _BITS_OF_TENSOR_SCALE + self.has_group_index * K * _BITS_OF_INDEX


def output_of_narrow(activation: DType) -> DType:
    """Return the type that a GEMM with narrower inputs writes in a model whose activations are of type `activation`.

    Engines apply the scales in the epilogue, so that no accumulator (int32 of int8 inputs) is written: vLLM's
    `cutlass_scaled_mm` writes fp16 or bf16.
    """
    return activation if activation.bits <= _WRITTEN_BITS else DType.BF16


@lru_cache(maxsize=1024)
def _types_of_format(form: WeightFormat, activation: DType) -> GemmTypes:
    fields: dict[str, Any] = {
        "input_dtype": form.input_dtype or activation, "weight_dtype": form.weight_dtype,
        "group_size": form.group_size, "scale_dtype": form.scale_dtype, "zero_dtype": form.zero_dtype,
        "group_n": form.group_n,
    }  # fmt: skip
    if form.input_dtype is not None and form.input_dtype.bits < activation.bits:
        fields["output_dtype"] = output_of_narrow(activation)
    return make_types(**fields)


class QuantizedPart(Frozen):
    """Some GEMMs whose weights are quantized alike."""

    gemms: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=len(GEMM_NAMES))]
    layers: LayerSet | None = Field(default=None, description="in which layers; None: in all that have them")
    format: WeightFormat

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.gemms:
            if name not in GEMM_NAMES:
                raise ValueError(f"quantization.parts.gemms must be of {', '.join(GEMM_NAMES)}, got {name!r}")
        return self


class Quantization(Frozen):
    """The weights and the cache that a checkpoint stores in fewer bits than its model's type.

    Attributes:
        method: who quantized, in the words of Hugging Face configs: awq, gptq, fp8, mxfp4, ...
        parts: GEMMs with quantized weights; of those that are in several, the first holds. All others are kept.
        kv_cache_dtype: type that the checkpoint has scales of the KV cache for; None: the model's type.
    """

    method: Annotated[str, Field(min_length=1, max_length=64)]
    parts: Annotated[tuple[QuantizedPart, ...], Field(strict=False, max_length=256)] = ()
    kv_cache_dtype: _AnyDType | None = None

    def format_of(self, gemm: str, layer: int | None = None) -> WeightFormat | None:
        """Return how a GEMM's weights are stored in a layer (None: outside of layers); None: they are kept."""
        for part in self.parts:
            if gemm in part.gemms and (layer is None or part.layers is None or layer in _layer_set(part.layers)):
                return part.format
        return None


@lru_cache(maxsize=4096)
def _layer_set(text: str) -> frozenset[int]:
    return frozenset(parse_layers(text))
