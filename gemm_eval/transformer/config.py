"""`ModelConfig`: the sizes of a decoder-only transformer that decide its GEMMs and its parameter count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemm_eval.arch import build_spec
from gemm_eval.errors import ArchValidationError, ModelConfigError
from gemm_eval.words import one_line

__all__ = [
    "Attention",
    "Ffn",
    "GroupedAttention",
    "LatentAttention",
    "ModelConfig",
    "Moe",
    "PublishedParameters",
    "build_config",
]

_Text = Annotated[str, Field(max_length=4000)]
_Size = Annotated[int, Field(ge=1, le=1 << 24)]
_Few = Annotated[int, Field(ge=1, le=1 << 16)]
_Maybe = Annotated[int, Field(ge=0, le=1 << 24)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What `repr` and `str` show: texts shortened."""
        for name, value in super().__repr_args__():
            yield name, one_line(value) if isinstance(value, str) else value


class GroupedAttention(_Frozen):
    """Attention whose query heads share KV heads in equal groups: MHA (groups of one), GQA, MQA (one KV head).

    A window layer attends to the last `window_size` positions only; `num_window_layers` of the model's layers do so.
    Layers that attend within chunks of so many positions (Llama 4) are taken as such, which is what the last position
    of a chunk sees.
    """

    kind: Literal["gqa"] = "gqa"
    num_heads: _Few = Field(description="query heads")
    num_kv_heads: _Few = Field(description="key and value heads, a divisor of num_heads")
    head_dim: _Size = Field(description="elements of a head; not always hidden_size / num_heads")
    qkv_bias: bool = Field(default=False, description="bias on the query, key and value projections")
    output_bias: bool = Field(default=False, description="bias on the output projection")
    qk_norm: bool = Field(default=False, description="a norm of head_dim weights on queries and one on keys")
    sinks: bool = Field(default=False, description="a learned logit for each query head, in the sum of its softmax")
    window_size: _Size | None = Field(default=None, description="positions that a window layer attends to")
    num_window_layers: _Maybe = Field(default=0, description="layers that attend to a window; the rest to all")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"attention.num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}"
            )
        if (self.window_size is None) != (self.num_window_layers == 0):
            raise ValueError("attention.window_size and num_window_layers go together: give both, or neither")
        return self


class LatentAttention(_Frozen):
    """Multi-head latent attention (MLA): keys and values are expanded from one latent vector for each token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.
    """

    kind: Literal["mla"] = "mla"
    num_heads: _Few = Field(description="query heads")
    q_lora_rank: _Size | None = Field(default=None, description="latent size of queries; None: projected directly")
    kv_lora_rank: _Size = Field(description="latent size of keys and values, what the cache holds")
    qk_nope_head_dim: _Size = Field(description="elements of a query or key head without position")
    qk_rope_head_dim: _Size = Field(description="elements with rotary position; of keys, shared by all heads")
    v_head_dim: _Size = Field(description="elements of a value head")


Attention = Annotated[GroupedAttention | LatentAttention, Field(discriminator="kind")]
"""The attention of a model, told apart by its field `kind`."""


class Ffn(_Frozen):
    """The feed-forward network of a dense layer: gated (gate, up, down) or plain (up, down)."""

    intermediate_size: _Size
    is_gated: bool = True
    has_bias: bool = False


class Moe(_Frozen):
    """The mixture of experts that takes the place of the feed-forward network in `num_layers` layers."""

    num_layers: _Few = Field(description="layers with experts; the other layers of the model are dense")
    num_experts: _Few = Field(description="routed experts of a layer")
    experts_per_token: _Few
    intermediate_size: _Size = Field(description="of one routed expert")
    is_gated: bool = True
    num_shared_experts: Annotated[int, Field(ge=0, le=1 << 16)] = Field(default=0, description="seen by every token")
    shared_intermediate_size: _Size | None = Field(
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
        if self.num_shared_experts == 0 and (self.shared_intermediate_size is not None or self.shared_gate):
            raise ValueError("moe.shared_intermediate_size and shared_gate are for num_shared_experts >= 1, got 0")
        return self

    @property
    def shared_width(self) -> int:
        """Intermediate size of all shared experts together, which run as one FFN."""
        return self.num_shared_experts * (self.shared_intermediate_size or self.intermediate_size)


class PublishedParameters(_Frozen):
    """The parameter count that the maker publishes, which `num_parameters` has to reproduce."""

    num_parameters: Annotated[int, Field(ge=1)]
    is_exact: bool = Field(default=True, description="False: a rounded figure, held to 1%")
    source: Annotated[_Text, Field(min_length=1)]


class ModelConfig(_Frozen):
    """A decoder-only transformer. Load one with `load_model`, or build it from sizes in memory.

    >>> ModelConfig(
    ...     name="mine", hidden_size=4096, num_layers=32, vocab_size=32000, ffn=Ffn(intermediate_size=14336),
    ...     attention=GroupedAttention(num_heads=32, num_kv_heads=8, head_dim=128),
    ... ).num_dense_layers
    32

    Sizes are in elements. Every layer holds attention and either `ffn` or `moe`; give `ffn` if and only if some
    layers are dense. `with_` gives a changed copy for sweeps.

    Raises:
        pydantic.ValidationError: on direct construction (a ValueError); `load_model` and `with_` raise
            `ModelConfigError`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    title: _Text = ""
    notes: _Text = Field(default="", description="modelling decisions, in words")
    source: _Text = Field(default="", description="where the sizes come from")

    hidden_size: _Size
    num_layers: _Few
    vocab_size: _Size = Field(description="rows of the embedding, padding included")
    attention: Attention
    ffn: Ffn | None = None
    moe: Moe | None = None

    tied_embeddings: bool = Field(default=False, description="the LM head is the embedding, transposed")
    norm: Literal["rms", "layer"] = Field(default="rms", description="rms: a weight; layer: a weight and a bias")
    norms_per_layer: _Few = Field(default=2, description="norms over hidden_size; one more follows the last layer")
    num_positions: _Maybe = Field(default=0, description="rows of a learned position table, 0 if there is none")
    published: PublishedParameters | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.num_dense_layers < 0:
            raise ValueError(f"moe.num_layers must be <= num_layers = {self.num_layers}, got {self.num_moe_layers}")
        if self.ffn is None and self.num_dense_layers:
            raise ValueError(f"ffn must be given: {self.num_dense_layers} of {self.num_layers} layers are dense")
        if self.ffn is not None and not self.num_dense_layers:
            raise ValueError(f"ffn is for dense layers, but all {self.num_layers} layers have experts: leave it out")
        if self.num_window_layers > self.num_layers:
            raise ValueError(
                f"attention.num_window_layers must be <= num_layers = {self.num_layers}, got {self.num_window_layers}"
            )
        return self

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.moe is None else self.moe.num_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers with a plain or gated feed-forward network."""
        return self.num_layers - self.num_moe_layers

    @property
    def num_window_layers(self) -> int:
        """Layers that attend to a window."""
        return self.attention.num_window_layers if isinstance(self.attention, GroupedAttention) else 0

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What `repr` and `str` show: what tells models apart at a glance."""
        yield None, self.name
        for name in ("hidden_size", "num_layers", "vocab_size"):
            yield name, getattr(self, name)
        yield "num_heads", self.attention.num_heads
        yield "num_experts", 0 if self.moe is None else self.moe.num_experts

    def with_(self, **changes: Any) -> ModelConfig:
        """Return a copy with fields replaced, checked anew; it drops `published`, which speaks of the original.

        Raises:
            ModelConfigError: the copy does not hold together.
        """
        fields = {name: getattr(self, name) for name in self.model_fields_set} | {"published": None} | changes
        return build_config(fields, origin=f"{self.name}.with_")


def build_config(data: Mapping[str, Any], *, origin: str) -> ModelConfig:
    """Validate `data` as a `ModelConfig`; `origin` names its file in messages.

    Raises:
        ModelConfigError: a field is missing, unknown, of the wrong type or out of range, or fields contradict.
    """
    try:
        return build_spec(ModelConfig, data, origin=origin)
    except ArchValidationError as error:
        raise ModelConfigError(str(error)) from None
