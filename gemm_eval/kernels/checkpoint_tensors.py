"""Checkpoint folders of Hugging Face's form: what they say of their quantization, and tensors of all files by name.

The quantization is in config.json, quantize_config.json (GPTQ), quant_config.json (AWQ) or hf_quant_config.json
(ModelOpt), in the keys that AutoGPTQ, GPTQModel, AutoAWQ, ModelOpt, compressed-tensors and transformers write. What
kernels do not read is refused here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError, ModelConfigError
from gemm_eval.kernels.layout import GROUP_SIZES, Array, as_array, decode, encode
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.storage import StoredTensor, TensorFile, read_bounded
from gemm_eval.words import one_line, plain_integer, shown

_MAX_FILE_BYTES = 1 << 26  # an index of a thousand shards has some megabytes
_MAX_RULES = 1 << 12
_BITS = 4
_WHOLE_K = -1
_DTYPES = {"float16": DType.FP16, "bfloat16": DType.BF16}
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
_GPTQ_VERSIONS = {"gptq": 1, "gptq_v2": 2}
_INTEGER_METHODS = ("awq", "gptq")
_METHODS = (*_INTEGER_METHODS, "mxfp4", "modelopt", "compressed-tensors")
_FP4_ALGORITHMS = {
    "mxfp4": ("quant_method", {"mxfp4": "mxfp4"}),
    "modelopt": ("quant_algo", {"NVFP4": "nvfp4"}),
    "compressed-tensors": ("format", {"nvfp4-pack-quantized": "nvfp4", "mxfp4-pack-quantized": "mxfp4"}),
}
"""Key and values that say which four-bit floats a method means."""


class QuantizationConfig(NamedTuple):
    """The quantization of a checkpoint's layers in 4 bits.

    Attributes:
        method: "awq", "gptq", "mxfp4" (gpt-oss), "modelopt" or "compressed-tensors".
        group_size: None: one group for all K, or that of four-bit floats.
        version: of GPTQ's zero points: 1 stores z - 1, 2 stores z.
        desc_act: whether the rows of groups may be scattered (act-order); each layer then has to have g_idx.
        sym: whether all zero points are 8; None: not known.
        rules: pattern of names -> what is different for the layers that it matches (GPTQModel's `dynamic`).
        fp4_mode: "mxfp4" or "nvfp4"; empty: integers.
        activation: type of the model, if config.json says one that kernels have.
    """

    method: str
    group_size: int | None
    version: int
    desc_act: bool
    sym: bool | None
    rules: tuple[tuple[str, dict[str, Any]], ...]
    source: str
    fp4_mode: str = ""
    activation: DType | None = None

    def of_layer(self, name: str) -> QuantizationConfig:
        """Return the config of a layer: of the first rule that matches its name from the start, else that of all."""
        for pattern, changes in self.rules:
            if re.match(pattern, name):
                source = f"{self.source}: dynamic {shown(pattern)}"
                given = {"desc_act": self.desc_act, "sym": self.sym, "group_size": self.group_size or _WHOLE_K}
                return _parsed({"bits": _BITS, **given, **changes}, self.method, source)._replace(version=self.version)
        return self


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a JSON file of a checkpoint whose top level is an object."""
    raw = read_bounded(path, _MAX_FILE_BYTES, "config", unreadable=ModelConfigError, too_large=ModelConfigError)
    try:
        result = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path}: not readable as JSON: {one_line(str(error))}") from None
    if not isinstance(result, dict):
        raise ModelConfigError(f"{path}: the top level must be an object of keys, got {type(result).__name__}")
    return result


def read_quantization_config(folder: Path) -> QuantizationConfig:
    """Read how the checkpoint in a folder is quantized: from config.json, if that says it, else from its own file."""
    path = folder / "config.json"
    of_model = read_json_file(path) if path.is_file() else {}
    activation = _DTYPES.get(str(of_model.get("torch_dtype", of_model.get("dtype"))))
    result = of_model.get("quantization_config")
    if result is not None:
        return _parsed(result, None, f"{path}: quantization_config")._replace(activation=activation)
    for name, method in _FILES.items():
        if (folder / name).is_file():
            fields = read_json_file(folder / name)
            inner = fields.get("quantization", {}) if method == "modelopt" else fields
            return _parsed(inner, method, str(folder / name))._replace(activation=activation)
    raise ModelConfigError(
        f"{folder} does not say how it is quantized: there is no quantization_config in a config.json, and no "
        f"{' or '.join(_FILES)}"
    )


def _parsed(fields: Any, method: str | None, source: str) -> QuantizationConfig:
    if not isinstance(fields, dict):
        raise ModelConfigError(f"{source} must be an object of keys, got {shown(fields)}")
    method = _chosen(source, "quant_method", fields.get("quant_method", method), _METHODS)
    if method not in _INTEGER_METHODS:
        key, modes = _FP4_ALGORITHMS[method]
        mode = modes[_chosen(source, key, fields.get(key), modes)]
        return QuantizationConfig(method, None, 1, False, None, (), source, mode)
    bits = fields.get("bits", fields.get("w_bit"))
    if plain_integer(bits) != _BITS:
        raise InvalidProblemError(f"{source}: bits must be {_BITS}, got {shown(bits)}: kernels read weights of 4 bits")
    group_size = fields.get("group_size", fields.get("q_group_size"))
    group = plain_integer(group_size)
    if group not in (_WHOLE_K, *GROUP_SIZES):
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise InvalidProblemError(
            f"{source}: group_size must be one of {sizes}, or -1 for all K, got {shown(group_size)}"
        )
    desc_act, sym = (_flag(fields, key, source) for key in ("desc_act", "sym"))
    version = 1
    if method == "gptq":
        layout = "marlin" if fields.get("is_marlin_format") else fields.get("checkpoint_format") or "gptq"
        version = _GPTQ_VERSIONS[_chosen(source, "checkpoint_format", layout, _GPTQ_VERSIONS)]
    else:  # AutoAWQ's usual layout
        _chosen(source, "version", str(fields.get("version", "gemm")).lower(), ("gemm",))
    return QuantizationConfig(
        method=method, group_size=None if group == _WHOLE_K else group, version=version, desc_act=bool(desc_act),
        sym=sym if method == "gptq" else None, rules=_rules(fields.get("dynamic"), source), source=source,
    )  # fmt: skip


def _chosen(source: str, key: str, value: Any, known: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise InvalidProblemError(f"{source}: {key} must be {' or '.join(known)}, got {shown(value)}")
    return value


def _flag(fields: dict[str, Any], key: str, source: str) -> bool | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelConfigError(f"{source}: {key} must be true or false, got {shown(value)}")
    return value


def _rules(dynamic: Any, source: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the rules of quantized layers: "+:pattern" or "pattern"; "-:pattern" names the others, as tensors do."""
    if not dynamic:
        return ()
    if not isinstance(dynamic, dict) or len(dynamic) > _MAX_RULES:
        raise ModelConfigError(f"{source}: dynamic must be an object of at most {_MAX_RULES} patterns")
    rules = []
    for pattern, changes in dynamic.items():
        if pattern.startswith("-:"):
            continue
        if not isinstance(changes, dict):
            raise ModelConfigError(f"{source}: dynamic {shown(pattern)} must be an object, got {shown(changes)}")
        bare = pattern.removeprefix("+:")
        try:
            re.compile(bare)
        except re.error as error:
            raise ModelConfigError(f"{source}: dynamic {shown(pattern)} is no regular expression: {error}") from None
        rules.append((bare, changes))
    return tuple(rules)


INDEX_FILE = "model.safetensors.index.json"


class PackedLayer(NamedTuple):
    """A linear layer: packed weights, and a bias of the type of the activations (bf16: its bits in uint16), or None."""

    packed: PackedW4
    bias: Array | None


class TensorFolder:
    """The tensors of all files of a folder, by name; files that are missing, and a tensor in two, are refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / INDEX_FILE
        listed: dict[str, str] = _weight_map(index) if index.is_file() else {}
        paths = sorted({folder / name for name in listed.values()} if listed else folder.glob("*.safetensors"))
        if not paths:
            raise InvalidInputError(f"{folder} has no files *.safetensors")
        self.files = {path.name: TensorFile(path) for path in paths}
        self._file_of: dict[str, TensorFile] = {}
        for file in self.files.values():
            for name in file.names:
                if name in self._file_of:
                    raise InvalidInputError(f"tensor {shown(name)} is in {self._file_of[name].path} and in {file.path}")
                self._file_of[name] = file
        missing = sorted(set(listed) - self._file_of.keys())
        if missing:
            raise InvalidInputError(f"{index} lists tensor {shown(missing[0])}, which {listed[missing[0]]} has not")

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __getitem__(self, name: str) -> StoredTensor:
        return self._file_of[name][name]

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, file by file."""
        return tuple(self._file_of)


def encoded_bias(stored: StoredTensor | None, packed: PackedW4, xp: Any) -> Array | None:
    """Return a bias as `PackedLayer` has it."""
    if stored is None:
        return None
    if stored.shape != (packed.N,):
        raise InvalidProblemError(f"bias must be of shape [{packed.N}], got {list(stored.shape)}")
    return encode(as_array(float_array(stored), "bias", xp), packed.activation)


def float_array(stored: StoredTensor) -> Any:
    """Floats of a file; bf16 as fp32."""
    return decode(stored.array, DType.BF16) if stored.dtype == "BF16" else stored.array


def as_path(what: str, value: Any) -> Path:
    """Return an argument as a path."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
        raise InvalidOptionError(f"{what} must be a path, got {shown(value)}")
    return Path(value)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, of an index that names files of its own folder, and no others."""
    result = read_json_file(index).get("weight_map")
    names = result.values() if isinstance(result, dict) else [None]
    if not all(isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors") for name in names):
        raise ModelConfigError(f"{index}: weight_map must be an object of tensor -> name of a file beside it")
    return dict(result or {})
