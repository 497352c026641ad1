"""The parts of a `ModelConfig`: its attention, feed-forward networks and experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemm_eval.transformer.layers import LayerSet, parse_layers
from gemm_eval.words import one_line

__all__ = [
    "Attention",
    "Few",
    "Ffn",
    "Frozen",
    "GroupedAttention",
    "LatentAttention",
    "Maybe",
    "Moe",
    "PublishedParameters",
    "Size",
    "Text",
    "check_layers",
]

Text = Annotated[str, Field(max_length=4000)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Few = Annotated[int, Field(ge=1, le=1 << 16)]
Maybe = Annotated[int, Field(ge=0, le=1 << 24)]


_MAX_REPR_CHARS = 40


class Frozen(BaseModel):
    """What does not change, and takes no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What `repr` and `str` show: what was given, texts shortened."""
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
    sinks: bool = Field(default=False, description="a learned logit for each query head, in the sum of its softmax")
    window_size: Size | None = Field(default=None, description="positions that a window layer attends to")
    num_window_layers: Maybe = Field(default=0, description="layers that attend to a window; the rest to all")
    window_layers: LayerSet | None = Field(default=None, description="which, as 0-46:2; None: the first ones")
    window_is_chunk: bool = Field(default=False, description="within chunks of window_size, not the last positions")
    rotary_dim: Maybe | None = Field(default=None, description="elements of a head that turn; None: all")
    no_rope_layers: LayerSet | None = Field(default=None, description="layers without rotary positions; None: none")
    qk_l2_norm: bool = Field(default=False, description="norms of queries and keys, without weights")

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
        if self.num_shared_experts == 0 and (self.shared_intermediate_size is not None or self.shared_gate):
            raise ValueError("moe.shared_intermediate_size and shared_gate are for num_shared_experts >= 1, got 0")
        check_layers("moe.layers", self.layers, self.num_layers, "moe.num_layers")
        return self

    @property
    def shared_width(self) -> int:
        """Intermediate size of all shared experts together, which run as one FFN."""
        return self.num_shared_experts * (self.shared_intermediate_size or self.intermediate_size)


class PublishedParameters(Frozen):
    """The parameter count that the maker publishes, which `num_parameters` has to reproduce."""

    num_parameters: Annotated[int, Field(ge=1)]
    is_exact: bool = Field(default=True, description="False: a rounded figure, held to 1%")
    source: Annotated[Text, Field(min_length=1)]


def check_layers(what: str, layers: str | None, num: int, what_num: str) -> None:
    """Check that `layers`, where they are given, are as many as is said elsewhere.

    Raises:
        ValueError: they are not.
    """
    if layers is not None and len(parse_layers(layers)) != num:
        raise ValueError(f"{what} must be {what_num} = {num} layers, got {len(parse_layers(layers))}")
