"""Finding and reading model configs: presets by name, YAML files, Hugging Face `config.json` files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gemm_eval.arch import preset_files, read_yaml
from gemm_eval.errors import ArchError, ModelConfigError
from gemm_eval.transformer.config import ModelConfig, build_config
from gemm_eval.transformer.hugging_face import parse_config
from gemm_eval.transformer.json import read_json
from gemm_eval.words import did_you_mean, shown

__all__ = ["list_models", "load_model"]

_CONFIG_FILE = "config.json"
_HUB_FOLDER = re.compile(r"models--.+--(?P<name>.+)")  # how the Hugging Face cache names a model's folder
_MAX_NAME_CHARS = 96


def list_models() -> tuple[str, ...]:
    """Names of the model configs that come with the library, sorted."""
    return tuple(sorted(preset_files("models")))


def load_model(name_or_path: str | os.PathLike[str]) -> ModelConfig:
    """Load a model config: a preset, a YAML file, a Hugging Face `config.json`, or a folder that holds one.

    >>> load_model("llama-3-8b").hidden_size
    4096

    Nothing is downloaded. A `config.json` is read as it is; see `gemm_eval.transformer.hugging_face.MODEL_TYPES` for
    the architectures. It has no name of its own, so the model is called as its file or folder.

    Raises:
        ModelConfigError: there is no such preset or file, or its content is malformed, unsafe, of an unknown
            architecture, or does not hold together; the message names file and key.
    """
    path = _resolve(name_or_path)
    if _is_folder(path):
        path /= _CONFIG_FILE
    if path.suffix in (".yaml", ".yml"):
        try:
            data = read_yaml(path)
        except ArchError as error:
            raise ModelConfigError(str(error)) from None
        data.setdefault("name", path.stem)
        return build_config(data, origin=str(path))
    return parse_config(read_json(path), name=_name_of(path), origin=str(path))


def _resolve(name_or_path: str | os.PathLike[str]) -> Path:
    if not isinstance(name_or_path, str | os.PathLike):
        raise ModelConfigError(f"a model is given by name or path, got {shown(name_or_path)}")
    text = os.fspath(name_or_path)
    if not isinstance(text, str) or "\0" in text:
        raise ModelConfigError(f"no model of the name {shown(text)}")
    if isinstance(name_or_path, os.PathLike) or text.endswith((".yaml", ".yml", ".json")) or os.sep in text:
        return Path(text)
    presets = preset_files("models")
    if text in presets:
        return presets[text]
    if text and _is_folder(Path(text)):
        return Path(text)
    hint = did_you_mean(text, sorted(presets)) or f"; known: {', '.join(sorted(presets))}"
    raise ModelConfigError(f"no model of the name {shown(text)}{hint} (a file is given by its path)")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # no such path can be, because a part is too long
        return False


def _name_of(path: Path) -> str:
    """The name of a model from where its `config.json` lies."""
    resolved = path.resolve() if path.name != _CONFIG_FILE else path.absolute()
    name = resolved.stem if path.name != _CONFIG_FILE else resolved.parent.name
    for parent in resolved.parents:
        if match := _HUB_FOLDER.fullmatch(parent.name):
            name = match["name"]
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:_MAX_NAME_CHARS]
    return safe or "model"
