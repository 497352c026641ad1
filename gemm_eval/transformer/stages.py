"""Pipeline stages: which layers each has, and a stage as a model of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.layers import layers_text, parse_layers
from gemm_eval.transformer.parts import Attention, GroupedAttention

__all__ = ["stage_config", "stage_layers"]

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


@lru_cache(maxsize=1024)
def stage_config(config: ModelConfig, layers: range) -> ModelConfig:
    """Return the model that some neighboring layers of `config` are, counted from 0 again.

    Embedding, final norm and LM head are still in it: only the caller knows whether the stage has them.
    """
    if len(layers) == config.num_layers:
        return config
    moe_layers = _shifted(config.moe_layers, layers)
    moe = None
    if config.moe is not None and moe_layers:
        moe = config.moe.model_copy(update={"num_layers": len(moe_layers), "layers": layers_text(moe_layers)})
    changes: dict[str, Any] = {
        "num_layers": len(layers),
        "moe": moe,
        "ffn": config.ffn if len(moe_layers) < len(layers) else None,
        "attention": _stage_attention(config, layers),
        "published": None,
        "num_mtp_layers": 0,
    }
    if config.quantization is not None:
        parts = []
        for part in config.quantization.parts:
            inside = None if part.layers is None else _shifted(parse_layers(part.layers), layers)
            if inside is None:
                parts.append(part)
            elif inside:
                parts.append(part.model_copy(update={"layers": layers_text(inside)}))
        changes["quantization"] = config.quantization.model_copy(update={"parts": tuple(parts)})
    return config.model_copy(update=changes)


def _stage_attention(config: ModelConfig, layers: range) -> Attention:
    attention = config.attention
    if not isinstance(attention, GroupedAttention):
        return attention
    windows = _shifted(config.window_layers, layers)
    no_rope = _shifted(parse_layers(attention.no_rope_layers), layers) if attention.no_rope_layers else ()
    return attention.model_copy(
        update={
            "window_size": attention.window_size if windows else None,
            "num_window_layers": len(windows),
            "window_layers": layers_text(windows) if windows else None,
            "no_rope_layers": layers_text(no_rope) if no_rope else None,
        }
    )


def _shifted(chosen: tuple[int, ...], layers: range) -> tuple[int, ...]:
    return tuple(layer - layers.start for layer in chosen if layer in layers)
