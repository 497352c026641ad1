"""Pipeline stages and kinds of layers: which layers each has, and some layers as a model of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.layers import layers_text, parse_layers
from gemm_eval.transformer.parts import Attention, GroupedAttention

__all__ = ["LayerKind", "layer_kinds", "stage_config", "stage_layers"]

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
    found, first = [], 0
    for stage in range(stages):
        num = each + (stages - 1 - more <= stage < stages - 1)
        found.append(range(first, first + num))
        first += num
    return tuple(found)


def stage_config(config: ModelConfig, layers: Iterable[int]) -> ModelConfig:
    """Return the model that some layers of `config` are, counted from 0 again, in order.

    Embedding, final norm and LM head are still in it: only the caller knows whether the layers come with them.
    """
    return _config_of(config, tuple(layers))


@lru_cache(maxsize=1024)
def _config_of(config: ModelConfig, layers: tuple[int, ...]) -> ModelConfig:
    if len(layers) == config.num_layers:
        return config
    place = {layer: index for index, layer in enumerate(layers)}
    moe_layers = _placed(config.moe_layers, place)
    moe = None
    if config.moe is not None and moe_layers:
        moe = config.moe.model_copy(update={"num_layers": len(moe_layers), "layers": layers_text(moe_layers)})
    changes: dict[str, Any] = {
        "num_layers": len(layers),
        "moe": moe,
        "ffn": config.ffn if len(moe_layers) < len(layers) else None,
        "attention": _attention_of(config, place),
        "published": None,
        "num_mtp_layers": 0,
    }
    if config.quantization is not None:
        parts = []
        for part in config.quantization.parts:
            inside = None if part.layers is None else _placed(parse_layers(part.layers), place)
            if inside is None:
                parts.append(part)
            elif inside:
                parts.append(part.model_copy(update={"layers": layers_text(inside)}))
        changes["quantization"] = config.quantization.model_copy(update={"parts": tuple(parts)})
    return config.model_copy(update=changes)


def _attention_of(config: ModelConfig, place: Mapping[int, int]) -> Attention:
    attention = config.attention
    if not isinstance(attention, GroupedAttention):
        return attention
    windows = _placed(config.window_layers, place)
    no_rope = _placed(parse_layers(attention.no_rope_layers), place) if attention.no_rope_layers else ()
    return attention.model_copy(
        update={
            "window_size": attention.window_size if windows else None,
            "num_window_layers": len(windows),
            "window_layers": layers_text(windows) if windows else None,
            "no_rope_layers": layers_text(no_rope) if no_rope else None,
        }
    )


def _placed(chosen: Iterable[int], place: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(place[layer] for layer in chosen if layer in place)


class LayerKind(NamedTuple):
    """Layers of a model that do the same.

    Attributes:
        name: in words: ``"window attention, experts"``.
        layers: which, counted from 0.
        is_window: they attend to a window.
        has_experts: they have experts.
        has_rope: their positions are rotary.
    """

    name: str
    layers: tuple[int, ...]
    is_window: bool
    has_experts: bool
    has_rope: bool


@lru_cache(maxsize=1024)
def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """Return the kinds of layers that a model has, in the order in which they first occur."""
    windows, experts = set(config.window_layers), set(config.moe_layers)
    without: set[int] = set()
    never = False
    if isinstance(config.attention, GroupedAttention):
        never = config.attention.rotary_dim == 0
        if config.attention.no_rope_layers is not None:
            without = set(parse_layers(config.attention.no_rope_layers))
    found: dict[tuple[bool, bool, bool], list[int]] = {}
    for layer in range(config.num_layers):
        found.setdefault((layer in windows, layer in experts, not never and layer not in without), []).append(layer)
    return tuple(
        LayerKind(
            f"{'window' if kind[0] else 'full'} attention{'' if kind[2] or never else ' without rotary positions'}, "
            f"{'experts' if kind[1] else 'dense'}",
            tuple(layers),
            *kind,
        )
        for kind, layers in found.items()
    )
