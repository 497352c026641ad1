"""Models that other libraries define, as modules for the report: torchvision, timm and transformers.

All classifiers of torchvision and one of each family of timm by a seed, both at two batches, and classes of
transformers by their configurations, with few layers. Weights are random. No rule may be made from what they take.
"""

import random
from functools import cache
from typing import Any

import torch
from torch import nn

from tools.drawn.common import Input

BATCHES = (1, 32)

_TEXT_MODELS = (
    "albert", "bart", "bert", "bloom", "camembert", "codegen", "cohere", "ctrl", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "falcon", "gemma", "gemma2", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite",
    "llama", "mbart", "mistral", "mixtral", "mpnet", "nystromformer", "olmo2", "opt", "pegasus", "phi", "phi3", "qwen2",
    "qwen3", "roberta", "stablelm", "starcoder2", "t5", "xlm-roberta",
)  # fmt: skip
_IMAGE_MODELS = (
    "beit", "convnext", "convnextv2", "deit", "dinov2", "focalnet", "mobilevit", "poolformer", "pvt_v2", "resnet",
    "segformer", "swin", "swinv2", "vit", "vit_mae",
)  # fmt: skip
_SIZES = ((1, 512), (4, 256), (8, 1024), (32, 128))
_LAYER_NAMES = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
_NUM_LAYERS = 2
_SEED = 43


@cache
def real_names() -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return library, name, and batch (and length) of each model, in a random order."""
    import timm
    import torchvision

    draws = random.Random(_SEED)
    names = list(torchvision.models.list_models(module=torchvision.models))
    result: list[tuple[str, str, tuple[int, ...]]] = [
        ("torchvision", name, (batch,)) for name in names for batch in BATCHES
    ]
    families = [timm.list_models(module=family) for family in sorted(timm.list_modules())]
    chosen = [draws.choice(names) for names in families if names]
    result += [("timm", name, (batch,)) for name in chosen for batch in BATCHES]
    result += [("transformers", name, draws.choice(_SIZES)) for name in _TEXT_MODELS]
    result += [("transformers", name, (draws.choice(BATCHES),)) for name in _IMAGE_MODELS]
    draws.shuffle(result)
    return tuple(result)


class First(nn.Module):
    """Runs a model and returns the first tensor of its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        out = self.model(**inputs)
        while not isinstance(out, torch.Tensor):
            out = out[0] if isinstance(out, tuple | list) else next(iter(out.values()))
        return out


def real_module(library: str, name: str, sizes: tuple[int, ...]) -> tuple[dict[str, Input], nn.Module]:
    """Return the inputs of a model, and the model with weights on torch's default device."""
    model, inputs = (_from_config if library == "transformers" else _classifier)(library, name, sizes)
    return inputs, First(model.eval())


def _classifier(library: str, name: str, sizes: tuple[int, ...]) -> tuple[nn.Module, dict[str, Input]]:
    if library == "timm":
        import timm

        model = timm.create_model(name)
        shape = model.default_cfg["input_size"]
    else:
        import torchvision

        model, side = torchvision.models.get_model(name), 299 if name == "inception_v3" else 224
        shape = 3, side, side
    return model, {"x": Input((*sizes, *shape))}


def _from_config(library: str, name: str, sizes: tuple[int, ...]) -> tuple[nn.Module, dict[str, Input]]:
    from transformers import AutoConfig, AutoModel

    config: Any = AutoConfig.for_model(name)
    for layers in _LAYER_NAMES:
        if isinstance(getattr(config, layers, None), int):
            setattr(config, layers, min(_NUM_LAYERS, getattr(config, layers)))
    if name in _IMAGE_MODELS:
        side = getattr(config, "image_size", None) or 224
        shape = tuple(side) if isinstance(side, list | tuple) else (side, side)
        return AutoModel.from_config(config), {"pixel_values": Input((*sizes, 3, *shape))}
    batch, length = sizes
    longest = getattr(config, "max_position_embeddings", None) or length + 2
    ids = Input((batch, min(length, longest - 2)), "ids", 1000)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})
    return AutoModel.from_config(config), inputs
