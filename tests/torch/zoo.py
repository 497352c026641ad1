"""Architectures as their libraries build them from a config, without weights: on torch's device "meta"."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

BATCH, SEQ = 2, 64


class Model(NamedTuple):
    """A module, arguments of its `forward` by name, and operations of it that no model knows."""

    module: Any
    inputs: dict[str, Any]
    unpriced: tuple[str, ...] = ()


def ids(batch: int = BATCH, seq: int = SEQ) -> torch.Tensor:
    return torch.zeros(batch, seq, dtype=torch.long)


def pixels(size: int = 224, batch: int = BATCH) -> torch.Tensor:
    return torch.empty(batch, 3, size, size, dtype=torch.bfloat16)


def _hugging_face(config: Any, kind: str = "AutoModel", **inputs: Any) -> Model:
    import transformers

    with torch.device("meta"):
        module = getattr(transformers, kind).from_config(config, dtype=torch.bfloat16)
    return Model(module.eval(), inputs)


def _vision(name: str, size: int = 224) -> Model:
    import torchvision

    with torch.device("meta"):
        module = getattr(torchvision.models, name)()
    return Model(module.bfloat16().eval(), {"x": pixels(size)})


def _config(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**options)


def _moe(name: str, **options: Any) -> Model:
    config = _config(name, num_hidden_layers=2, **options)
    model = _hugging_face(config, "AutoModelForCausalLM", input_ids=ids())
    model.module.set_experts_implementation("grouped_mm")
    return model


def gemma3() -> Model:
    config = _config("Gemma3TextConfig", num_hidden_layers=6, hidden_size=1152, num_attention_heads=4, head_dim=256,
                     num_key_value_heads=1, intermediate_size=6912)  # fmt: skip
    return _hugging_face(config, "AutoModelForCausalLM", input_ids=ids())


def llama(layers: int = 2) -> Model:
    config = _config("LlamaConfig", num_hidden_layers=layers, hidden_size=4096, intermediate_size=14336,
                     num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)  # fmt: skip
    return _hugging_face(config, "AutoModelForCausalLM", input_ids=ids())


def whisper() -> Model:
    config = _config("WhisperConfig", encoder_layers=2, decoder_layers=2, d_model=512, encoder_attention_heads=8,
                     decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048)  # fmt: skip
    features = torch.empty(BATCH, 80, 3000, dtype=torch.bfloat16)
    return _hugging_face(config, "AutoModelForSpeechSeq2Seq", input_features=features, decoder_input_ids=ids())


class Block(nn.Module):
    """A residual block of a diffusion UNet."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(512, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(nn.functional.silu(self.norm2(h))) + self.skip(x)


class Attention(nn.Module):
    """Self-attention of pixels, then attention to a text."""

    def __init__(self, channels: int, text: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.qkv, self.q = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.kv, self.out = nn.Linear(text, 2 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (8, -1)).transpose(1, 2)

        q, k, v = map(heads, self.qkv(self.norm(tokens)).chunk(3, -1))
        tokens = tokens + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        k, v = map(heads, self.kv(text).chunk(2, -1))
        attended = nn.functional.scaled_dot_product_attention(heads(self.q(tokens)), k, v)
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        return tokens.transpose(1, 2).unflatten(-1, (height, width))


class UNet(nn.Module):
    """A small diffusion UNet: blocks down and up, attention to a text, transposed convolution, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.stem = nn.Conv2d(4, 128, 3, padding=1)
        self.down1, self.pool1 = Block(128, 128), nn.Conv2d(128, 128, 3, stride=2, padding=1)
        self.down2, self.attention = Block(128, 256), Attention(256, 768)
        self.up = nn.ConvTranspose2d(256, 128, 2, stride=2)
        self.up1, self.end = Block(256, 128), nn.Conv2d(128, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, steps: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None] * torch.arange(64, device=x.device, dtype=x.dtype)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.down1(self.stem(x), time)
        inner = self.attention(self.down2(self.pool1(first), time), text)
        up = self.up(inner) + nn.functional.interpolate(inner[:, :128], scale_factor=2.0, mode="nearest")
        return self.end(self.up1(torch.cat([up, first], 1), time))


def unet() -> Model:
    with torch.device("meta"):
        module = UNet().bfloat16().eval()
    inputs = {
        "x": torch.empty(BATCH, 4, 64, 64, dtype=torch.bfloat16),
        "steps": torch.empty(BATCH, dtype=torch.bfloat16),
        "text": torch.empty(BATCH, 77, 768, dtype=torch.bfloat16),
    }
    return Model(module, inputs)


def lstm() -> Model:
    with torch.device("meta"):
        module = nn.LSTM(256, 512, num_layers=2, batch_first=True).bfloat16().eval()
    return Model(module, {"input": torch.empty(BATCH, 8, 256, dtype=torch.bfloat16)})


MODELS: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "qwen3-moe": lambda: _moe("Qwen3MoeConfig"),
    "mixtral": lambda: _moe("MixtralConfig"),
    "gemma3": gemma3,
    "gpt2": lambda: _hugging_face(_config("GPT2Config", n_layer=2), "AutoModelForCausalLM", input_ids=ids()),
    "bert": lambda: _hugging_face(_config("BertConfig", num_hidden_layers=2), input_ids=ids()),
    "t5": lambda: _hugging_face(_config("T5Config", num_layers=2, num_decoder_layers=2), input_ids=ids(),
        decoder_input_ids=ids()),
    "whisper": whisper,
    "mamba": lambda: _hugging_face(_config("MambaConfig", num_hidden_layers=2), "AutoModelForCausalLM",
        input_ids=ids()),
    "clip": lambda: _hugging_face(_config("CLIPConfig"), input_ids=ids(), pixel_values=pixels()),
    "vit": lambda: _hugging_face(_config("ViTConfig", num_hidden_layers=2), pixel_values=pixels()),
    "swin-v2": lambda: _vision("swin_v2_t", 256),
    "resnet50": lambda: _vision("resnet50"),
    "convnext": lambda: _vision("convnext_tiny"),
    "efficientnet": lambda: _vision("efficientnet_b0"),
    "mobilenet": lambda: _vision("mobilenet_v3_large"),
    "vit-b16-torchvision": lambda: _vision("vit_b_16"),
    "unet": unet,
    "lstm": lstm,
}  # fmt: skip
