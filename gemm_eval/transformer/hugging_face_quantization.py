"""`quantization_config` of Hugging Face files: which GEMMs are quantized, in which layers, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.hugging_face_common import Fields, some
from gemm_eval.transformer.hugging_face_compressed import read_compressed_tensors
from gemm_eval.transformer.hugging_face_formats import Scheme, Schemes, read_simple_format
from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.module_names import gemm_layers, module_names
from gemm_eval.transformer.quantization import GEMM_NAMES, WeightFormat

__all__ = ["read_quantization"]

_NOT_LINEAR = {"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4v_moe_text", "gpt_oss"}
# Those whose routers are parameters of their own, which nobody quantizes; of others they are linear layers.
_INTEGERS = ("awq", "gptq")  # their tools know the modules of each architecture, and leave out routers and LM heads


def read_quantization(keys: Keys, config: ModelConfig, model_type: str) -> Fields:
    """Return the fields of a `Quantization` that a `quantization_config` describes.

    Args:
        keys: the content of `quantization_config`.
        config: the model, without its quantization.
        model_type: its architecture.

    Raises:
        ModelConfigError: an unknown method, format or key, or projections that run as one GEMM in different formats.
    """
    method = keys.text("quant_method", "awq" if "w_bit" in keys else "gptq" if "bits" in keys else "")
    read = read_compressed_tensors if method == "compressed-tensors" else read_simple_format
    schemes = read(keys, method)
    found: dict[tuple[str | None, WeightFormat], list[str]] = {}
    for gemm in GEMM_NAMES:
        if not _can_be_quantized(gemm, method, model_type, schemes):
            continue
        layers: Sequence[int | None] = gemm_layers(config, gemm) or ((None,) if gemm == "lm_head" else ())
        if gemm == "lm_head" and config.tied_embeddings:
            continue
        by_format: dict[WeightFormat, list[int | None]] = {}
        for layer in layers:
            form = _format_of(gemm, layer, schemes, keys)
            if form is not None:
                by_format.setdefault(form, []).append(layer)
        for form, of_form in by_format.items():
            text = None if len(of_form) == len(layers) else some((i for i in of_form if i is not None), 1 << 16)
            found.setdefault((text, form), []).append(gemm)
    keys.refuse_rest(schemes.known_keys)
    parts = [
        {"gemms": tuple(gemms), "layers": text, "format": form.model_dump(exclude_unset=True)}
        for (text, form), gemms in found.items()
    ]
    return {"method": method, "parts": tuple(parts), "kv_cache_dtype": schemes.kv_cache_dtype}


def _can_be_quantized(gemm: str, method: str, model_type: str, schemes: Schemes) -> bool:
    if schemes.experts_only:
        return gemm in ("expert_gate_up", "expert_up", "expert_down")
    if gemm in ("router", "shared_gate"):
        return method not in _INTEGERS and model_type not in _NOT_LINEAR
    return gemm != "lm_head" or schemes.has_lm_head


def _format_of(gemm: str, layer: int | None, schemes: Schemes, keys: Keys) -> WeightFormat | None:
    """The format that all modules of a GEMM have in a layer."""
    formats = {_module_format(names, schemes.ignored, schemes.schemes) for names in module_names(gemm, layer)}
    if len(formats) > 1:
        where = "" if layer is None else f" of layer {layer}"
        keys.refuse(schemes.list_key, f"must treat alike what runs as one GEMM, {gemm}{where}, but does not")
    return formats.pop()


def _module_format(
    names: Iterable[str], ignored: Callable[[str], bool], schemes: Sequence[Scheme]
) -> WeightFormat | None:
    names = tuple(names)
    if any(map(ignored, names)):
        return None
    for scheme in schemes:
        if scheme.targets is None or any(map(scheme.targets, names)):
            return scheme.format
    return None
