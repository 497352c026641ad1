"""`ModelConfig`, the sizes of a decoder-only transformer; its pipeline stages and its kinds of layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from gemm_eval.arch import build_spec
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, InvalidOptionError, ModelConfigError
from gemm_eval.transformer.parts import (
    Attention,
    Few,
    Ffn,
    Frozen,
    GroupedAttention,
    LatentAttention,
    LayerSet,
    LinearAttention,
    Maybe,
    Moe,
    PublishedParameters,
    Quantization,
    Size,
    Text,
    layers_text,
    parse_layers,
)
from gemm_eval.words import as_integer


def _layers_of(text: str | None, otherwise: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the layers that a text names, or others where there is none."""
    return tuple(otherwise) if text is None else parse_layers(text)


class ModelConfig(Frozen):
    """A decoder-only transformer. Load one with `load_model`, or build it from sizes in memory.

    >>> ModelConfig(
    ...     name="mine", hidden_size=4096, num_layers=32, vocab_size=32000, ffn=Ffn(intermediate_size=14336),
    ...     attention=GroupedAttention(num_heads=32, num_kv_heads=8, head_dim=128),
    ... ).num_dense_layers
    32

    Sizes are in elements. Every layer holds attention, and either `ffn` or `moe` but for `no_ffn_layers`; give `ffn` if
    and only if some layers are dense. `with_` gives a changed copy for sweeps.

    Raises:
        pydantic.ValidationError: on direct construction (a ValueError); `load_model` and `with_` raise
            `ModelConfigError`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    title: Text = ""
    notes: Text = Field(default="", description="modelling decisions, in words")
    source: Text = Field(default="", description="where the sizes come from")

    hidden_size: Size
    num_layers: Few
    vocab_size: Size = Field(description="rows of the embedding, padding included")
    attention: Attention
    linear: LinearAttention | None = Field(default=None, description="layers of linear attention; None: none")
    ffn: Ffn | None = None
    moe: Moe | None = None
    no_ffn_layers: LayerSet | None = Field(default=None, description="layers without `ffn` and `moe`; None: none")

    tied_embeddings: bool = Field(default=False, description="the LM head is the embedding, transposed")
    norm: Literal["rms", "layer"] = Field(default="rms", description="rms: a weight; layer: a weight and a bias")
    norms_per_layer: Few = Field(default=2, description="norms over hidden_size; one more follows the last layer")
    num_positions: Maybe = Field(default=0, description="rows of a learned position table, 0 if there is none")
    lm_head_bias: bool = Field(default=False, description="a bias for each row of the vocabulary")
    dtype: Annotated[DType, Field(strict=False)] | None = Field(
        default=None, description="type of what is not quantized; None: not said"
    )
    quantization: Quantization | None = Field(default=None, description="how weights are quantized; None: they are not")
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
        attention = self.attention if isinstance(self.attention, GroupedAttention) else None
        for what, layers in (
            ("moe.layers", self.moe and self.moe.layers),
            ("linear.layers", self.linear and self.linear.layers),
            ("no_ffn_layers", self.no_ffn_layers),
            ("attention.window_layers", attention and attention.window_layers),
            ("attention.no_rope_layers", attention and attention.no_rope_layers),
        ):
            if layers and parse_layers(layers)[-1] >= self.num_layers:
                raise ValueError(f"{what} must be layers of 0..{self.num_layers - 1}, got {layers}")
        if self.bare_layers and self.moe is not None and not set(self.bare_layers).isdisjoint(self.moe_layers):
            raise ValueError("moe.layers must be given, and have none of no_ffn_layers")
        if self.num_linear_layers > self.num_layers or (self.linear is not None and self.num_window_layers):
            raise ValueError("linear.num_layers must be <= num_layers, and no other layers may attend to a window")
        return self

    @property
    def num_linear_layers(self) -> int:
        """Layers of linear attention."""
        return 0 if self.linear is None else self.linear.num_layers

    @property
    def num_attention_layers(self) -> int:
        """Layers with softmax attention, of all positions, a window or chosen ones."""
        return self.num_layers - self.num_linear_layers

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """The layers of linear attention, counted from 0."""
        return _layers_of(self.linear.layers if self.linear else None, range(self.num_linear_layers))

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.moe is None else self.moe.num_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers with a plain or gated feed-forward network."""
        return self.num_layers - self.num_moe_layers - len(self.bare_layers)

    @property
    def bare_layers(self) -> tuple[int, ...]:
        """The layers without a feed-forward network, counted from 0."""
        return _layers_of(self.no_ffn_layers)

    @property
    def num_window_layers(self) -> int:
        """Layers that attend to a window."""
        return self.attention.num_window_layers if isinstance(self.attention, GroupedAttention) else 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The layers with experts, counted from 0."""
        return _layers_of(self.moe.layers if self.moe else None, range(self.num_dense_layers, self.num_layers))

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """The layers with a plain or gated feed-forward network."""
        others = {*self.moe_layers, *self.bare_layers}
        return tuple(layer for layer in range(self.num_layers) if layer not in others)

    @property
    def window_layers(self) -> tuple[int, ...]:
        """The layers that attend to a window."""
        named = self.attention.window_layers if isinstance(self.attention, GroupedAttention) else None
        return _layers_of(named, range(self.num_window_layers))

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what `repr` and `str` show: the fields that tell models apart at a glance."""
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
    """Validate `data` as a `ModelConfig`; `origin` names its file in messages."""
    try:
        return build_spec(ModelConfig, data, origin=origin)
    except ArchValidationError as error:
        raise ModelConfigError(str(error)) from None


_MAX_STAGES = 1 << 16


def stage_layers(num_layers: int, pipeline_parallel: int) -> tuple[range, ...]:
    """Return the layers of each pipeline stage, as even as they go.

    Where they do not divide, the stages before the last have one more: the last one also has the LM head. So vLLM
    divides layers (`get_pp_indices`).

    Raises:
        InvalidOptionError: more stages than layers.
    """
    stages = as_integer("pipeline_parallel", pipeline_parallel, 1, _MAX_STAGES)
    if stages > num_layers:
        raise InvalidOptionError(f"pipeline_parallel must be at most the number of layers, {num_layers}, got {stages}")
    each, more = divmod(num_layers, stages)
    firsts = [stage * each + max(0, stage - (stages - 1 - more)) for stage in range(stages)]
    return tuple(range(first, end) for first, end in zip(firsts, (*firsts[1:], num_layers), strict=True))


@lru_cache(maxsize=1024)
def stage_config(config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
    """Return the model that some layers of `config` (a tuple or range) are, counted from 0 again, in order.

    Embedding, final norm and LM head are still in it: only the caller knows whether the layers come with them.
    """
    if len(layers) == config.num_layers:
        return config
    index_of = {layer: index for index, layer in enumerate(layers)}
    changes: dict[str, Any] = {"num_layers": len(layers), "attention": _attention_of(config, index_of)}
    for name, of_part in (("moe", config.moe_layers), ("linear", config.linear_layers)):
        placed, part = _placed(of_part, index_of), getattr(config, name)
        named = {"num_layers": len(placed), "layers": layers_text(placed)}
        changes[name] = part.model_copy(update=named) if placed else None
    bare_layers = _placed(config.bare_layers, index_of)
    num_others = len(bare_layers) + (changes["moe"].num_layers if changes["moe"] else 0)
    changes |= {
        "no_ffn_layers": layers_text(bare_layers) or None, "ffn": config.ffn if num_others < len(layers) else None,
        "published": None,
    }  # fmt: skip
    if config.quantization is not None:
        parts = []
        for part in config.quantization.parts:
            inside = None if part.layers is None else layers_text(_placed(parse_layers(part.layers), index_of))
            if inside != "":
                parts.append(part.model_copy(update={"layers": inside}))
        changes["quantization"] = config.quantization.model_copy(update={"parts": tuple(parts)})
    return config.model_copy(update=changes)


def _attention_of(config: ModelConfig, index_of: Mapping[int, int]) -> Attention:
    attention = config.attention
    if not isinstance(attention, GroupedAttention):
        return attention
    windows = _placed(config.window_layers, index_of)
    no_rope = _placed(_layers_of(attention.no_rope_layers), index_of)
    return attention.model_copy(update={
        "window_size": attention.window_size if windows else None, "num_window_layers": len(windows),
        "window_layers": layers_text(windows) or None, "no_rope_layers": layers_text(no_rope) or None,
    })  # fmt: skip


def _placed(chosen: Iterable[int], index_of: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(index_of[layer] for layer in chosen if layer in index_of)


class LayerKind(NamedTuple):
    """Layers of a model, counted from 0, that do the same: ``"window attention, experts"``."""

    name: str
    layers: tuple[int, ...]
    has_rope: bool


def with_redundant_experts(config: ModelConfig, num_redundant: int) -> ModelConfig:
    """Return a model of which some experts are held twice, so that more degrees of expert parallelism divide them.

    Both copies share the tokens of their expert, which are taken to be the busiest: load spreads over all copies alike.
    The router is counted as wide as there are copies. vLLM: ``--num-redundant-experts``; DeepSeek-V3, arXiv:2412.19437,
    section 3.4: 32 for its 256.

    Raises:
        InvalidOptionError: the model has no experts, or fewer.
    """
    if config.moe is None:
        raise InvalidOptionError(f"redundant experts are for models with experts: {config.name} has none")
    num = as_integer("num_redundant", num_redundant, 0, config.moe.num_experts)
    groups = {} if (config.moe.num_experts + num) % config.moe.num_groups == 0 else {
        "num_groups": 1, "groups_per_token": 1
    }  # fmt: skip
    moe = config.moe.model_copy(update={"num_experts": config.moe.num_experts + num, **groups})
    return config.model_copy(update={"moe": moe})


@lru_cache(maxsize=1024)
def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """Return the kinds of layers that a model has, in the order in which they first occur."""
    windows, attention = set(config.window_layers), config.attention
    networks = dict.fromkeys(config.moe_layers, "experts") | dict.fromkeys(config.bare_layers, "no network")
    linear = set(config.linear_layers)
    never, without, whole = False, set[int](), "full"
    if isinstance(attention, LatentAttention):
        never, whole = not attention.has_rope, "sparse" if attention.indexer else "full"
    else:
        never, without = attention.rotary_dim == 0, set(_layers_of(attention.no_rope_layers))
    result: dict[tuple[str, str, bool], list[int]] = {}
    for layer in range(config.num_layers):
        mixer = "linear" if layer in linear else "window" if layer in windows else whole
        has_rope = mixer != "linear" and not never and layer not in without
        result.setdefault((mixer, networks.get(layer, "dense"), has_rope), []).append(layer)

    def name_of(mixer: str, network: str, has_rope: bool) -> str:
        rope = "" if has_rope or never or mixer == "linear" else " without rotary positions"
        return f"{mixer} attention{rope}, {network}"

    return tuple(LayerKind(name_of(*kind), tuple(layers), kind[2]) for kind, layers in result.items())
